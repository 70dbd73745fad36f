package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Each row has the node's default, the annotation of a Service, and whether connections are terminated.
func TestTermination(t *testing.T) {
	for _, tc := range []struct {
		node       Termination
		annotation string
		want       bool
		hasProblem bool
	}{
		{"", "", false, false},
		{TerminateOff, "", false, false},
		{TerminateGone, "", true, false},
		{"", "gone", true, false},
		{TerminateOff, "gone", true, false},
		{TerminateGone, "off", false, false},
		{TerminateGone, "Gone", false, true},
		{"", "true", false, true},
	} {
		svc := service()
		if tc.annotation != "" {
			svc.Annotations = map[string]string{"kube-nftproxy.io/terminate-connections": tc.annotation}
		}
		got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2")...)}, here, Options{Terminate: tc.node})
		if got.TerminateGone != tc.want || (got.Listed != nil) != tc.want || len(got.Problems) > 0 != tc.hasProblem {
			t.Errorf("%+v: %v, endpoints %v, problems %v", tc, got.TerminateGone, got.Listed, got.Problems)
		}
	}
}

// Each row has the annotations of a Service, its affinity, and whether its connections are spread.
func TestSpreadConnections(t *testing.T) {
	const terminate, spread, algorithm = "kube-nftproxy.io/terminate-connections", "kube-nftproxy.io/spread-connections",
		"kube-nftproxy.io/lb-algorithm"
	for name, tc := range map[string]struct {
		annotations map[string]string
		node        Termination
		affinity    corev1.ServiceAffinity
		limits      Limits
		want        time.Duration
		problems    int
	}{
		"beside termination":  {map[string]string{terminate: "gone", spread: "30"}, "", "", Limits{}, 30 * time.Second, 0},
		"beside the flag":     {map[string]string{spread: "5"}, TerminateGone, "", Limits{}, 5 * time.Second, 0},
		"without termination": {map[string]string{spread: "30"}, "", "", Limits{}, 0, 1},
		"switched off":        {map[string]string{terminate: "off", spread: "30"}, TerminateGone, "", Limits{}, 0, 1},
		"too short":           {map[string]string{terminate: "gone", spread: "4"}, "", "", Limits{}, 0, 1},
		"session affinity": {
			map[string]string{terminate: "gone", spread: "30"}, "", corev1.ServiceAffinityClientIP, Limits{}, 0, 1,
		},
		"maglev": {map[string]string{terminate: "gone", spread: "30", algorithm: "maglev"}, "", "", Limits{}, 0, 1},
		"random": {
			map[string]string{terminate: "gone", spread: "30", algorithm: "random"}, "", "",
			Limits{}, 30 * time.Second, 0,
		},
		"over limits": {map[string]string{terminate: "gone", spread: "30"}, "", "", Limits{Pairs: 1}, 0, 1},
	} {
		svc := service()
		svc.Annotations, svc.Spec.SessionAffinity = tc.annotations, tc.affinity
		got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs")...)}, here,
			Options{Terminate: tc.node, Limits: tc.limits})
		if got.SpreadSilent != tc.want || len(got.Problems) != tc.problems {
			t.Errorf("%s: %v, problems %v", name, got.SpreadSilent, got.Problems)
		}
		notes := fmt.Sprint(terminationNotes(svc, got))
		if strings.Contains(notes, fmt.Sprintf("without a segment for %v s may end", tc.want.Seconds())) != (tc.want > 0) {
			t.Errorf("%s: notes %s", name, notes)
		}
	}
}

// Each row has the endpoints of slices, and the last numbers of the addresses in Service.Listed; "-" if a limit leaves out endpoints. A Service without
// termination has the same other fields.
func TestListed(t *testing.T) {
	port := func(s *discoveryv1.EndpointSlice, name string) *discoveryv1.EndpointSlice {
		s.Ports = []discoveryv1.EndpointPort{endpointPort(name, "TCP", 9)}
		return s
	}
	without := slice("without", eps("5rsl 6")...)
	without.Ports = nil
	for _, tc := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		limits Limits
		want   string
	}{
		{"all conditions", []*discoveryv1.EndpointSlice{slice("a", eps("3 1rs 2t 4st")...)}, Limits{}, "1 2 3 4"},
		{"twice", []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2")...), slice("b", eps("2t 3")...), slice("c", eps("1rs")...)}, Limits{}, "1 2 3"},
		{"another port", []*discoveryv1.EndpointSlice{slice("a", eps("1rs")...), port(slice("b", eps("2rs 3rsl")...), "other")}, Limits{}, "1 2 3"},
		{"no port", []*discoveryv1.EndpointSlice{slice("a", eps("1rs")...), without}, Limits{}, "1 5 6"},
		{"more than the endpoints of a port", []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs 3rs")...)}, Limits{PortEndpoints: 1}, "1 2 3"},
		{"too many slices", []*discoveryv1.EndpointSlice{slice("a", eps("1rs")...), slice("b", eps("2rs")...)}, Limits{Slices: 1}, "-"},
		{"too many pairs", []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs 3rs")...)}, Limits{Pairs: 2}, "-"},
		{"none", nil, Limits{}, ""},
	} {
		want := []netip.Addr{}
		for n := range strings.FieldsSeq(tc.want) {
			if n != "-" {
				want = append(want, netip.MustParseAddr("10.1.0."+n))
			}
		}
		opts := Options{Terminate: TerminateGone, Limits: tc.limits}
		got := buildFrom(healthChecked(), tc.slices, here, opts)
		if !slices.Equal(got.Listed, want) || got.TerminateGone == (tc.want == "-") {
			t.Errorf("%s: %v, %v, want %s", tc.name, got.TerminateGone, got.Listed, tc.want)
		}
		got.TerminateGone, got.Listed = false, nil
		opts.Terminate = TerminateOff
		if other := buildFrom(healthChecked(), tc.slices, here, opts); fmt.Sprint(describe(got), got.LocalReady) != fmt.Sprint(describe(other), other.LocalReady) {
			t.Errorf("%s: with termination %v, %v, without %v, %v", tc.name, describe(got), got.LocalReady, describe(other), other.LocalReady)
		}
	}
}
