package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fakeSource is a cluster in memory.
type fakeSource struct {
	mu       sync.Mutex
	services map[types.NamespacedName]*corev1.Service
	slices   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	node     *corev1.Node
	cidrs    []*networkingv1.ServiceCIDR
	synced   chan struct{}
	// built, if not nil, is called with each Service that is about to be built.
	built func(types.NamespacedName)
	// took is the duration of building a Service.
	took time.Duration
}

func (s *fakeSource) Loaded() <-chan struct{} { return s.synced }

func (s *fakeSource) Node() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node
}

func (s *fakeSource) ServiceCIDRs() []*networkingv1.ServiceCIDR {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cidrs
}

func (s *fakeSource) Services() []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []types.NamespacedName
	for n := range s.services {
		names = append(names, n)
	}
	return names
}

func (s *fakeSource) Get(n types.NamespacedName) (o model.Objects) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.Service = s.services[n]
	for _, slice := range s.slices[n] {
		o.Slices = append(o.Slices, model.NewSlice(slice, model.Limits{}, model.Stored{}))
	}
	return o
}

// slowSource is the source of a builder whose builds take time.
type slowSource struct{ *fakeSource }

func (s slowSource) Get(n types.NamespacedName) model.Objects {
	s.mu.Lock()
	built, took := s.built, s.took
	s.mu.Unlock()
	if built != nil {
		built(n)
	}
	time.Sleep(took)
	return s.fakeSource.Get(n)
}

// fakeKernel holds the elements that a planner has reported up to the last sync. It fails on demand.
type fakeKernel struct {
	// crowded, if not nil, reports whether each partial sync leaves a crowded set.
	crowded func() bool

	mu sync.Mutex
	// changes are the changes since the last sync. An empty text stands for a removed element.
	changes []fakeChange
	known   bool
	syncs   int
	doubts  int
	meddled bool
	touched bool
	// after causes a foreign change right after the next commit.
	after bool
	// sizes are the numbers of elements after each sync.
	sizes []int
	// blind is the error of CheckRuleset.
	blind error
	heard chan struct{}
	// leased is the time of the last renewal. renewals are the times of full syncs and calls of Renew, shortened of
	// those that shorten the lease. refused is the error of Renew. other is the time of the last renewal by another
	// process.
	leased, other       time.Time
	renewals, shortened []time.Time
	refused             error
	elements            map[nft.ID]string
	// asWanted is true if an earlier process left exactly the planned tables.
	asWanted bool
	// rules is a fingerprint of the rules of IPv4 as of the last sync, if readRules is set: it takes half a
	// millisecond.
	rules     uint64
	readRules bool
	fail      func(sync int) error
	// planner is the planner that reports to the kernel.
	planner *plan.Planner
	// committed, if not nil, is called with all elements after each sync.
	committed func([]string)
}

type fakeChange struct {
	id   nft.ID
	text string
}

func (k *fakeKernel) Put(e nft.Element) {
	k.changes = append(k.changes, fakeChange{e.ID(), e.String()})
}

func (k *fakeKernel) Remove(e nft.Element) { k.changes = append(k.changes, fakeChange{id: e.ID()}) }

func (k *fakeKernel) Discard(nft.Element) {}

func (k *fakeKernel) ChangeRules() {}

func (k *fakeKernel) Recall(p *plan.Planner, _ []*model.Service) error {
	if k.planner != p {
		k.planner = p
		p.ReportTo(k)
	}
	return nil
}

func (*fakeKernel) EachCount(inet.Family, func(*nft.Set, int)) (classChains int) { return 0 }

func (k *fakeKernel) Forget(clients []nft.Element) (int, error) { return len(clients), nil }

func (k *fakeKernel) Known() bool { return k.known }

func (k *fakeKernel) Doubt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = false
	k.doubts++
}

func (k *fakeKernel) Leased() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leased
}

func (k *fakeKernel) Renew(_ *plan.Planner, lasts time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.renewals = append(k.renewals, now)
	if k.refused != nil {
		return k.refused
	}
	if k.leased = now; lasts != 0 {
		k.shortened = append(k.shortened, now)
	}
	return nil
}

func (k *fakeKernel) LeasedByAny(*plan.Planner) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.other
}

func (k *fakeKernel) Heard() <-chan struct{} { return k.heard }

func (k *fakeKernel) Touched() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.touched {
		return "another program has changed the tables"
	}
	return ""
}

func (k *fakeKernel) Author() nft.Author { return nft.Author{Program: "nft", PID: 7} }

func (k *fakeKernel) CheckRuleset() (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.meddled, k.blind
}

func (k *fakeKernel) Sync(p *plan.Planner) (apply.Result, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.syncs++
	if k.fail != nil {
		if err := k.fail(k.syncs); err != nil {
			k.known = false
			return apply.Result{}, err
		}
	}
	if k.readRules {
		k.rules = nft.Fingerprint(p.Rules().Samples()[0])
	}
	defer func() {
		if k.committed != nil {
			k.committed(slices.Collect(maps.Values(k.elements)))
		}
		k.sizes = append(k.sizes, len(k.elements))
		k.meddled, k.after = k.meddled || k.after, false
	}()
	if !k.known {
		// A comparison of the tables ignores some sets, as that of apply.Kernel does.
		ignored := func(id nft.ID) bool { return k.asWanted && !plan.Planned(id.Set) }
		maps.DeleteFunc(k.elements, func(id nft.ID, _ string) bool { return !ignored(id) })
		p.Elements(func(e *nft.Element) {
			if !ignored(e.ID()) {
				k.elements[e.ID()] = e.String()
			}
		})
		k.changes = nil
	}
	for _, c := range k.changes {
		if delete(k.elements, c.id); c.text != "" {
			k.elements[c.id] = c.text
		}
	}
	k.changes = nil
	if !k.known {
		k.known, k.meddled, k.touched = true, false, false
		if k.asWanted {
			return apply.Result{Kind: apply.Adopted}, nil
		}
		k.leased = time.Now()
		k.renewals = append(k.renewals, k.leased)
		return apply.Result{Kind: apply.Full, Commit: time.Microsecond}, nil
	}
	r := apply.Result{Kind: apply.Partial, Commit: time.Microsecond}
	if k.crowded != nil && k.crowded() {
		r.Again = time.Now()
	}
	return r, nil
}

func (k *fakeKernel) held() (list []string, syncs int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.elements {
		list = append(list, e)
	}
	slices.Sort(list)
	return list, k.syncs
}

// bench is a proxy on fakes.
type bench struct {
	*Proxy
	source   *fakeSource
	kernel   *fakeKernel
	registry *prometheus.Registry
	mu       sync.Mutex
	problems []model.Problem
}

func newBench() *bench {
	b := &bench{
		source: &fakeSource{
			services: map[types.NamespacedName]*corev1.Service{},
			slices:   map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
			synced:   make(chan struct{}),
		},
		kernel:   &fakeKernel{heard: make(chan struct{}, 1), elements: map[nft.ID]string{}},
		registry: prometheus.NewRegistry(),
	}
	planner := plan.New(plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000})
	b.Proxy = New(Config{
		Source: b.source, Tracker: track.New(time.Now(), time.Now), Kernel: b.kernel, Planner: planner,
		Metrics:  metrics.NewLoop(metrics.New(b.registry, metrics.Config{}), planner, b.kernel.EachCount),
		Health:   health.New(health.Config{Timeout: time.Minute, Now: time.Now, NoNode: true}),
		Schedule: NewSchedule(time.Second, 30*time.Second, 30*time.Second), Families: inet.Families[:], NodeName: "node-1",
		NodePorts: model.NodePortAddresses{Local: func() ([]netip.Addr, error) { return nil, nil }},
		Now:       time.Now,
		Report: func(p model.Problem) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.problems = append(b.problems, p)
		},
	})
	b.builder.source = slowSource{b.source}
	return b
}

// reported returns the problems so far. A sleep in a bubble does not order the test after the loop, so it locks.
func (b *bench) reported() []model.Problem {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.problems)
}

// set stores a Service with some endpoints and marks it, as an informer's handler would.
func (b *bench) set(i, endpoints int, mutate ...func(*corev1.Service)) types.NamespacedName {
	name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, CreationTimestamp: metav1.Unix(int64(i), 0)},
		Spec: corev1.ServiceSpec{
			ClusterIP: fmt.Sprintf("10.96.%d.%d", i/250, i%250+1),
			Ports:     []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, m := range mutate {
		m(svc)
	}
	var addrs []string
	for e := range endpoints {
		addrs = append(addrs, fmt.Sprintf("10.244.%d.%d", i, e+1))
	}
	b.source.mu.Lock()
	b.source.services[name], b.source.slices[name] = svc, []*discoveryv1.EndpointSlice{sliceOf(name, corev1.ProtocolTCP, addrs...)}
	b.source.mu.Unlock()
	b.Tracker.MarkService(name)
	return name
}

// run runs the proxy in a bubble of virtual time until f returns.
func run(t *testing.T, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		defer b.start(t)()
		f(b)
	})
}

// start starts the proxy, and returns a function that stops it.
func (b *bench) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	}
}

// check compares the kernel's elements with the elements that a new planner makes from the source.
func (b *bench) check(t *testing.T) {
	t.Helper()
	numbers, err := b.Numbers(context.Background())
	lab.Must(t, err)
	starts, err := b.Starts(context.Background())
	lab.Must(t, err)
	fresh := plan.Continue(plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000}, numbers)
	for _, name := range b.source.Services() {
		fresh.Set(name, model.Build(b.source.Get(name), model.Node{Name: "node-1"}, model.Options{Starts: starts[name]}))
	}
	var want []string
	fresh.Elements(func(e *nft.Element) { want = append(want, e.String()) })
	slices.Sort(want)
	got, _ := b.kernel.held()
	lab.Same(t, want, got, "elements (-want +in the kernel)")
}

func TestNothingHappensBeforeTheSourceHasBeenRead(t *testing.T) {
	run(t, func(b *bench) {
		b.set(1, 2)
		time.Sleep(time.Hour)
		if _, syncs := b.kernel.held(); syncs != 0 {
			t.Errorf("%d syncs before the source was read", syncs)
		}
		close(b.source.synced)
		synctest.Wait()
		if _, syncs := b.kernel.held(); syncs != 1 {
			t.Errorf("%d syncs after the source was read, want 1", syncs)
		}
		b.check(t)
	})
}

func TestFirstChangeIsImmediateAndAStormIsOneSync(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		synctest.Wait()
		time.Sleep(10 * time.Second)
		b.set(1, 2)
		synctest.Wait()
		_, before := b.kernel.held()
		b.check(t)
		for i := range 100 {
			b.set(i%10, i%4)
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, after := b.kernel.held(); after-before != 1 {
			t.Errorf("100 changes within half of the minimum sync period took %d syncs, want 1", after-before)
		}
		b.check(t)
	})
}

func TestFailedSyncsAreRetried(t *testing.T) {
	run(t, func(b *bench) {
		b.kernel.fail = func(sync int) error {
			if sync%3 != 0 {
				return errors.New("no")
			}
			return nil
		}
		close(b.source.synced)
		for i := range 60 {
			b.set(i%12, i%5)
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		b.check(t)
		if failures := count(t, b.registry, "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"); len(failures) == 0 {
			t.Error("no failure was counted")
		}
	})
}

// While the kernel fails, the deletion of unused chains waits, and the loop does not spin. A spinning loop would stop
// the virtual time of the bubble.
func TestAFailingKernelDelaysRetirement(t *testing.T) {
	run(t, func(b *bench) {
		b.set(1, 3)
		close(b.source.synced)
		synctest.Wait()
		b.set(1, 2)
		time.Sleep(1500 * time.Millisecond)
		b.kernel.mu.Lock()
		b.kernel.fail = func(int) error { return errors.New("no") }
		b.kernel.mu.Unlock()
		b.set(2, 1)
		time.Sleep(20 * time.Second)
		b.kernel.mu.Lock()
		b.kernel.fail = nil
		b.kernel.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		b.check(t)
	})
}

func TestTablesAreComparedInEachSyncPeriod(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		b.set(1, 1)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		b.kernel.mu.Lock()
		defer b.kernel.mu.Unlock()
		if b.kernel.doubts < 15 {
			t.Errorf("the tables were compared %d times in 10 minutes, want about 20", b.kernel.doubts)
		}
	})
}

func TestAForeignCommitIsRepairedWithinASecond(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		b.set(1, 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		b.kernel.mu.Lock()
		before := b.kernel.doubts
		b.kernel.meddled = true
		clear(b.kernel.elements)
		b.kernel.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		b.check(t)
		if got := b.kernel.doubts - before; got != 1 {
			t.Errorf("the tables were compared %d times, want once", got)
		}
	})
}

// The loop checks for a foreign change immediately after its announcement. A program that changes the ruleset
// continuously causes at most two checks a second.
func TestAnnouncedForeignChangesAreCheckedAtOnce(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		b.set(1, 1)
		time.Sleep(3*time.Second + checkEvery/3)
		synctest.Wait()
		meddle := func() {
			b.kernel.mu.Lock()
			b.kernel.meddled = true
			clear(b.kernel.elements)
			b.kernel.mu.Unlock()
			b.kernel.heard <- struct{}{}
			synctest.Wait()
		}
		meddle()
		b.check(t)
		before := b.kernel.doubts
		for range 100 {
			meddle()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if got := b.kernel.doubts - before; got < 1 || got > 4 {
			t.Errorf("the tables were compared %d times in a second of changes, want about 2", got)
		}
	})
}

func TestProblemsAndConflictsAreReportedOnce(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		bad := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.7", "not-an-address"} }
		for range 5 {
			b.set(1, 1, bad)
			b.set(2, 2, bad)
			time.Sleep(3 * time.Second)
		}
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.problems) != 3 {
			t.Errorf("got %d reports, want one bad address of each Service and one conflict:\n%+v", len(b.problems), b.problems)
		}
		conflict := slices.IndexFunc(b.problems, func(p model.Problem) bool { return p.Field == "spec.externalIPs" && p.Name.Name == "svc-2" })
		if conflict < 0 {
			t.Errorf("want a conflict reported of the younger Service svc-2, got %+v", b.problems)
		}
	})
}

// setProtocol replaces a Service's slices by one with the given endpoints.
func (b *bench) setProtocol(name types.NamespacedName, protocol corev1.Protocol, addrs ...string) {
	b.source.mu.Lock()
	b.source.slices[name] = []*discoveryv1.EndpointSlice{sliceOf(name, protocol, addrs...)}
	b.source.mu.Unlock()
	b.Tracker.MarkSlice(name, track.Trigger{})
}

// sliceOf returns a slice of a Service with endpoints at port 8080.
func sliceOf(name types.NamespacedName, protocol corev1.Protocol, addrs ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name + "-1"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: &protocol, Port: new(int32(8080))}},
	}
	for _, a := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return slice
}
