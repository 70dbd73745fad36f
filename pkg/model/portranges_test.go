package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// frontendsOfRanges returns the ranges of a Service, such as "10.0.0.1:8000-8100/tcp".
func frontendsOfRanges(s *Service) string {
	var list []string
	for _, sp := range s.Ports {
		for i := range sp.Frontends {
			if f := &sp.Frontends[i]; sp.Ranged() {
				list = append(list, fmt.Sprintf("%s/%s", f.Address(), f.Protocol))
			}
		}
	}
	return strings.Join(list, " ")
}

// Each row has annotations as key=value, the ranges at the cluster IP, and the field of the problem.
func TestPortRanges(t *testing.T) {
	const own, all = "kube-nftproxy.io/port-ranges=", "10.0.0.1:1-65535/tcp 10.0.0.1:1-65535/udp 10.0.0.1:1-65535/sctp"
	for _, tc := range []struct{ annotations, want, problem string }{
		{"", "", ""},
		{own + "udp/10000-20000", "10.0.0.1:10000-20000/udp", ""},
		{own + "udp/10000-20000;,tcp/8000-8100", "10.0.0.1:8000-8100/tcp 10.0.0.1:10000-20000/udp", ""},
		{own + "UDP/5,sctp/1-65535", "10.0.0.1:5/udp 10.0.0.1:1-65535/sctp", ""},
		{own + "udp/5-9,udp/10-20,udp/7-8,udp/22-23", "10.0.0.1:5-20/udp 10.0.0.1:22-23/udp", ""},
		{own + "udp/65535,udp/1-65534", "10.0.0.1:1-65535/udp", ""},
		{own + "all", all, ""},
		{"networking.cozystack.io/wholeIP=true", all, ""},
		{"networking.cozystack.io/wholeIP=false", "", ""},
		{"networking.cozystack.io/wholeIP=true " + own + "udp/5", "10.0.0.1:5/udp", ""},
		{own, "", "port-ranges"},
		{own + "udp/0-5", "", "port-ranges"},
		{own + "udp/6-5", "", "port-ranges"},
		{own + "udp/5-65536", "", "port-ranges"},
		{own + "udp/5,icmp/8", "", "port-ranges"},
		{own + "5-6", "", "port-ranges"},
		{own + "udp/5, ,tcp/6", "", "port-ranges"},
		{own + "all kube-nftproxy.io/max-connections=5", "", "port-ranges"},
	} {
		svc := service()
		svc.Annotations = map[string]string{}
		for item := range strings.FieldsSeq(strings.ReplaceAll(tc.annotations, ", ", ",")) {
			key, value, _ := strings.Cut(item, "=")
			svc.Annotations[key] = strings.ReplaceAll(value, ";", "")
		}
		got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", eps("1rs 2rs")...)}, here, Options{})
		lab.Same(t, tc.want, frontendsOfRanges(got), "%s: ranges", tc.annotations)
		if len(got.Problems) > 1 || (len(got.Problems) > 0) != (tc.problem != "") || tc.problem != "" && !strings.Contains(got.Problems[0].Field, tc.problem) {
			t.Errorf("%s: problems %+v, want one of %q", tc.annotations, got.Problems, tc.problem)
		}
	}
}

// TestRangesHaveTheEndpointsOfTheFirstPort: the first port is TCP, the range UDP. Two endpoints have the same address, and their conditions differ.
func TestRangesHaveTheEndpointsOfTheFirstPort(t *testing.T) {
	svc := service()
	svc.Annotations = map[string]string{"kube-nftproxy.io/port-ranges": "udp/5-6", "kube-nftproxy.io/slow-start": "10"}
	svc.Spec.Ports = append([]corev1.ServicePort{{Port: 70, Name: "first"}}, corev1.ServicePort{Port: 80, Name: "second"})
	a, b := slice("a", eps("1rs 2rs 3s")...), slice("b", eps("1s 2s 4rs")...)
	first, second := "first", "second"
	a.Ports[0].Name, b.Ports[0].Name = &first, &first
	b.Ports[0].Port = new(int32(9999))
	c := slice("c", eps("9rs")...)
	c.Ports[0].Name = &second
	x := explainFrom(svc, []*discoveryv1.EndpointSlice{a, b, c}, here, Options{})
	i := slices.IndexFunc(x.Service.Ports, (*ServicePort).Ranged)
	sp := x.Service.Ports[i]
	var want []string
	for _, e := range x.Service.Ports[0].Cluster {
		want = append(want, e.Addr().String()+":0")
	}
	if len(want) != 3 || fmt.Sprint(sp.Cluster) != fmt.Sprint(want) || len(sp.ClusterWeights) != len(want) {
		t.Errorf("endpoints %v with weights %v, want %v", sp.Cluster, sp.ClusterWeights, want)
	}
	if len(sp.Serving) != 4 || sp.Protocol != inet.UDP {
		t.Errorf("flows may continue with %v, want all four addresses", sp.Serving)
	}
	used := 0
	for _, c := range x.Ports[i].Candidates {
		if c.NotCluster == "" {
			used++
		}
	}
	if used != 3 || len(x.Ports[i].Candidates) != 6 {
		t.Errorf("candidates %+v, want six, three of them used", x.Ports[i].Candidates)
	}
}

// TestTooManyPortRanges: the limit counts ranges times addresses. The last ranges are left out.
func TestTooManyPortRanges(t *testing.T) {
	svc := service()
	svc.Spec.ExternalIPs = []string{"198.51.100.1", "198.51.100.2"}
	svc.Annotations = map[string]string{"kube-nftproxy.io/port-ranges": "tcp/1-2,udp/1-2,tcp/4-5,udp/4-5"}
	got := buildFrom(svc, nil, here, Options{Limits: Limits{PortRanges: 10}})
	if n := len(strings.Fields(frontendsOfRanges(got))); n != 9 || strings.Contains(frontendsOfRanges(got), "4-5/udp") {
		t.Errorf("ranges %s, want three at each of three addresses", frontendsOfRanges(got))
	}
	if len(got.Problems) != 1 || got.Problems[0].Limit != limitPortRanges || !strings.Contains(got.Problems[0].Text(), "12 are above the limit of 10") {
		t.Errorf("problems %+v, want one of the limit", got.Problems)
	}
	if own := len(got.Ports[0].Frontends); own != 3 {
		t.Errorf("the port of the Service has %d frontends, want 3", own)
	}
}
