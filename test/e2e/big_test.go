//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	// endpointsEach is the number of endpoints of every Service of the big cluster.
	endpointsEach = 10
	// samples is the number of Services with real endpoints.
	samples = 50
)

// bigSize returns the number of Services: 10,000 by default, else BIG.
func bigSize(t *testing.T) int {
	n := lab.Setting(t, "BIG", 10_000)
	if n < samples {
		t.Fatalf("BIG=%d: want a number of Services, at least %d", n, samples)
	}
	return n
}

// figures are the results of a test, to be logged in one block.
type figures struct{ lines []string }

func (f *figures) add(what, format string, args ...any) {
	f.lines = append(f.lines, fmt.Sprintf("  %-52s %s", what, fmt.Sprintf(format, args...)))
}

// TestBigCluster measures a cluster of 10,000 Services with ten endpoints each: the start, one change, and a restart under
// traffic.
func TestBigCluster(t *testing.T) {
	n := bigSize(t)
	w := ownWorld(t, lab.Config{Pods: 7, Remotes: 6})
	serveEcho(t, backendPort, append(w.Pods[:6:6], w.Remotes[:5]...)...)
	var f figures
	defer func() { t.Logf("%d Services x %d endpoints:\n%s", n, endpointsEach, strings.Join(f.lines, "\n")) }()

	begin := time.Now()
	ips := w.createBig(n)
	f.add("creation of Services and EndpointSlices", "%.1f s", time.Since(begin).Seconds())

	d := w.start()
	eventually(t, 2*time.Minute, func() error { return synced(d) })
	f.add("start: exec until everything is programmed", "%.2f s", time.Since(d.Started()).Seconds())
	m := d.awaitIdle(patience)
	f.add("start: sync / of which kernel", "%.0f ms / %.0f ms", 1000*m[`kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"}`],
		1000*m["kubenftproxy_batch_duration_seconds_sum"])
	f.add("start: batch", "%.0f elements, %.1f MiB", m["kubenftproxy_batch_elements_sum"], m["kubenftproxy_batch_bytes_sum"]/(1<<20))
	f.add("start: RSS / peak", "%.0f MiB / %.0f MiB", d.memory("VmRSS"), d.memory("VmHWM"))
	if got := m[`kubenftproxy_elements{ip_family="IPv4",set="endpoints"}`]; got != float64(n*endpointsEach) {
		t.Errorf("%v elements in the map of endpoints, want %d", got, n*endpointsEach)
	}
	for i := range samples {
		w.checkSample(ips[sampleIndex(n, i)])
	}
	testReplace(t, w, d, &f, ips[sampleIndex(n, 0)])
	testRestart(t, w, d, &f, ips[sampleIndex(n, 1)])
}

// synced returns nil after the first sync.
func synced(d *daemon) error {
	m, err := d.scrape()
	if err != nil {
		return err
	}
	batches, _ := m.Sum("kubenftproxy_batches_total")
	if adopted, _ := m.Sum("kubenftproxy_restarts_adopted_total"); batches+adopted == 0 {
		return fmt.Errorf("nothing programmed yet; log: %s", d.LogTail(3))
	}
	return nil
}

// sampleIndex distributes the samples over all Services.
func sampleIndex(n, i int) int { return i * (n / samples) }

func bigName(i int) string { return fmt.Sprintf("big-%05d", i) }

// createBig stores the Services with one EndpointSlice each, and returns the cluster IPs in order. It writes to etcd directly:
// the API server's allocator of cluster IPs counts all of them for each new one, so 10,000 Services take minutes. The API server
// serves and watches them as others.
func (w *world) createBig(n int) []netip.AddrPort {
	w.Helper()
	first := service("template")
	first.Spec.ClusterIP, first.Spec.Ports = "10.96.1.1", first.Spec.Ports[:1]
	w.apply(first)
	template, err := w.api.Client().CoreV1().Services("default").Get(w.Context(), "template", metav1.GetOptions{})
	must(w, err)
	store := w.api.Store(w.Context())
	real := map[int]bool{}
	for i := range samples {
		real[sampleIndex(n, i)] = true
	}
	var ips []netip.AddrPort
	for i := range n {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(128 + i>>8), byte(i)})
		ips = append(ips, netip.AddrPortFrom(ip, servicePort))
		svc, slice := template.DeepCopy(), w.bigSlice(i, real[i])
		svc.Name, svc.Spec.ClusterIP, svc.Spec.ClusterIPs = bigName(i), ip.String(), []string{ip.String()}
		store.Service(svc)
		store.Slice(slice)
	}
	must(w, store.Flush())
	w.awaitCache(n)
	return ips
}

// awaitCache waits until the cache of the API server has n Services and slices. The store writes many objects in one revision. A watch that
// begins with the cache in the middle of a revision would miss the others.
func (w *world) awaitCache(n int) {
	w.Helper()
	eventually(w, patience, func() error {
		fromCache := metav1.ListOptions{ResourceVersion: "0"}
		services, err := w.api.Client().CoreV1().Services("default").List(w.Context(), fromCache)
		if err != nil {
			return err
		}
		slices, err := w.api.Client().DiscoveryV1().EndpointSlices("default").List(w.Context(), fromCache)
		if err == nil && (len(services.Items) < n || len(slices.Items) < n) {
			err = fmt.Errorf("%d Services, %d slices, want %d", len(services.Items), len(slices.Items), n)
		}
		return err
	})
}

// bigSlice returns the slice of Service number i. Its endpoints are pods of the lab, five local and five remote ones, or unused
// addresses.
func (w *world) bigSlice(i int, real bool) *discoveryv1.EndpointSlice {
	var endpoints []discoveryv1.Endpoint
	for k := range endpointsEach {
		switch {
		case real && k < 5:
			endpoints = append(endpoints, endpoint(w.Pods[k].IPv4))
		case real:
			endpoints = append(endpoints, elsewhere(endpoint(w.Remotes[k-5].IPv4)))
		default:
			id := i*endpointsEach + k
			addr := netip.AddrFrom4([4]byte{10, byte(245 + id>>16), byte(id >> 8), byte(id)})
			e := endpoint(addr)
			e.NodeName = new(fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", id%8, id%250)) // as long as in a real cluster
			endpoints = append(endpoints, e)
		}
	}
	s := slice(bigName(i), bigName(i)+"-a", endpoints...)
	s.Ports = s.Ports[:1]
	return s
}

// checkSample checks that all connections to a sampled Service are answered, by ten servers.
func (w *world) checkSample(to netip.AddrPort) {
	w.Helper()
	from := []*lab.Host{w.Pods[6], w.Node, w.Client}
	servers := map[string]int{}
	for _, h := range from {
		counts, err := h.Spread(w.Context(), inet.TCP, to, 50, lab.Options{Timeout: time.Second})
		must(w, err)
		for name, n := range counts {
			servers[name] += n
		}
	}
	if len(servers) != endpointsEach || servers[lab.TimedOut.String()]+servers[lab.Refused.String()] > 0 {
		w.Errorf("%s: %v, want answers from %d servers", to, servers, endpointsEach)
	}
}

// testReplace replaces one endpoint back and forth: each time by one small batch, and new connections follow at once.
func testReplace(t *testing.T, w *world, d *daemon, f *figures, to netip.AddrPort) {
	var latencies []time.Duration
	var elements []float64
	before := d.awaitIdle(patience)
	for i := range 20 {
		previous, next := w.Pods[4], w.Pods[5]
		if i%2 == 1 {
			previous, next = next, previous
		}
		s := w.bigSlice(0, true)
		s.Endpoints[4] = endpoint(next.IPv4)
		s.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": time.Now().Format(time.RFC3339Nano)}
		if _, err := w.api.Client().DiscoveryV1().EndpointSlices("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		latency, err := follow(t.Context(), w.Pods[6], to, next.Name)
		must(t, err)
		latencies = append(latencies, latency)
		if counts, err := w.Pods[6].Spread(t.Context(), inet.TCP, to, 100, lab.Options{}); err != nil || counts[previous.Name] > 0 {
			t.Errorf("after the replacement of %s: %v, %v", previous.Name, counts, err)
		}
		after := d.awaitIdle(patience)
		if sent := after[`kubenftproxy_batches_total{kind="partial"}`] - before[`kubenftproxy_batches_total{kind="partial"}`]; sent != 1 {
			t.Errorf("%v batches for one endpoint, want 1", sent)
		}
		elements = append(elements, after["kubenftproxy_batch_elements_sum"]-before["kubenftproxy_batch_elements_sum"])
		before = after
		// Later changes are collected for --min-sync-period. This measures the first one after a quiet time.
		time.Sleep(150 * time.Millisecond)
	}
	slices.Sort(latencies)
	f.add("one endpoint replaced: API answer until first packet", "median %v, worst of %d %v", latencies[10].Round(10*time.Microsecond),
		len(latencies), latencies[19].Round(10*time.Microsecond))
	f.add("one endpoint replaced: elements in its only batch", "%v to %v", slices.Min(elements), slices.Max(elements))
	f.add("one endpoint replaced: trigger until programmed (mean)", "%.1f ms",
		1000*before[`kubeproxy_network_programming_duration_seconds_sum{ip_family="IPv4"}`]/before[`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`])
	// The endpoint, its hairpin element, the state, and sometimes endpoints that are moved.
	if most := slices.Max(elements); most > 16 {
		t.Errorf("%v elements for one endpoint, want a handful", most)
	}
	if worst := latencies[19]; worst > time.Second {
		t.Errorf("a change took %v to reach packets, want less than a second", worst)
	}
	if full := before[`kubenftproxy_batches_total{kind="full"}`]; full != 1 {
		t.Errorf("%v full batches, want 1", full)
	}
}

// follow opens connections until the server answers, and returns the time that took.
func follow(ctx context.Context, from *lab.Host, to netip.AddrPort, server string) (time.Duration, error) {
	begin := time.Now()
	for time.Since(begin) < patience {
		a := from.Probe(ctx, inet.TCP, to, lab.Options{})
		if a.Outcome == lab.Answered && a.Server == server {
			return time.Since(begin), nil
		}
	}
	return 0, fmt.Errorf("%s doesn't answer at %s", server, to)
}

// testRestart restarts the daemon without changes, under traffic: it sends no batch, and no connection fails.
func testRestart(t *testing.T, w *world, d *daemon, f *figures, to netip.AddrPort) {
	open := w.converse([]netip.AddrPort{to}, w.Pods[6])[0]
	load := startLoad(t, w.Pods[6], to)
	d.stop()
	again := w.start()
	eventually(t, 2*time.Minute, func() error { return synced(again) })
	took := time.Since(again.Started())
	m := again.awaitIdle(patience)
	lab.Check(t, open.goOn(), "established connection")
	load.end()

	f.add("restart: exec until adopted", "%.2f s", took.Seconds())
	f.add("restart: RSS / peak", "%.0f MiB / %.0f MiB", again.memory("VmRSS"), again.memory("VmHWM"))
	f.add("restart: new connections meanwhile", "%d in %.1f s, lost %d, slowest %v", load.made, load.during.Seconds(),
		load.lost, load.slowest.Round(100*time.Microsecond))
	if sent, _ := m.Sum("kubenftproxy_batches_total"); sent != 0 || m["kubenftproxy_restarts_adopted_total"] != 1 {
		t.Errorf("restart with nothing changed: %v batches, adopted %v, want 0 and 1: %q", sent,
			m["kubenftproxy_restarts_adopted_total"], again.lines(`"Synced"`))
	}
	if load.lost > 0 || load.made < 100 {
		t.Errorf("%d of %d connections lost in the restart; the first: %s", load.lost, load.made, load.first)
	}
	d.noErrors()
	again.noErrors()
}

// load opens a new connection every millisecond.
type load struct {
	made, lost int
	slowest    time.Duration
	during     time.Duration
	first      string
	stop, done chan struct{}
}

// startLoad starts to connect, with enough goroutines to keep the rate on busy processors.
func startLoad(t *testing.T, from *lab.Host, to netip.AddrPort) *load {
	l := &load{stop: make(chan struct{}), done: make(chan struct{})}
	begin := time.Now()
	ticks := make(chan struct{})
	var mu sync.Mutex
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for range ticks {
				// Shorter than the second after which TCP repeats a lost SYN.
				a := from.Probe(context.WithoutCancel(t.Context()), inet.TCP, to, lab.Options{Timeout: 900 * time.Millisecond})
				mu.Lock()
				l.note(a)
				mu.Unlock()
			}
		})
	}
	go func() {
		defer close(l.done)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for sent, stopped := 0, false; !stopped; {
			select {
			case <-l.stop:
				stopped = true
			case <-ticker.C:
				for ; sent < int(time.Since(begin)/time.Millisecond); sent++ { // catch up after missed ticks
					ticks <- struct{}{}
				}
			}
		}
		close(ticks)
		running.Wait()
		l.during = time.Since(begin)
	}()
	return l
}

func (l *load) note(a lab.Answer) {
	l.made++
	l.slowest = max(l.slowest, a.RTT)
	if a.Outcome != lab.Answered {
		if l.lost == 0 {
			l.first = a.String()
		}
		l.lost++
	}
}

// end stops the load and waits for the connections that are open.
func (l *load) end() {
	close(l.stop)
	<-l.done
}
