package loopback

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

func endpoints(list ...string) (out []netip.AddrPort) {
	for _, s := range list {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

var three = endpoints("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80")

func TestChoiceWithoutAffinityUsesEveryEndpoint(t *testing.T) {
	var c choice
	c.set(three, 0)
	drawn := map[netip.AddrPort]int{}
	for range 300 {
		drawn[c.next(time.Time{})]++
	}
	if len(drawn) != len(three) {
		t.Errorf("selected %v, want all of %v", drawn, three)
	}
	c.set(nil, 0)
	if got := c.next(time.Time{}); got.IsValid() {
		t.Errorf("selected %v without endpoints", got)
	}
}

// TestChoiceWithAffinity connects repeatedly with session affinity: each connection restarts the timeout.
func TestChoiceWithAffinity(t *testing.T) {
	const timeout = 10 * time.Second
	for range 20 { // a wrong implementation may choose the right endpoint once
		var c choice
		now := time.Unix(1000, 0)
		c.set(three, timeout)
		first := c.next(now)
		for range 10 {
			now = now.Add(timeout)
			if got := c.next(now); got != first {
				t.Fatalf("selected %v at the end of the timeout, want %v", got, first)
			}
		}
		others := slices.DeleteFunc(slices.Clone(three), func(e netip.AddrPort) bool { return e == first })
		c.set(others, timeout)
		second := c.next(now)
		if second == first {
			t.Fatalf("selected %v, which was removed", first)
		}
		c.set(three, timeout)
		if got := c.next(now); got != second {
			t.Fatalf("selected %v after another endpoint was added, want %v", got, second)
		}
		c.set(three, 2*timeout)
		if c.kept.IsValid() {
			t.Fatal("the endpoint is kept although the timeout changed")
		}
	}
	var c choice
	c.set(three, timeout)
	drawn := map[netip.AddrPort]int{}
	for i := range 300 {
		drawn[c.next(time.Unix(int64(i)*11, 0))]++
	}
	if len(drawn) != len(three) {
		t.Errorf("selected %v after the timeout, want all of %v", drawn, three)
	}
}

// nodePort returns a Service with one TCP service port, and the given node port for IPv4.
func nodePort(name string, number uint16, ends []netip.AddrPort) *model.Service {
	full := types.NamespacedName{Namespace: "default", Name: name}
	return &model.Service{Name: full, Ports: []*model.ServicePort{{
		Name: model.PortName{NamespacedName: full}, Protocol: inet.TCP, Cluster: ends,
		Frontends: []model.Frontend{
			{Kind: model.ClusterIP, Key: model.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: inet.TCP}},
			{Kind: model.NodePort, Key: model.Key{Port: number, Protocol: inet.TCP}},
		},
	}}}
}

func TestClaimsOf(t *testing.T) {
	local := nodePort("web", 30080, three)
	local.Ports[0].Local, local.Ports[0].Frontends[1].Local = three[:1], true
	weighted := nodePort("web", 30080, three)
	weighted.Ports[0].Local, weighted.Ports[0].Frontends[1].Local = three[:2], true
	weighted.Ports[0].ClusterWeights, weighted.Ports[0].LocalWeights = []uint16{1, 1, 2}, []uint16{2, 1}
	six := nodePort("six", 30006, endpoints("[fd00::1]:80"))
	six.Ports[0].Family, six.Ports[0].Frontends[1].Family = inet.IPv6, inet.IPv6
	with := func(allowed, denied string) *model.Service {
		s := nodePort("web", 30080, three)
		ranges := func(text string) []model.AddrRange {
			return []model.AddrRange{model.RangeOf(netip.MustParsePrefix(text))}
		}
		sources := &model.Sources{Allowed: ranges(allowed)}
		if s.Ports[0].Frontends[1].Sources = sources; denied != "" {
			sources.Denied = ranges(denied)
		}
		return s
	}
	for _, c := range []struct {
		name    string
		service *model.Service
		want    []netip.AddrPort
	}{
		{"source ranges with loopback", with("127.0.0.1/32", ""), three},
		{"source ranges without loopback", with("192.0.2.0/24", ""), nil},
		{"loopback is denied", with("0.0.0.0/0", "127.0.0.0/8"), nil},
		{"policy Cluster", nodePort("web", 30080, three), three},
		{"policy Local", local, three[:1]},
		{"policy Local and weights", weighted, []netip.AddrPort{three[0], three[0], three[1]}},
		{"another family", six, nil},
		{"no Service", nil, nil},
	} {
		var got []netip.AddrPort
		for _, claim := range claimsOf(c.service, []inet.Family{inet.IPv4}) {
			got = append(got, claim.endpoints...)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: endpoints %v, want %v", c.name, got, c.want)
		}
	}
}

// TestTheOlderServiceHasTheNodePort: loopback resolves conflicts of node ports as pkg/plan does.
func TestTheOlderServiceHasTheNodePort(t *testing.T) {
	c := claims{map[types.NamespacedName][]*claim{}, map[model.Key][]*claim{}}
	set := func(name string, age int64) {
		s := nodePort(name, 30080, three)
		s.Created = time.Unix(100-age, 0)
		c.set(s.Name, claimsOf(s, inet.Families[:]))
	}
	key := model.Key{Port: 30080, Protocol: inet.TCP}
	wins := func(want string) {
		t.Helper()
		if got := c.winner(key).name.Name; got != want {
			t.Errorf("%s gets the node port, want %s", got, want)
		}
	}
	set("b", 1)
	set("old", 2)
	set("a", 1)
	wins("old")
	c.set(types.NamespacedName{Namespace: "default", Name: "old"}, nil)
	wins("a")
	set("b", 3)
	wins("b")
	for _, name := range []string{"a", "b"} {
		c.set(types.NamespacedName{Namespace: "default", Name: name}, nil)
	}
	if c.winner(key) != nil || len(c.byKey)+len(c.byService) > 0 {
		t.Errorf("claims of deleted Services are left: %v", c)
	}
}
