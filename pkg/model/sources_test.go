package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// balanced returns a Service with every kind of frontend, and with annotations: pairs of the short name of a key and a value.
func balanced(annotations ...string) *corev1.Service {
	keys := map[string]string{"ports": annotationNodePortSources, "external": annotationExternalIPSources, "denied": annotationDeniedSources, "cilium": annotationSourcePolicy}
	return edit(func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{"1.1.1.1"}
		svc.Spec.Ports[0].NodePort = 30080
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2.2.2.2"}}
		svc.Annotations = map[string]string{}
		for i := 0; i < len(annotations); i += 2 {
			if annotations[i] == "balancer" {
				svc.Spec.LoadBalancerSourceRanges = strings.Split(annotations[i+1], ",")
				continue
			}
			svc.Annotations[keys[annotations[i]]] = annotations[i+1]
		}
	})
}

// TestAnnotatedSources: each row has the sources of a Service, its frontends (C: cluster IP, E: external IP, L: load-balancer IP, N: node port) with
// allowed and -denied sources, and a part of the last problem.
func TestAnnotatedSources(t *testing.T) {
	const closed = "C10.0.0.1 E1.1.1.1[] L2.2.2.2[] N:30080[]"
	for _, tc := range []struct {
		sources       []string
		want, problem string
	}{
		{nil, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080", ""},
		{[]string{"ports", "9.0.0.0/8"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[9.0.0.0/8]", ""},
		{[]string{"external", "9.0.0.0/8"}, "C10.0.0.1 E1.1.1.1[9.0.0.0/8] L2.2.2.2 N:30080", ""},
		{[]string{"balancer", "9.0.0.0/8"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2[9.0.0.0/8] N:30080", ""},
		{[]string{"balancer", "7.0.0.0/8", "external", "8.0.0.0/8", "ports", "9.0.0.0/8", "denied", "10.0.0.0/8"},
			"C10.0.0.1 E1.1.1.1[8.0.0.0/8]-[10.0.0.0/8] L2.2.2.2[7.0.0.0/8]-[10.0.0.0/8] N:30080[9.0.0.0/8]-[10.0.0.0/8]", ""},
		{[]string{"ports", " 9.1.0.0/16 ,9.0.0.0/16,, 9.0.1.0/24"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[9.0.0.0/15]", ""},
		{[]string{"denied", "9.1.0.0/16,9.0.0.0/16,9.0.1.0/24"}, "C10.0.0.1 E1.1.1.1-[9.0.0.0/15] L2.2.2.2-[9.0.0.0/15] N:30080-[9.0.0.0/15]", ""},
		// The node uses the address of the frontend, or the loopback address, as its source.
		{[]string{"ports", "192.0.2.1/32"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[127.0.0.1/32 192.0.2.1/32]", ""},
		{[]string{"external", "192.0.2.1/32"}, "C10.0.0.1 E1.1.1.1[1.1.1.1/32 192.0.2.1/32] L2.2.2.2 N:30080", ""},
		{[]string{"denied", "192.0.2.1/32", "ports", "none"}, "C10.0.0.1 E1.1.1.1-[1.1.1.1/32 2.2.2.2/32 127.0.0.1/32 192.0.2.1/32] " +
			"L2.2.2.2-[1.1.1.1/32 2.2.2.2/32 127.0.0.1/32 192.0.2.1/32] N:30080[]-[1.1.1.1/32 2.2.2.2/32 127.0.0.1/32 192.0.2.1/32]", ""},
		// A family without ranges is open, and so is one with /0.
		{[]string{"ports", "fd00::/8", "denied", "fd00::/8"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080", ""},
		{[]string{"ports", "9.0.0.0/8,0.0.0.0/0", "denied", "0.0.0.0/0"}, "C10.0.0.1 E1.1.1.1-[0.0.0.0/0] L2.2.2.2-[0.0.0.0/0] N:30080-[0.0.0.0/0]", ""},
		// Without a range, or with errors.
		{[]string{"ports", "none"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[]", ""},
		{[]string{"external", " none "}, "C10.0.0.1 E1.1.1.1[] L2.2.2.2 N:30080", ""},
		{[]string{"denied", ""}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080", ""},
		{[]string{"ports", ""}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[]", "node port is closed to all sources"},
		{[]string{"balancer", "9.0.0.0/33,"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2[] N:30080", "load-balancer IPs are closed to all sources"},
		{[]string{"ports", "everybody"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[]", "node port is closed to all sources"},
		{[]string{"external", "9.0.0.0"}, "C10.0.0.1 E1.1.1.1[] L2.2.2.2 N:30080", "externalIP is closed to all sources"},
		{[]string{"ports", "9.0.0.0/8, 9.0.0.0/33"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[9.0.0.0/8]", "IPv4 has no prefix of 33 bits"},
		{[]string{"denied", "9.0.0.0/8, 9.0.0.0/33"}, closed, "except its cluster IPs are closed to all sources"},
		{[]string{"denied", "none", "ports", "9.0.0.0/8"}, closed, "except its cluster IPs are closed to all sources"},
		{[]string{"denied", "1.0.0.0/8,3.0.0.0/8,5.0.0.0/8,7.0.0.0/8,9.0.0.0/8"}, closed, "5 are above the limit of 4"},
		{[]string{"ports", "1.0.0.0/8,3.0.0.0/8,5.0.0.0/8,7.0.0.0/8,9.0.0.0/8"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[1.0.0.0/8 3.0.0.0/8 5.0.0.0/8 7.0.0.0/8]", "5 are above the limit of 4"},
		// Cilium's annotation.
		{[]string{"cilium", "allow", "balancer", "9.0.0.0/8"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2[9.0.0.0/8] N:30080", ""},
		{[]string{"cilium", "deny", "balancer", "9.0.0.0/8", "denied", "7.0.0.0/8"},
			"C10.0.0.1 E1.1.1.1-[7.0.0.0/8 9.0.0.0/8] L2.2.2.2-[7.0.0.0/8 9.0.0.0/8] N:30080-[7.0.0.0/8 9.0.0.0/8]", ""},
		{[]string{"cilium", "deny"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080", ""},
		{[]string{"cilium", "deny", "balancer", "9.0.0.0/8,x"}, closed, "except its cluster IPs are closed to all sources"},
		{[]string{"cilium", "Deny", "balancer", "9.0.0.0/8"}, "C10.0.0.1 E1.1.1.1 L2.2.2.2[] N:30080", "must be allow or deny"},
	} {
		got := buildFrom(balanced(tc.sources...), nil, here, Options{Limits: Limits{SourceRanges: 4}})
		lab.Same(t, []string{"IPv4 tcp/80 " + tc.want}, describe(got), "%q", tc.sources)
		last := ""
		if n := len(got.Problems); n > 0 {
			last = got.Problems[n-1].Reason
		}
		if (last != "") != (tc.problem != "") || !strings.Contains(last, tc.problem) {
			t.Errorf("%q: problems %v, want %q", tc.sources, got.Problems, tc.problem)
		}
	}
}

// TestEachListIsShared: a Service has one list for each kind and family, and one of denied sources for each family, for all addresses and ports.
func TestEachListIsShared(t *testing.T) {
	svc := dual()
	svc.Annotations = map[string]string{}
	for i, key := range []string{annotationNodePortSources, annotationExternalIPSources, annotationDeniedSources} {
		svc.Annotations[key] = fmt.Sprintf("9.%d.0.0/16, fd09:%d::/32", i, i)
	}
	svc.Spec.LoadBalancerSourceRanges = []string{"9.9.0.0/16", "fd09:9::/32"}
	lists := map[*AddrRange]inet.Family{}
	for _, p := range build(t, svc).Ports {
		for _, f := range p.Frontends[1:] {
			lists[&f.Sources.Allowed[0]], lists[&f.Sources.Denied[0]] = f.Family, f.Family
		}
	}
	lab.Same(t, 8, len(lists), "lists of source ranges")
}

func TestAdmits(t *testing.T) {
	list := ranges("9.0.0.0/8", "11.0.0.0/8")
	for _, tc := range []struct {
		allowed, denied []AddrRange
		source          string
		want            bool
	}{
		{nil, nil, "9.0.0.1", true},
		{list, nil, "9.255.255.255", true}, {list, nil, "10.0.0.0", false}, {list, nil, "8.255.255.255", false}, {list, nil, "fd00::1", false},
		{[]AddrRange{}, nil, "9.0.0.1", false},
		{nil, list, "11.0.0.0", false}, {nil, list, "12.0.0.0", true},
		{list, list, "9.0.0.1", false},
	} {
		if got := (&Sources{tc.allowed, tc.denied}).Admits(netip.MustParseAddr(tc.source)); got != tc.want {
			t.Errorf("allowed %v, denied %v: %s is admitted: %v", tc.allowed, tc.denied, tc.source, got)
		}
	}
}
