package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var (
	here = Node{Name: "here", Zone: "zone-a", IPs: [2]netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	name = types.NamespacedName{Namespace: "ns", Name: "svc"}
)

// service returns an IPv4 Service with one unnamed port.
func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", CreationTimestamp: metav1.NewTime(born)},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.0.0.1",
			ClusterIPs: []string{"10.0.0.1"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// edit returns a service with a change.
func edit(change func(svc *corev1.Service)) *corev1.Service {
	svc := service()
	change(svc)
	return svc
}

// healthChecked returns a service with a health check port.
func healthChecked() *corev1.Service {
	return edit(func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 32000
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
}

// annotated returns a service with annotations, as words key=value.
func annotated(words string) *corev1.Service {
	svc := service()
	svc.Annotations = map[string]string{}
	for item := range strings.FieldsSeq(words) {
		key, value, _ := strings.Cut(item, "=")
		svc.Annotations[key] = value
	}
	return svc
}

// dual returns a load balancer of both families, with two ports and every kind of frontend.
func dual() *corev1.Service {
	return edit(func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.ClusterIPs = []string{"10.0.0.1", "fd00::1"}
		svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		svc.Spec.Ports = []corev1.ServicePort{
			{Name: "web", Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080},
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, NodePort: 30053},
		}
		svc.Spec.ExternalIPs = []string{"198.51.100.1", "2001:db8::100"}
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		svc.Spec.HealthCheckNodePort = 32000
		svc.Spec.LoadBalancerSourceRanges = []string{" 192.0.2.0/24 ", "203.0.113.9/25", "203.0.113.0/24"}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: "203.0.113.200", IPMode: new(corev1.LoadBalancerIPModeVIP)},
			{IP: "198.51.100.200"},
			{IP: "198.51.100.201", IPMode: new(corev1.LoadBalancerIPModeProxy)},
			{Hostname: "lb.example"},
			{IP: "2001:db8::200"},
		}
	})
}

// slice returns an IPv4 slice with the unnamed TCP port 8080.
func slice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{endpointPort("", corev1.ProtocolTCP, 8080)},
		Endpoints:   endpoints,
	}
}

func endpointPort(name string, protocol corev1.Protocol, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
}

// stored returns slices as the store has them: by name, within the limits.
func stored(list []*discoveryv1.EndpointSlice, l Limits) (out []*Slice) {
	for _, s := range list {
		out = append(out, NewSlice(s, l, Stored{}))
	}
	slices.SortStableFunc(out, func(a, b *Slice) int { return CompareNames(a.Name, b.Name) })
	return out
}

func buildFrom(svc *corev1.Service, list []*discoveryv1.EndpointSlice, node Node, opts Options) *Service {
	return Build(Objects{Service: svc, Slices: stored(list, opts.Limits)}, node, opts)
}

func explainFrom(svc *corev1.Service, list []*discoveryv1.EndpointSlice, node Node, opts Options) *Explanation {
	return Explain(Objects{Service: svc, Slices: stored(list, opts.Limits)}, node, opts)
}

// build calls Build and fails the test on any problem.
func build(t *testing.T, svc *corev1.Service, list ...*discoveryv1.EndpointSlice) *Service {
	t.Helper()
	got := buildFrom(svc, list, here, Options{})
	if got == nil {
		t.Fatal("nothing to proxy")
	}
	if len(got.Problems) > 0 {
		t.Errorf("problems: %v", got.Problems)
	}
	return got
}

func TestNothingToProxy(t *testing.T) {
	for title, svc := range map[string]*corev1.Service{
		"no Service":    nil,
		"headless":      edit(func(svc *corev1.Service) { svc.Spec.ClusterIP = "None" }),
		"no cluster IP": edit(func(svc *corev1.Service) { svc.Spec.ClusterIP = "" }),
		"ExternalName":  edit(func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeExternalName }),
	} {
		if got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a")}, here, Options{}); got != nil {
			t.Errorf("%s: got %+v", title, got)
		}
	}
}

func TestBuildEverything(t *testing.T) {
	v4 := slice("v4", discoveryv1.Endpoint{Addresses: []string{"10.1.0.2", "ignored"}, NodeName: &here.Name},
		discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, NodeName: new("other")})
	v4.Ports = []discoveryv1.EndpointPort{
		endpointPort("web", corev1.ProtocolTCP, 8080),
		endpointPort("web", corev1.ProtocolTCP, 8081),
		endpointPort("dns", corev1.ProtocolTCP, 1), // another protocol is another port
		endpointPort("not-in-service", corev1.ProtocolTCP, 2),
	}
	v6 := slice("v6", discoveryv1.Endpoint{Addresses: []string{"fd01::1"}})
	v6.AddressType = discoveryv1.AddressTypeIPv6
	v6.Ports = []discoveryv1.EndpointPort{{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(5353))}}

	front := func(kind Kind, addr string, port uint16, proto inet.Protocol, sources ...string) Frontend {
		f := Frontend{Kind: kind, Local: kind != ClusterIP}
		if len(sources) > 0 {
			f.Sources = &Sources{Allowed: ranges(sources...)}
		}
		f.Key = Key{Addr: netip.MustParseAddr(addr), Port: port, Protocol: proto}
		f.Family = inet.FamilyOf(f.Addr)
		return f
	}
	nodePort := func(f inet.Family, port uint16, proto inet.Protocol) Frontend {
		return Frontend{Key: Key{Port: port, Protocol: proto, Family: f}, Kind: NodePort, Local: true}
	}
	// The ranges contain the node, so the load-balancer IPs are allowed, too. The range 203.0.113.0/24 already contains one of them.
	allowed := []string{"192.0.2.0/24", "198.51.100.200/32", "203.0.113.0/24"}
	v4Fronts := func(port, node uint16, proto inet.Protocol) []Frontend {
		return []Frontend{
			front(ClusterIP, "10.0.0.1", port, proto),
			front(ExternalIP, "198.51.100.1", port, proto),
			front(LoadBalancer, "203.0.113.200", port, proto, allowed...),
			front(LoadBalancer, "198.51.100.200", port, proto, allowed...),
			nodePort(inet.IPv4, node, proto),
		}
	}
	v6Fronts := func(port, node uint16, proto inet.Protocol) []Frontend {
		return []Frontend{
			front(ClusterIP, "fd00::1", port, proto),
			front(ExternalIP, "2001:db8::100", port, proto),
			front(LoadBalancer, "2001:db8::200", port, proto), // no range of this family: admits all
			nodePort(inet.IPv6, node, proto),
		}
	}
	ap := func(list ...string) (out []netip.AddrPort) {
		for _, s := range list {
			out = append(out, netip.MustParseAddrPort(s))
		}
		return out
	}
	want := &Service{
		Name:                name,
		Created:             born,
		HealthCheckNodePort: 32000,
		LocalReady:          [2]int{1, 0},
		Ports: []*ServicePort{
			{Name: PortName{name, "web"}, Protocol: inet.TCP, Family: inet.IPv4, Frontends: v4Fronts(80, 30080, inet.TCP), HasEndpoints: true,
				Cluster: ap("10.1.0.1:8080", "10.1.0.1:8081", "10.1.0.2:8080", "10.1.0.2:8081"),
				Local:   ap("10.1.0.2:8080", "10.1.0.2:8081"), Hairpin: ap("10.1.0.2:8080", "10.1.0.2:8081"),
				Serving: ap("10.1.0.1:8080", "10.1.0.1:8081", "10.1.0.2:8080", "10.1.0.2:8081")},
			{Name: PortName{name, "dns"}, Protocol: inet.UDP, Family: inet.IPv4, Frontends: v4Fronts(53, 30053, inet.UDP)},
			{Name: PortName{name, "web"}, Protocol: inet.TCP, Family: inet.IPv6, Frontends: v6Fronts(80, 30080, inet.TCP)},
			{Name: PortName{name, "dns"}, Protocol: inet.UDP, Family: inet.IPv6, Frontends: v6Fronts(53, 30053, inet.UDP), HasEndpoints: true,
				Cluster: ap("[fd01::1]:5353"), Serving: ap("[fd01::1]:5353")},
		},
	}
	if diff := cmp.Diff(want, build(t, dual(), v4, v6), exact); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
}

// describe returns one line for each service port, with one word for each frontend: kind, address or node port, "!" if it is Local,
// and its allowed sources.
func describe(s *Service) (out []string) {
	for _, sp := range s.Ports {
		line := fmt.Sprintf("%s %s/%d", sp.Family, sp.Protocol, sp.Frontends[0].Port)
		if sp.Affinity != 0 {
			line += " sticky " + sp.Affinity.String()
		}
		for _, f := range sp.Frontends {
			where := f.Addr.String()
			if f.Kind == NodePort {
				where = fmt.Sprint(":", f.Port)
			}
			line += " " + [...]string{"C", "E", "L", "N"}[f.Kind] + where
			if f.Local {
				line += "!"
			}
			if f.Sources != nil && f.Sources.Allowed != nil {
				line += fmt.Sprint(f.Sources.Allowed)
			}
			if f.Sources != nil && f.Sources.Denied != nil {
				line += "-" + fmt.Sprint(f.Sources.Denied)
			}
		}
		out = append(out, line)
	}
	return out
}

func TestFrontends(t *testing.T) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	ingress := func(ips ...string) (s corev1.ServiceStatus) {
		for _, ip := range ips {
			s.LoadBalancer.Ingress = append(s.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		return s
	}
	local := corev1.ServiceExternalTrafficPolicyLocal
	for _, tc := range []struct {
		name string
		edit func(svc *corev1.Service)
		opts Options
		want []string
	}{
		{name: "plain", edit: func(*corev1.Service) {}, want: []string{"IPv4 tcp/80 C10.0.0.1"}},
		{name: "no ipFamilies", edit: func(svc *corev1.Service) {
			svc.Spec.IPFamilies, svc.Spec.ClusterIP = nil, "fd00::1"
		}, want: []string{"IPv6 tcp/80 Cfd00::1"}},
		{name: "ipFamilies has IPv6 first: the result has IPv4 first", edit: func(svc *corev1.Service) {
			svc.Spec.IPFamilies, svc.Spec.ClusterIPs = []corev1.IPFamily{v6, v4}, []string{"fd00::1", "010.0.0.1"}
		}, want: []string{"IPv4 tcp/80 C10.0.0.1", "IPv6 tcp/80 Cfd00::1"}},
		{name: "same port for two protocols", edit: func(svc *corev1.Service) {
			svc.Spec.Ports = []corev1.ServicePort{
				{Name: "a", Port: 53, Protocol: corev1.ProtocolUDP, NodePort: 30053},
				{Name: "b", Port: 53, Protocol: corev1.ProtocolTCP, NodePort: 30053},
				{Name: "c", Port: 53, Protocol: corev1.ProtocolSCTP}}
		}, want: []string{"IPv4 udp/53 C10.0.0.1 N:30053", "IPv4 tcp/53 C10.0.0.1 N:30053", "IPv4 sctp/53 C10.0.0.1"}},
		{name: "no ports", edit: func(svc *corev1.Service) { svc.Spec.Ports = nil }},
		{name: "external IP of type ClusterIP, policy Local", edit: func(svc *corev1.Service) {
			svc.Spec.ExternalIPs, svc.Spec.ExternalTrafficPolicy = []string{"1.1.1.1", ""}, local
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 E1.1.1.1!"}},
		{name: "external IPs ignored", opts: Options{IgnoreExternalIPs: true}, edit: func(svc *corev1.Service) {
			svc.Spec.ExternalIPs = []string{"1.1.1.1", "bad"}
		}, want: []string{"IPv4 tcp/80 C10.0.0.1"}},
		{name: "policy Local of type ClusterIP without external IP", edit: func(svc *corev1.Service) {
			svc.Spec.ExternalTrafficPolicy = local
			svc.Spec.Ports[0].NodePort = 30080
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 N:30080"}},
		{name: "policy Local of a node port", edit: func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, local
			svc.Spec.Ports[0].NodePort = 30080
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 N:30080!"}},
		{name: "internal policy Local", edit: func(svc *corev1.Service) {
			svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			svc.Spec.Ports[0].NodePort = 30080
		}, want: []string{"IPv4 tcp/80 C10.0.0.1! N:30080"}},
		{name: "load-balancer IPs of any type of Service, of served families", edit: func(svc *corev1.Service) {
			svc.Status = ingress("2.2.2.2", "", "fd00::2", "::ffff:2.2.2.3")
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 L2.2.2.2 L2.2.2.3"}},
		{name: "repeated addresses", edit: func(svc *corev1.Service) {
			svc.Spec.ExternalIPs = []string{"1.1.1.1", "2.2.2.2", "1.1.1.1", "01.1.1.1", "10.0.0.1"}
			svc.Spec.LoadBalancerSourceRanges = []string{"9.0.0.0/8"}
			svc.Status = ingress("2.2.2.2", "2.2.2.2")
		}, want: []string{"IPv4 tcp/80 E10.0.0.1 E1.1.1.1 L2.2.2.2[9.0.0.0/8]"}},
		{name: "a load balancer has the cluster IP", edit: func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, local
			svc.Spec.HealthCheckNodePort = 32000
			svc.Spec.ExternalIPs = []string{"10.0.0.1", "1.1.1.1"}
			svc.Spec.LoadBalancerSourceRanges = []string{"9.0.0.0/8"}
			svc.Status = ingress("2.2.2.2", "10.0.0.1")
		}, want: []string{"IPv4 tcp/80 L10.0.0.1![9.0.0.0/8] E1.1.1.1! L2.2.2.2![9.0.0.0/8]"}},
		{name: "ranges: adjacent and overlapping ones are merged", edit: func(svc *corev1.Service) {
			svc.Spec.LoadBalancerSourceRanges = []string{"9.0.1.0/24", "9.0.0.0/24", "9.0.2.0/24", "9.0.2.128/25", "9.0.4.0/24", "255.255.255.255/32"}
			svc.Status = ingress("2.2.2.2")
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 L2.2.2.2[9.0.0.0/23 9.0.2.0/24 9.0.4.0/24 255.255.255.255/32]"}},
		{name: "ranges: /0 is no restriction", edit: func(svc *corev1.Service) {
			svc.Spec.LoadBalancerSourceRanges = []string{"9.0.0.0/8", "1.2.3.4/0"}
			svc.Status = ingress("2.2.2.2")
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 L2.2.2.2"}},
		{name: "ranges: only of the other family, or blank", edit: func(svc *corev1.Service) {
			svc.Spec.LoadBalancerSourceRanges = []string{"fd00::/8", " "}
			svc.Status = ingress("2.2.2.2")
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 L2.2.2.2"}},
		{name: "ranges: /0 of the other family", edit: func(svc *corev1.Service) {
			svc.Spec.LoadBalancerSourceRanges = []string{"::/0", "9.9.9.9/8"}
			svc.Status = ingress("2.2.2.2")
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 L2.2.2.2[9.0.0.0/8]"}},
		{name: "ranges: with this node", edit: func(svc *corev1.Service) {
			svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.1/32"}
			svc.Status = ingress("2.2.2.2", "1.1.1.1")
		}, want: []string{"IPv4 tcp/80 C10.0.0.1 L2.2.2.2[1.1.1.1/32 2.2.2.2/32 192.0.2.1/32]" +
			" L1.1.1.1[1.1.1.1/32 2.2.2.2/32 192.0.2.1/32]"}},
		{name: "affinity", edit: func(svc *corev1.Service) {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(86400))}}
		}, want: []string{"IPv4 tcp/80 sticky 24h0m0s C10.0.0.1"}},
		{name: "affinity without timeout", edit: func(svc *corev1.Service) {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}, want: []string{"IPv4 tcp/80 sticky 3h0m0s C10.0.0.1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := buildFrom(edit(tc.edit), nil, here, tc.opts)
			lab.Same(t, tc.want, describe(got), "frontends")
			if len(got.Problems) > 0 {
				t.Errorf("problems: %v", got.Problems)
			}
		})
	}
}

// TestBadService builds Services with one invalid field each. Build reports and leaves out exactly this field.
func TestBadService(t *testing.T) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	const plain = "IPv4 tcp/80 C10.0.0.1"
	timeout := func(n int32) func(svc *corev1.Service) {
		return func(svc *corev1.Service) {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &n}}
		}
	}
	external := func(addr string) func(svc *corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"1.1.1.1", addr, "1.1.1.2"} }
	}
	const twoExternal = plain + " E1.1.1.1 E1.1.1.2"
	add := func(ports ...corev1.ServicePort) func(svc *corev1.Service) {
		return func(svc *corev1.Service) { svc.Spec.Ports = append(svc.Spec.Ports, ports...) }
	}
	for _, tc := range []struct {
		name     string
		edit     func(svc *corev1.Service)
		want     []string
		problems []string // field: reason
	}{
		{"cluster IP no address", func(svc *corev1.Service) { svc.Spec.IPFamilies, svc.Spec.ClusterIP = nil, "x" },
			nil, []string{`spec.clusterIP: "x": not an IP address`}},
		{"cluster IP of the wrong family", func(svc *corev1.Service) {
			svc.Spec.IPFamilies, svc.Spec.ClusterIPs = []corev1.IPFamily{v4, v6}, []string{"10.0.0.1", "10.0.0.2"}
		}, []string{plain}, []string{`spec.clusterIPs[1]: "10.0.0.2": is not an IPv6 address, as spec.ipFamilies[1] says`}},
		{"cluster IP missing", func(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{v4, v6} },
			[]string{plain}, []string{`spec.clusterIPs: has no IPv6 address, although spec.ipFamilies has IPv6`}},
		{"unknown family", func(svc *corev1.Service) { svc.Spec.IPFamilies = []corev1.IPFamily{v4, "IPv5"} },
			[]string{plain}, []string{`spec.ipFamilies[1]: "IPv5": not an IP family`}},
		{"external IP no address", external("1.1.1"), []string{twoExternal},
			[]string{`spec.externalIPs[1]: "1.1.1": not an IP address`}},
		{"external IP unspecified", external("0.0.0.0"), []string{twoExternal},
			[]string{`spec.externalIPs[1]: "0.0.0.0": is the unspecified address`}},
		{"external IP loopback", external("::ffff:127.0.0.1"), []string{twoExternal},
			[]string{`spec.externalIPs[1]: "::ffff:127.0.0.1": is a loopback address`}},
		{"external IP multicast", external("ff02::1"), []string{twoExternal},
			[]string{`spec.externalIPs[1]: "ff02::1": is a multicast address`}},
		{"external IP broadcast", external("255.255.255.255"), []string{twoExternal},
			[]string{`spec.externalIPs[1]: "255.255.255.255": is the broadcast address`}},
		{"external IP with zone", external("fe80::1%eth0"), []string{twoExternal},
			[]string{`spec.externalIPs[1]: "fe80::1%eth0": an IPv6 zone has no meaning outside its node; leave it out`}},
		{"external IP of a family that is not served", external("fd00::1"), []string{twoExternal},
			[]string{`spec.externalIPs[1]: "fd00::1": the Service has no IPv6 cluster IP`}},
		{"load-balancer IP", func(svc *corev1.Service) {
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "224.0.0.1"}, {IP: "2.2.2.2"}}
		}, []string{plain + " L2.2.2.2"}, []string{`status.loadBalancer.ingress[0].ip: "224.0.0.1": is a multicast address`}},
		{"one bad range", func(svc *corev1.Service) {
			svc.Spec.LoadBalancerSourceRanges = []string{"9.0.0.0/8", "9.9.9.9"}
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2.2.2.2"}}
		}, []string{plain + " L2.2.2.2[9.0.0.0/8]"},
			[]string{`spec.loadBalancerSourceRanges[1]: "9.9.9.9": not an IP address, a slash, and a prefix length`}},
		{"only bad ranges", func(svc *corev1.Service) {
			svc.Spec.LoadBalancerSourceRanges = []string{"9.0.0.0/33"}
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2.2.2.2"}}
		}, []string{plain + " L2.2.2.2[]"}, []string{
			`spec.loadBalancerSourceRanges[0]: "9.0.0.0/33": IPv4 has no prefix of 33 bits`,
			`spec.loadBalancerSourceRanges: no range is valid: the load-balancer IPs are closed to all sources; correct the ranges, or leave them out to admit all`}},
		{"timeout 0", timeout(0), []string{"IPv4 tcp/80 sticky 3h0m0s C10.0.0.1"},
			[]string{`spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0 is not positive; using 10800`}},
		{"timeout too long", timeout(86401), []string{"IPv4 tcp/80 sticky 24h0m0s C10.0.0.1"},
			[]string{`spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401 is more than a day; using 86400`}},
		{"protocol", add(corev1.ServicePort{Name: "b", Port: 81, Protocol: "ICMP"}), []string{plain},
			[]string{`spec.ports[1].protocol: "ICMP": not TCP, UDP or SCTP`}},
		{"port 0", add(corev1.ServicePort{Name: "b"}), []string{plain}, []string{`spec.ports[1].port: 0 is not a port`}},
		{"port too large", add(corev1.ServicePort{Name: "b", Port: 65536}), []string{plain},
			[]string{`spec.ports[1].port: 65536 is not a port`}},
		{"port twice", add(corev1.ServicePort{Name: "b", Port: 80}, corev1.ServicePort{Name: "b", Port: 81}),
			[]string{plain, "IPv4 tcp/81 C10.0.0.1"}, []string{`spec.ports[1].port: 80 is used twice for tcp`}},
		{"name twice", add(corev1.ServicePort{Port: 81}), []string{plain},
			[]string{`spec.ports[1].name: "": is used twice for tcp`}},
		{"node port out of range", add(corev1.ServicePort{Name: "b", Port: 81, NodePort: -1}),
			[]string{plain, "IPv4 tcp/81 C10.0.0.1"}, []string{`spec.ports[1].nodePort: -1 is not a port`}},
		{"node port twice", add(corev1.ServicePort{Name: "b", Port: 81, NodePort: 30000},
			corev1.ServicePort{Name: "c", Port: 82, NodePort: 30000}),
			[]string{plain, "IPv4 tcp/81 C10.0.0.1 N:30000", "IPv4 tcp/82 C10.0.0.1"},
			[]string{`spec.ports[2].nodePort: 30000 is used twice for tcp`}},
		{"no health check port", func(svc *corev1.Service) {
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}, []string{plain}, []string{`spec.healthCheckNodePort: 0 is not a port: the load balancer cannot query the number of local endpoints`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := buildFrom(edit(tc.edit), nil, here, Options{})
			lab.Same(t, tc.want, describe(got), "frontends")
			lab.Same(t, problemsOf("Service", "svc", tc.problems), got.Problems, "problems")
		})
	}
}

func problemsOf(kind, object string, fieldsAndReasons []string) (out []Problem) {
	for _, s := range fieldsAndReasons {
		field, reason, _ := strings.Cut(s, ": ")
		out = append(out, Problem{Kind: kind, Name: types.NamespacedName{Namespace: "ns", Name: object}, Field: field, Reason: reason})
	}
	return out
}

// TestBadSlice edits the slice "bad", beside the valid slice "a" with endpoint 10.1.0.1.
func TestBadSlice(t *testing.T) {
	address := func(addr ...string) func(s *discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = addr }
	}
	port := func(change func(p *discoveryv1.EndpointPort)) func(s *discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { change(&s.Ports[0]) }
	}
	for _, tc := range []struct {
		name     string
		edit     func(s *discoveryv1.EndpointSlice) // changes a slice with endpoints 2 and 3
		cluster  string
		problems []string
	}{
		{"nothing wrong", func(*discoveryv1.EndpointSlice) {}, "1 2 3", nil},
		{"protocol missing is TCP", port(func(p *discoveryv1.EndpointPort) { p.Protocol = nil }), "1 2 3", nil},
		{"no ports", func(s *discoveryv1.EndpointSlice) { s.Ports = nil }, "1", nil},
		{"family not served", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }, "1", nil},
		{"mapped address", address("::ffff:10.1.0.9"), "1 3 9", nil},
		{"leading zeros", address("010.01.0.09"), "1 3 9", nil},
		{"FQDN", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, "1",
			[]string{`addressType: "FQDN": not IPv4 or IPv6`}},
		{"no port name", port(func(p *discoveryv1.EndpointPort) { p.Name = nil }), "1", []string{`ports[0].name: is missing`}},
		{"no port", port(func(p *discoveryv1.EndpointPort) { p.Port = nil }), "1",
			[]string{`ports[0].port: is missing; a slice for all ports is not supported`}},
		{"port 0", port(func(p *discoveryv1.EndpointPort) { *p.Port = 0 }), "1", []string{`ports[0].port: 0 is not a port`}},
		{"port too large", port(func(p *discoveryv1.EndpointPort) { *p.Port = 65536 }), "1",
			[]string{`ports[0].port: 65536 is not a port`}},
		{"protocol", port(func(p *discoveryv1.EndpointPort) { *p.Protocol = "x" }), "1",
			[]string{`ports[0].protocol: "x": not TCP, UDP or SCTP`}},
		{"no address", address(), "1 3", []string{`endpoints[0].addresses: has no address`}},
		{"empty address", address(""), "1 3", []string{`endpoints[0].addresses: "": not an IP address`}},
		{"other family", address("fd00::1"), "1 3",
			[]string{`endpoints[0].addresses: "fd00::1": not an IPv4 address, as addressType says`}},
		{"unspecified", address("0.0.0.0"), "1 3", []string{`endpoints[0].addresses: "0.0.0.0": is the unspecified address`}},
		{"multicast", address("224.0.0.1"), "1 3", []string{`endpoints[0].addresses: "224.0.0.1": is a multicast address`}},
		{"broadcast", address("255.255.255.255"), "1 3",
			[]string{`endpoints[0].addresses: "255.255.255.255": is the broadcast address`}},
		{"loopback", address("127.1.2.3"), "1 3",
			[]string{`endpoints[0].addresses: "127.1.2.3": is a loopback address`}},
		{"mapped loopback", address("::ffff:127.0.0.1"), "1 3",
			[]string{`endpoints[0].addresses: "::ffff:127.0.0.1": is a loopback address`}},
		{"link-local", address("169.254.169.254"), "1 3",
			[]string{`endpoints[0].addresses: "169.254.169.254": is a link-local address`}},
		{"zone", address("fe80::1%eth0"), "1 3",
			[]string{`endpoints[0].addresses: "fe80::1%eth0": an IPv6 zone has no meaning outside its node; leave it out`}},
		{"very many", func(s *discoveryv1.EndpointSlice) {
			for range 1000 {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"x"}})
			}
		}, "1 2 3", []string{
			`endpoints[2].addresses: "x": not an IP address`,
			`endpoints[3].addresses: "x": not an IP address`,
			`endpoints[4].addresses: "x": not an IP address`,
			`endpoints: 997 more have no usable address`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad := slice("bad", eps("2rs 3rs")...)
			tc.edit(bad)
			got := buildFrom(service(), []*discoveryv1.EndpointSlice{bad, slice("a", eps("1rs")...)}, here, Options{})
			if diff := cmp.Diff(list(tc.cluster), got.Ports[0].Cluster, exact); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			lab.Same(t, problemsOf("EndpointSlice", "bad", tc.problems), got.Problems, "problems")
		})
	}
}

func TestHealthCheck(t *testing.T) {
	for _, tc := range []struct {
		name string
		kind corev1.ServiceType
		etp  corev1.ServiceExternalTrafficPolicy
		want uint16
	}{
		{"load balancer, Local", corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, 32000},
		{"load balancer, Cluster", corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyCluster, 0},
		{"node port, Local", corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal, 0},
	} {
		got := build(t, edit(func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = tc.kind, tc.etp, 32000
		}))
		lab.Same(t, tc.want, got.HealthCheckNodePort, "%s: port", tc.name)
	}
}

// LocalReady counts addresses, not endpoints. As in kube-proxy, it includes ports that the Service does not have.
func TestLocalReady(t *testing.T) {
	s := slice("a", eps("1rsl 2rsl 3rs 4stl 5rsl 5stl 6stl 6l")...)
	s.Ports = append(s.Ports, endpointPort("", corev1.ProtocolTCP, 8081), endpointPort("other", corev1.ProtocolUDP, 1))
	other := slice("b", eps("7rsl")...)
	other.Ports[0] = endpointPort("not-in-service", corev1.ProtocolTCP, 9)
	if got, want := build(t, healthChecked(), s, other).LocalReady, [2]int{4, 0}; got != want {
		t.Errorf("local ready endpoints: %v, want %v", got, want)
	}
}

// big returns n endpoints in slices of 100, with random conditions and hints, and with duplicate addresses.
func big(r *rand.Rand, n int) (list []*discoveryv1.EndpointSlice) {
	for i := range n {
		if i%100 == 0 {
			list = append(list, slice(fmt.Sprint("s", i)))
		}
		s := list[len(list)-1]
		word := fmt.Sprint(r.IntN(200))
		for _, flag := range "rstlnNzZ" {
			if r.IntN(2) == 0 {
				word += string(flag)
			}
		}
		s.Endpoints = append(s.Endpoints, eps(word)...)
	}
	return list
}

// The order of slices, and the order of endpoints in a slice, do not change the result.
func TestOrderDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		svc := edit(func(svc *corev1.Service) {
			svc.Spec.Type = corev1.ServiceTypeNodePort
			svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			svc.Spec.Ports[0].NodePort = 30080
		})
		list := big(r, 1+r.IntN(400))
		for _, name := range []string{"bad1", "bad2"} {
			bad := slice(name)
			bad.AddressType = "x"
			list = append(list, bad)
		}
		want := buildFrom(svc, list, here, Options{})
		if len(want.Problems) != 2 {
			t.Fatalf("problems: %v", want.Problems)
		}
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, s := range list {
			r.Shuffle(len(s.Endpoints), func(i, j int) { s.Endpoints[i], s.Endpoints[j] = s.Endpoints[j], s.Endpoints[i] })
		}
		if diff := cmp.Diff(want, buildFrom(svc, list, here, Options{}), exact); diff != "" {
			t.Fatalf("in another order (-first +second):\n%s", diff)
		}
	}
}

func TestBuildChangesNoObject(t *testing.T) {
	svc := dual()
	list := big(rand.New(rand.NewPCG(3, 4)), 300)
	list[0].Ports = append(list[0].Ports, endpointPort("web", corev1.ProtocolTCP, 8080))
	wantSvc := svc.DeepCopy()
	var want []*discoveryv1.EndpointSlice
	for _, s := range list {
		want = append(want, s.DeepCopy())
	}
	buildFrom(svc, list, here, Options{})
	lab.Same(t, wantSvc, svc, "service (-before +after)")
	lab.Same(t, want, list, "slices (-before +after)")
}

func BenchmarkBuild(b *testing.B) {
	for _, size := range []struct{ slices, each int }{{1, 10}, {50, 100}} {
		var list []*discoveryv1.EndpointSlice
		for i := range size.slices {
			s := slice(fmt.Sprint("s", i))
			for j := range size.each {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
					// Controllers do not sort slices by address.
					Addresses:  []string{fmt.Sprintf("10.1.%d.%d", (i*37+j*11)%256, (i*91+j*53)%256)},
					Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
					NodeName:   new(fmt.Sprint("node-", j)),
				})
			}
			list = append(list, s)
		}
		b.Run(fmt.Sprintf("endpoints=%d", size.slices*size.each), func(b *testing.B) {
			svc := service()
			b.ReportAllocs()
			for b.Loop() {
				if buildFrom(svc, list, here, Options{}) == nil {
					b.Fatal("nothing to proxy")
				}
			}
		})
	}
}

// The age of the objects is that of the Service.
func TestAge(t *testing.T) {
	svc := service()
	svc.UID = "0f0e"
	o := Objects{Service: svc}
	if got, want := o.Age(), Build(o, here, Options{}).Age(); got != want || got != (Age{born.Unix(), "0f0e"}) {
		t.Errorf("age %v, of the Service %v", got, want)
	}
	if got := (Objects{}).Age(); got != (Age{}) {
		t.Errorf("a missing Service has the age %v", got)
	}
}
