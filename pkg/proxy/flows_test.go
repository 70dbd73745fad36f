package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// searchWith makes the loop request searches for stale flows from a reconciler.
func (b *bench) searchWith(r *conntrack.Reconciler) {
	b.Listeners = append(b.Listeners, conntrack.NewFlows(conntrack.FlowsConfig{
		To: r, Planned: b.Planner.Flows(), Change: b.Change,
	}).Listener())
}

// slowTable holds one flow to each of many Services. A read of the table blocks until the test releases it.
type slowTable struct {
	services int
	goOn     chan struct{}

	mu sync.Mutex
	// begun is the number of reads that have begun. ended holds the results of finished reads.
	begun int
	ended []string
}

func (s *slowTable) Delete(ctx context.Context, f inet.Family, selected conntrack.Selection, stale func(*conntrack.Flow) bool) (out conntrack.Outcome, err error) {
	s.mu.Lock()
	s.begun++
	s.mu.Unlock()
	select {
	case <-s.goOn:
	case <-ctx.Done():
		return out, ctx.Err()
	}
	for i := range s.services {
		out.Seen++
		if stale(flowTo(i)) {
			out.Deleted++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, fmt.Sprintf("%s %v: %d of %d", f, selected, out.Deleted, out.Seen))
	return out, nil
}

func (s *slowTable) Close() error { return nil }

func (s *slowTable) FlowsDeleted(inet.Family, time.Duration, int) {}
func (*slowTable) FlowsSearched(inet.Family, error)               {}

func (s *slowTable) state() (begun int, ended []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun, s.ended
}

// flowTo returns a flow to the first endpoint of a Service of the bench.
func flowTo(i int) *conntrack.Flow {
	return &conntrack.Flow{
		Protocol: inet.UDP, Replied: true, DNAT: true, Source: netip.MustParseAddrPort("192.0.2.9:1234"),
		Destination: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(i%250 + 1)}), 80),
		Server:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080),
	}
}

// While the kernel's conntrack table is read, Services are synced as usual. All changes during the read together
// cause one more read.
func TestSyncsDoNotWaitForFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const services, rounds = 300, 100
		table := &slowTable{services: services, goOn: make(chan struct{})}
		flows := conntrack.New(conntrack.Config{Open: func() (conntrack.Table, error) { return table, nil }, Metrics: table})
		b := newBench()
		b.kernel.asWanted = true
		b.searchWith(flows)
		udp := func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }
		for i := range services {
			b.setProtocol(b.set(i, 0, udp), corev1.ProtocolUDP, flowTo(i).Server.Addr().String())
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { flows.Run(ctx) })
		running.Go(func() { _ = b.Run(ctx) })
		defer running.Wait()
		defer cancel()
		close(b.source.synced)
		time.Sleep(time.Second)
		if begun, ended := table.state(); begun != 1 || ended != nil {
			t.Fatalf("%d readings have begun, %q have ended; want that the first one waits", begun, ended)
		}

		_, before := b.kernel.held()
		for i := range services {
			b.setProtocol(b.set(i, 0, udp), corev1.ProtocolUDP, "10.245.0.1")
			if i%(services/rounds) == 0 {
				time.Sleep(2 * time.Second)
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		_, after := b.kernel.held()
		if after-before < rounds {
			t.Errorf("%d syncs while the table was read, want one for each of %d changes", after-before, rounds)
		}
		b.check(t)
		if begun, _ := table.state(); begun != 1 {
			t.Errorf("%d readings have begun, want one", begun)
		}

		close(table.goOn)
		time.Sleep(20 * time.Minute)
		_, got := table.state()
		want := []string{fmt.Sprintf("IPv4 %v: 0 of %d", conntrack.UDP, services), fmt.Sprintf("IPv4 %v: %d of %d", conntrack.UDP, services, services)}
		lab.Same(t, want, got, "readings")
	})
}

// timedTable holds one flow, and records the time at which each read that deletes it begins. A read takes a while.
type timedTable struct {
	slowTable
	flow    conntrack.Flow
	takes   time.Duration
	deleted []time.Time
}

func (s *timedTable) Delete(_ context.Context, f inet.Family, _ conntrack.Selection, stale func(*conntrack.Flow) bool) (out conntrack.Outcome, err error) {
	if f == inet.IPv4 {
		s.mu.Lock()
		if stale(&s.flow) {
			s.deleted = append(s.deleted, time.Now())
		}
		s.mu.Unlock()
		time.Sleep(s.takes)
	}
	return out, nil
}

// While the UDP Service of one namespace flaps, the deletion of another namespace's UDP Service is synced at once, and
// its flows are searched after at most the running pass and a pause of the same length.
func TestFlowsOfAnotherNamespaceDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &timedTable{takes: 300 * time.Millisecond, flow: conntrack.Flow{
			Protocol: inet.UDP, Source: netip.MustParseAddrPort("10.244.0.7:999"), Destination: netip.MustParseAddrPort("10.97.0.1:80"),
			Server: netip.MustParseAddrPort("10.244.9.9:8080"), Replied: true, DNAT: true,
		}}
		r := conntrack.New(conntrack.Config{Open: func() (conntrack.Table, error) { return table, nil }, Metrics: table})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer running.Wait()
		defer cancel()
		b := newBench()
		b.searchWith(r)
		udp := func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }
		flap := func(d time.Duration) {
			for i := range d / (50 * time.Millisecond) {
				name := b.set(1, 0, udp)
				b.setProtocol(name, corev1.ProtocolUDP, fmt.Sprintf("10.244.1.%d", 1+i%2))
				time.Sleep(50 * time.Millisecond)
			}
		}
		pay := types.NamespacedName{Namespace: "bank", Name: "pay"}
		s := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.97.0.1", Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolUDP, Port: 80}}}}
		s.Namespace, s.Name = pay.Namespace, pay.Name
		b.source.services[pay] = s
		b.Tracker.MarkService(pay)
		close(b.source.synced)
		defer b.start(t)()
		for i := range time.Duration(5) {
			b.source.mu.Lock()
			b.source.services[pay] = s
			b.source.mu.Unlock()
			b.Tracker.MarkService(pay)
			flap((7000 + 450*i) * time.Millisecond)
			b.source.mu.Lock()
			delete(b.source.services, pay)
			b.source.mu.Unlock()
			b.Tracker.MarkService(pay)
			deleted := time.Now()
			flap(3 * time.Second)
			table.mu.Lock()
			next := table.deleted[len(table.deleted)-1]
			table.mu.Unlock()
			if waits := next.Sub(deleted); waits < 0 || waits > 2*table.takes+50*time.Millisecond {
				t.Errorf("the flows of a deleted Service wait for %v", waits)
			}
		}
	})
}

// A deleted UDP Service leaves no element in the tables after its flows are deleted, whenever the loop notices a
// harmless foreign change.
func TestDeletedFrontendsLeaveTheTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{goOn: make(chan struct{})}
		close(table.goOn)
		open := func() (conntrack.Table, error) { return table, nil }
		r := conntrack.New(conntrack.Config{Open: open, Metrics: table})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		defer running.Wait()
		defer cancel()
		b := newBench()
		b.searchWith(r)
		close(b.source.synced)
		defer b.start(t)()
		added := 0
		deleted := func(list []string) (n int) {
			for _, e := range list {
				if strings.HasPrefix(e, "ip deleted-udp ") {
					n++
				}
			}
			return n
		}
		b.kernel.mu.Lock()
		b.kernel.committed = func(list []string) { added = max(added, deleted(list)) }
		b.kernel.mu.Unlock()
		for i := range time.Duration(40) {
			name := b.set(1, 1, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP })
			time.Sleep(5 * time.Second)
			b.source.mu.Lock()
			delete(b.source.services, name)
			b.source.mu.Unlock()
			b.Tracker.MarkService(name)
			time.Sleep(i * 50 * time.Millisecond)
			b.kernel.mu.Lock()
			b.kernel.meddled, b.kernel.asWanted = true, true
			b.kernel.mu.Unlock()
			time.Sleep(5 * time.Second)
			list, _ := b.kernel.held()
			b.kernel.mu.Lock()
			if added != 1 || deleted(list) > 0 {
				t.Errorf("a foreign change %v after the deletion: %d elements added, %d left; want 1 and 0",
					i*50*time.Millisecond, added, deleted(list))
			}
			added = 0
			b.kernel.mu.Unlock()
		}
	})
}
