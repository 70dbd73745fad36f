package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// rangedService returns a Service with ranges of UDP ports at external addresses 198.51.100.x.
func rangedService(i int, at []byte, ranges ...[2]uint16) *model.Service {
	s := benchService(i, 2, 0)
	s.Created = time.Unix(int64(i%5), 0)
	sp := *s.Ports[0]
	sp.Name.Port, sp.Protocol, sp.Frontends = model.RangesPort, inet.UDP, nil
	sp.Cluster = []netip.AddrPort{netip.AddrPortFrom(sp.Cluster[0].Addr(), 0), netip.AddrPortFrom(sp.Cluster[1].Addr(), 0)}
	for _, r := range ranges {
		for _, a := range at {
			sp.Frontends = append(sp.Frontends, model.Frontend{Kind: model.ExternalIP, Key: model.Key{
				Addr: netip.AddrFrom4([4]byte{198, 51, 100, a}), Port: r[0], Last: r[1], Protocol: inet.UDP}})
		}
	}
	s.Ports = append(s.Ports, &sp)
	return s
}

// sharingService returns a Service with random ranges and single ports of UDP at addresses that others claim, too.
// Services of a third have load-balancer IPs, and one has a cluster IP at one of the addresses.
func sharingService(random *rand.Rand, i int) *model.Service {
	var ranges [][2]uint16
	for first := uint16(1); random.IntN(3) > 0; {
		first += uint16(random.IntN(6))
		last := first + uint16(random.IntN(8))
		ranges = append(ranges, [2]uint16{first, last})
		first = last + 2
	}
	at := []byte{byte(random.IntN(2)), 2}
	s := rangedService(i, at, ranges...)
	single := *s.Ports[0]
	single.Name.Port, single.Protocol, single.Frontends = "single", inet.UDP, nil
	for port := uint16(1); port < 20; port++ {
		if random.IntN(4) == 0 {
			single.Frontends = append(single.Frontends, model.Frontend{Kind: model.ExternalIP, Key: model.Key{
				Addr: netip.AddrFrom4([4]byte{198, 51, 100, at[random.IntN(2)]}), Port: port, Protocol: inet.UDP}})
		}
	}
	s.Ports = append(s.Ports, &single)
	for _, port := range s.Ports[1:] {
		for j := range port.Frontends {
			switch f := &port.Frontends[j]; {
			case i == 11 && f.Addr.As4()[3] == 2:
				f.Kind = model.ClusterIP
			case i%3 == 0:
				f.Kind = model.LoadBalancer
			}
		}
	}
	return s
}

// claimsByService decides conflicts as the pages describe them, with a search through all claims. It returns the
// Service of each programmed key, and the number of conflicts.
func claimsByService(services map[types.NamespacedName]*model.Service) (want map[model.Key]types.NamespacedName, lost int) {
	var all []claim
	clusterIPs := map[netip.Addr]bool{}
	for _, s := range services {
		for _, port := range s.Ports[1:] {
			for j := range port.Frontends {
				f := &port.Frontends[j]
				all = append(all, claim{service: &service{name: s.Name, age: s.Age()}, frontend: f})
				clusterIPs[f.Addr] = clusterIPs[f.Addr] || f.AtClusterIP()
			}
		}
	}
	slices.SortFunc(all, func(a, b claim) int {
		if c := a.compare(b); c != 0 {
			return c
		}
		return compareKeys(a.frontend.Key, b.frontend.Key)
	})
	want = map[model.Key]types.NamespacedName{}
	claims := map[model.Key]claim{}
	for _, ranged := range []bool{true, false} {
		for _, c := range all {
			k := c.frontend.Key
			if ranged != (k.Last != 0) {
				continue
			}
			free := c.frontend.AtClusterIP() || !clusterIPs[k.Addr]
			for w := range want {
				switch {
				case w.Addr != k.Addr || max(w.Last, w.Port) < k.Port || max(k.Last, k.Port) < w.Port:
				case ranged == (w.Last != 0):
					free = false
				case want[w] != c.service.name:
					in := claims[w]
					free = free && in.compare(c) > 0
				}
			}
			if !free {
				lost++
				continue
			}
			want[k], claims[k] = c.service.name, c
			for w := range want {
				if !ranged && w.Last != 0 && w.Addr == k.Addr && w.Port <= k.Port && k.Port <= w.Last && want[w] != c.service.name {
					lost++ // the range lacks a port
				}
			}
		}
	}
	return want, lost
}

// TestOverlappingClaims changes Services with overlapping ranges and single ports at shared addresses at random.
func TestOverlappingClaims(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	changeClaims(t, random, func() *model.Service { return sharingService(random, random.IntN(12)) }, claimsByService)
}

// changeClaims changes random Services. After each change, the plan has the claims that a search through all claims
// accepts, each conflict has a loser, each range has its single ports beside it, and the elements of the plan are the
// sum of the differences.
func changeClaims(
	t *testing.T, random *rand.Rand, draw func() *model.Service,
	search func(map[types.NamespacedName]*model.Service) (want map[model.Key]types.NamespacedName, lost int),
) {
	t.Helper()
	o := testOptions()
	o.RefuseUnused, o.AnswerPing = true, true
	p := New(o)
	r := record(t, p)
	services := map[types.NamespacedName]*model.Service{}
	for round := range 1_500 {
		s := draw()
		name := s.Name
		if random.IntN(4) == 0 {
			s = nil
		}
		p.Set(name, s)
		if services[name] = s; s == nil {
			delete(services, name)
		}
		for p.Conflicts().Settle(1 + random.IntN(100)) {
		}
		want, lost := search(services)
		got := map[model.Key]types.NamespacedName{}
		p.Flows().Each(func(k model.Key, _ FlowPolicy, _ bool) {
			if flows, has := p.Flows().Of(k); has && k.Protocol == inet.UDP {
				got[k] = flows.Port.NamespacedName
			}
		})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("round %d: the plan has %v, want %v", round, got, want)
		}
		for name := range services {
			p.Service(name).Frontends(inet.UDP, func(k model.Key, _ bool) {
				if want[k] != name {
					t.Fatalf("round %d: %v counts as a frontend of %s, and %s has it", round, k, name, want[k])
				}
			})
		}
		for at, ranges := range p.claims.rangesAt {
			for k := range ranges {
				beside := map[model.Key]bool{}
				p.Flows().SinglePortsBeside(map[model.Key]string{k: ""}, func(k model.Key) { beside[k] = true })
				for single := range got {
					if single.Last == 0 && single.AddrProtocol() == at && !beside[single] {
						t.Fatalf("round %d: beside %v is not %v", round, k, single)
					}
				}
			}
		}
		conflicts := 0
		for name := range services {
			_, n := p.Conflicts().Of(name)
			conflicts += n
		}
		if conflicts != lost || p.Totals().Conflicts != lost {
			t.Fatalf("round %d: %d conflicts, %d in all, want %d", round, conflicts, p.Totals().Conflicts, lost)
		}
		n := 0
		p.Elements(func(e *nft.Element) {
			if n++; r.elements[e.ID()] != *e {
				t.Fatalf("round %d: the differences do not lead to %s", round, e)
			}
		})
		if n != len(r.elements) {
			t.Fatalf("round %d: the differences lead to %d elements, the plan has %d", round, len(r.elements), n)
		}
	}
	for name := range services {
		p.Set(name, nil)
	}
	p.Conflicts().Settle(1)
	if l := &p.claims.places; len(l.beaten)+len(l.won)+len(l.fronts)+len(l.inFrontOf)+len(l.sharing)+len(l.unsettled)+sharedByServices(p)+len(p.leads)+
		len(p.claims.hostIPs) != 0 {
		t.Errorf("after the deletion of all Services, this is left: %+v, %d shared elements", l, sharedByServices(p))
	}
}

// TestOneChangeDecidesAboutFewFrontends: many Services of one tenant claim an address. When it becomes the cluster IP
// of another Service, and when this Service is deleted, the change itself costs no more than its own frontends. The
// tenant's claims follow in parts.
func TestOneChangeDecidesAboutFewFrontends(t *testing.T) {
	const services, ports = 50, 200
	p := New(testOptions())
	r := record(t, p)
	owner := benchService(1_000, 1, 0)
	at := owner.Ports[0].Frontends[0].Addr
	for i := range services {
		s := benchService(i, 1, 0)
		for n := range ports {
			s.Ports[0].Frontends = append(s.Ports[0].Frontends, model.Frontend{Kind: model.ExternalIP, Key: model.Key{
				Addr: at, Port: uint16(1_000 + i*ports + n), Protocol: inet.TCP}})
		}
		p.Set(s.Name, s)
	}
	for _, s := range []*model.Service{owner, nil} {
		before := len(r.elements)
		p.Set(owner.Name, s)
		if d := len(r.elements) - before; max(d, -d) > 20 {
			t.Errorf("the change of one Service changes %d elements", d)
		}
		for calls, more := 1, true; more; calls++ {
			before = len(r.elements)
			more = p.Conflicts().Settle(ports)
			if d := len(r.elements) - before; max(d, -d) > ports+5 {
				t.Errorf("a part changes %d elements, want %d at most", d, ports)
			}
			if calls > services {
				t.Fatalf("more than %d parts", services)
			}
		}
		if lost := p.Totals().Conflicts; lost != map[bool]int{true: services * ports}[s != nil] {
			t.Errorf("with the Service %v: %d conflicts", s != nil, lost)
		}
	}
}

// TestAChangedAddressConcernsNoOther: a Service has many external IPs. A range of another Service at one of them leaves
// the decision about the frontend there to Settle, and about no other one.
func TestAChangedAddressConcernsNoOther(t *testing.T) {
	const addresses = 100
	p := New(testOptions())
	s := benchService(1, 1, 0)
	for i := range addresses {
		s.Ports[0].Frontends = append(s.Ports[0].Frontends, model.Frontend{Kind: model.ExternalIP, Key: model.Key{
			Addr: testAddr(inet.IPv4, 7, i), Port: 80, Protocol: inet.TCP}})
	}
	p.Set(s.Name, s)
	other := benchService(2, 1, 0)
	other.Ports[0].Name.Port = model.RangesPort
	other.Ports[0].Frontends = []model.Frontend{{Kind: model.ExternalIP, Key: model.Key{
		Addr: testAddr(inet.IPv4, 7, 5), Port: 1, Last: 1_000, Protocol: inet.TCP}}}
	p.Set(other.Name, other)
	for at := range p.claims.places.unsettledRanges {
		p.claims.settleRanges(at)
	}
	var keys []string
	for len(p.claims.places.unsettled) > 0 {
		list, _ := p.claims.settleOne()
		for _, c := range list {
			keys = append(keys, fmt.Sprint(c.key.Addr, " ", c.key.Port))
		}
	}
	lab.Same(t, []string{testAddr(inet.IPv4, 7, 5).String() + " 80"}, keys, "frontends")
}

// BenchmarkRangesAtOneAddress plans Services of many namespaces, as at the start. Each has a range of ports at the same
// external IP. Then one of the ranges disappears.
func BenchmarkRangesAtOneAddress(b *testing.B) {
	for _, n := range []int{400, 3600} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			services, names := map[types.NamespacedName]*model.Service{}, []types.NamespacedName(nil)
			for i := range n {
				s := rangedService(i, []byte{1}, [2]uint16{uint16(2*i + 1), uint16(2*i + 2)})
				s.Name.Namespace = fmt.Sprint("tenant-", i%64)
				services[s.Name], names = s, append(names, s.Name)
			}
			b.ReportAllocs()
			for b.Loop() {
				p := New(testOptions())
				p.Begin(names, func(name types.NamespacedName) model.Age { return services[name].Age() },
					func(names []types.NamespacedName) {
						for _, name := range names {
							p.Set(name, services[name])
						}
					})
				p.Set(names[0], nil)
				p.Conflicts().Settle(n)
				p.Flows().Take()
			}
		})
	}
}

// TestANodeHasRoomForPortRanges: a Service without room keeps its ports, and gets its ranges as soon as there is room.
func TestANodeHasRoomForPortRanges(t *testing.T) {
	o := testOptions()
	p := New(o)
	p.rooms[ofPortRanges].Room = roomOfOne(3)
	a, b := rangedService(1, []byte{1}, [2]uint16{1, 2}, [2]uint16{4, 5}), rangedService(2, []byte{2}, [2]uint16{1, 2}, [2]uint16{4, 5})
	p.Set(a.Name, a)
	p.Set(b.Name, b)
	if p.Service(a.Name).Excess() != nil || len(p.Service(b.Name).Excess()) != 1 || p.Service(b.Name).Excess()[0].Field != model.PortRangesField {
		t.Errorf("left out: %v and %v, want only the ranges of the second Service", p.Service(a.Name).Excess(), p.Service(b.Name).Excess())
	}
	if _, has := p.Flows().Of(b.Ports[0].Frontends[0].Key); !has {
		t.Error("the second Service has no port")
	}
	if _, has := p.Flows().Of(b.Ports[1].Frontends[0].Key); has {
		t.Error("the second Service has a range")
	}
	p.Set(a.Name, nil)
	if again := p.TakeWaiting(9); !slices.Contains(again, b.Name) {
		t.Errorf("%v may have room now, want %s", again, b.Name)
	}
	p.Set(b.Name, b)
	if _, has := p.Flows().Of(b.Ports[1].Frontends[0].Key); !has || p.Service(b.Name).Excess() != nil {
		t.Error("the second Service has no range after the first one was deleted")
	}
}

// TestFlowsOfARangeComeWithSinglePorts: without the single ports of the address, flows to these would look like flows to the range. Without the range,
// new flows to a deleted port would look like flows to a deleted Service.
func TestFlowsOfARangeComeWithSinglePorts(t *testing.T) {
	p := New(testOptions())
	single := rangedService(3, []byte{1}, [2]uint16{7, 7})
	single.Ports[1].Name.Port, single.Ports[1].Frontends[0].Last = "sip", 0
	p.Set(single.Name, single)
	p.Flows().Take()
	s := rangedService(1, []byte{1}, [2]uint16{5, 9})
	p.Set(s.Name, s)
	changed := p.Flows().Take()
	for _, k := range []model.Key{s.Ports[1].Frontends[0].Key, single.Ports[1].Frontends[0].Key} {
		if !has(changed, k) {
			t.Errorf("changed are %v, want also %v", changed, k)
		}
	}
	p.Set(single.Name, nil)
	if changed := p.Flows().Take(); !has(changed, s.Ports[1].Frontends[0].Key) {
		t.Errorf("after the single port was deleted, changed are %v, want also the range", changed)
	}
}

func has[K comparable, V any](m map[K]V, k K) bool {
	_, has := m[k]
	return has
}
