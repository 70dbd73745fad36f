//go:build e2e

package switchover

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// restarts is the number of restarts; $RESTARTS overrides it.
const restarts = 40

// bystanders is the number of Services without traffic. With them, a first sync writes about twenty thousand elements.
const bystanders = 800

// TestRestarts stops and starts the program repeatedly under load: by SIGTERM and SIGKILL, at random times of its start and of its work.
// Services without traffic change meanwhile, so that a start finds tables that differ from its plan. No connection, request or message
// may be lost.
func TestRestarts(t *testing.T) {
	times := lab.Setting(t, "RESTARTS", restarts)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := newRestarting(t, rand.New(rand.NewPCG(seed, 0)))
	w.start(t)
	w.awaitSync(t)
	pins := w.pins(t)
	traffic, err := newTraffic(t.Context(), w.Client, w.Pods[2], []*lab.Host{w.Client, w.Node, w.Pods[2]}, w.targets())
	lab.Must(t, err)
	// Dense enough to detect a moment without rules, and light enough for two busy processors.
	traffic.loads[inet.TCP].every, traffic.loads[inet.UDP].every = 3*time.Millisecond, 10*time.Millisecond
	begin := time.Now()
	figures, err := traffic.during(t.Context(), func() {
		for range times {
			w.restart(t)
		}
		w.awaitSync(t)
	})
	lab.Must(t, err)
	t.Logf("%d restarts in %v: %s; %d connections, %d UDP requests, %d flows with %d messages, %d segments sent again", times,
		time.Since(begin).Round(time.Second), w.ends, figures.tcp.made, figures.udp.made, figures.flows, figures.sent, figures.retransmitted)
	for name, tally := range map[string]*tally{"connections": figures.tcp, "UDP requests": figures.udp} {
		if n := len(tally.failures); n > 0 || tally.made < 100 {
			t.Errorf("%d of %d %s failed: %v", n, tally.made, name, tally.kinds())
		}
	}
	for _, err := range figures.broken {
		t.Errorf("broken: %v", err)
	}
	if figures.lost+figures.moved > 0 {
		t.Errorf("flows lost %d messages, and moved %d times to another endpoint: %s", figures.lost, figures.moved, strings.Join(figures.losses, "\n"))
	}
	for client, server := range w.pins(t) {
		if pins[client] != server {
			t.Errorf("session affinity: %s reaches %s, want %s", client, server, pins[client])
		}
	}
	for kind, n := range map[string]int{"during a start": w.ends.starting, "during changes": w.ends.working, "SIGTERM": w.ends.term, "SIGKILL": w.ends.kill} {
		if n < times/5 {
			t.Errorf("only %d of %d stops: %s", n, times, kind)
		}
	}
}

// restarting is a node whose program reads manifests from a folder.
type restarting struct {
	*lab.Lab
	r       *rand.Rand
	folder  string
	log     string
	running *program.Program
	// startup is the time from the first start to its first sync.
	startup time.Duration
	changes int
	ends    manners
	// ahead are the next planned stops.
	ahead []end
	path  string
}

// end is one way to stop the program: during its start or during its work, by SIGKILL or SIGTERM.
type end struct{ starting, kill bool }

// nextEnd returns the next stop. Of six stops in random order, four are during a start, and three are by SIGKILL.
func (w *restarting) nextEnd() end {
	if len(w.ahead) == 0 {
		for i := range 6 {
			w.ahead = append(w.ahead, end{starting: i%3 != 0, kill: i%2 == 0})
		}
		w.r.Shuffle(len(w.ahead), func(i, j int) { w.ahead[i], w.ahead[j] = w.ahead[j], w.ahead[i] })
	}
	next := w.ahead[0]
	w.ahead = w.ahead[1:]
	return next
}

// manners counts the stops.
type manners struct{ starting, working, term, kill int }

func (e manners) String() string {
	return fmt.Sprintf("%d during a start, %d during changes; %d by SIGTERM, %d by SIGKILL", e.starting, e.working, e.term, e.kill)
}

func newRestarting(t *testing.T, r *rand.Rand) *restarting {
	t.Helper()
	dir := t.TempDir()
	w := &restarting{
		Lab: lab.ForTest(t, lab.Config{Pods: 3, Remotes: 1}), r: r, folder: filepath.Join(dir, "manifests"), log: filepath.Join(dir, "log"),
	}
	w.path = program.BuildForTest(t)
	serve(t, w.Pods[0], w.Pods[1], w.Remotes[0])
	lab.Must(t, os.Mkdir(w.folder, 0o700))
	serving := []*lab.Host{w.Pods[0], w.Pods[1], w.Remotes[0]}
	web := exposed(serving...)
	sticky := numbered("sticky", 12, serving...)
	sticky[0].(*corev1.Service).Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.write(t, "still", append(append([]runtime.Object{world.Node()}, web...), sticky...)...)
	var others []runtime.Object
	for i := range bystanders {
		others = append(others, numbered(fmt.Sprintf("bystander-%d", i), 100+i, serving...)...)
	}
	w.write(t, "others", others...)
	w.change(t)
	return w
}

// numbered returns a Service, whose number determines its cluster IPs, and its EndpointSlices.
func numbered(name string, number int, servers ...*lab.Host) []runtime.Object {
	var pairs [][2]discoveryv1.Endpoint
	for _, h := range servers {
		node := world.NodeName
		if strings.HasPrefix(h.Name, "remote") {
			node = world.OtherNode
		}
		pairs = append(pairs, world.Endpoints(h.Addrs(), node))
	}
	service := world.ServiceAt(name, fmt.Sprintf("10.96.%d.%d", number>>8, number&255), fmt.Sprintf("fd00:10:96::%x", number))
	return append([]runtime.Object{service}, world.Slices(name, echoPort, pairs...)...)
}

// write writes objects into the folder, atomically.
func (w *restarting) write(t *testing.T, name string, objects ...runtime.Object) {
	t.Helper()
	lab.Must(t, world.Write(w.folder, name, objects...))
}

// change rewrites up to twenty Services with random endpoints, so that their elements and sometimes the chains differ.
func (w *restarting) change(t *testing.T) {
	t.Helper()
	w.changes++
	all := []*lab.Host{w.Pods[0], w.Pods[1], w.Remotes[0]}
	var objects []runtime.Object
	for i := range 1 + w.r.IntN(20) {
		w.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		objects = append(objects, numbered(fmt.Sprintf("changing-%d", i), 50_000+i, all[:w.r.IntN(len(all)+1)]...)...)
	}
	w.write(t, "changing", objects...)
}

func (w *restarting) targets() (to []netip.AddrPort) {
	for _, s := range []string{
		"10.96.0.10:80", "[fd00:10:96::a]:80", "198.51.100.10:80", "[2001:db8:1::10]:80", "192.0.2.1:30080", "[2001:db8::1]:30080",
	} {
		to = append(to, netip.MustParseAddrPort(s))
	}
	return to
}

func (w *restarting) start(t *testing.T) {
	t.Helper()
	w.running = program.ForTest(t, program.Config{
		Host: w.Node, Path: w.path, Log: w.log, Args: []string{
			"--manifests", w.folder, "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "-v", "2",
		},
	})
}

// awaitSync waits for the first sync since the program's start.
func (w *restarting) awaitSync(t *testing.T) {
	t.Helper()
	at := w.running.Synced(t)
	if w.startup == 0 {
		w.startup = at.Sub(w.running.Started())
		t.Logf("the first start took %v", w.startup)
	}
}

// restart stops the program at a random time of its start or of its work, by SIGTERM or SIGKILL, and starts it.
func (w *restarting) restart(t *testing.T) {
	t.Helper()
	between := func(least, most time.Duration) {
		sleepUntil(t.Context(), time.Now().Add(least+time.Duration(w.r.Int64N(int64(most-least)))))
	}
	next := w.nextEnd()
	if !next.starting {
		w.awaitSync(t)
		w.ends.working++
		// The program reads the folder after 50 ms without changes.
		w.change(t)
		between(40*time.Millisecond, 120*time.Millisecond)
	} else {
		w.ends.starting++
		between(w.startup/3, w.startup*5/4)
	}
	if next.kill {
		w.ends.kill++
		w.running.Kill()
	} else {
		w.ends.term++
		lab.Must(t, w.running.Signal(syscall.SIGTERM))
		<-w.running.Ended()
	}
	if w.r.IntN(2) == 0 {
		w.change(t) // the next start finds tables that differ from its plan
	}
	w.start(t)
}

// pins connects to the Service with session affinity, and returns the answering server by client and address.
func (w *restarting) pins(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, to := range []netip.AddrPort{netip.MustParseAddrPort("10.96.0.12:80"), netip.MustParseAddrPort("[fd00:10:96::c]:80")} {
		for _, from := range []*lab.Host{w.Client, w.Node, w.Pods[2]} {
			servers, err := from.Spread(t.Context(), inet.TCP, to, 5, lab.Options{})
			if err != nil || len(servers) != 1 {
				t.Fatalf("session affinity: %s -> %s: %v, %v", from.Name, to, servers, err)
			}
			for server := range servers {
				out[from.Name+" -> "+to.String()] = server
			}
		}
	}
	return out
}
