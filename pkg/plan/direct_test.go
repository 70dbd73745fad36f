package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// directService returns a Service with a load-balancer IP and a node port for each of its ports, and endpoints on this
// node and on other nodes. Every second round has another last endpoint.
func directService(ports, here, elsewhere, round int) *model.Service {
	s := benchService(0, here+elsewhere, round)
	first := *s.Ports[0]
	first.Method = balance.Method{Key: balance.Flow}
	slices.SortFunc(first.Cluster, netip.AddrPort.Compare)
	others := first.Cluster[here:]
	first.Direct = &model.Direct{Here: first.Cluster[:here], Elsewhere: others, Earlier: others}
	s.Ports = nil
	for i := range ports {
		p := first
		p.Name.Port = fmt.Sprint("p", i)
		p.Frontends = nil
		for _, kind := range []model.Kind{model.ClusterIP, model.LoadBalancer} {
			addr := netip.AddrFrom4([4]byte{10, 96, 0, byte(kind)})
			key := model.Key{Addr: addr, Port: uint16(1 + i), Protocol: inet.TCP}
			p.Frontends = append(p.Frontends, model.Frontend{Kind: kind, Key: key})
		}
		nodePort := model.Key{Port: uint16(30_000 + i), Protocol: inet.TCP}
		p.Frontends = append(p.Frontends, model.Frontend{Kind: model.NodePort, Key: nodePort, OnAllNodes: true})
		s.Ports = append(s.Ports, &p)
	}
	return s
}

// TestElementsOfDirectReturnAreCounted: the elements of a service port with direct server return are at most those that
// are counted as room, for any places of its endpoints. A change of an endpoint writes less than a new Service.
func TestElementsOfDirectReturnAreCounted(t *testing.T) {
	for _, c := range []struct{ here, elsewhere int }{{1, 1}, {99, 1}, {1, 99}, {50, 50}, {10, 0}, {0, 10}} {
		t.Run(fmt.Sprintf("%d here, %d elsewhere", c.here, c.elsewhere), func(t *testing.T) {
			p := New(testOptions())
			sink := record(t, p)
			constant := len(sink.elements)
			s := directService(1, c.here, c.elsewhere, 0)
			p.Set(s.Name, s)
			// Some elements lead to chains.
			got, counted := len(sink.elements)-constant, elementsIn(s)
			if got > counted+10 {
				t.Errorf("%d elements, and %d are counted", got, counted)
			}
			before := sink.puts
			s = directService(1, c.here, c.elsewhere, 1)
			p.Set(s.Name, s)
			written := sink.puts - before
			if written > got {
				t.Errorf("a change of an endpoint writes %d elements, and the Service has %d", written, got)
			}
			t.Logf("%d elements, %d counted; a change of an endpoint writes %d", got, counted, written)
		})
	}
}

// TestLargestServiceWithDirectReturn: a Service at the limit of slots takes a small multiple of the time that it takes
// with the same algorithm and NAT, when it is new and when an endpoint changes.
func TestLargestServiceWithDirectReturn(t *testing.T) {
	const slots, endpoints, most = 251, 20, 8
	ports := model.DefaultLimits().Slots / slots
	plan := func(direct bool) (first, change time.Duration) {
		p := New(testOptions())
		var versions []*model.Service
		for round := range 2 {
			s := directService(ports, endpoints/2, endpoints/2, round)
			for _, sp := range s.Ports {
				if !direct {
					sp.Direct = nil
				}
			}
			versions = append(versions, s)
		}
		start := lab.ProcessorTime(t)
		p.Set(versions[0].Name, versions[0])
		first = lab.ProcessorTime(t) - start
		const changes = 4
		for i := range changes {
			p.Set(versions[0].Name, versions[(i+1)%2])
		}
		return first, (lab.ProcessorTime(t) - start - first) / changes
	}
	// The garbage collector may run in any of them, so the least times count.
	least := func(direct bool) (first, change time.Duration) {
		first, change = plan(direct)
		for range 4 {
			f, c := plan(direct)
			first, change = min(first, f), min(change, c)
		}
		return first, change
	}
	plan(true) // allocates memory
	first, change := least(false)
	directFirst, directChange := least(true)
	t.Logf("%d ports: %v and %v for a change with NAT, %v and %v with direct server return",
		ports, first, change, directFirst, directChange)
	if directFirst > most*first || directChange > most*change {
		t.Errorf("direct server return takes more than %d times the time of NAT", most)
	}
}

// TestDirectReturnHasItsOwnRoom: a namespace has many Services with direct server return. Those without room for it use
// NAT, with all of their endpoints, and other Services of the namespace lose nothing. Only a Service that asks for
// direct server return lacks something.
func TestDirectReturnHasItsOwnRoom(t *testing.T) {
	const services = 400
	p := New(testOptions())
	record(t, p)
	with := func(i int, asked bool) *model.Service {
		s := directService(1, 1, 2, 0)
		sp := s.Ports[0]
		sp.Direct.Asked = asked
		for j := range sp.Frontends {
			if f := &sp.Frontends[j]; f.Addr.IsValid() {
				f.Addr = netip.AddrFrom4([4]byte{10, byte(100 + f.Kind), byte(i >> 8), byte(i)})
			} else {
				f.Port = uint16(20_000 + i)
			}
		}
		s.Name.Name = fmt.Sprint("s", i)
		sp.Name.NamespacedName = s.Name
		return s
	}
	direct := 0
	for i := range services {
		s := with(i, i%2 == 0)
		excess := p.Set(s.Name, s)
		planned := p.Service(s.Name)
		port, nat := planned.ports[0], planned.NAT()
		if port.Direct != nil {
			direct++
		}
		switch {
		case (port.Direct == nil) != (len(nat) == 1) || excess != (len(nat) == 1):
			t.Fatalf("Service %d: direct %v, NAT %v, %v", i, port.Direct != nil, nat, excess)
		case port.Direct == nil && (port.form != formWeighted || port.Method.Key != balance.Chance ||
			len(port.slots[listCluster]) != 3):
			t.Fatalf("Service %d uses NAT in form %d with %v and %d slots", i, port.form, port.Method,
				len(port.slots[listCluster]))
		case port.Direct == nil && len(planned.Excess()) != 1-i%2:
			t.Fatalf("Service %d: %v", i, planned.Excess())
		}
	}
	if most := p.rooms[ofDirect].Most() / 1000; direct < most-5 || direct > most+5 {
		t.Errorf("%d Services have direct server return, want about %d", direct, most)
	}
	// A Service that asks for nothing else has all of its endpoints.
	plain := benchService(0, 3, 0)
	plain.Name.Name = "plain"
	if p.Set(plain.Name, plain); len(p.Service(plain.Name).Excess()) > 0 {
		t.Errorf("a Service with NAT lacks %v", p.Service(plain.Name).Excess())
	}
	// A deleted Service leaves its room to one that waits.
	gone := with(0, true)
	p.Set(gone.Name, nil)
	again := p.TakeWaiting(1)
	if len(again) != 1 {
		t.Fatal("no Service is planned again")
	}
	var waiting *model.Service
	for i := range services {
		if s := with(i, i%2 == 0); s.Name == again[0] {
			waiting = s
		}
	}
	if p.Set(waiting.Name, waiting); p.Service(waiting.Name).ports[0].Direct == nil {
		t.Errorf("%s uses NAT: %v", waiting.Name, p.Service(waiting.Name).NAT())
	}
}
