//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/faulty"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// besieged is a world whose daemon reaches the API server through a server that makes faults. A Service that does not change, and
// one without endpoints, are probed continuously.
type besieged struct {
	*world
	*faulty.Server
	d          *daemon
	kubeconfig string
	tokenFile  string
	// made numbers the changes.
	made    int
	wrong   sync.Map // wrong results of probes, with their numbers
	answers atomic.Int64
}

// besiege creates a world with a server of faults before its API server, without the program.
func besiege(t *testing.T, remotes int) *besieged {
	t.Helper()
	b := &besieged{world: ownWorld(t, lab.Config{Pods: 3, Remotes: remotes})}
	b.serve(b.Pods[0], b.Pods[1])
	var err error
	b.Server, err = faulty.Start(faulty.Config{
		Listen: faulty.Listen(netip.AddrPortFrom(b.Node.IPv4, 0).String(), b.Node.Do), Upstream: b.api.Proxy(),
	})
	must(t, err)
	t.Cleanup(b.Server.Close)
	b.kubeconfig = filepath.Join(b.dir, "faulty.kubeconfig")
	return b
}

func newBesieged(t *testing.T) *besieged {
	t.Helper()
	b := besiege(t, 1)
	b.tokenFile = filepath.Join(b.dir, "token")
	b.setToken("first")
	must(t, b.Kubeconfig(b.kubeconfig, faulty.Credentials{Token: b.tokenFile}))
	b.begin(t)
	return b
}

// begin starts the program, and the probes once it serves.
func (b *besieged) begin(t *testing.T) {
	t.Helper()
	b.apply(service("stable"), slice("stable", "stable-1", endpoint(b.Pods[0].IPv4)), service("empty"), service("moving"))
	b.change()
	b.d = b.startOn(b.Node, b.kubeconfig)
	reach(t, b.Pods[2], b.clusterIPs("stable")[0], "pod-0")
	b.awaitChange(t, patience)
	b.probe()
}

func (b *besieged) setToken(token string) {
	b.Helper()
	must(b, os.WriteFile(b.tokenFile, []byte(token), 0o600))
}

// probe probes until the test ends. UDP does not repeat a lost packet, and a reply may take long on a busy machine.
func (b *besieged) probe() {
	ctx, cancel := context.WithCancel(b.Context())
	var probes sync.WaitGroup
	for name, want := range map[string]string{"stable": "pod-0", "empty": ""} {
		to := b.clusterIPs(name)[0]
		for _, proto := range protocols {
			probes.Go(func() {
				for ctx.Err() == nil {
					a := b.Pods[2].Probe(ctx, proto, to, lab.Options{Timeout: patience / 4})
					if a.Server != want && ctx.Err() == nil {
						n, _ := b.wrong.LoadOrStore(fmt.Sprintf("%s %s: %v", name, proto, a), new(atomic.Int64))
						n.(*atomic.Int64).Add(1)
					}
					b.answers.Add(1)
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	}
	b.Cleanup(func() {
		cancel()
		probes.Wait()
	})
}

// rightAnswers fails the test if a probe got a wrong answer.
func (b *besieged) rightAnswers(t *testing.T) {
	t.Helper()
	b.wrong.Range(func(what, n any) bool {
		t.Errorf("%d times: %v", n.(*atomic.Int64).Load(), what)
		return true
	})
	t.Logf("%d probes were answered", b.answers.Load())
}

// change creates a Service, deletes the previous one, and moves another to the other endpoint.
func (b *besieged) change() {
	b.Helper()
	b.made++
	fresh, previous := fmt.Sprintf("fresh-%d", b.made), fmt.Sprintf("fresh-%d", b.made-1)
	b.apply(service(fresh), slice(fresh, fresh, endpoint(b.Pods[0].IPv4)), slice("moving", "moving-1", endpoint(b.Pods[b.made%2].IPv4)))
	b.delete(service(previous), slice(previous, previous))
}

// changed returns nil if the last change is served.
func (b *besieged) changed() error {
	fresh := b.clusterIPs(fmt.Sprintf("fresh-%d", b.made))[0]
	if err := errors.Join(
		reached(b.Context(), b.Pods[2], inet.TCP, b.clusterIPs("moving")[0], fmt.Sprintf("pod-%d", b.made%2)),
		reached(b.Context(), b.Pods[2], inet.TCP, fresh, "pod-0"),
	); err != nil {
		return err
	}
	if listing := nft(b, b.Node, "list", "table", "ip", "kube-nftproxy"); strings.Contains(listing, fmt.Sprintf("fresh-%d:", b.made-1)) {
		return fmt.Errorf("fresh-%d was deleted and is still served:\n%s", b.made-1, listing)
	}
	return nil
}

// awaitChange waits until the last change is served, and returns the time that took.
func (b *besieged) awaitChange(t *testing.T, within time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	eventually(t, within, b.changed)
	return time.Since(start)
}

// awaitWatches waits until everything is watched again: a change is served only if the watches of its objects work.
func (b *besieged) awaitWatches(t *testing.T) {
	t.Helper()
	eventually(t, patience, func() error {
		if n := b.Watches(); n < 3 {
			return fmt.Errorf("%d watches, want 3 or 4", n)
		}
		return nil
	})
}

// healthy returns an error unless the program reports that it is healthy.
func (b *besieged) healthy() error { return answer(b.d, "healthz", http.StatusOK) }

// apiFaults make a fault, call during for changes meanwhile, and remove the fault.
var apiFaults = []struct {
	name string
	make func(*testing.T, *besieged)
	long bool // it takes a while
}{
	{"connections reset", func(t *testing.T, b *besieged) {
		if b.Cut() == 0 {
			t.Error("there was no connection")
		}
		b.change()
	}, false},
	{"watches ended", func(t *testing.T, b *besieged) {
		if n := b.EndWatches(""); n < 3 {
			t.Errorf("%d watches, want 3 or 4", n)
		}
		b.change()
	}, false},
	{"watches expired", func(t *testing.T, b *besieged) {
		if n := b.Expire(); n < 3 {
			t.Errorf("%d watches, want 3 or 4", n)
		}
		b.change()
	}, false},
	{"events twice", func(t *testing.T, b *besieged) {
		b.Edit(func(e faulty.Event) []faulty.Event { return []faulty.Event{e, e} })
		b.change()
		eventually(t, patience, b.changed)
		b.change()
	}, false},
	{"an object that can't be read", garbled, false},
	{"Services late", func(t *testing.T, b *besieged) { late(t, b, "services") }, false},
	{"EndpointSlices late", func(t *testing.T, b *besieged) { late(t, b, "endpointslices") }, true},
	{"refused with 429", refusing(http.StatusTooManyRequests), false},
	{"refused with 500", refusing(http.StatusInternalServerError), true},
	{"refused with 503", refusing(http.StatusServiceUnavailable), true},
	{"refused with 401", refusing(http.StatusUnauthorized), true},
	{"refused with 403", refusing(http.StatusForbidden), true},
	{"another token", func(_ *testing.T, b *besieged) {
		b.setToken("second")
		b.Require("second")
		b.Cut()
		b.change()
	}, true},
	{"a list from the past", firstLists(func(before []byte) []byte { return before }), true},
	{"a list that ends early", firstLists(func(before []byte) []byte { return before[:len(before)/2] }), false},
	{"lists are cut in the middle", cutLists, false},
	{"lists arrive slowly", slowLists, false},
	{"objects held back at a start", heldBack, false},
	{"connections are closed gracefully", goAway, false},
	{"the server lost its memory", restarted, false},
	{"nobody listens", func(t *testing.T, b *besieged) {
		b.Down()
		b.awayWithRestart(t, lab.Setting(t, "API_FAULT", 2*time.Second))
		must(t, b.Up())
	}, false},
	{"packets are lost", func(t *testing.T, b *besieged) { b.lossy(t, b.away) }, true},
	{"packets are lost, and the program restarts", func(t *testing.T, b *besieged) { b.lossy(t, b.awayWithRestart) }, true},
	{"the server stands still", func(t *testing.T, b *besieged) {
		still, resume := context.WithCancel(t.Context())
		defer resume()
		b.Edit(func(e faulty.Event) []faulty.Event { <-still.Done(); return []faulty.Event{e} })
		b.Intercept(func(http.ResponseWriter, *http.Request) bool { <-still.Done(); return false })
		b.away(t, lab.Setting(t, "API_FAULT", 2*time.Second))
	}, true},
	{"at random", random, false},
}

// lossy drops all packets between the program and the API server: neither notices that the connection is dead.
func (b *besieged) lossy(t *testing.T, during func(*testing.T, time.Duration)) {
	_, port, _ := strings.Cut(b.Address(), ":")
	nft(t, b.Node, fmt.Sprintf("add table inet lossy; add chain inet lossy out { type filter hook output priority 0; }; "+
		"add rule inet lossy out tcp dport %s drop; add rule inet lossy out tcp sport %s drop", port, port))
	during(t, lab.Setting(t, "API_FAULT", 2*time.Second))
	nft(t, b.Node, "delete table inet lossy")
}

// away is an outage of the API server: the program reports that it is healthy, and repairs foreign changes.
func (b *besieged) away(t *testing.T, long time.Duration) {
	t.Helper()
	b.change()
	never(t, long, b.healthy)
	nft(t, b.Node, "delete element ip kube-nftproxy singles { "+b.clusterIPs("moving")[0].Addr().String()+" . tcp . 80 }")
	eventually(t, patience, b.unchanged)
}

// awayWithRestart restarts the program during an outage: the rules stay.
func (b *besieged) awayWithRestart(t *testing.T, long time.Duration) {
	t.Helper()
	b.away(t, long/2)
	b.d.Kill()
	b.d = b.startOn(b.Node, b.kubeconfig)
	eventually(t, patience, func() error {
		// With packet loss, the timeout takes half a minute.
		if len(b.d.lines("Cannot reach the API server"))+len(b.d.lines("Waiting to read all Services")) == 0 {
			return errors.New("no word of it in the log")
		}
		return answer(b.d, "livez", http.StatusOK)
	})
	never(t, long/2, b.unchanged)
}

// unchanged returns an error unless the state before the last change is served.
func (b *besieged) unchanged() error {
	return reached(b.Context(), b.Pods[2], inet.TCP, b.clusterIPs("moving")[0], fmt.Sprintf("pod-%d", (b.made-1)%2))
}

// late delays the events of one resource while those of the others continue.
func late(t *testing.T, b *besieged, resource string) {
	held, release := context.WithCancel(t.Context())
	defer release()
	b.Edit(func(e faulty.Event) []faulty.Event {
		if e.Resource == resource {
			<-held.Done()
		}
		return []faulty.Event{e}
	})
	b.change()
	b.change()
	never(t, time.Second, b.healthy)
}

// alterLists ends all watches so that all objects are listed again, and passes the body of each list through alter
// until it returns false.
func (b *besieged) alterLists(t *testing.T, alter func(http.ResponseWriter) (http.ResponseWriter, bool)) {
	t.Helper()
	b.change()
	var more atomic.Bool
	more.Store(true)
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if faulty.IsWatch(r) || r.Method != http.MethodGet || !more.Load() {
			return false
		}
		altered, again := alter(w)
		more.Store(again)
		b.Pass(altered, r)
		return true
	})
	if b.Expire() < 3 {
		t.Error("there were not enough watches")
	}
	eventually(t, patience, func() error {
		if more.Load() {
			return errors.New("there were too few lists")
		}
		return nil
	})
}

// cutWriter aborts a response in its middle.
type cutWriter struct{ http.ResponseWriter }

// Write implements http.ResponseWriter.
func (w cutWriter) Write(p []byte) (int, error) {
	_, _ = w.ResponseWriter.Write(p[:len(p)/2]) // the client may have gone
	panic(http.ErrAbortHandler)
}

// cutLists resets the stream of the first eight lists in the middle of the list.
func cutLists(t *testing.T, b *besieged) {
	var lists atomic.Int64
	b.alterLists(t, func(w http.ResponseWriter) (http.ResponseWriter, bool) {
		return cutWriter{w}, lists.Add(1) < 8
	})
}

// slowWriter sends some bytes of a response at a time.
type slowWriter struct{ http.ResponseWriter }

// Write implements http.ResponseWriter.
func (w slowWriter) Write(p []byte) (n int, err error) {
	const part = 64
	for chunk := range slices.Chunk(p, part) {
		sent, err := w.ResponseWriter.Write(chunk)
		if n += sent; err != nil {
			return n, err
		}
		_ = http.NewResponseController(w.ResponseWriter).Flush() // the client may have gone
		time.Sleep(20 * time.Millisecond)
	}
	return n, nil
}

// slowLists sends each kind's list in parts.
func slowLists(t *testing.T, b *besieged) {
	var lists atomic.Int64
	b.alterLists(t, func(w http.ResponseWriter) (http.ResponseWriter, bool) {
		return slowWriter{w}, lists.Add(1) < 4
	})
}

// goAway makes each response close its connection for further requests (HTTP/2 GOAWAY), as the API server does with
// --goaway-chance, while watches end and begin. Watches continue on the closed connection.
func goAway(t *testing.T, b *besieged) {
	b.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Connection", "close")
		return false
	})
	_, before := b.Load()
	const rounds = 3
	for range rounds {
		b.awaitWatches(t)
		b.EndWatches("")
		b.change()
		b.awaitChange(t, patience)
	}
	_, after := b.Load()
	if n := after - before; n < rounds || n > 20*rounds {
		t.Errorf("%d connections in %d rounds", n, rounds)
	}
}

// heldBack restarts the program while the API server accepts all connections and answers no list of Services. Status has a finding, and the rules
// of the earlier process stay.
func heldBack(t *testing.T, b *besieged) {
	held, release := context.WithCancel(t.Context())
	defer release()
	b.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if faulty.Resource(r) == "services" {
			<-held.Done()
		}
		return false
	})
	b.d.Kill()
	d := &desk{T: t, Lab: b.Lab, socket: filepath.Join(b.dir, "control.sock")}
	b.d = b.startOn(b.Node, b.kubeconfig, "--control-socket", d.socket)
	b.change()
	f := d.finds("wrong WaitingForObjects").Findings[0]
	if f.What != "this process has programmed nothing yet: waiting to read all Services and EndpointSlices" || !strings.HasPrefix(f.Object, "API server https://") ||
		f.Impact != "the rules of the previous process keep serving, without changes" {
		t.Errorf("%+v", f)
	}
	if err := b.unchanged(); err != nil {
		t.Error(err)
	}
	release()
	d.finds()
}

// garbled corrupts an EndpointSlice in an event of a watch: the program lists all EndpointSlices, and uses this one and
// all others.
func garbled(t *testing.T, b *besieged) {
	const name = "garbled"
	addr := b.Pods[0].IPv4.String()
	b.apply(service(name))
	b.Edit(func(e faulty.Event) []faulty.Event {
		if bytes.Contains(e.Raw, []byte(name)) {
			e.Raw = bytes.ReplaceAll(e.Raw, append([]byte{byte(len(addr))}, addr...), append([]byte{0x7f}, addr...))
		}
		return []faulty.Event{e}
	})
	b.apply(slice(name, name, endpoint(b.Pods[0].IPv4)))
	b.change()
	eventually(t, patience, func() error {
		return b.changed()
	})
	reach(t, b.Pods[2], b.clusterIPs(name)[0], "pod-0")
	b.Edit(nil)
	b.apply(slice(name, name, endpoint(b.Pods[1].IPv4)))
	reach(t, b.Pods[2], b.clusterIPs(name)[0], "pod-1")
	b.change()
}

// random makes random faults during random changes: CHAOS=10m sets the duration.
func random(t *testing.T, b *besieged) {
	long := lab.Setting(t, "CHAOS", 5*time.Second)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	changes, changed := 0, make(chan error, 1)
	go func() {
		r := rand.New(rand.NewPCG(seed, 1))
		for ctx.Err() == nil {
			if err := randomChanges(r)(b.world); err != nil {
				changed <- err
				return
			}
			changes++
		}
		changed <- nil
	}()
	made := map[string]int{}
	for ctx.Err() == nil {
		fault := randomFaults[r.IntN(len(randomFaults))]
		fault.begin(b, r)
		made[fault.name]++
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond) // random moments are the purpose
		b.Edit(nil)
		b.Intercept(nil)
		must(t, b.Up())
	}
	must(t, <-changed)
	t.Logf("%d rounds of changes, faults: %v", changes, made)
	b.change()
}

// randomFaults begin a fault; the caller ends it after a while.
var randomFaults = []struct {
	name  string
	begin func(*besieged, *rand.Rand)
}{
	{"reset", func(b *besieged, _ *rand.Rand) { b.Cut() }},
	{"ended", func(b *besieged, r *rand.Rand) { b.EndWatches([]string{"", "services", "endpointslices"}[r.IntN(3)]) }},
	{"expired", func(b *besieged, _ *rand.Rand) { b.Expire() }},
	{"down", func(b *besieged, _ *rand.Rand) { b.Down() }},
	{"twice", func(b *besieged, _ *rand.Rand) {
		b.Edit(func(e faulty.Event) []faulty.Event { return []faulty.Event{e, e} })
	}},
	{"slow", func(b *besieged, r *rand.Rand) {
		pause := time.Duration(r.IntN(100)) * time.Millisecond
		b.Edit(func(e faulty.Event) []faulty.Event { time.Sleep(pause); return []faulty.Event{e} })
	}},
	{"refused", func(b *besieged, r *rand.Rand) {
		status := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError}[r.IntN(4)]
		b.Intercept(func(w http.ResponseWriter, _ *http.Request) bool { faulty.Refuse(w, status); return true })
		b.Cut()
	}},
}

// refusing rejects all requests for a while, and ends the watches.
func refusing(status int) func(*testing.T, *besieged) {
	return func(t *testing.T, b *besieged) {
		b.answered(t, func(w http.ResponseWriter, _ *http.Request) bool {
			faulty.Refuse(w, status)
			return true
		})
	}
}

// answered makes answer handle all requests, ends the watches, makes a change, and waits until answer has returned true for four
// requests.
func (b *besieged) answered(t *testing.T, answer func(http.ResponseWriter, *http.Request) (counts bool)) {
	t.Helper()
	var answered atomic.Int64
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if answer(w, r) {
			answered.Add(1)
		}
		return true
	})
	b.Cut()
	b.change()
	eventually(t, patience, func() error {
		if n := answered.Load(); n < 4 {
			return fmt.Errorf("%d requests were answered", n)
		}
		return nil
	})
}

// restarted makes a change while the API server is down, and compacts etcd: after the restart, deleted objects are only missing
// in a list.
func restarted(t *testing.T, b *besieged) {
	ctx, core, discovery := t.Context(), b.api.Client().CoreV1(), b.api.Client().DiscoveryV1()
	gone := fmt.Sprintf("fresh-%d", b.made)
	b.made++
	fresh := fmt.Sprintf("fresh-%d", b.made)
	svc, err := core.Services("default").Get(ctx, gone, metav1.GetOptions{})
	must(t, err)
	var slices [2]*discoveryv1.EndpointSlice
	for i, name := range []string{gone, "moving-1"} {
		if slices[i], err = discovery.EndpointSlices("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	b.api.KillServer()
	store := b.api.Store(ctx)
	store.Delete(service(gone))
	store.Delete(slice(gone, gone))
	svc.Name, svc.Spec.ClusterIP, svc.Spec.ClusterIPs = fresh, "10.96.77.7", []string{"10.96.77.7"}
	slices[0].Name, slices[0].Labels[discoveryv1.LabelServiceName] = fresh, fresh
	slices[1].ResourceVersion, slices[1].Endpoints = "", []discoveryv1.Endpoint{endpoint(b.Pods[b.made%2].IPv4)}
	store.Service(svc)
	store.Slice(slices[0])
	store.Put(slices[1])
	must(t, errors.Join(store.Flush(), store.Compact()))
	if err := b.healthy(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	must(t, b.api.RestartServer(ctx))
}

// firstLists answers the first lists of Services and of EndpointSlices with alter(the list before a change).
func firstLists(alter func(before []byte) []byte) func(*testing.T, *besieged) {
	return func(t *testing.T, b *besieged) { answerLists(t, b, alter) }
}

func answerLists(t *testing.T, b *besieged, alter func([]byte) []byte) {
	var lists sync.Map
	for resource, path := range map[string]string{
		"services": "/api/v1/services", "endpointslices": "/apis/discovery.k8s.io/v1/endpointslices",
	} {
		raw, err := b.api.Client().Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/vnd.kubernetes.protobuf").DoRaw(t.Context())
		must(t, err)
		lists.Store(resource, alter(raw))
	}
	b.change()
	b.awaitChange(t, patience)
	b.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		raw, kept := lists.Load(faulty.Resource(r))
		if !kept || faulty.IsWatch(r) {
			return false
		}
		lists.Delete(faulty.Resource(r))
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		_, _ = w.Write(raw.([]byte))
		return true
	})
	b.Expire()
	eventually(t, patience, func() error {
		left := 0
		lists.Range(func(any, any) bool { left++; return true })
		if left > 0 {
			return fmt.Errorf("%d lists weren't asked for", left)
		}
		return nil
	})
	b.change()
}

// boundedLoad returns a function that checks the number of requests since the call: a loop without pauses would send
// thousands. Each of four resources may be listed and watched again a few times, and then repeats its requests after
// pauses of seconds.
func (b *besieged) boundedLoad() func(*testing.T) {
	start := time.Now()
	before, _ := b.Load()
	return func(t *testing.T) {
		t.Helper()
		after, _ := b.Load()
		n, long := after-before, time.Since(start)
		t.Logf("%d requests in %v", n, long.Round(time.Millisecond))
		if most := 50 + 5*int(long.Seconds()); n > most {
			t.Errorf("%d requests in %v, want at most %d", n, long, most)
		}
	}
}

// TestAPIFaults makes faults between the program and the API server, one after the other. Services stay served, and after the
// fault, changes during it are served within seconds. The API server gets few requests. API_FAULT=150s sets the duration
// of outages, and enables slow faults.
func TestAPIFaults(t *testing.T) {
	b := newBesieged(t)
	for _, f := range apiFaults {
		if f.long && os.Getenv("API_FAULT") == "" {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			b.awaitWatches(t)
			bounded := b.boundedLoad()
			f.make(t, b)
			b.Edit(nil)
			b.Intercept(nil)
			took := b.awaitChange(t, 3*patience)
			t.Logf("what changed was served %v after the end", took.Round(time.Millisecond))
			bounded(t)
			// Attempts are at most ten seconds apart, and the third one has another token.
			if bound := 30 * time.Second; took > bound {
				t.Errorf("what changed was served after %v, want at most %v", took, bound)
			}
			if err := b.healthy(); err != nil {
				t.Error(err)
			}
		})
	}
	b.rightAnswers(t)
	b.asFresh(t)
}

// asFresh compares the rules with those of a program that starts in a clean namespace.
func (b *besieged) asFresh(t *testing.T) {
	t.Helper()
	b.world.asFresh()
	if panics := b.d.lines("panic"); len(panics) > 0 {
		t.Errorf("panics: %s", strings.Join(panics, ""))
	}
}
