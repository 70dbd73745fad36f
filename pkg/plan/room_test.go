package plan

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestLimitsOfANodeAreDocumented compares the limits with the tables of the threat model.
func TestLimitsOfANodeAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/threat-model.md")
	lab.Must(t, err)
	room := DefaultRoom()
	for row, n := range map[string]int{
		"conflicts reported of a Service": mostConflicts, "frontends and slots of all Services": room.Elements, "source ranges of all Services": room.SourceRanges,
		"port ranges of all Services":         room.PortRanges,
		"service ports with session affinity": perBlock * (endBlock - firstBlock), "other service ports": endOthers - firstNumber,
	} {
		number := regexp.MustCompile(`(?m)^\| ` + row + `[^|]*\| ([0-9,]+)`).FindSubmatch(page)
		if number == nil || strings.ReplaceAll(string(number[1]), ",", "") != fmt.Sprint(n) {
			t.Errorf("%s: the page has %s, the limit is %d", row, number, n)
		}
	}
	if got, err := RoomOf(map[string]int{"node-elements": 5, "node-source-ranges": 6, "node-port-ranges": 7}); err != nil || got != (Room{5, 6, 7}) {
		t.Errorf("by name: %+v, %v", got, err)
	}
	if got, err := RoomOf(nil); err != nil || got != room || (Room{}).orDefault() != room {
		t.Errorf("without any: %+v, %v", got, err)
	}
}

// TestAnEndpointWithAffinityIsTwoElements: an endpoint with affinity has an element in slots and an element in backends. Both take room.
func TestAnEndpointWithAffinityIsTwoElements(t *testing.T) {
	for affinity, want := range []int{0: 1 + 3 + 2, 1: 1 + 2*(3+2)} {
		s := benchService(0, 3, 0)
		s.Ports[0].Local, s.Ports[0].Affinity = s.Ports[0].Cluster[:2], 1e9*3600
		if affinity == 0 {
			s.Ports[0].Affinity = 0
		}
		if n := ElementsIn(s); n != want {
			t.Errorf("affinity %d: %d elements, want %d", affinity, n, want)
		}
	}
}

// TestANamespaceHasHalfOfTheNumbers covers numbers with and without affinity.
func TestANamespaceHasHalfOfTheNumbers(t *testing.T) {
	for timeout, all := range map[uint32]int{0: endOthers, 3600: perBlock * (endBlock - firstBlock)} {
		p := New(testOptions())
		id := func(namespace string) portID {
			return portID{name: model.PortName{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "s"}}}
		}
		used, _ := p.used(id("a"), timeout)
		*used = all/2 - 1
		last, none, other := p.number(id("a"), timeout), p.number(id("a"), timeout), p.number(id("b"), timeout)
		if last == 0 || none != 0 || other == 0 || *used != all/2 {
			t.Errorf("timeout %d: the last number of a namespace is %x, the next one %x, that of another namespace %x", timeout, last, none, other)
		}
		p.giveNumberBack(inet.IPv4, "a", last)
		if *used != all/2-1 || p.number(id("a"), timeout) == 0 {
			t.Errorf("timeout %d: %d numbers are used after one was given back", timeout, *used)
		}
	}
}

// TestAPortWithoutANumberDrops has frontends of each kind, with both policies. With another class, packets would pass untranslated.
func TestAPortWithoutANumberDrops(t *testing.T) {
	p := New(testOptions())
	p.numbers[0].others.free = 0
	s := benchService(0, 2, 0)
	port := s.Ports[0]
	port.Local = port.Cluster[:1]
	front := port.Frontends[0]
	port.Frontends = nil
	for i, kind := range []model.Kind{model.ClusterIP, model.ExternalIP, model.LoadBalancer, model.NodePort} {
		for _, local := range []bool{false, true} {
			front.Kind, front.Local = kind, local
			front.Key.Port = uint16(1000 + len(port.Frontends))
			if front.Key.Addr = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}); kind == model.NodePort {
				front.Key.Addr = netip.Addr{}
			}
			port.Frontends = append(port.Frontends, front)
		}
	}
	p.Set(s.Name, s)
	n := 0
	p.Elements(func(e *nft.Element) {
		if !e.Set.Verdict && e.Comment == port.Name.String() {
			if n++; kindOf(e.Data.AsUint32()) != kindDrop {
				t.Errorf("a port without a number has %v", e)
			}
		}
	})
	if n != len(port.Frontends) {
		t.Errorf("%d elements, want one for each of %d frontends", n, len(port.Frontends))
	}
}

// TestPartsThatAreLeftOutAreBounded: if many ports of a Service have no number, [Planner.Excess] lists 20 of these ports and the number of the
// rest.
func TestPartsThatAreLeftOutAreBounded(t *testing.T) {
	for ports, want := range map[int]int{20: 20, 21: 21, 2000: 21} {
		p := New(testOptions())
		p.numbers[0].others.free = 0
		s := benchService(0, 1, 0)
		for i := 1; i < ports; i++ {
			port := *s.Ports[0]
			port.Name.Port = fmt.Sprint(i)
			s.Ports = append(s.Ports, &port)
		}
		p.Set(s.Name, s)
		if list := p.Excess(s.Name); len(list) != want || want == 21 && !strings.Contains(list[20].Reason, fmt.Sprintf("and %d more", ports-20)) {
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
		if list, all := p.ConflictsOf(loser); len(list) != want || all != addresses {
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
		var names []types.NamespacedName
		if names, more = p.TakeLosers(); len(names) == 0 || len(names) > 100 {
			t.Fatalf("%d losers at once", len(names))
		}
		for _, name := range names {
			list[name] = true
		}
	}
	if len(list) != 300 {
		t.Errorf("%d losers, want 299 and the winner", len(list))
	}
	p.Set(winner, nil)
	if names, _ := p.TakeLosers(); len(names) < 2 || len(names) > 20+2 {
		n := len(names)
		t.Errorf("%d Services are reported after a change of the winner, want at most 20 and both winners", n)
	}
}
