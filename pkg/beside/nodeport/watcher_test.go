package nodeport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fakeNode is a node with sockets. It records problems and searches.
type fakeNode struct {
	mu        sync.Mutex
	sockets   []Socket
	own       map[uint32]struct{}
	withdrawn []string
	ephemeral Ephemeral
	err       error
	// searches are the times of searches, ranges the requested ranges.
	searches []time.Duration
	ranges   []Range
	start    time.Time
	problems []string
	counts   map[string]int
	failed   int
}

func (n *fakeNode) listening(r Range) ([]Socket, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.searches, n.ranges = append(n.searches, time.Since(n.start)), append(n.ranges, r)
	return n.sockets, n.err
}

func (n *fakeNode) report(p model.Problem) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := strings.Trim(p.Name.String(), "/")
	n.problems = append(n.problems, fmt.Sprintf("%s %s %s", p.Event, p.Kind, of))
}

func (n *fakeNode) NodePortCollisions(cause string, count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts[cause] = count
}

func (n *fakeNode) NodePortsSearched(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.failed++
	}
}

// listen replaces all sockets.
func (n *fakeNode) listen(sockets ...Socket) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sockets = sockets
}

// withdraw records a withdrawn problem.
func (n *fakeNode) withdraw(p model.Problem) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.withdrawn = append(n.withdrawn, p.Event+" "+p.Kind+" "+p.Name.String())
}

// expect checks the new problems, and the current numbers of colliding node ports by cause.
func (n *fakeNode) expect(t *testing.T, listeners, ephemeral int, problems ...string) {
	t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	lab.Same(t, problems, n.problems, "problems")
	n.problems = nil
	lab.Same(t, map[string]int{"listener": listeners, "ephemeral_range": ephemeral}, n.counts, "counts")
}

// expectWithdrawn checks the new withdrawn problems.
func (n *fakeNode) expectWithdrawn(t *testing.T, want ...string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	lab.Same(t, want, n.withdrawn, "withdrawn problems")
	n.withdrawn = nil
}

// run runs a watcher on a fake node in virtual time.
func run(t *testing.T, f func(t *testing.T, n *fakeNode, w *Watcher)) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNode{start: time.Now(), counts: map[string]int{}, ephemeral: Ephemeral{Range: Range{32768, 60999}}}
		w := New(Config{
			NodeName: "node-1", Listening: n.listening, Report: n.report, Withdraw: n.withdraw, Metrics: n,
			Own:       func() (map[uint32]struct{}, error) { return n.own, nil },
			Ephemeral: func() (Ephemeral, error) { n.mu.Lock(); defer n.mu.Unlock(); return n.ephemeral, nil },
		})
		w.setAddresses(inet.IPv4, addrs("192.0.2.1"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		f(t, n, w)
		cancel()
		<-done
	})
}

const webListens = "NodePortCollision Service default/web"

func TestACollisionIsReportedOnceAndClears(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		n.listen(socket(inet.TCP, "0.0.0.0:30080"))
		w.set(web, dual(inet.TCP, 30080))
		time.Sleep(2 * time.Second)
		n.expect(t, 1, 0, webListens)
		time.Sleep(time.Hour)
		n.expect(t, 1, 0)
		// A second port of the Service is reported, together with the first one.
		n.listen(socket(inet.TCP, "0.0.0.0:30080"), socket(inet.UDP, "0.0.0.0:30053"))
		w.set(web, append(dual(inet.TCP, 30080), dual(inet.UDP, 30053)...))
		time.Sleep(10 * time.Second)
		n.expect(t, 2, 0, webListens)
		n.expectWithdrawn(t)
		n.listen()
		time.Sleep(period)
		n.expect(t, 0, 0)
		n.expectWithdrawn(t, webListens)
		// A process in a crash loop is not reported again.
		for range 10 {
			n.listen(socket(inet.TCP, "0.0.0.0:30080"))
			time.Sleep(period)
			n.expect(t, 1, 0)
			n.listen()
			time.Sleep(period)
			n.expect(t, 0, 0)
		}
		time.Sleep(forget)
		n.listen(socket(inet.TCP, "0.0.0.0:30080"))
		time.Sleep(period)
		n.expect(t, 1, 0, webListens)
	})
}

// If one process listens on the node ports of many Services, each search reports some of them, until all are reported.
func TestAProcessOnEveryNodePort(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		const services = 2*mostReported + 5
		var sockets []Socket
		for i := range services {
			sockets = append(sockets, socket(inet.TCP, fmt.Sprintf("0.0.0.0:%d", 30000+i)))
		}
		n.listen(sockets...)
		for i := range services {
			w.set(types.NamespacedName{Namespace: "default", Name: fmt.Sprint(i)}, dual(inet.TCP, uint16(30000+i)))
		}
		reported := map[string]int{}
		time.Sleep(10 * time.Second)
		for _, want := range []int{mostReported, mostReported, 5, 0} {
			synctest.Wait()
			n.mu.Lock()
			if len(n.problems) != want {
				t.Errorf("%d problems after a search, want %d", len(n.problems), want)
			}
			for _, p := range n.problems {
				reported[p]++
			}
			n.problems = nil
			n.mu.Unlock()
			time.Sleep(period)
		}
		n.expect(t, services, 0)
		if len(reported) != services {
			t.Errorf("%d of %d Services were reported", len(reported), services)
		}
	})
}

func TestADeletedServiceHasNoCollision(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		n.listen(socket(inet.TCP, "0.0.0.0:30080"))
		w.set(web, dual(inet.TCP, 30080))
		time.Sleep(10 * time.Second)
		n.expect(t, 1, 0, webListens)
		w.set(web, nil)
		time.Sleep(10 * time.Second)
		n.expect(t, 0, 0)
		// A new Service with the old name is reported.
		w.set(web, dual(inet.TCP, 30080))
		time.Sleep(10 * time.Second)
		n.expect(t, 1, 0, webListens)
	})
}

func TestANewAddressCollides(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		n.listen(socket(inet.TCP, "198.51.100.1:30080"))
		w.set(web, dual(inet.TCP, 30080))
		time.Sleep(10 * time.Second)
		n.expect(t, 0, 0)
		w.setAddresses(inet.IPv4, addrs("192.0.2.1", "198.51.100.1"))
		time.Sleep(2 * time.Second)
		n.expect(t, 1, 0, webListens)
	})
}

// TestOwnSocketsAreCollisions: if a Service's node port is the health check node port of another Service, or the port
// of /healthz, the report says so. It does not advise to stop the process.
func TestOwnSocketsAreCollisions(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		check, other := socket(inet.TCP, "0.0.0.0:30080"), socket(inet.TCP, "0.0.0.0:30081")
		check.Inode, other.Inode = 7, 8
		n.own = map[uint32]struct{}{7: {}}
		n.listen(check, other)
		w.set(web, dual(inet.TCP, 30080))
		w.set(dns, dual(inet.TCP, 30081))
		time.Sleep(2 * time.Second)
		n.expect(t, 2, 0, webListens, "NodePortCollision Service kube-system/dns")
		list, err := w.Find()
		lab.Must(t, err)
		if len(list) != 2 || !strings.Contains(list[0].Reason, "this program itself listens on 30080/TCP") || strings.Contains(list[0].Fix, "move the process") ||
			strings.Contains(list[1].Reason, "this program") {
			t.Errorf("problems: %+v", list)
		}
	})
}

// TestSearches checks the times of searches: without node ports none, one second after a change, every five seconds
// during many changes, and otherwise every minute.
func TestSearches(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		time.Sleep(10*period + period/2)
		n.expect(t, 0, 0)
		if len(n.searches) > 0 {
			t.Errorf("searches at %v without node ports", n.searches)
		}
		n.start = time.Now()
		w.set(web, dual(inet.TCP, 30080))
		time.Sleep(500 * time.Millisecond)
		w.set(dns, dual(inet.UDP, 30053))
		time.Sleep(4 * time.Second) // a search at 1 s
		for range 100 {
			w.set(web, dual(inet.TCP, 30081))
			w.set(web, dual(inet.TCP, 30080))
			time.Sleep(100 * time.Millisecond) // searches at 6 s, 11 s and 16 s
		}
		time.Sleep(20 * time.Second)
		w.set(web, dual(inet.TCP, 30080)) // no change
		time.Sleep(10 * time.Second)
		w.setAddresses(inet.IPv4, addrs("192.0.2.1"))
		time.Sleep(period)
		synctest.Wait()
		want := []time.Duration{1 * time.Second, 6 * time.Second, 11 * time.Second, 16 * time.Second, 76 * time.Second}
		lab.Same(t, want, n.searches, "searches")
		lab.Same(t, Range{30053, 30080}, n.ranges[len(n.ranges)-1], "range")
	})
}

// TestAnAssignedPortIsNoListener: a resolver's sockets, on ports that the kernel has assigned, count only if they
// stay open.
func TestAnAssignedPortIsNoListener(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		n.ephemeral.Range = Range{30000, 60999}
		w.set(web, dual(inet.UDP, 30053))
		asking := socket(inet.UDP, "0.0.0.0:30053")
		for i := range 5 {
			asking.Cookie = uint64(i)
			n.listen(asking)
			if i == 0 {
				time.Sleep(2 * time.Second)
				n.expect(t, 0, 1, "NodePortInEphemeralRange Node node-1", "NodePortInEphemeralRange Service default/web")
				asking.Cookie = 10
				n.listen(asking)
			}
			time.Sleep(period)
			n.expect(t, 0, 1)
		}
		time.Sleep(period) // the last socket stays open
		n.expect(t, 1, 1, webListens)
		n.mu.Lock()
		n.ephemeral.Reserved = []Range{{30000, 32767}}
		n.mu.Unlock()
		time.Sleep(period)
		n.expect(t, 1, 0)
	})
}

func TestManyServicesInTheEphemeralRangeAreReportedOnTheNode(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		n.ephemeral.Range = Range{1024, 65535}
		for i := range mostServices + 1 {
			w.set(types.NamespacedName{Namespace: "default", Name: fmt.Sprint("svc-", i)}, dual(inet.TCP, uint16(30000+i)))
		}
		time.Sleep(2 * time.Second)
		n.expect(t, 0, mostServices+1, "NodePortInEphemeralRange Node node-1")
	})
}

func TestAFailureKeepsTheCountsAndIsRetried(t *testing.T) {
	run(t, func(t *testing.T, n *fakeNode, w *Watcher) {
		n.listen(socket(inet.TCP, "0.0.0.0:30080"))
		w.set(web, dual(inet.TCP, 30080))
		time.Sleep(2 * time.Second)
		n.expect(t, 1, 0, webListens)
		n.mu.Lock()
		n.sockets, n.err = nil, errors.New("no memory")
		n.mu.Unlock()
		time.Sleep(3 * period)
		n.expect(t, 1, 0)
		if n.failed != 3 {
			t.Errorf("%d searches failed, want 3", n.failed)
		}
		n.mu.Lock()
		n.err = nil
		n.mu.Unlock()
		time.Sleep(period)
		n.expect(t, 0, 0)
	})
}
