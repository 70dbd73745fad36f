package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// explained returns a Service of type NodePort with the given policies and named ports.
func explained(internal corev1.ServiceInternalTrafficPolicy, external corev1.ServiceExternalTrafficPolicy, ports ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		InternalTrafficPolicy: &internal, ExternalTrafficPolicy: external,
	}
	for i, name := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Protocol: corev1.ProtocolUDP, Port: int32(80 + i), NodePort: int32(30080 + i)})
	}
	return s
}

// sliceOf returns an IPv4 slice with the named ports.
func sliceOf(name string, endpoints []discoveryv1.Endpoint, ports ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints}
	for _, p := range ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(p), Port: new(int32(8080)), Protocol: new(corev1.ProtocolUDP)})
	}
	return s
}

// Build selects an endpoint if and only if Explain has no reason against it.
func TestSelectedEndpointsHaveNoReason(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	policies := []bool{false, true}
	chosen, refused := 0, 0
	for range 5000 {
		svc := explained(pickOne(rng, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal),
			pickOne(rng, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal), "http", "admin")
		if pickOne(rng, policies...) {
			svc.Spec.Type = corev1.ServiceTypeClusterIP // the external policy is ignored
		}
		var list, redirect []*discoveryv1.EndpointSlice
		svc.Annotations = map[string]string{annotationRedirect: "cache"} // with effect for type ClusterIP
		for i := range rng.IntN(4) {
			var words []string
			for range rng.IntN(4) {
				word := fmt.Sprint(1 + rng.IntN(4))
				for _, flag := range "rstlnNzZ" {
					if rng.IntN(3) == 0 {
						word += string(flag)
					}
				}
				words = append(words, word)
			}
			list = append(list, sliceOf(fmt.Sprint("web-", i), eps(strings.Join(words, " ")), [][]string{{"http"}, {"http", "admin"}, {}, {"other"}}[rng.IntN(4)]...))
		}
		for len(list) > 0 && rng.IntN(2) == 0 {
			redirect, list = append(redirect, list[0]), list[1:]
		}
		o := Objects{Service: svc, Slices: stored(list, Limits{}), Redirect: stored(redirect, Limits{})}
		built := Build(o, here, Options{})
		x := Explain(o, here, Options{})
		if diff := cmp.Diff(built, x.Service, cmp.AllowUnexported(Service{}, netip.Addr{}, netip.AddrPort{}), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatalf("Explain has another Service than Build (-want +got):\n%s", diff)
		}
		for i, sp := range built.Ports {
			p := x.Ports[i]
			for _, policy := range []struct {
				name string
				uses bool
				want []netip.AddrPort
				not  func(Candidate) string
			}{
				{"Cluster", p.UsesCluster, sp.Cluster, func(c Candidate) string { return c.NotCluster }},
				{"Local", p.UsesLocal, sp.Local, func(c Candidate) string { return c.NotLocal }},
			} {
				var got []netip.AddrPort
				for _, c := range p.Candidates {
					if policy.uses && policy.not(c) == "" {
						got = append(got, c.Addr)
						chosen++
					} else {
						refused++
					}
				}
				if got = slices.Compact(got); !slices.Equal(got, policy.want) {
					t.Fatalf("port %s, policy %s: Explain has no reason against %v, Build selects %v\n%+v", sp.Name, policy.name, got, policy.want, p.Candidates)
				}
			}
			if len(p.Candidates) == 0 && p.Why == "" {
				t.Fatalf("port %s has no candidates, and no reason", sp.Name)
			}
		}
	}
	if chosen < 1000 || refused < 1000 {
		t.Errorf("%d chosen and %d refused: the samples say little", chosen, refused)
	}
}

func pickOne[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

func TestReasons(t *testing.T) {
	const cluster, local = corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []struct {
		name, endpoints string
		internal        corev1.ServiceInternalTrafficPolicy
		// of is the address of the endpoint under test. notCluster and notLocal are parts of the reasons: "-" for no reason, "" for any.
		of, notCluster, notLocal string
	}{
		{"chosen", "1rl", cluster, "1", "-", "-"},
		{"not ready", "1 2r", cluster, "1", "not ready", "not on this node, but on other"},
		{"terminating beside ready ones", "1st 2r", cluster, "1", "terminating (other endpoints are ready)", ""},
		{"terminating, the last ones", "1st 2t", cluster, "1", "-", ""},
		{"terminating, not serving", "1st 2t", cluster, "2", "terminating, and not serving any more", ""},
		{"another zone", "1rz 2rZ", cluster, "1", "hinted to other zones (zone-b; this node is in " + here.Zone + ")", ""},
		{"another node", "1rn 2rN", cluster, "1", "hinted to other nodes (other)", ""},
		{"local policy", "1r 2rl", local, "1", "", "not on this node, but on other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := explainFrom(explained(c.internal, corev1.ServiceExternalTrafficPolicyLocal, "http"), []*discoveryv1.EndpointSlice{sliceOf("web-1", eps(c.endpoints), "http")},
				here, Options{})
			at := netip.MustParseAddrPort("10.1.0." + c.of + ":8080")
			i := slices.IndexFunc(x.Ports[0].Candidates, func(c Candidate) bool { return c.Addr == at })
			got := x.Ports[0].Candidates[i]
			check := func(policy, got, want string) {
				if want == "-" && got != "" || want != "-" && !strings.Contains(got, want) {
					t.Errorf("policy %s: reason %q, want %q", policy, got, want)
				}
			}
			check("Cluster", got.NotCluster, c.notCluster)
			check("Local", got.NotLocal, c.notLocal)
		})
	}
}

func TestWhyThereIsNoEndpoint(t *testing.T) {
	svc := explained(corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyCluster, "http")
	loopback := sliceOf("a", eps("1r"), "http")
	loopback.Endpoints[0].Addresses = []string{"127.0.0.1"}
	for _, c := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		want   string
		// other is the reason against an endpoint in Others.
		other string
	}{
		{"no slice", nil, "there is no EndpointSlice of IPv4", ""},
		{"an empty slice", []*discoveryv1.EndpointSlice{sliceOf("a", nil, "http")}, "its selector matches no pod", ""},
		{"a targetPort that no container has", []*discoveryv1.EndpointSlice{sliceOf("a", eps("1r"))}, "no container port of the pods matches the targetPort of the Service",
			"no container port of the pod matches the targetPort of the Service"},
		{"another port name", []*discoveryv1.EndpointSlice{sliceOf("a", eps("1r"), "web")}, `has a port named "http"/udp; the slices have "web"/udp`, ""},
		{"unusable addresses", []*discoveryv1.EndpointSlice{loopback}, "have this port, but no endpoint that can be used", "is a loopback address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := explainFrom(svc, c.slices, here, Options{})
			lab.Contains(t, x.Ports[0].Why, "why", c.want)
			other := ""
			if len(x.Others) > 0 {
				other = x.Others[0].NotCluster
			}
			if !strings.Contains(other, c.other) || c.other == "" && other != "" {
				t.Errorf("an endpoint for no port: %q, want %q", other, c.other)
			}
		})
	}
}

func TestDuplicateEndpoint(t *testing.T) {
	x := explainFrom(explained(corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyCluster, "http"),
		[]*discoveryv1.EndpointSlice{sliceOf("new", eps("1r"), "http"), sliceOf("old", eps("1st"), "http")}, here, Options{})
	list := x.Ports[0].Candidates
	if len(list) != 2 || list[0].NotCluster != "" || list[1].NotCluster != "duplicate: the same address and port exist a second time, ready" {
		t.Errorf("candidates %+v, want the endpoint of slice new selected, and the endpoint of slice old refused as a duplicate", list)
	}
}

// If an endpoint is left out because of any limit, the limit is its reason. The slices are not in the order of their names.
func TestEndpointsAboveALimitAreExplained(t *testing.T) {
	list := []*discoveryv1.EndpointSlice{slice("b", eps("3r 4r")...), slice("a", eps("1r 2r")...)}
	for title, limits := range map[string]Limits{"slices": {Slices: 1}, "pairs": {Pairs: 2}, "endpoints of a port": {PortEndpoints: 2}} {
		x := explainFrom(service(), list, here, Options{Limits: limits})
		var got []string
		for _, c := range x.Ports[0].Candidates {
			got = append(got, c.Slice+c.NotCluster)
		}
		if diff := cmp.Diff([]string{"a", "a", "b" + aboveLimit, "b" + aboveLimit}[:len(got)], got); diff != "" || len(got) < 2 {
			t.Errorf("limit of %s (-want +got):\n%s", title, diff)
		}
	}
}

func TestAddressesOfLoadBalancers(t *testing.T) {
	vip, proxied := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	balancer := func(list ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: list}}}
	}
	for _, c := range []struct {
		name string
		svc  *corev1.Service
		want []string
	}{
		{"another type", &corev1.Service{}, nil},
		{"none", balancer(), []string{"no load balancer yet"}},
		{"all served", balancer(corev1.LoadBalancerIngress{IP: "203.0.113.1"}, corev1.LoadBalancerIngress{IP: "203.0.113.2", IPMode: &vip}), nil},
		{"one of each kind", balancer(corev1.LoadBalancerIngress{IP: "203.0.113.1"}, corev1.LoadBalancerIngress{IP: "203.0.113.2", IPMode: &proxied},
			corev1.LoadBalancerIngress{Hostname: "lb.example.com"}), []string{"203.0.113.2 is not served here", "has a name"}},
	} {
		got := loadBalancerNotes(c.svc)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s: %q, want %q", c.name, got[i], c.want[i])
			}
		}
	}
}
