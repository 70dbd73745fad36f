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

// TestOverlappingRanges changes Services with overlapping ranges at shared addresses at random. After each change, the plan has the ranges that a
// search through all Services in their order of precedence accepts, and the elements of the plan are the sum of the differences.
func TestOverlappingRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p := New(testOptions())
	r := record(t, p)
	services := map[types.NamespacedName]*model.Service{}
	for round := range 600 {
		i := random.IntN(12)
		var ranges [][2]uint16
		for first := uint16(1); random.IntN(3) > 0; {
			first += uint16(random.IntN(6))
			last := first + uint16(random.IntN(8))
			ranges = append(ranges, [2]uint16{first, last})
			first = last + 2
		}
		s := rangedService(i, []byte{byte(random.IntN(2)), 2}, ranges...)
		name := s.Name
		if len(ranges) == 0 {
			s = nil
		}
		p.Set(name, s)
		if services[name] = s; s == nil {
			delete(services, name)
		}
		var all []claim
		for _, s := range services {
			for j := range s.Ports[1].Frontends {
				all = append(all, claim{service: &service{name: s.Name, created: s.Created.Unix()}, frontend: &s.Ports[1].Frontends[j]})
			}
		}
		slices.SortFunc(all, func(a, b claim) int {
			if c := a.compare(&b); c != 0 {
				return c
			}
			return compareKeys(a.frontend.Key, b.frontend.Key)
		})
		want := map[model.Key]types.NamespacedName{}
		lost := 0
		for _, c := range all {
			k, free := c.frontend.Key, true
			for w := range want {
				free = free && (w.Addr != k.Addr || w.Last < k.Port || k.Last < w.Port)
			}
			if free {
				want[k] = c.service.name
			} else {
				lost++
			}
		}
		got := map[model.Key]types.NamespacedName{}
		p.EachFlowPolicy(func(k model.Key, _ FlowPolicy, _ bool) {
			if name, has := p.PortOf(k); has && k.Last != 0 {
				got[k] = name.NamespacedName
			}
		})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("round %d: the plan has %v, want %v", round, got, want)
		}
		for name := range services {
			p.AllocatedFrontends(name, inet.UDP, func(k model.Key) {
				if k.Last != 0 && want[k] != name {
					t.Fatalf("round %d: %v counts as a frontend of %s, and %s has it", round, k, name, want[k])
				}
			})
		}
		conflicts := 0
		for name := range services {
			_, n := p.ConflictsOf(name)
			conflicts += n
		}
		if conflicts != lost {
			t.Fatalf("round %d: %d conflicts, want %d", round, conflicts, lost)
		}
		elements := map[string]bool{}
		p.ElementsOf(p.layouts[inet.IPv4].ranges, func(e *nft.Element) { elements[e.String()] = true })
		if len(elements) != len(want) {
			t.Fatalf("round %d: %d elements, want %d", round, len(elements), len(want))
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
}

// TestANodeHasRoomForPortRanges: a Service without room keeps its ports, and gets its ranges as soon as there is room.
func TestANodeHasRoomForPortRanges(t *testing.T) {
	o := testOptions()
	o.Room.PortRanges = 4 * 3
	p := New(o)
	a, b := rangedService(1, []byte{1}, [2]uint16{1, 2}, [2]uint16{4, 5}), rangedService(2, []byte{2}, [2]uint16{1, 2}, [2]uint16{4, 5})
	p.Set(a.Name, a)
	p.Set(b.Name, b)
	if p.Excess(a.Name) != nil || len(p.Excess(b.Name)) != 1 || p.Excess(b.Name)[0].Field != model.PortRangesField {
		t.Errorf("left out: %v and %v, want only the ranges of the second Service", p.Excess(a.Name), p.Excess(b.Name))
	}
	if _, has := p.PortOf(b.Ports[0].Frontends[0].Key); !has {
		t.Error("the second Service has no port")
	}
	if _, has := p.PortOf(b.Ports[1].Frontends[0].Key); has {
		t.Error("the second Service has a range")
	}
	p.Set(a.Name, nil)
	if again := p.TakeWaiting(); !slices.Contains(again, b.Name) {
		t.Errorf("%v may have room now, want %s", again, b.Name)
	}
	p.Set(b.Name, b)
	if _, has := p.PortOf(b.Ports[1].Frontends[0].Key); !has || p.Excess(b.Name) != nil {
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
	p.TakeFlows()
	s := rangedService(1, []byte{1}, [2]uint16{5, 9})
	p.Set(s.Name, s)
	changed := p.TakeFlows()
	for _, k := range []model.Key{s.Ports[1].Frontends[0].Key, single.Ports[1].Frontends[0].Key} {
		if !has(changed, k) {
			t.Errorf("changed are %v, want also %v", changed, k)
		}
	}
	p.Set(single.Name, nil)
	if changed := p.TakeFlows(); !has(changed, s.Ports[1].Frontends[0].Key) {
		t.Errorf("after the single port was deleted, changed are %v, want also the range", changed)
	}
}

func has[K comparable, V any](m map[K]V, k K) bool {
	_, has := m[k]
	return has
}
