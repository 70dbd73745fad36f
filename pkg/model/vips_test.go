package model

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseUnusedPorts(t *testing.T) {
	for _, tc := range []struct {
		text   string
		all    bool
		within int
		fails  bool
	}{
		{"cluster", false, 0, false}, {"all", true, 0, false}, {"203.0.113.0/24", false, 1, false}, {"203.0.113.0/24, 2001:db8::/64", false, 2, false},
		{"", false, 0, true}, {"none", false, 0, true}, {"203.0.113.1", false, 0, true}, {"all,203.0.113.0/24", false, 0, true},
	} {
		got, err := ParseUnusedPorts(tc.text)
		if got.All != tc.all || len(got.Within) != tc.within || (err != nil) != tc.fails {
			t.Errorf("ParseUnusedPorts(%q) = %+v, %v", tc.text, got, err)
		}
	}
}

// TestVotes has the votes of a cluster IP, a load-balancer IP and an external IP, and the problems of annotations.
func TestVotes(t *testing.T) {
	all := Options{UnusedPorts: UnusedPorts{All: true}}
	within := Options{UnusedPorts: UnusedPorts{Within: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}}
	ping := func(p Ping) Options { return Options{Ping: p} }
	none := [3]Vote{}
	for _, tc := range []struct {
		name          string
		opts          Options
		key, value    string
		class         bool
		ranges        bool
		refused, ping [3]Vote
		problem       string
	}{
		{"default", Options{}, prefix + "refuse-unused-ports", "no", true, false, none, none, ""},
		{"default with ping", Options{}, prefix + "answer-ping", "no", false, false, none, none, ""},
		{"all", all, "", "", false, true, [3]Vote{Neutral, For, For}, none, ""},
		{"all, class", all, "", "", true, false, [3]Vote{Neutral, Against, Against}, none, ""},
		{"all, class, asked", all, prefix + "refuse-unused-ports", "true", true, false, [3]Vote{Neutral, For, For}, none, ""},
		{"all, opted out", all, prefix + "refuse-unused-ports", "false", false, false, [3]Vote{Neutral, Against, Against}, none, ""},
		{"all, unreadable", all, prefix + "refuse-unused-ports", "True", false, false, [3]Vote{Neutral, Against, Against}, none, `must be "true" or "false"`},
		{"all, whole IP", all, annotationWholeIP, "true", false, false, [3]Vote{Neutral, Against, Against}, none, ""},
		{"all, not the whole IP", all, annotationWholeIP, "false", false, false, [3]Vote{Neutral, For, For}, none, ""},
		{"within", within, "", "", true, false, [3]Vote{Neutral, For, Neutral}, none, ""},
		{"within, opted out", within, prefix + "refuse-unused-ports", "false", false, false, [3]Vote{Neutral, Against, Neutral}, none, ""},
		{"within, whole IP", within, annotationWholeIP, "true", false, false, [3]Vote{Neutral, Against, Neutral}, none, ""},
		{"annotated", ping(PingAnnotated), "", "", false, false, none, none, ""},
		{"annotated, always", ping(PingAnnotated), prefix + "answer-ping", "always", true, true, none, [3]Vote{For, For, For}, ""},
		{"annotated, ready", ping(PingAnnotated), prefix + "answer-ping", "ready", false, false, none, [3]Vote{WhileServing, WhileServing, WhileServing}, ""},
		{"ready", ping(PingReady), "", "", false, false, none, [3]Vote{WhileServing, WhileServing, WhileServing}, ""},
		{"always", ping(PingAlways), "", "", false, false, none, [3]Vote{For, For, For}, ""},
		{"always, class", ping(PingAlways), "", "", true, false, none, [3]Vote{For, Neutral, Neutral}, ""},
		{"always, source ranges", ping(PingAlways), "", "", false, true, none, [3]Vote{For, Neutral, For}, ""},
		{"always, never", ping(PingAlways), prefix + "answer-ping", "never", false, false, none, [3]Vote{Against, Against, Against}, ""},
		{"always, unreadable", ping(PingAlways), prefix + "answer-ping", "true", false, false, none, [3]Vote{Against, Against, Against}, "must be always, ready or never"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{}}}
			svc.Spec = corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.10", ExternalIPs: []string{"198.51.100.10"},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080}},
			}
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
			if tc.key != "" {
				svc.Annotations[tc.key] = tc.value
			}
			if tc.class {
				svc.Spec.LoadBalancerClass = new("example.org/other")
			}
			if tc.ranges {
				svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
			}
			got := buildFrom(svc, nil, Node{}, tc.opts)
			at := map[Kind]int{ClusterIP: 0, LoadBalancer: 1, ExternalIP: 2}
			var refused, pinged [3]Vote
			for _, f := range got.Ports[0].Frontends {
				if f.Kind == NodePort {
					if f.RefuseUnused != Neutral || f.Ping != Neutral {
						t.Errorf("a node port has votes: %+v", f)
					}
					continue
				}
				refused[at[f.Kind]], pinged[at[f.Kind]] = f.RefuseUnused, f.Ping
			}
			if refused != tc.refused || pinged != tc.ping {
				t.Errorf("refused %v, ping %v; want %v, %v", refused, pinged, tc.refused, tc.ping)
			}
			found := slices.ContainsFunc(got.Problems, func(p Problem) bool { return tc.problem != "" && strings.Contains(p.Reason, tc.problem) })
			if found != (tc.problem != "") || len(got.Problems) > 0 != found {
				t.Errorf("problems %v, want %q", got.Problems, tc.problem)
			}
		})
	}
}
