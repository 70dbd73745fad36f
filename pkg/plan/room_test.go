package plan

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestLimitsOfANodeAreDocumented compares the limits with the tables of the pages.
func TestLimitsOfANodeAreDocumented(t *testing.T) {
	r := newRooms(DefaultRoom())
	for row, q := range map[string]quantity{
		"frontends and slots": ofElements, "source ranges": ofSourceRanges, "port ranges": ofPortRanges,
		"service ports without endpoint ids": ofNumbers, "service ports with session affinity": ofAffine,
		"service ports that hold packets": ofHolders,
	} {
		numbers := rowOf(t, "../../docs/sizing.md", row, `\| ([0-9,]+) \| ([0-9,]+) \| ([0-9,]+)`)
		for i, n := range []int{r[q].Limit(), r[q].Own(), r[q].Most()} {
			if strings.ReplaceAll(numbers[i], ",", "") != fmt.Sprint(n) {
				t.Errorf("%s: the page has %s, want %d", row, numbers[i], n)
			}
		}
	}
	if n := rowOf(t, "../../docs/threat-model.md", "conflicts reported of a Service", `\| ([0-9,]+)`); n[0] != fmt.Sprint(mostConflicts) {
		t.Errorf("conflicts: the page has %s, the limit is %d", n[0], mostConflicts)
	}
	if got := (Room{}).orDefault(); got != DefaultRoom() {
		t.Errorf("without any: %+v", got)
	}
}

// rowOf returns the parts of a row of a page that a pattern finds after the first cell.
func rowOf(t *testing.T, file, row, pattern string) []string {
	t.Helper()
	page, err := os.ReadFile(file)
	lab.Must(t, err)
	found := regexp.MustCompile(`(?m)^\| ` + row + `[^|]*` + pattern).FindSubmatch(page)
	if found == nil {
		t.Fatalf("%s has no row %q", file, row)
	}
	var parts []string
	for _, part := range found[1:] {
		parts = append(parts, string(part))
	}
	return parts
}

// elementsIn returns the number of elements that a Service takes of [Room] if nothing limits it.
func elementsIn(s *model.Service) (n int) {
	p := New(testOptions())
	for _, sp := range s.Ports {
		f := p.formsOf(sp)[0]
		elements, direct := f.elements(sp)
		n += elements + direct
	}
	return n
}

// TestAnEndpointWithAffinityIsTwoElements: an endpoint with affinity has an element in slots and an element in backends. Both take room.
func TestAnEndpointWithAffinityIsTwoElements(t *testing.T) {
	for affinity, want := range []int{0: 1 + 3 + 2, 1: 1 + 2*(3+2)} {
		s := benchService(0, 3, 0)
		s.Ports[0].Local, s.Ports[0].Affinity = s.Ports[0].Cluster[:2], 1e9*3600
		if affinity == 0 {
			s.Ports[0].Affinity = 0
		}
		lab.Same(t, want, elementsIn(s), "affinity %d: elements", affinity)
	}
}

// TestAPortGivesWayInOrder: with less and less room, a service port first loses session affinity or its maximum, then
// its algorithm, and then all endpoints but one. Frontends that need a number drop packets.
func TestAPortGivesWayInOrder(t *testing.T) {
	for _, c := range []struct {
		what             string
		elements, affine int // the room
		affinity         bool
		local            bool
		want             [4]kind // of a cluster IP, a load-balancer IP, an external IP and a node port
		field            string
	}{
		{"all", 1000, 10, true, false, [4]kind{kindAffinity, kindAffinity, kindAffinity, kindAffinity}, ""},
		{"no affine number", 1000, 0, true, false, [4]kind{kindDirect, kindDirect, kindDirect, kindDirect},
			"spec.sessionAffinity"},
		{"elements for the table, but not for ids", 256, 10, true, false, [4]kind{kindDirect, kindDirect, kindDirect,
			kindDirect}, "spec.sessionAffinity"},
		{"elements for the endpoints, but not for a table", 30, 10, false, false, [4]kind{kindDirect, kindDirect, kindDirect,
			kindDirect}, model.AlgorithmField},
		{"nothing", 1, 10, true, false, [4]kind{kindSingle, kindSingle, kindSingle, kindDrop}, "spec.ports"},
		{"nothing, with policies Local", 1, 10, true, true, [4]kind{kindSingle, kindDrop, kindDrop, kindDrop}, "spec.ports"},
	} {
		o := testOptions()
		p := New(o)
		p.rooms[ofElements].Room, p.rooms[ofAffine.in(0)].Room = roomOfOne(c.elements), room.New(c.affine)
		s := benchService(0, 3, 0)
		port := s.Ports[0]
		port.Method, _ = balance.Parse("maglev")
		if port.Local = port.Cluster[:1]; !c.local {
			port.Local = nil
		}
		if c.affinity {
			port.Affinity = time.Hour
		}
		front := port.Frontends[0]
		port.Frontends = nil
		for i, kind := range []model.Kind{model.ClusterIP, model.LoadBalancer, model.ExternalIP, model.NodePort} {
			front.Kind, front.Local, front.Addr = kind, c.local, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
			if kind == model.NodePort {
				front.Addr = netip.Addr{}
			}
			port.Frontends = append(port.Frontends, front)
		}
		sink := record(t, p)
		p.Set(s.Name, s)
		for i, f := range port.Frontends {
			set, _ := p.rules.layouts[0].mapsOf(&f)
			singles, want := p.rules.layouts[0].externalSingles, c.want[i]
			if f.Kind == model.ClusterIP {
				singles = p.rules.layouts[0].singles
			}
			single, has := sink.elements[nft.ID{Set: singles, Key: frontendKey(&f.Key)}]
			if is := want == kindSingle; has != is || is && !slices.Contains(port.Cluster, single.Data.AsEndpoint(inet.IPv4)) {
				t.Errorf("%s: frontend %d has the only endpoint %v", c.what, i, single)
			}
			if has && f.Kind == model.ClusterIP {
				want = 0 // it needs no class
			}
			e := sink.elements[nft.ID{Set: set, Key: frontendKey(&f.Key)}]
			if got := kindOf(e.Data.AsUint32()); got != want {
				t.Errorf("%s: frontend %d has kind %s, want %s", c.what, i, nameOf(got), nameOf(want))
			}
		}
		left := p.Service(s.Name).Excess()
		if c.field == "" && len(left) > 0 || c.field != "" && (len(left) != 1 || left[0].Field != c.field) {
			t.Errorf("%s: left out are %v", c.what, left)
		}
		p.Set(s.Name, nil)
		if n := p.rooms[ofElements].Total() + p.rooms[ofAffine.in(0)].Total() + p.rooms[ofNumbers.in(0)].Total() + sharedByServices(p) + len(p.leads) + len(p.waiting); n != 0 {
			t.Errorf("%s: without the Service, %d units, classes or Services are left", c.what, n)
		}
	}
}

// roomOfOne returns a room in which one namespace can take most units.
func roomOfOne(most int) *room.Room {
	r := room.New(0)
	for limit := 0; r.Most() < most; limit++ {
		r = room.New(limit)
	}
	return r
}

// TestPartsThatAreLeftOutAreBounded: if many ports of a Service have no number, [PlannedService.Excess] lists 20 of these ports and the number of the
// rest.
func TestPartsThatAreLeftOutAreBounded(t *testing.T) {
	for ports, want := range map[int]int{20: 20, 21: 21, 2000: 21} {
		p := New(testOptions())
		p.rooms[ofNumbers.in(0)].Room = room.New(0)
		s := benchService(0, 2, 0)
		for i := 1; i < ports; i++ {
			port := *s.Ports[0]
			port.Name.Port = fmt.Sprint(i)
			s.Ports = append(s.Ports, &port)
		}
		p.Set(s.Name, s)
		if list := p.Service(s.Name).Excess(); len(list) != want || want == 21 && !strings.Contains(list[20].Reason, fmt.Sprintf("and %d more", ports-20)) {
			t.Errorf("%d ports without a number: %d reasons, want %d; the last is %v", ports, len(list), want, list[len(list)-1])
		}
	}
}

// TestConflictsAreBounded: 20 conflicts of a Service are listed. After the winner of an address changes, 20 of its losers are reported.
func TestConflictsAreBounded(t *testing.T) {
	for addresses, want := range map[int]int{20: 20, 21: 20, 1000: 20} {
		p := New(testOptions())
		var loser types.NamespacedName
		for i := range 2 {
			s := benchService(i, 1, 0)
			front := s.Ports[0].Frontends[0]
			for a := range addresses {
				front.Kind, front.Addr = model.ExternalIP, testAddr(inet.IPv4, 98, a)
				s.Ports[0].Frontends = append(s.Ports[0].Frontends, front)
			}
			p.Set(s.Name, s)
			loser = s.Name
		}
		if list, all := p.Conflicts().Of(loser); len(list) != want || all != addresses {
			t.Errorf("%d of %d conflicts are listed, want %d of %d", len(list), all, want, addresses)
		}
	}
	p := New(testOptions())
	for i := range 300 {
		s := benchService(i, 1, 0)
		front := s.Ports[0].Frontends[0]
		front.Kind, front.Addr = model.ExternalIP, testAddr(inet.IPv4, 98, 0)
		s.Ports[0].Frontends = append(s.Ports[0].Frontends, front)
		p.Set(s.Name, s)
	}
	winner, list := benchService(0, 1, 0).Name, map[types.NamespacedName]bool{}
	for more := true; more; {
		var losers []Loser
		if losers, more = p.Conflicts().TakeLosers(); len(losers) == 0 || len(losers) > 100 {
			t.Fatalf("%d losers at once", len(losers))
		}
		for _, l := range losers {
			list[l.NamespacedName] = true
		}
	}
	lab.Same(t, 300, len(list), "losers")
	p.Set(winner, nil)
	if names, _ := p.Conflicts().TakeLosers(); len(names) < 2 || len(names) > 20+2 {
		n := len(names)
		t.Errorf("%d Services are reported after a change of the winner, want at most 20 and both winners", n)
	}
}

// TestAgeDecidesAboutGrownServices: two Services grow while no process runs, so that there is room for one of them. The
// older one gets it, regardless of their names and their order.
func TestAgeDecidesAboutGrownServices(t *testing.T) {
	o := testOptions()
	o.Room.Elements = 100 // 8 of them for a namespace
	p := New(o)
	with := func(i, endpoints int) *model.Service {
		s := benchService(i, endpoints, 0)
		s.Created = time.Unix(int64(100-i), 0)
		return s
	}
	var names []types.NamespacedName
	grown := map[types.NamespacedName]*model.Service{}
	for i := range 2 {
		s := with(i, 2)
		p.Set(s.Name, s)
		names, grown[s.Name] = append(names, s.Name), with(i, 6)
	}
	again := Continue(o, p.Numbers())
	again.Begin(names, func(name types.NamespacedName) model.Age { return grown[name].Age() }, func(names []types.NamespacedName) {
		for _, name := range names {
			again.Set(name, grown[name])
		}
	})
	var lacks []bool
	for _, name := range names {
		lacks = append(lacks, len(again.Service(name).Excess()) > 0)
	}
	lab.Same(t, []bool{true, false}, lacks, "Services that lack room, the younger one first")
}
