package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestDirect has the properties of a Service that permit or prevent direct server return. An endpoint is on this
// node, one on another node, and one on no node.
func TestDirect(t *testing.T) {
	const asked = annotationForwarding + "=dsr "
	permitted := Options{Direct: true}
	byDefault := Options{Direct: true, DirectDefault: true}
	withNodePorts := Options{Direct: true, DirectNodePorts: [2]bool{true, true}}
	allNodePorts := Options{Direct: true, DirectDefault: true, DirectNodePorts: [2]bool{true, true}}
	onlyNodePort := func(s *corev1.Service) {
		s.Spec.Type, s.Status = corev1.ServiceTypeNodePort, corev1.ServiceStatus{}
		s.Spec.Ports[0].NodePort = 30080
	}
	hinted := func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: here.Name}}}
	}
	for _, tc := range []struct {
		name, words string
		opts        Options
		change      func(*corev1.Service)
		hint        func(*discoveryv1.Endpoint)
		direct      bool
		key         balance.Key
		// problem is a part of the only problem, and note a part of a note.
		problem, note string
	}{
		{name: "not asked", opts: permitted},
		{name: "nat", words: annotationForwarding + "=nat " + "service.cilium.io/forwarding-mode=dsr", opts: permitted},
		{name: "asked", words: asked, opts: permitted, direct: true, key: balance.Flow},
		{name: "as for Cilium", words: "service.cilium.io/forwarding-mode=dsr", opts: permitted, direct: true, key: balance.Flow},
		{name: "as for Antrea", words: "service.antrea.io/load-balancer-mode=dsr", opts: permitted, direct: true, key: balance.Flow},
		{name: "source hash", words: asked + annotationAlgorithm + "=source-hash", opts: permitted, direct: true, key: balance.Source},
		{name: "random", words: asked + annotationAlgorithm + "=random", opts: permitted, direct: true, key: balance.Flow},
		{name: "Cilium's name of NAT", words: annotationForwarding + "=snat", opts: permitted, problem: "must be dsr or nat"},
		{name: "without the flag", words: asked, problem: "without --direct-server-return"},
		{name: "a node port", words: asked, opts: withNodePorts, change: onlyNodePort, direct: true, key: balance.Flow},
		{name: "a node port without networks of nodes", words: asked, opts: permitted, change: onlyNodePort},
		{name: "policy Local", words: asked, opts: permitted, problem: "externalTrafficPolicy is Local", change: func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32000
		}},
		{name: "affinity", words: asked, opts: permitted, problem: "session affinity", change: func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}},
		{name: "SCTP", words: asked, opts: permitted, problem: "SCTP", change: func(s *corev1.Service) {
			s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP
		}},
		{name: "maximum", words: asked + annotationMaximum + "=5", opts: permitted, problem: "connection limit"},
		{name: "slow start", words: asked + prefix + "slow-start=5", opts: permitted, problem: "slow start"},
		{name: "port ranges", words: asked + annotationPortRanges + "=tcp/90-99", opts: permitted, problem: "port ranges"},
		{name: "a label of nodes", words: asked + annotationNodeSelector + "=!none", opts: permitted, problem: "only some nodes"},
		{name: "hints", words: asked, opts: permitted, hint: hinted, problem: "hints"},
		{name: "spread", words: asked + annotationTerminate + "=gone " + annotationSpread + "=60", opts: permitted,
			problem: "are spread"},
		{name: "too many slots", words: asked, opts: Options{Direct: true, Limits: Limits{Slots: 501}},
			problem: "limit of 501 slots"},
		{name: "enough slots", words: asked, opts: Options{Direct: true, Limits: Limits{Slots: 502}}, direct: true,
			key: balance.Flow},

		{name: "default", opts: byDefault, direct: true, key: balance.Flow,
			note: "the default of this node, and the Service has no annotation"},
		{name: "default and asked", words: asked, opts: byDefault, direct: true, key: balance.Flow},
		{name: "default and nat", words: annotationForwarding + "=nat", opts: byDefault, note: "an annotation selects NAT"},
		{name: "default and Cilium's snat", words: "service.cilium.io/forwarding-mode=snat", opts: byDefault,
			note: "an annotation selects NAT"},
		{name: "default and an invalid value", words: annotationForwarding + "=DSR", opts: byDefault,
			problem: "must be dsr or nat", note: "an annotation selects NAT"},
		{name: "default, source hash", words: annotationAlgorithm + "=source-hash", opts: byDefault, direct: true,
			key: balance.Source, note: "default"},
		{name: "default without external frontends", opts: byDefault, change: func(s *corev1.Service) {
			s.Spec.Type, s.Status = corev1.ServiceTypeClusterIP, corev1.ServiceStatus{}
		}},
		{name: "default, a node port", opts: allNodePorts, change: onlyNodePort, direct: true, key: balance.Flow,
			note: "default"},
		{name: "default, a node port without networks of nodes", opts: byDefault, change: onlyNodePort},
		{name: "default, policy Local", opts: byDefault, note: "externalTrafficPolicy is Local; the Service uses NAT",
			change: func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32000
			}},
		{name: "default, affinity", opts: byDefault, note: "session affinity", change: func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}},
		{name: "default, slow start", words: prefix + "slow-start=5", opts: byDefault, note: "slow start"},
		{name: "default, maximum", words: annotationMaximum + "=5", opts: byDefault, note: "connection limit"},
		{name: "default, spread", words: annotationTerminate + "=gone " + annotationSpread + "=60", opts: byDefault,
			note: "are spread"},
		{name: "default, SCTP", opts: byDefault, note: "SCTP", change: func(s *corev1.Service) {
			s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP
		}},
		{name: "default, hints", opts: byDefault, hint: hinted, note: "hints"},
		{name: "default, too many slots", opts: Options{Direct: true, DirectDefault: true, Limits: Limits{Slots: 501}},
			note: "limit of 501 slots"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := annotated(tc.words)
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
			if tc.change != nil {
				tc.change(svc)
			}
			var list []discoveryv1.Endpoint
			for addr, node := range map[string]*string{"10.1.0.1": new(here.Name), "10.1.0.2": new("elsewhere"), "10.1.0.3": nil} {
				e := discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: node}
				if tc.hint != nil {
					tc.hint(&e)
				}
				list = append(list, e)
			}
			s := slice("a", list...)
			s.Ports[0].Protocol = &svc.Spec.Ports[0].Protocol
			slicesOf := []*discoveryv1.EndpointSlice{s}
			if notes := strings.Join(explainFrom(svc, slicesOf, here, tc.opts).Notes, "\n"); !strings.Contains(notes, tc.note) ||
				tc.note == "" && strings.Contains(notes, "direct server return") {
				t.Errorf("notes %q, want %q", notes, tc.note)
			}
			got := buildFrom(svc, slicesOf, here, tc.opts)
			sp := got.Ports[0]
			if (sp.Direct != nil) != tc.direct || sp.Method.Key != tc.key {
				t.Errorf("direct %v, algorithm %v", sp.Direct, sp.Method)
			}
			if port := sp.Cluster[0].Port(); tc.direct {
				want := fmt.Sprintf("[10.1.0.1:%d] [10.1.0.2:%[1]d]", port)
				lab.Same(t, want, fmt.Sprint(sp.Direct.Here, " ", sp.Direct.Elsewhere), "endpoints on this node, and on other nodes")
			}
			found := slices.ContainsFunc(got.Problems, func(p Problem) bool { return strings.Contains(p.Reason, tc.problem) && p.OfAnnotation() })
			if found != (tc.problem != "") || len(got.Problems) > 1 {
				t.Errorf("problems %v, want %q", got.Problems, tc.problem)
			}
		})
	}
}

func TestParseNodeNetworks(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"", "[[] []]"},
		{"10.0.0.0/24", "[[10.0.0.0/24] []]"},
		{"10.0.1.7/24, fd00:10::/52,10.0.0.0/23", "[[10.0.0.0/23] [fd00:10::/52]]"},
		{"0.0.0.0/7", "0.0.0.0/7 is too large: the shortest prefix of IPv4 has the length 8"},
		{"fd00::/51", "fd00::/51 is too large: the shortest prefix of IPv6 has the length 52"},
		{"10.0.0.1", "must be CIDRs"},
		{"10.0.0.0/24,", "must be CIDRs"},
	} {
		networks, err := ParseNodeNetworks(tc.text)
		got := fmt.Sprint(networks)
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != tc.want || err != nil && !strings.HasPrefix(got, tc.want) {
			t.Errorf("%q: %s, want %s", tc.text, got, tc.want)
		}
	}
}
