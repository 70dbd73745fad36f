package model

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// few are limits that small objects can reach.
var few = Limits{
	Ports: 3, Addresses: 4, Frontends: 12, SourceRanges: 2, Slices: 2, SlicePorts: 2, Pairs: 8, PortEndpoints: 3, Problems: 2,
}

// only returns the default limits, except for the named limit, which it takes from few.
func only(l Limit) (out Limits) {
	out = DefaultLimits()
	switch l {
	case limitPorts:
		out.Ports = few.Ports
	case limitAddresses:
		out.Addresses = few.Addresses
	case limitFrontends:
		out.Frontends = few.Frontends
	case limitSourceRanges:
		out.SourceRanges = few.SourceRanges
	case limitSlices:
		out.Slices = few.Slices
	case limitSlicePorts:
		out.SlicePorts = few.SlicePorts
	case limitPairs:
		out.Pairs = few.Pairs
	case limitPortEndpoints:
		out.PortEndpoints = few.PortEndpoints
	}
	return out
}

// exceeded lists the limits in problems, with the kind of object.
func exceeded(s *Service) (list []string) {
	for _, p := range s.Problems {
		if p.Limit != "" {
			list = append(list, p.Kind+": "+string(p.Limit))
		}
	}
	return list
}

// TestLimitsOfFrontends tests values below, at and above the limits. Above a limit, Build leaves out the excess and reports it once.
func TestLimitsOfFrontends(t *testing.T) {
	ports := func(n int) func(*corev1.Service) {
		return func(svc *corev1.Service) {
			svc.Spec.Ports = nil
			for i := range n {
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i), NodePort: int32(30080 + i)})
			}
		}
	}
	// The addresses are not sorted.
	addresses := func(external, balancers int) func(*corev1.Service) {
		return func(svc *corev1.Service) {
			for i := range external {
				svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, fmt.Sprint("1.1.1.", (external-i)*7))
			}
			for i := range balancers {
				svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: fmt.Sprint("2.2.2.", (balancers-i)*7)})
			}
		}
	}
	ranges := func(list ...string) func(*corev1.Service) {
		return func(svc *corev1.Service) {
			addresses(0, 1)(svc)
			svc.Spec.LoadBalancerSourceRanges = list
		}
	}
	both := func(edits ...func(*corev1.Service)) func(*corev1.Service) {
		return func(svc *corev1.Service) {
			for _, e := range edits {
				e(svc)
			}
		}
	}
	const c = "IPv4 tcp/80 C10.0.0.1"
	const node = "192.0.2.1/32"
	for _, tc := range []struct {
		name  string
		limit Limit
		edit  func(svc *corev1.Service)
		over  bool
		want  []string
	}{
		{"ports below", limitPorts, ports(2), false, []string{c + " N:30080", "IPv4 tcp/81 C10.0.0.1 N:30081"}},
		{"ports at", limitPorts, ports(3), false, []string{c + " N:30080", "IPv4 tcp/81 C10.0.0.1 N:30081", "IPv4 tcp/82 C10.0.0.1 N:30082"}},
		{"ports above", limitPorts, ports(5), true, []string{c + " N:30080", "IPv4 tcp/81 C10.0.0.1 N:30081", "IPv4 tcp/82 C10.0.0.1 N:30082"}},
		{"addresses below", limitAddresses, addresses(1, 2), false, []string{c + " E1.1.1.7 L2.2.2.14 L2.2.2.7"}},
		{"addresses at", limitAddresses, addresses(2, 2), false, []string{c + " E1.1.1.14 E1.1.1.7 L2.2.2.14 L2.2.2.7"}},
		{"addresses above, external IPs are dropped first", limitAddresses, addresses(3, 2), true, []string{c + " E1.1.1.21 E1.1.1.14 L2.2.2.14 L2.2.2.7"}},
		{"addresses above, all are load-balancer IPs", limitAddresses, addresses(2, 5), true, []string{c + " L2.2.2.35 L2.2.2.28 L2.2.2.21 L2.2.2.14"}},
		// 2 ports with node ports take 4 frontends; each address takes 2.
		{"frontends at", limitFrontends, both(ports(2), addresses(2, 2)), false, []string{
			c + " E1.1.1.14 E1.1.1.7 L2.2.2.14 L2.2.2.7 N:30080", "IPv4 tcp/81 C10.0.0.1 E1.1.1.14 E1.1.1.7 L2.2.2.14 L2.2.2.7 N:30081"}},
		{"frontends above", limitFrontends, both(ports(2), addresses(3, 2)), true, []string{
			c + " E1.1.1.21 E1.1.1.14 L2.2.2.14 L2.2.2.7 N:30080", "IPv4 tcp/81 C10.0.0.1 E1.1.1.21 E1.1.1.14 L2.2.2.14 L2.2.2.7 N:30081"}},
		{"frontends above, cluster IPs and node ports stay", limitFrontends, both(ports(6), addresses(1, 1)), true, []string{
			c + " N:30080", "IPv4 tcp/81 C10.0.0.1 N:30081", "IPv4 tcp/82 C10.0.0.1 N:30082", "IPv4 tcp/83 C10.0.0.1 N:30083",
			"IPv4 tcp/84 C10.0.0.1 N:30084", "IPv4 tcp/85 C10.0.0.1 N:30085"}},
		{"ranges at, merged", limitSourceRanges, ranges("12.0.0.0/24", "8.0.0.0/8", "12.0.1.0/24", "8.8.0.0/16"), false,
			[]string{c + " L2.2.2.7[8.0.0.0/8 12.0.0.0/23]"}},
		{"ranges above are closed", limitSourceRanges, ranges("9.0.0.0/8", "7.0.0.0/8", "11.0.0.0/8"), true,
			[]string{c + " L2.2.2.7[7.0.0.0/8 9.0.0.0/8]"}},
		{"ranges above with this node", limitSourceRanges, ranges(node, "7.0.0.0/8", "202.0.0.0/8"), true,
			[]string{c + " L2.2.2.7[7.0.0.0/8 " + node + "]"}},
		{"ranges at, and the address for this node", limitSourceRanges, ranges(node, "3.0.0.0/8"), true,
			[]string{c + " L2.2.2.7[3.0.0.0/8 " + node + "]"}},
		{"ranges below, and the address for this node", limitSourceRanges, ranges(node), false, []string{c + " L2.2.2.7[2.2.2.7/32 " + node + "]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := buildFrom(edit(tc.edit), nil, here, Options{Limits: only(tc.limit)})
			lab.Same(t, tc.want, describe(got), "frontends")
			var over []string
			if tc.over {
				over = []string{"Service: " + string(tc.limit)}
			}
			if diff := cmp.Diff(over, exceeded(got)); diff != "" || len(got.Problems) != len(over) {
				t.Errorf("limits exceeded (-want +got):\n%s\nproblems: %v", diff, got.Problems)
			}
		})
	}
}

// TestAnExceededLimitIsReportedOnce: even if both families exceed the limit, it is reported once.
func TestAnExceededLimitIsReportedOnce(t *testing.T) {
	svc := dual()
	svc.Spec.LoadBalancerSourceRanges = []string{"7.0.0.0/8", "9.0.0.0/8", "11.0.0.0/8", "fd07::/16", "fd09::/16", "fd0b::/16"}
	got := buildFrom(svc, nil, here, Options{Limits: only(limitSourceRanges)})
	lab.Same(t, []string{"Service: " + string(limitSourceRanges)}, exceeded(got), "limits exceeded")
	inside := here
	inside.IPs[inet.IPv4] = netip.MustParseAddr("7.0.0.1")
	if diff := cmp.Diff(got.Problems, buildFrom(svc, nil, inside, Options{Limits: only(limitSourceRanges)}).Problems); diff != "" {
		t.Errorf("problems on a node inside the ranges (-other node +this node):\n%s", diff)
	}
	for _, p := range got.Ports {
		for _, f := range p.Frontends {
			if f.Kind == LoadBalancer && len(f.Sources.Allowed) != 2 {
				t.Errorf("%v: sources %v", f.Key, f.Sources.Allowed)
			}
		}
	}
}

// manyPorts returns a Service with ports p0, p1 and so on.
func manyPorts(n int) *corev1.Service {
	return edit(func(svc *corev1.Service) {
		svc.Spec.Ports = nil
		for i := range n {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i)})
		}
	})
}

// portsSlice returns a slice with ports p0, p1 and so on, and with endpoints in the shorthand of eps.
func portsSlice(name string, ports int, endpoints string) *discoveryv1.EndpointSlice {
	s := slice(name, eps(endpoints)...)
	s.Ports = nil
	for i := range ports {
		s.Ports = append(s.Ports, endpointPort(fmt.Sprint("p", i), corev1.ProtocolTCP, 8080))
	}
	return s
}

// hosts lists the last bytes of the endpoints of each port of a Service.
func hosts(s *Service) (out []string) {
	for _, p := range s.Ports {
		var list []string
		for _, e := range p.Cluster {
			b := e.Addr().As4()
			list = append(list, fmt.Sprint(b[3]))
		}
		out = append(out, strings.Join(list, " "))
	}
	return out
}

// TestLimitsOfEndpoints tests values at and above each limit, in three orders of the slices.
func TestLimitsOfEndpoints(t *testing.T) {
	type list = []*discoveryv1.EndpointSlice
	bad := func(name string) *discoveryv1.EndpointSlice {
		s := portsSlice(name, 1, "9r")
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{})
		return s
	}
	unused := func(name string, ports int, endpoints string) *discoveryv1.EndpointSlice {
		s := portsSlice(name, ports, endpoints)
		for i := 1; i < ports; i++ {
			s.Ports[i].Name = new(fmt.Sprint("unused-", i))
		}
		return s
	}
	same := func(name string, ports int) *discoveryv1.EndpointSlice {
		s := portsSlice(name, 1, "1r")
		for i := 1; i < ports; i++ {
			s.Ports = append(s.Ports, endpointPort("p0", corev1.ProtocolTCP, int32(8080+i)))
		}
		return s
	}
	for _, tc := range []struct {
		name   string
		limit  Limit
		ports  int
		slices list
		over   string
		want   []string
	}{
		{"slices at", limitSlices, 1, list{portsSlice("b", 1, "2r"), portsSlice("a", 1, "1r")}, "", []string{"1 2"}},
		{"slices above", limitSlices, 1, list{portsSlice("c", 1, "3r"), portsSlice("b", 1, "2r"), bad("d"), portsSlice("a", 1, "1r")},
			"Service", []string{"1 2"}},
		{"ports of a slice at", limitSlicePorts, 1, list{same("a", 2)}, "", []string{"1 1"}},
		{"ports of a slice above", limitSlicePorts, 1, list{same("a", 3)}, "EndpointSlice", []string{"1 1"}},
		{"ports of a slice above, also if the Service doesn't have them", limitSlicePorts, 1, list{unused("a", 3, "1r 2r")}, "EndpointSlice", []string{"1 2"}},
		{"pairs at", limitPairs, 2, list{portsSlice("a", 2, "1r 2r 3r 4r")}, "", []string{"1 2 3 4", "1 2 3 4"}},
		{"pairs above in one slice, ready ones stay", limitPairs, 2, list{portsSlice("a", 2, "1 2r 3 4r 5r 6r")}, "Service",
			[]string{"2 4 5 6", "2 4 5 6"}},
		{"pairs above in the third slice", limitPairs, 2, list{portsSlice("c", 2, "5r 6r 7r"), portsSlice("b", 2, "3r"), portsSlice("a", 2, "1r 2r")},
			"Service", []string{"1 2 3 5", "1 2 3 5"}},
		{"pairs of ports that the Service doesn't have don't count", limitPairs, 1, list{unused("a", 100, "1r 2r 3r 4r")}, "", []string{"1 2 3 4"}},
		{"ports count without endpoints", limitPairs, 2, list{portsSlice("a", 8, ""), portsSlice("b", 2, "1r")}, "Service", []string{"", ""}},
		{"endpoints of a port at", limitPortEndpoints, 2, list{portsSlice("a", 2, "1r 2r 3r")}, "", []string{"1 2 3", "1 2 3"}},
		{"endpoints of a port above, ready ones stay", limitPortEndpoints, 2, list{portsSlice("b", 2, "1 5r 6r"), portsSlice("a", 1, "2r 3r"), portsSlice("c", 2, "4r")},
			"Service", []string{"2 3 4", "4 5 6"}},
		{"endpoints of a port above, serving ones stay", limitPortEndpoints, 1, list{portsSlice("a", 1, "1 2 3st 4st 5")}, "Service", []string{"3 4"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := Options{Limits: only(tc.limit)}
			var over []string
			if tc.over != "" {
				over = []string{tc.over + ": " + string(tc.limit)}
			}
			for range 3 {
				tc.slices = append(tc.slices[1:len(tc.slices):len(tc.slices)], tc.slices[0])
				got := buildFrom(manyPorts(tc.ports), tc.slices, here, opts)
				lab.Same(t, tc.want, hosts(got), "endpoints")
				if diff := cmp.Diff(over, exceeded(got)); diff != "" || len(got.Problems) != len(over) {
					t.Errorf("limits exceeded (-want +got):\n%s\nproblems: %v", diff, got.Problems)
				}
			}
		})
	}
}

// If the number of slices is at the limit, a new slice whose name is first replaces the last slice.
func TestNewFirstSliceReplacesTheLastOne(t *testing.T) {
	opts := Options{Limits: Limits{Slices: 3}}
	list := []*discoveryv1.EndpointSlice{portsSlice("a", 1, "1r")}
	for i, name := range []string{"b", "c", "d"} {
		list = append(list, portsSlice(name, 1, fmt.Sprint(i+2, "r")))
	}
	lab.Same(t, []string{"2 3 4"}, hosts(buildFrom(manyPorts(1), list[1:], here, opts)), "endpoints without the new slice")
	got := buildFrom(manyPorts(1), list, here, opts)
	if diff := cmp.Diff([]string{"1 2 3"}, hosts(got)); diff != "" || len(exceeded(got)) != 1 {
		t.Errorf("limits exceeded: %v; endpoints (-want +got):\n%s", exceeded(got), diff)
	}
}

// Ports of a slice above their limit do not count as pairs.
func TestExcessPortsAreNoPairs(t *testing.T) {
	s := portsSlice("a", 1, "1r 2r 3r 4r")
	for i := range 3 {
		s.Ports = append(s.Ports, endpointPort("p0", corev1.ProtocolTCP, int32(8081+i)))
	}
	got := buildFrom(manyPorts(1), []*discoveryv1.EndpointSlice{s}, here, Options{Limits: Limits{SlicePorts: 2, Pairs: 8}})
	if n := len(got.Ports[0].Cluster); n != 8 || !slices.Equal(exceeded(got), []string{"EndpointSlice: " + string(limitSlicePorts)}) {
		t.Errorf("%d endpoints, limits exceeded: %v", n, exceeded(got))
	}
}

// With session affinity or a policy Local, each pair takes twice as many elements, so the limit of pairs is half as large.
func TestAffinityAndLocalHalveThePairs(t *testing.T) {
	affinity := func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	local := func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	internal := func(svc *corev1.Service) {
		svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	for name, tc := range map[string]struct {
		edits []func(*corev1.Service)
		want  int
	}{
		"neither":                  {nil, 8},
		"affinity":                 {[]func(*corev1.Service){affinity}, 4},
		"external policy Local":    {[]func(*corev1.Service){local}, 4},
		"internal policy Local":    {[]func(*corev1.Service){internal}, 4},
		"affinity, policies Local": {[]func(*corev1.Service){affinity, local, internal}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			svc := manyPorts(2)
			for _, edit := range tc.edits {
				edit(svc)
			}
			got := buildFrom(svc, []*discoveryv1.EndpointSlice{portsSlice("a", 2, "1r 2r 3r 4r 5r")}, here, Options{Limits: only(limitPairs)})
			if len(got.Problems) != 1 || !strings.Contains(got.Problems[0].Reason, fmt.Sprintf("limit of %d ", tc.want)) {
				t.Errorf("problems: %v, want one of a limit of %d", got.Problems, tc.want)
			}
		})
	}
}

// TestProblemsAreBounded: Build reports problems up to a limit, one more problem with the number of the rest, and each exceeded
// limit.
func TestProblemsAreBounded(t *testing.T) {
	s := slice("a", eps("1r 2r 3r 4r 5r")...)
	for i := range s.Endpoints {
		s.Endpoints[i].Addresses = nil
	}
	for range 7 {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{})
	}
	svc := edit(func(svc *corev1.Service) {
		for range 10 {
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, "1::", strings.Repeat("x", 100_000))
		}
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, "1.1.1.1", "1.1.1.2")
	})
	got := buildFrom(svc, []*discoveryv1.EndpointSlice{s}, here, Options{Limits: Limits{Problems: 3, Addresses: 20}})
	var reasons []string
	for _, p := range got.Problems {
		reasons = append(reasons, fmt.Sprintf("%s %s: %.30s", p.Kind, p.Field, p.Reason))
		if len(p.Reason) > 500 {
			t.Errorf("a reason of %d bytes", len(p.Reason))
		}
	}
	want := []string{
		`Service spec.externalIPs[0]: "1::": the Service has no IPv6`, `Service spec.externalIPs[1]: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxx`,
		`Service spec.externalIPs[2]: "1::": the Service has no IPv6`, `Service spec: and 17 more parts that cannot `,
		`Service spec.externalIPs, status.loadBalancer.ingress: more than the limit of 20 load`,
		`EndpointSlice ports[1].name: is missing`, `EndpointSlice ports[2].name: is missing`, `EndpointSlice ports[3].name: is missing`,
		`EndpointSlice ports, endpoints: and 8 more parts that cannot b`,
	}
	lab.Same(t, want, reasons, "problems")
	var many []*discoveryv1.EndpointSlice
	for i := range 100 {
		c := *s
		c.Name = fmt.Sprintf("s-%03d", i)
		many = append(many, &c)
	}
	got = buildFrom(service(), many, here, Options{Limits: Limits{Problems: 3}})
	if n := len(got.Problems); n != 31 || !strings.Contains(got.Problems[0].Reason, "370 more") {
		t.Errorf("%d problems of 100 bad slices, the first one %v", n, got.Problems[0])
	}
}

// TestSourceRangesAreShared: a Service has one list of ranges for each family, for all addresses and ports.
func TestSourceRangesAreShared(t *testing.T) {
	svc := dual()
	svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, "2001:db8:1::/48")
	lists := map[*AddrRange]inet.Family{}
	for _, p := range build(t, svc).Ports {
		for _, f := range p.Frontends {
			if f.Sources != nil {
				lists[&f.Sources.Allowed[0]] = f.Family
			}
		}
	}
	lab.Same(t, 2, len(lists), "lists of source ranges")
}

func TestMergedRanges(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.0/8 10.1.0.0/16":                             "[10.0.0.0/8]",
		"10.0.0.0/24 10.0.1.0/24 10.0.3.0/24":                "[10.0.0.0/23 10.0.3.0/24]",
		"10.0.1.0/24 10.0.2.0/24":                            "[10.0.1.0-10.0.2.255]",
		"0.0.0.0/1 128.0.0.0/1":                              "[0.0.0.0/0]",
		"255.255.255.255/32 0.0.0.0/32":                      "[0.0.0.0/32 255.255.255.255/32]",
		"fd00::/64 fd00:0:0:1::/64 ffff:ffff::/32":           "[fd00::/63 ffff:ffff::/32]",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128 ::/128": "[::/128 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128]",
	} {
		list := mergeRanges(ranges(strings.Fields(in)...))
		lab.Same(t, want, fmt.Sprint(list), "%s: fmt.Sprint(list)", in)
		for _, s := range strings.Fields(in) {
			p := netip.MustParsePrefix(s)
			for _, a := range []netip.Addr{p.Addr(), RangeOf(p).Last} {
				if !slices.ContainsFunc(list, func(r AddrRange) bool { return r.Contains(a) }) {
					t.Errorf("%s: %v is in no range", in, a)
				}
			}
		}
	}
	if r := RangeOf(netip.MustParsePrefix("10.0.0.0/8")); r.Contains(netip.MustParseAddr("11.0.0.0")) || r.Contains(netip.MustParseAddr("::10.0.0.0")) {
		t.Errorf("%v contains addresses outside of it", r)
	}
}

// TestOneObjectTakesLittleMemory counts the bytes allocated for the largest objects that etcd stores (1.5 MB). A comment above an
// object states its number of elements without limits.
func TestOneObjectTakesLittleMemory(t *testing.T) {
	ips := func(n int) (list []string) {
		for i := range n {
			list = append(list, netip.AddrFrom4([4]byte{198, byte(i >> 16), byte(i >> 8), byte(i)}).String())
		}
		return list
	}
	ports := func(svc *corev1.Service, n int) {
		*svc = *manyPorts(n)
	}
	big := func(ports, endpoints int, used bool) *discoveryv1.EndpointSlice {
		s := slice("big")
		s.Ports = nil
		for i := range ports {
			name := fmt.Sprint("p", i)
			if !used {
				name = fmt.Sprint("unused-", i)
			}
			s.Ports = append(s.Ports, endpointPort(name, corev1.ProtocolTCP, int32(1+i%65535)))
		}
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String()}})
		}
		return s
	}
	const mb = 1 << 20
	for _, tc := range []struct {
		name      string
		svc       *corev1.Service
		slices    []*discoveryv1.EndpointSlice
		most      uint64
		frontends int
		endpoints int
	}{
		// 37,500,000 frontends
		{"addresses x ports", edit(func(svc *corev1.Service) {
			ports(svc, 1_000)
			svc.Spec.ExternalIPs = ips(37_500)
		}), nil, 16 * mb, 10_000, 0},
		// 100,000 frontends
		{"addresses", edit(func(svc *corev1.Service) { svc.Spec.ExternalIPs = ips(100_000) }), nil, 8 * mb, 4_001, 0},
		{"addresses that cannot be used", edit(func(svc *corev1.Service) { svc.Spec.ExternalIPs = slices.Repeat([]string{"1::"}, 300_000) }), nil, 4 * mb, 1, 0},
		{"ports", edit(func(svc *corev1.Service) { ports(svc, 50_000) }), nil, 8 * mb, 2_000, 0},
		{"source ranges", edit(func(svc *corev1.Service) {
			for i := range 80_000 {
				svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)}).String()+"/32")
			}
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2.2.2.2"}}
		}), nil, mb, 2, 0},
		{"port ranges", edit(func(svc *corev1.Service) {
			var list []string
			for i := range 20_000 { // the API server allows 256 KiB of annotations
				list = append(list, fmt.Sprint("udp/", 1+3*i))
			}
			svc.Annotations = map[string]string{annotationPortRanges: strings.Join(list, ",")}
		}), nil, mb, 1, 0},
		{"annotations with the prefix of the program", edit(func(svc *corev1.Service) {
			svc.Annotations = map[string]string{}
			for i := range 12_000 { // the API server allows 256 KiB of annotations
				svc.Annotations[fmt.Sprintf("%s%04x", prefix, i)] = ""
			}
		}), nil, 8 * mb, 1, 0},
		// 20,000,000 unused endpoints
		{"ports of a slice that the Service doesn't have", manyPorts(1), []*discoveryv1.EndpointSlice{big(20_000, 1_000, false)}, mb, 1, 0},
		// 20,000,000 endpoints
		{"ports x endpoints of a slice", manyPorts(20_000), []*discoveryv1.EndpointSlice{big(20_000, 1_000, true)}, 64 * mb, 2_000, 20_000},
		{"endpoints", manyPorts(1), []*discoveryv1.EndpointSlice{big(1, 30_000, true)}, 10 * mb, 1, 16_384},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := buildFrom(tc.svc, tc.slices, here, Options{})
			runtime.ReadMemStats(&after)
			n := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d KiB", n>>10)
			if n > tc.most {
				t.Errorf("%d MB are allocated, want at most %d", n/mb, tc.most/mb)
			}
			frontends, endpoints, ranges := 0, 0, 0
			for _, p := range got.Ports {
				frontends, endpoints = frontends+len(p.Frontends), endpoints+len(p.Cluster)
				for i := range p.Frontends {
					if s := p.Frontends[i].Sources; s != nil {
						ranges = max(ranges, len(s.Allowed))
					}
				}
			}
			if frontends != tc.frontends || endpoints != tc.endpoints || ranges > 1_000 {
				t.Errorf("%d frontends, %d endpoints, %d ranges, want %d, %d", frontends, endpoints, ranges, tc.frontends, tc.endpoints)
			}
			if len(got.Problems) > 30 {
				t.Errorf("%d problems", len(got.Problems))
			}
		})
	}
}

// TestLimitsAreDocumented: the tables of the threat model list the default limits.
func TestLimitsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/threat-model.md")
	lab.Must(t, err)
	l := DefaultLimits()
	for row, n := range map[string]int{
		"service ports of a Service": l.Ports, "load-balancer and external IPs of a Service": l.Addresses, "frontends of a Service": l.Frontends,
		"port ranges of a Service": l.PortRanges, "source ranges of a Service and family": l.SourceRanges, "EndpointSlices of a Service": l.Slices, "ports of an EndpointSlice": l.SlicePorts,
		"endpoints times ports of a Service": l.Pairs, "endpoints of a service port in one family": l.PortEndpoints, "slots of a Service": l.Slots, "problems reported of an object": l.Problems,
	} {
		number := regexp.MustCompile(`(?m)^\| ` + row + `[^|]*\| ([0-9,]+)`).FindSubmatch(page)
		if number == nil || strings.ReplaceAll(string(number[1]), ",", "") != fmt.Sprint(n) {
			t.Errorf("%s: the page has %s, the limit is %d", row, number, n)
		}
	}
}
