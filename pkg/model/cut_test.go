package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestListsAboveTheirLimit: each row has a list of sources at or above a limit. Build parses no list above a limit. It
// reports the limit in one problem, and admits no source.
func TestListsAboveTheirLimit(t *testing.T) {
	const (
		open   = "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080"
		closed = "C10.0.0.1 E1.1.1.1[] L2.2.2.2[] N:30080[]"
		items  = "above the limit of 2000"
		bytes  = "the list has more than 65536 bytes"
	)
	merged := strings.Repeat("9.0.0.0/8,", 1_999) + "9.0.0.0/8"
	many, long := merged+",9.0.0.0/8", "9.0.0.0/8,"+strings.Repeat(" ", LongestList)+"9.0.0.0/8"
	cut := Cut(strings.Repeat("9.0.0.0/8,", 25_000), LongestList)
	// The only range of a family is above the limit. Without it, the family would be open.
	other := strings.Repeat("fd00::/8,", 2_000) + "9.0.0.0/8"
	for _, tc := range []struct{ list, text, want, problem string }{
		{"ports", merged, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[9.0.0.0/8]", ""},
		{"external", merged, "C10.0.0.1 E1.1.1.1[9.0.0.0/8] L2.2.2.2 N:30080", ""},
		{"balancer", merged, "C10.0.0.1 E1.1.1.1 L2.2.2.2[9.0.0.0/8] N:30080", ""},
		{"denied", merged, "C10.0.0.1 E1.1.1.1-[9.0.0.0/8] L2.2.2.2-[9.0.0.0/8] N:30080-[9.0.0.0/8]", ""},
		{"ports", many, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[]", items},
		{"ports", long, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[]", bytes},
		{"ports", cut, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[]", bytes},
		{"ports", other, "C10.0.0.1 E1.1.1.1 L2.2.2.2 N:30080[]", items},
		{"external", many, "C10.0.0.1 E1.1.1.1[] L2.2.2.2 N:30080", items},
		{"external", long, "C10.0.0.1 E1.1.1.1[] L2.2.2.2 N:30080", bytes},
		{"external", cut, "C10.0.0.1 E1.1.1.1[] L2.2.2.2 N:30080", bytes},
		{"external", other, "C10.0.0.1 E1.1.1.1[] L2.2.2.2 N:30080", items},
		{"balancer", many, "C10.0.0.1 E1.1.1.1 L2.2.2.2[] N:30080", "the list has more than 2000 items"},
		{"balancer", other, "C10.0.0.1 E1.1.1.1 L2.2.2.2[] N:30080", "the list has more than 2000 items"},
		{"cilium", many, closed, "the list has more than 2000 items"},
		{"denied", many, closed, items},
		{"denied", long, closed, bytes},
		{"denied", cut, closed, bytes},
	} {
		sources := []string{tc.list, tc.text}
		if tc.list == "cilium" {
			sources = []string{"cilium", "deny", "balancer", tc.text}
		}
		got := buildFrom(balanced(sources...), nil, here, Options{})
		lab.Same(t, []string{"IPv4 tcp/80 " + tc.want}, describe(got), "%s: %.60s", tc.list, tc.text)
		if n := len(got.Problems); n > 1 || (n == 1) != (tc.problem != "") || n == 1 && !strings.Contains(got.Problems[0].Reason, tc.problem) {
			t.Errorf("%s, %.60s: problems %v, want one with %q", tc.list, tc.text, got.Problems, tc.problem)
		}
	}
	lab.Same(t, []string{"IPv4 tcp/80 " + open}, describe(buildFrom(balanced(), nil, here, Options{})), "without lists")
}

// TestTextsAboveTheirLimit: Build uses none of a list above a limit that is not a list of sources, and only the first
// items of a list of names. It reports the limit in one problem.
func TestTextsAboveTheirLimit(t *testing.T) {
	weights := strings.Repeat("10.1.0.1=5,", 2_000) + "10.1.0.1=5"
	hint := func(zone string) discoveryv1.ForZone { return discoveryv1.ForZone{Name: zone} }
	for _, tc := range []struct {
		name          string
		svc           func(*corev1.Service)
		slice         func(*discoveryv1.EndpointSlice)
		want, problem string
	}{
		{"port ranges", func(s *corev1.Service) {
			s.Annotations[annotationPortRanges] = strings.Repeat("tcp/1,", 2_000) + "tcp/1"
		}, nil, "1 ports, 10.1.0.1:8080 10.1.0.2:8080", "the list has 2001 items"},
		{"long port ranges", func(s *corev1.Service) {
			s.Annotations[annotationPortRanges] = Cut(strings.Repeat("tcp/10000-20000,", 9_000), LongestList)
		}, nil,
			"1 ports, 10.1.0.1:8080 10.1.0.2:8080", "the list has more than 65536 bytes"},
		{"weights at", nil, func(s *discoveryv1.EndpointSlice) { s.Annotations[prefix+"weights"] = weights[:len(weights)-11] }, "1 ports, 10.1.0.1:8080=5 10.1.0.2:8080=1", ""},
		{"weights", nil, func(s *discoveryv1.EndpointSlice) { s.Annotations[prefix+"weights"] = weights }, "1 ports, 10.1.0.1:8080 10.1.0.2:8080", "the list has 2001 items"},
		{"families", func(s *corev1.Service) {
			s.Spec.IPFamilies, s.Spec.ClusterIPs = slices.Repeat([]corev1.IPFamily{corev1.IPv4Protocol}, 3), slices.Repeat([]string{"10.0.0.1"}, 3)
		}, nil,
			"1 ports, 10.1.0.1:8080 10.1.0.2:8080", "more than 2 families"},
		{"hints", nil, func(s *discoveryv1.EndpointSlice) {
			for i := range s.Endpoints {
				zones := append(slices.Repeat([]discoveryv1.ForZone{hint("x")}, MostHints), hint(here.Zone))
				s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: zones[i:]}
			}
		}, "1 ports, 10.1.0.2:8080", "the hints of 1 endpoints are used only in part"},
	} {
		svc, s := service(), slice("s", eps("1r 2r")...)
		svc.Annotations, s.Annotations = map[string]string{}, map[string]string{}
		if tc.svc != nil {
			tc.svc(svc)
		}
		if tc.slice != nil {
			tc.slice(s)
		}
		got := buildFrom(svc, []*discoveryv1.EndpointSlice{s}, here, Options{})
		text := fmt.Sprintf("%d ports,", len(got.Ports))
		for i, e := range got.Ports[0].Cluster {
			if text += " " + e.String(); got.Ports[0].ClusterWeights != nil {
				text += fmt.Sprint("=", got.Ports[0].ClusterWeights[i])
			}
		}
		problem := ""
		for _, p := range got.Problems {
			problem += p.Reason
		}
		if text != tc.want || len(got.Problems) > 1 || (problem != "") != (tc.problem != "") || !strings.Contains(problem, tc.problem) {
			t.Errorf("%s: %s, problems %q; want %s, %q", tc.name, text, problem, tc.want, tc.problem)
		}
	}
}

// A cut text is above its limit, does not equal another one, and no parser accepts it.
func TestCut(t *testing.T) {
	for _, text := range []string{"10.0.0.1", "true", "1000", "10.0.0.0/8", "maglev"} {
		lab.Same(t, text, Cut(text, len(text)), "at the limit became")
		got := Cut(text+"x", len(text))
		_, err := parseRaw(got)
		_, isPrefix := parsePrefix(got)
		if _, isWeight := weightOf(got); len(got) <= len(text) || err == nil || isPrefix == nil || isWeight {
			t.Errorf("%q above the limit became %q", text, got)
		}
	}
}
