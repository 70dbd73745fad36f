//go:build twin

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

const (
	endpoints = 10
	patience  = 2 * time.Minute
	// probed is the name of the Service that is probed and does not change, probedAt its address.
	probed, probedAt = "probed", "10.96.0.10:80"
)

// size has the number of changes and Services, and the longest duration of the changes; 0 means no limit.
type size struct {
	changes, services int
	limit             time.Duration
}

func newSize(t *testing.T) size {
	t.Helper()
	return size{
		lab.Setting(t, "CHANGES", 5_000), lab.Setting(t, "SERVICES", 100),
		time.Duration(lab.Setting(t, "MINUTES", 0)) * time.Minute,
	}
}

// soaked is the program under test, in a lab with an [API].
type soaked struct {
	*testing.T
	*lab.Lab
	*API
	size
	dir, kubeconfig, program string
	p                        *program.Program
	random                   *rand.Rand
	broken                   atomic.Bool  // true from a flush of the ruleset until its repair
	flushes                  atomic.Int64 // number of flushes
	repairs                  []time.Duration
	probes, failed           atomic.Int64
	faults                   map[string]int
}

// TestTwinSoak makes changes as fast as the program receives them, together with repeated faults. Then it restores the initial objects. Memory,
// goroutines, files and the kernel's tables must return to their initial state, too. CHANGES=8640000 SERVICES=10000 are the changes of a day with
// 100 changes each second. MINUTES=20 ends the changes earlier.
func TestTwinSoak(t *testing.T) {
	s := newSoaked(t)
	// In a first storm, maps and buffers grow to their final size.
	const height = 80 // changes of each Service in the first storm
	first := s.settled()
	s.storm(max(s.changes/10, height*s.services))
	lab.Eventually(t, patience, func() error { // the program keeps unused elements and chains for a minute
		if now := s.settled(); now.Chains != first.Chains || now.Elements != first.Elements {
			return fmt.Errorf("%v, want as many elements and chains as in %v", now, first)
		}
		return nil
	})
	before, rules := s.settled(), s.ruleset(s.Node)
	s.Logf("before: %v", before)
	start := time.Now()
	made := s.storm(s.changes)
	spent := time.Since(start)
	lab.Eventually(t, patience, func() error {
		if diff := cmp.Diff(rules, s.ruleset(s.Node)); diff != "" {
			return fmt.Errorf("ruleset (-before +after):\n%.3000s", diff)
		}
		return nil
	})
	var after figures
	err := lab.Await(t.Context(), patience, func() error {
		after = s.settled()
		return before.compare(after)
	})
	s.Logf("after:  %v", after)
	if err != nil {
		_, stacks, _ := s.p.Get(t.Context(), "http://127.0.0.1:10249/debug/pprof/goroutine?debug=1")
		t.Errorf("%v\n%s", err, stacks)
	}
	m := s.metrics(s.p)
	s.broken.Store(true)
	s.p.Kill()
	lab.Must(t, s.Node.Command(t.Context(), "nft", "flush", "ruleset").Run())
	s.awaitIdle(s.start(s.Node, "fresh"))
	if diff := cmp.Diff(s.ruleset(s.Node), rules); diff != "" {
		t.Errorf("ruleset of a fresh start (-fresh +before):\n%.3000s", diff)
	}
	t.Logf("%d changes of %d Services in %v; %d events were sent; faults: %v; %d probes", made, s.services, spent.Round(time.Second),
		s.Delivered.Load(), s.faults, s.probes.Load())
	syncs, _ := m.Sum("kubeproxy_sync_proxy_rules_duration_seconds_count")
	full, repairs := m[`kubenftproxy_batches_total{kind="full"}`], m[`kubenftproxy_repairs_total{reason="foreign_change"}`]
	t.Logf("%v syncs, %v full batches, %v repairs", syncs, full, repairs)
	if slices.Sort(s.repairs); len(s.repairs) > 0 {
		t.Logf("flushes were repaired after %v (median), %v at most", s.repairs[len(s.repairs)/2], s.repairs[len(s.repairs)-1])
	}
	if n := s.failed.Load(); n > 0 {
		t.Errorf("%d of %d probes got no answer of the endpoint", n, s.probes.Load())
	}
}

func newSoaked(t *testing.T) *soaked {
	t.Helper()
	s := &soaked{
		T: t, Lab: lab.ForTest(t, lab.Config{Pods: 2, Remotes: 1}), size: newSize(t), dir: t.TempDir(),
		random: rand.New(rand.NewPCG(1, 2)), faults: map[string]int{},
	}
	s.API, s.kubeconfig = ForTest(t, s.Node)
	s.putProbed()
	s.restoreAll()
	for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
		if _, err := s.Pods[0].Serve(proto, 8080); err != nil {
			t.Fatal(err)
		}
	}
	s.program = program.BuildForTest(t)
	s.p = s.start(s.Node, "soaked")
	s.awaitIdle(s.p)
	s.probe()
	return s
}

func (s *soaked) start(h *lab.Host, name string) *program.Program {
	s.Helper()
	return program.ForTest(s.T, program.Config{
		Host: h, Path: s.program, Log: filepath.Join(s.dir, name+".log"),
		Args: []string{"--kubeconfig", s.kubeconfig, "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16", "--proxy-mode=nftables", "--profiling"},
	})
}

func (s *soaked) put(resource string, o object) {
	s.Helper()
	lab.Must(s, s.Put(resource, o))
}

func vip(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 97, byte(i / 250), byte(1 + i%250)}) }

func backend(i, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(n%64), byte(i / 250), byte(1 + i%250)})
}

func service(name string, ip netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip.String(), ClusterIPs: []string{ip.String()}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func slice(service string, addresses ...netip.Addr) *discoveryv1.EndpointSlice {
	port, name, tcp, ready := int32(8080), "http", corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: service + "-1", UID: types.UID(service), Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &tcp, Port: &port}},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// putProbed stores the probed Service, with a TCP and a UDP port.
func (s *soaked) putProbed() {
	s.Helper()
	svc, eps := service(probed, netip.MustParseAddrPort(probedAt).Addr()), slice(probed, s.Pods[0].IPv4)
	udp, name, port := corev1.ProtocolUDP, "udp", *eps.Ports[0].Port
	svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Protocol: udp, Port: svc.Spec.Ports[0].Port})
	eps.Ports = append(eps.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &udp, Port: &port})
	s.put("services", svc)
	s.put("endpointslices", eps)
}

// original returns the initial form of Service number i and of its EndpointSlice.
func original(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	name := fmt.Sprintf("service-%d", i)
	var addresses []netip.Addr
	for n := range endpoints {
		addresses = append(addresses, backend(i, n))
	}
	return service(name, vip(i)), slice(name, addresses...)
}

// restoreAll resets all objects to their initial form.
func (s *soaked) restoreAll() {
	s.Helper()
	for i := range s.services {
		svc, eps := original(i)
		s.put("services", svc)
		s.put("endpointslices", eps)
	}
}

// restore resets all objects to their initial form, and waits until they are programmed.
func (s *soaked) restore() {
	s.Helper()
	s.restoreAll()
	lab.Eventually(s.T, patience, func() error {
		if lag := s.Lag(); lag > 0 || !s.Watched() {
			return fmt.Errorf("%d events are not sent yet; watched: %v", lag, s.Watched())
		}
		return nil
	})
	s.awaitIdle(s.p)
}

// storm makes changes and faults, restores all objects, and returns the number of changes made.
func (s *soaked) storm(changes int) int {
	s.Helper()
	stop := s.makeFaults()
	made := s.churn(changes)
	stop()
	s.restore()
	return made
}

// churn makes changes as fast as the API sends them, and returns their number.
func (s *soaked) churn(changes int) int {
	s.Helper()
	const ahead = remembered / 4
	start := time.Now()
	for n := range changes {
		s.change(n)
		for n%256 == 0 && s.Lag() > ahead {
			time.Sleep(time.Millisecond)
		}
		if n%256 == 0 && s.limit > 0 && time.Since(start) > s.limit {
			return n
		}
	}
	return changes
}

// change makes change number n: mostly, it replaces an address in an EndpointSlice.
func (s *soaked) change(n int) {
	i := s.random.IntN(s.services)
	svc, eps := original(i)
	switch s.random.IntN(20) {
	case 0:
		lab.Must(s, errors.Join(s.Delete("services", svc), s.Delete("endpointslices", eps)))
	case 1:
		s.put("services", svc)
	case 2:
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.put("services", svc)
	case 3:
		shared := i % 250
		if i < 20 {
			shared = 0 // these Services claim the same address
		}
		svc.Spec.ExternalIPs = []string{netip.AddrFrom4([4]byte{198, 18, byte(i / 250), byte(shared)}).String()}
		s.put("services", svc)
	case 4:
		const ports = 2768
		svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(30000+i%ports)
		if i >= ports {
			svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeLoadBalancer, 0
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: netip.AddrFrom4([4]byte{198, 19, byte(i / 250), byte(i % 250)}).String()}}
		}
		s.put("services", svc)
	case 5:
		eps.Endpoints = eps.Endpoints[:s.random.IntN(endpoints)]
		s.put("endpointslices", eps)
	case 6:
		eps.Endpoints[s.random.IntN(endpoints)].Conditions.Ready = new(bool)
		s.put("endpointslices", eps)
	default:
		eps.Endpoints[s.random.IntN(endpoints)].Addresses[0] = backend(n%60_000, 20+n%40).String()
		s.put("endpointslices", eps)
	}
}

// makeFaults makes faults one after the other, until the returned function is called.
func (s *soaked) makeFaults() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var made sync.WaitGroup
	faults := []struct {
		name string
		make func()
	}{
		{"connections cut", s.Cut}, {"watches ended", s.EndWatches}, {"history forgotten", s.Forget},
		{"API server away for 2 s", func() { s.SetAway(true); sleep(ctx, 2*time.Second); s.SetAway(false) }},
		{"ruleset flushed", s.flush},
	}
	between := 3 * time.Second
	if s.services < 1000 {
		between = 300 * time.Millisecond
	}
	made.Go(func() {
		// Make each fault at least once, even if the changes end early.
		for i := 0; i < len(faults) || sleep(ctx, between); i++ {
			f := faults[i%len(faults)]
			f.make()
			s.faults[f.name]++
		}
	})
	return func() { cancel(); made.Wait(); s.SetAway(false) }
}

// flush flushes the ruleset, and waits until the probed Service is served again.
func (s *soaked) flush() {
	s.broken.Store(true)
	s.flushes.Add(1)
	defer s.broken.Store(false)
	if out, err := s.Node.Command(s.Context(), "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		s.Errorf("flush: %v: %s", err, out)
		return
	}
	begin := time.Now()
	err := lab.Await(s.Context(), patience, func() error {
		a := s.Pods[1].Probe(s.Context(), inet.TCP, netip.MustParseAddrPort(probedAt), lab.Options{})
		if a.Server != "pod-0" {
			return fmt.Errorf("after a flush: %v", a)
		}
		return nil
	})
	if err != nil {
		s.Error(err)
	}
	s.repairs = append(s.repairs, time.Since(begin))
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// probe connects to the probed Service until the test ends. A failure between a flush and its repair does not count.
func (s *soaked) probe() {
	const long = 5 * time.Second // an answer may take long on a busy machine, and a UDP request is not repeated
	ctx, cancel := context.WithCancel(s.Context())
	var probes sync.WaitGroup
	for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
		probes.Go(func() {
			for sleep(ctx, 20*time.Millisecond) {
				broken, flushes := s.broken.Load(), s.flushes.Load()
				a := s.Pods[1].Probe(ctx, proto, netip.MustParseAddrPort(probedAt), lab.Options{Timeout: long})
				s.probes.Add(1)
				if a.Server != "pod-0" && ctx.Err() == nil && !broken && flushes == s.flushes.Load() {
					s.failed.Add(1)
					s.Logf("%s %s: %v", time.Now().Format(time.StampMilli), proto, a)
				}
			}
		})
	}
	s.Cleanup(func() { cancel(); probes.Wait() })
}

func (s *soaked) metrics(p *program.Program) program.Samples {
	s.Helper()
	m, err := p.Metrics(s.Context())
	lab.Must(s, err)
	return m
}

// awaitIdle waits until no change is pending, and the last sync is three seconds old. Unused chains may still exist: the program keeps them for a
// while.
func (s *soaked) awaitIdle(p *program.Program) {
	s.Helper()
	lab.Eventually(s.T, patience, func() error {
		m, err := p.Metrics(s.Context())
		if err != nil {
			return err
		}
		owed, _ := m.Sum("kubeproxy_sync_proxy_rules_endpoint_changes_pending")
		more, _ := m.Sum("kubeproxy_sync_proxy_rules_service_changes_pending")
		if last := m.LastSync(inet.IPv4); last.IsZero() || time.Since(last) < 3*time.Second || owed+more > 0 {
			return fmt.Errorf("last synced at %v, %v changes are pending", last, owed+more)
		}
		return nil
	})
}

// figures are the values of a program that must return to their initial ones.
type figures struct {
	RSS, Heap                           float64 // MiB
	Goroutines, Files, Elements, Chains int
}

func (f figures) String() string {
	return fmt.Sprintf("RSS %.1f MiB, heap %.1f MiB, %d goroutines, %d files, %d elements, %d chains", f.RSS, f.Heap, f.Goroutines, f.Files, f.Elements, f.Chains)
}

// compare returns an error if memory, goroutines or files have grown by more than a tenth, or if elements or chains differ.
func (f figures) compare(after figures) error {
	var err error
	for name, pair := range map[string][2]float64{
		"MiB of RSS": {f.RSS, after.RSS}, "MiB of heap": {f.Heap, after.Heap},
		"goroutines": {float64(f.Goroutines), float64(after.Goroutines)}, "files": {float64(f.Files), float64(after.Files)},
	} {
		const some = 2 // a small number varies by one or two
		if pair[1] > pair[0]*1.1+some {
			err = errors.Join(err, fmt.Errorf("%.1f %s became %.1f", pair[0], name, pair[1]))
		}
	}
	if f.Elements != after.Elements || f.Chains != after.Chains {
		err = errors.Join(err, fmt.Errorf("%d elements and %d chains became %d and %d", f.Elements, f.Chains, after.Elements, after.Chains))
	}
	return err
}

// settled waits until the program's memory no longer decreases, and returns its figures.
func (s *soaked) settled() figures {
	s.Helper()
	const enough = 0.98
	quiet := 15 * time.Second
	if s.services < 1000 {
		quiet = time.Second
	}
	now := s.figures()
	for last := 2 * now.RSS; now.RSS < last*enough; {
		last = now.RSS
		sleep(s.Context(), quiet)
		now = s.figures()
	}
	return now
}

// figures makes the program collect its garbage, and returns its figures.
func (s *soaked) figures() figures {
	s.Helper()
	for range 2 { // pooled objects survive one collection
		if status, body, err := s.p.Get(s.Context(), "http://127.0.0.1:10249/debug/pprof/heap?gc=1"); err != nil || status != 200 {
			s.Fatalf("collect garbage: %d %s: %v", status, body, err)
		}
	}
	m := s.metrics(s.p)
	rss, err := s.p.Memory("VmRSS")
	lab.Must(s, err)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.p.Pid()))
	lab.Must(s, err)
	elements, _ := m.Sum("kubenftproxy_elements")
	chains, _ := m.Sum("kubenftproxy_class_chains")
	return figures{
		RSS: rss, Heap: m["go_memstats_heap_alloc_bytes"] / (1 << 20), Goroutines: int(m["go_goroutines"]), Files: len(files),
		Elements: int(elements), Chains: int(chains),
	}
}

// sizes matches the sizes of sets, which never shrink.
var sizes = regexp.MustCompile(` size \d+`)

// keys matches the key, the next number and the digest of a table. Each process has its own.
var keys = regexp.MustCompile(` key [0-9a-f]+ next \d+ digest [0-9a-f]+`)

// numbers matches the assigned numbers of service ports. A Service that was deleted and created again has another number.
var numbers = regexp.MustCompile(`\b[8a]000:[0-9a-f]+\b`)

// ruleset returns a host's ruleset in a canonical order, without sizes of sets, keys and numbers.
func (s *soaked) ruleset(h *lab.Host) (parts []string) {
	s.Helper()
	for _, family := range []string{"ip", "ip6"} {
		out, err := h.Command(s.Context(), "nft", "-s", "list", "table", family, "kube-nftproxy").CombinedOutput()
		if err != nil {
			s.Logf("list: %v: %s", err, out)
			return nil
		}
		for part := range strings.SplitSeq(string(out), "\n\n") {
			form, list, _ := strings.Cut(numbers.ReplaceAllString(keys.ReplaceAllString(part, ""), "N"), "elements = {")
			parts = append(parts, family+" "+sizes.ReplaceAllString(strings.Join(strings.Fields(form), " "), ""))
			name, _, _ := strings.Cut(strings.TrimSpace(form), " {")
			for element := range strings.SplitSeq(list, ",") {
				parts = append(parts, family+" "+name+": "+strings.Trim(element, " \t\n{}"))
			}
		}
	}
	slices.Sort(parts)
	return parts
}
