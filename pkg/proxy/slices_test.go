package proxy

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// slow sets the duration of reading a Service.
func (b *bench) slow(d time.Duration) {
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	b.source.took = d
}

// holds reports whether the kernel has an element whose text contains all parts.
func (b *bench) holds(parts ...string) bool {
	list, _ := b.kernel.held()
	return slices.ContainsFunc(list, func(e string) bool { return containsAll(e, parts) })
}

// A Service for which there was no room gets all its endpoints after another Service releases some, although it has not
// changed itself.
func TestAServiceIsServedOnceThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		// With this limit of the node, a namespace has room for ten elements.
		b.Planner = plan.New(plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000, Room: plan.Room{Elements: 150}})
		endpoints := func() (n int) {
			for i := range 3 {
				if b.holds(fmt.Sprintf("10.244.2.%d ", 1+i)) {
					n++
				}
			}
			return n
		}
		defer b.start(t)()
		close(b.source.synced)
		b.set(1, 9)
		time.Sleep(10 * time.Second)
		b.set(2, 3)
		time.Sleep(10 * time.Second)
		if n, problems := endpoints(), b.reported(); n != 1 || len(problems) != 1 {
			t.Errorf("of two Services of which one fits, the second has %d endpoints, want 1; problems: %v", n, problems)
		}
		b.set(1, 5)
		time.Sleep(10 * time.Second)
		if n := endpoints(); n != 3 {
			t.Errorf("there is room for both Services now, and the second has %d endpoints, want 3", n)
		}
	})
}

// During a storm that takes long to plan, small changes, questions and repairs do not wait.
func TestAStormDelaysNothingElse(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 20)
		time.Sleep(10 * time.Second)
		const each = 5 * time.Millisecond
		b.slow(each)
		const storm = 1000 // five seconds
		for i := range storm {
			b.set(100+i, 1)
		}
		for !b.Tracker.Pending().Since.IsZero() { // wait until the loop has taken all changes
			time.Sleep(each)
		}
		changed := time.Now()
		name := b.set(3, 0)
		b.endpoint(name, "10.244.77.77")
		for !b.holds("10.244.77.77") {
			if passed := time.Since(changed); passed > 300*time.Millisecond {
				t.Fatalf("a small change waits for more than %v in a storm", passed)
			}
			time.Sleep(5 * time.Millisecond)
		}
		asked := time.Now()
		l := b.status(t)
		if passed := time.Since(asked); passed > 250*time.Millisecond || l.Pending < storm/4 {
			t.Errorf("a question took %v; %d Services wait", passed, l.Pending)
		}
		broken := time.Now()
		doubts := b.kernel.doubts
		b.kernel.touch()
		for {
			b.kernel.mu.Lock()
			repaired := b.kernel.doubts > doubts && b.kernel.known && !b.kernel.touched
			b.kernel.mu.Unlock()
			if repaired {
				break
			}
			if passed := time.Since(broken); passed > 500*time.Millisecond {
				t.Fatalf("the tables are not repaired after more than %v", passed)
			}
			time.Sleep(5 * time.Millisecond)
		}
		b.slow(0)
		time.Sleep(10 * time.Second)
		b.check(t)
		if l := b.status(t); l.Pending != 0 {
			t.Errorf("%d Services still wait", l.Pending)
		}
	})
}

// A large Service, new or changed, gets its own batch behind the small Services that changed with it.
func TestSmallServicesDoNotWaitForLargeOnes(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 20)
		for round := range 2 {
			time.Sleep(10 * time.Second)
			var sizes []int
			var committed atomic.Bool
			b.kernel.mu.Lock()
			b.kernel.committed = func(elements []string) { sizes = append(sizes, len(elements)); committed.Store(true) }
			before := len(b.kernel.elements)
			b.kernel.mu.Unlock()
			b.source.mu.Lock()
			b.source.built = func(name types.NamespacedName) {
				if name.Name != "svc-19" && !committed.Load() {
					t.Errorf("round %d: %s was built before the small Service was committed", round, name.Name)
				}
			}
			b.source.mu.Unlock()
			b.Tracker.Together(func() {
				for i := range 2 { // svc-0 and svc-1 are first by name
					var list []string
					for e := range roundElements + 1 + round*5000 {
						list = append(list, fmt.Sprintf("10.%d.%d.%d", 10+i, e/250, 1+e%250))
					}
					b.setProtocol(types.NamespacedName{Namespace: "default", Name: fmt.Sprint("svc-", i)}, corev1.ProtocolTCP, list...)
				}
				b.set(19, 5+round) // begin gave it 2 endpoints
			})
			time.Sleep(10 * time.Second)
			b.kernel.mu.Lock()
			b.kernel.committed = nil
			b.kernel.mu.Unlock()
			for i := range sizes {
				sizes[i] -= before
			}
			if len(sizes) < 3 || sizes[0] < 1 || sizes[0] > 10 || sizes[1] > roundElements+10 {
				t.Errorf("round %d: %d elements more after the batches, want a few, then the elements of one large Service, then of both", round, sizes)
			}
			b.check(t)
		}
	})
}

// After a large Service, the kernel immediately requests another sync, to make a set larger. It precedes the next
// large Service.
func TestMaintenancePrecedesTheNextLargeService(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 20)
		time.Sleep(10 * time.Second)
		var sizes []int
		b.kernel.mu.Lock()
		before := len(b.kernel.elements)
		b.kernel.committed = func(elements []string) { sizes = append(sizes, len(elements)-before) }
		b.kernel.crowded = func() bool {
			crowded := len(b.kernel.elements)-before > roundElements/2
			if crowded {
				b.kernel.crowded = nil
			}
			return crowded
		}
		b.kernel.mu.Unlock()
		b.Tracker.Together(func() {
			for i := range 2 {
				var list []string
				for e := range roundElements + 1 {
					list = append(list, fmt.Sprintf("10.%d.%d.%d", 10+i, e/250, 1+e%250))
				}
				b.setProtocol(types.NamespacedName{Namespace: "default", Name: fmt.Sprint("svc-", i)}, corev1.ProtocolTCP, list...)
			}
		})
		time.Sleep(10 * time.Second)
		b.kernel.mu.Lock()
		defer b.kernel.mu.Unlock()
		i := slices.IndexFunc(sizes, func(n int) bool { return n > roundElements/2 })
		if i < 0 || len(sizes) < i+3 || sizes[i+1] != sizes[i] || sizes[i+2] < 3*roundElements/2 {
			t.Errorf("%d elements more after the batches, want those of a large Service, the same once more, then those of both", sizes)
		}
	})
}

// endpoint makes an address the only endpoint of a Service.
func (b *bench) endpoint(name types.NamespacedName, addr string) {
	b.setProtocol(name, corev1.ProtocolTCP, addr)
}

// Continuous small changes leave time for waiting changes.
func TestSmallChangesDoNotStarveAStorm(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 20)
		b.slow(5 * time.Millisecond)
		const storm = 400
		for i := range storm {
			b.set(100+i, 1)
		}
		for range 600 {
			b.set(1, 1)
			b.set(2, 1)
			time.Sleep(10 * time.Millisecond)
		}
		b.source.mu.Lock()
		b.source.took = 0
		b.source.mu.Unlock()
		if l := b.status(t); l.Pending > 2 {
			t.Errorf("%d Services of a storm of two seconds wait after six", l.Pending)
		}
		time.Sleep(5 * time.Second)
		b.check(t)
	})
}

// The first batch is not sent before all Services are planned. Questions are answered meanwhile.
func TestTheFirstBatchIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		const services = 300
		for i := range services {
			b.set(i, 1)
		}
		b.source.took = 5 * time.Millisecond
		close(b.source.synced)
		defer b.start(t)()
		time.Sleep(400 * time.Millisecond)
		asked := time.Now()
		if l := b.status(t); time.Since(asked) > 250*time.Millisecond || l.Pending == 0 {
			t.Errorf("a question at the start took %v; %d wait", time.Since(asked), l.Pending)
		}
		b.set(services, 1) // planned with the other Services, or after them
		time.Sleep(10 * time.Second)
		sizes := b.kernel.takeSizes()
		if len(sizes) == 0 || sizes[0] < sizes[len(sizes)-1]*9/10 {
			t.Errorf("elements after each sync: %d, want all in the first one", sizes)
		}
		b.source.mu.Lock()
		b.source.took = 0
		b.source.mu.Unlock()
		b.check(t)
	})
}

// Services exchange or take over addresses during a storm, in any order of their names: after each batch, each
// address has an endpoint.
func TestAnExchangedAddressIsServedThroughoutAStorm(t *testing.T) {
	const storm = 300
	external := func(ips ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.ExternalIPs = ips }
	}
	for name, c := range map[string]struct{ from, to int }{
		"the first name gives": {0, storm - 1},
		"the last name gives":  {storm - 1, 0},
		"neighbours":           {5, 6},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(b *bench) {
				for i := range storm { // each Service releases a frontend later
					b.set(i, 1, external(fmt.Sprintf("198.51.%d.%d", i/200, i%200+1)))
				}
				b.set(c.from, 1, external("192.0.2.1"))
				b.set(c.to, 1, external("192.0.2.2"))
				b.set(storm+1, 1, external("192.0.2.3"))
				close(b.source.synced)
				synctest.Wait()
				time.Sleep(time.Minute)
				lost := atomic.Int32{}
				b.kernel.mu.Lock()
				b.kernel.committed = func(elements []string) {
					for _, addr := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
						if !slices.ContainsFunc(elements, func(e string) bool { return containsAll(e, []string{"services", addr, "default/svc"}) }) {
							lost.Add(1)
						}
					}
				}
				b.kernel.mu.Unlock()
				b.slow(5 * time.Millisecond)
				b.Tracker.Together(func() {
					for i := range storm {
						b.set(i, 2)
					}
					// Two Services exchange their addresses, and a third takes the address of a deleted Service.
					b.set(c.from, 2, external("192.0.2.2"))
					b.set(c.to, 2, external("192.0.2.1"))
					gone := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", storm+1)}
					b.source.mu.Lock()
					delete(b.source.services, gone)
					b.source.mu.Unlock()
					b.Tracker.MarkService(gone)
					b.set((c.to+c.from)/2+10, 2, external("192.0.2.3"))
				})
				time.Sleep(20 * time.Second)
				b.slow(0)
				b.kernel.mu.Lock()
				b.kernel.committed = nil
				b.kernel.mu.Unlock()
				if n := lost.Load(); n > 0 {
					t.Errorf("after %d batches, an address had no endpoint", n)
				}
				if sizes := b.kernel.takeSizes(); len(sizes) < 5 {
					t.Errorf("%d batches: the storm was not sliced", len(sizes))
				}
				b.check(t)
			})
		})
	}
}

func containsAll(text string, parts []string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
}

// fakeTurn is a Turn whose answers the test sets.
type fakeTurn struct {
	granted, stopped atomic.Bool
	ready            chan struct{}
	changed          chan struct{}
	other            atomic.Pointer[string]
}

func (f *fakeTurn) Ready()                   { close(f.ready) }
func (f *fakeTurn) Stopped()                 { f.stopped.Store(true) }
func (f *fakeTurn) Granted() *atomic.Bool    { return &f.granted }
func (f *fakeTurn) Alone() bool              { return f.granted.Load() }
func (f *fakeTurn) Reclaim() bool            { return false }
func (f *fakeTurn) Changed() <-chan struct{} { return f.changed }
func (f *fakeTurn) Other() string {
	if s := f.other.Load(); s != nil {
		return *s
	}
	return ""
}

func (f *fakeTurn) grant(granted bool, other string) {
	f.other.Store(&other)
	f.granted.Store(granted)
	f.changed <- struct{}{}
}

// While another instance serves, nothing is committed, and this is reported. After it exits, all changes are committed.
func TestStandingByCommitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		turn := &fakeTurn{ready: make(chan struct{}), changed: make(chan struct{}, 1)}
		b.Turn = turn
		serves := false
		b.Listeners = append(b.Listeners, beside.Listener{Serve: func(on bool) { serves = on }})
		defer b.start(t)()
		synctest.Wait()
		select {
		case <-turn.ready:
			t.Error("the process announced that it can serve before it had read the source")
		default:
		}
		b.set(1, 1)
		close(b.source.synced)
		<-turn.ready
		time.Sleep(time.Minute)
		if _, syncs := b.kernel.held(); syncs != 0 {
			t.Errorf("%d syncs before the process may serve", syncs)
		}
		turn.grant(true, "")
		synctest.Wait()
		b.check(t)

		turn.grant(false, "kube-proxy, pid 7")
		synctest.Wait()
		_, before := b.kernel.held()
		if !turn.stopped.Load() || serves {
			t.Errorf("the process confirms that it has stopped: %t; its listeners serve: %t", turn.stopped.Load(), serves)
		}
		for i := range 10 {
			b.set(i, 2)
			b.kernel.touch()
			time.Sleep(time.Minute)
		}
		if _, syncs := b.kernel.held(); syncs != before {
			t.Errorf("%d syncs while another instance serves", syncs-before)
		}
		if other := b.status(t).Other; other != "kube-proxy, pid 7" || !b.Config.Health.Healthy() {
			t.Errorf("the status says %q serves, healthy %t", other, b.Config.Health.Healthy())
		}
		lab.Same(t, 1, count(t, b.registry, "kubenftproxy_standing_by")[""], "kubenftproxy_standing_by")
		turn.grant(true, "")
		time.Sleep(10 * time.Second)
		b.check(t)
		turn.grant(false, "kube-nftproxy, pid 8")
		synctest.Wait()
		turn.grant(true, "")
		synctest.Wait()
		if got := count(t, b.registry, "kubenftproxy_standing_by")[""]; got != 0 || b.status(t).Other != "" {
			t.Errorf("kubenftproxy_standing_by is %v, and %q serves, after the other one has exited", got, b.status(t).Other)
		}
		events := slices.DeleteFunc(b.reported(), func(p model.Problem) bool { return p.Event != "AnotherInstanceServes" })
		if len(events) != 1 || events[0].Kind != "Node" || !strings.Contains(events[0].Reason, "kube-proxy, pid 7") {
			t.Errorf("reported %+v, want one Event on the Node", events)
		}
	})
}

// If very many Services claim one address, each Service that loses is reported, some with each sync.
func TestVeryManyConflictsAreReported(t *testing.T) {
	run(t, func(b *bench) {
		const all = 250
		for i := range all {
			b.set(1+i, 1, func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"192.0.2.77"} })
		}
		close(b.source.synced)
		time.Sleep(5 * time.Second)
		b.mu.Lock()
		defer b.mu.Unlock()
		lab.Same(t, all-1, len(b.problems), "Services got a problem")
	})
}

// A Service that is larger than its stored form suggests is not in the same batch as a small one.
func TestAServiceLargerThanExpected(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 20)
		time.Sleep(10 * time.Second)
		list, _ := b.kernel.held()
		before := len(list)
		b.kernel.takeSizes()
		b.Tracker.Together(func() {
			b.set(0, 1, func(s *corev1.Service) {
				for i := range 100 {
					s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("192.0.2.%d", 1+i))
				}
				for i := range 40 {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
				}
			})
			b.set(19, 5)
		})
		time.Sleep(10 * time.Second)
		sizes := b.kernel.takeSizes()
		if len(sizes) < 2 || sizes[0]-before > 10 || sizes[1]-before < 4_000 {
			t.Errorf("%d elements after the batches, %d before, want a few more, then 4,000 more", sizes, before)
		}
		b.check(t)
	})
}

// A Service that releases an address waits for the storm of its namespace, but not for the storm of another one.
func TestAReleaseDoesNotWaitForAnotherNamespace(t *testing.T) {
	run(t, func(b *bench) {
		pay := types.NamespacedName{Namespace: "bank", Name: "pay"}
		put := func(ips ...string) {
			b.source.mu.Lock()
			s := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.97.0.1", ExternalIPs: ips, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
			s.Namespace, s.Name = pay.Namespace, pay.Name
			b.source.services[pay] = s
			b.source.mu.Unlock()
			b.Tracker.MarkService(pay)
		}
		put("192.0.2.9")
		b.begin(t, 20)
		time.Sleep(10 * time.Second)
		if !b.holds("192.0.2.9") {
			t.Fatal("bank's address is not served")
		}
		const each = 5 * time.Millisecond
		b.slow(each)
		for i := range 1000 {
			b.set(100+i, 1)
		}
		for !b.Tracker.Pending().Since.IsZero() { // wait until the loop has taken all changes
			time.Sleep(each)
		}
		changed := time.Now()
		put()
		for b.holds("192.0.2.9") {
			if passed := time.Since(changed); passed > 300*time.Millisecond {
				t.Fatalf("the release waits for more than %v in a storm of another namespace", passed)
			}
			time.Sleep(each)
		}
		b.slow(0)
		time.Sleep(10 * time.Second)
		b.check(t)
	})
}
