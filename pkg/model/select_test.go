package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// eps reads endpoints in shorthand, one word each: the last number of the address, then
//
//	r ready, s serving, t terminating, l on this node;
//	n and N a hint for another and for this node; z and Z likewise for the zone.
//
// Without r or s, these conditions are false.
func eps(text string) (list []discoveryv1.Endpoint) {
	for word := range strings.FieldsSeq(text) {
		flags := strings.TrimLeft(word, "0123456789")
		has := func(c string) *bool { return new(strings.Contains(flags, c)) }
		ep := discoveryv1.Endpoint{
			Addresses:  []string{"10.1.0." + word[:len(word)-len(flags)]},
			Conditions: discoveryv1.EndpointConditions{Ready: has("r"), Serving: has("s"), Terminating: has("t")},
			NodeName:   new("other"),
			Hints:      &discoveryv1.EndpointHints{},
		}
		if *has("l") {
			ep.NodeName = new(here.Name)
		}
		for flag, name := range map[string]string{"n": "other", "N": here.Name} {
			if *has(flag) {
				ep.Hints.ForNodes = append(ep.Hints.ForNodes, discoveryv1.ForNode{Name: name})
			}
		}
		for flag, name := range map[string]string{"z": "zone-b", "Z": here.Zone} {
			if *has(flag) {
				ep.Hints.ForZones = append(ep.Hints.ForZones, discoveryv1.ForZone{Name: name})
			}
		}
		list = append(list, ep)
	}
	return list
}

// list reads the last numbers of addresses, as eps does.
func list(text string) (out []netip.AddrPort) {
	for word := range strings.FieldsSeq(text) {
		out = append(out, netip.MustParseAddrPort("10.1.0."+word+":8080"))
	}
	return out
}

func TestSelect(t *testing.T) {
	const (
		plain   = "plain"    // cluster IP only
		itp     = "itp"      // the same, internal policy Local
		etp     = "etp"      // node port, external policy Local
		both    = "both"     // node port, both policies Local
		itpNode = "itp-node" // node port, internal policy Local
	)
	for _, tc := range []struct {
		name, kind, in          string
		cluster, local, hairpin string
		hasEndpoints            bool
	}{
		{"no endpoints", plain, "", "", "", "", false},
		{"ready only", plain, "3rs 1rs 2s 4", "1 3", "", "", true},
		{"ready without serving", plain, "1r", "1", "", "", true},
		{"hairpin", plain, "1rsl 2rs", "1 2", "", "1", true},
		{"serving alone is not enough", plain, "1s 2s", "", "", "", false},
		{"terminating alone is not enough", plain, "1t", "", "", "", false},
		{"fallback", plain, "1st 2t 3s 4stl", "1 4", "", "4", true},
		{"no fallback beside a ready one", plain, "1st 2rs", "2", "", "", true},
		{"ready although terminating (publishNotReadyAddresses)", plain, "1rst 2st", "1", "", "", true},

		{"zone", plain, "1rsZ 2rsz 3rszZ", "1 3", "", "", true},
		{"zone, hairpin only of the chosen", plain, "1rsZ 2rslz", "1", "", "", true},
		{"zone, one without hint", plain, "1rsZ 2rs", "1 2", "", "", true},
		{"zone, none for this node", plain, "1rsz 2rsz", "1 2", "", "", true},
		{"zone, hint missing on one that is not ready", plain, "1rsZ 2rsz 3s 4st", "1", "", "", true},
		{"zone, only an endpoint that is not ready is for this node", plain, "1rsz 2sZ", "1", "", "", true},
		{"node", plain, "1rsN 2rsn", "1", "", "", true},
		{"node before zone", plain, "1rsNz 2rsnZ", "1", "", "", true},
		{"node, none for this node, then zone", plain, "1rsnz 2rsnZ", "2", "", "", true},
		{"node, one without hint, then zone", plain, "1rsNz 2rsZ", "2", "", "", true},
		{"node, one without hint, no zone", plain, "1rsN 2rs", "1 2", "", "", true},
		{"fallback ignores topology", plain, "1stz 2stZ 3stN", "1 2 3", "", "", true},

		{"internal local", itp, "1rsl 2rs 3rsl", "", "1 3", "1 3", true},
		{"internal local, none here", itp, "1rs", "", "", "", true},
		{"internal local, none at all", itp, "1s 2l", "", "", "", false},
		{"internal local, ignores topology", itp, "1rslz 2rsZ", "", "1", "1", true},
		{"internal local, fallback", itp, "1stl 2tl 3rs", "", "1", "1", true},
		{"internal local, no fallback beside a ready one", itp, "1stl 2rsl", "", "2", "2", true},
		{"internal local, fallback elsewhere", itp, "1st", "", "", "", true},

		{"external local", etp, "1rsl 2rs", "1 2", "1", "1", true},
		{"external local, none here", etp, "1rs", "1", "", "", true},
		{"external local, all here", etp, "1rsl 2rsl", "1 2", "1 2", "1 2", true},
		{"external local, fallback only for local", etp, "1stl 2rs", "2", "1", "1", true},
		{"external local, fallback for both", etp, "1stl 2st", "1 2", "1", "1", true},
		{"external local, topology only for cluster", etp, "1rslz 2rsZ", "2", "1", "1", true},
		{"external local, union of both", etp, "1rslZ 2rslz 3rsZ", "1 3", "1 2", "1 2", true},
		{"both local", both, "1rsl 2rs", "1 2", "1", "1", true},
		{"internal local, external cluster", itpNode, "1rsl 2rs", "1 2", "1", "1", true},

		{"same address twice, the terminating one is ignored", plain, "1rsl 1st", "1", "", "1", true},
		{"same address twice, the terminating one is ignored although the other is not ready", plain, "1st 1", "", "", "", false},
		{"same address twice, in two slices", plain, "1rs 2rs 1rs", "1 2", "", "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			svc := service()
			if tc.kind == itp || tc.kind == both || tc.kind == itpNode {
				svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
			}
			if tc.kind == etp || tc.kind == both || tc.kind == itpNode {
				svc.Spec.Type = corev1.ServiceTypeNodePort
				svc.Spec.Ports[0].NodePort = 30080
			}
			if tc.kind == etp || tc.kind == both {
				svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
			got := build(t, svc, slice("a", eps(tc.in)...)).Ports[0]
			want := ServicePort{
				Cluster: list(tc.cluster), Local: list(tc.local), Hairpin: list(tc.hairpin),
				HasEndpoints: tc.hasEndpoints,
			}
			if diff := cmp.Diff(want, endpointsOf(got), exact); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

// endpointsOf returns only the fields of a service port that selection sets.
func endpointsOf(sp *ServicePort) ServicePort {
	return ServicePort{Cluster: sp.Cluster, Local: sp.Local, Hairpin: sp.Hairpin, HasEndpoints: sp.HasEndpoints}
}

func TestSelectWithoutNodeName(t *testing.T) {
	svc := service()
	svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	ep := discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, NodeName: new(""),
		Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{}}, ForNodes: []discoveryv1.ForNode{{}}}}
	got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice("a", ep)}, Node{}, Options{})
	if diff := cmp.Diff(ServicePort{HasEndpoints: true}, endpointsOf(got.Ports[0]), exact); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

func TestEqualListsShareMemory(t *testing.T) {
	svc := service()
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.Ports[0].NodePort = 30080
	sp := build(t, svc, slice("a", eps("1rsl 2rsl")...)).Ports[0]
	if &sp.Cluster[0] != &sp.Local[0] || &sp.Cluster[0] != &sp.Hairpin[0] {
		t.Errorf("lists %v, %v and %v do not share memory", sp.Cluster, sp.Local, sp.Hairpin)
	}
}

// TestManyPorts: each port of a Service gets the endpoints of the port of the same name.
func TestManyPorts(t *testing.T) {
	svc, s := service(), slice("a", eps("1rs 2rs")...)
	svc.Spec.Ports, s.Ports = nil, nil
	for i := range int32(27) {
		name := fmt.Sprint("p", i)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: 80 + i})
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(1000 + i)})
	}
	for i, sp := range build(t, svc, s, s).Ports {
		want := []netip.AddrPort{
			netip.MustParseAddrPort(fmt.Sprintf("10.1.0.1:%d", 1000+i)),
			netip.MustParseAddrPort(fmt.Sprintf("10.1.0.2:%d", 1000+i)),
		}
		if diff := cmp.Diff(want, sp.Cluster, exact); diff != "" {
			t.Errorf("port %s (-want +got):\n%s", sp.Name, diff)
		}
	}
}

// A UDP flow may continue with any endpoint that is ready or serving.
func TestFlowsContinueWithServingEndpoints(t *testing.T) {
	yes, no := true, false
	port, name, udp := int32(53), "", corev1.ProtocolUDP
	zone := "elsewhere"
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &udp}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}},
			{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}},
			{Addresses: []string{"10.1.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &no}},
			{Addresses: []string{"10.1.0.4"}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &no}},
		},
	}
	svc := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 53, Protocol: udp}}}}
	got := buildFrom(svc, []*discoveryv1.EndpointSlice{slice}, Node{Name: "n", Zone: "here"}, Options{})
	want := []netip.AddrPort{
		netip.MustParseAddrPort("10.1.0.1:53"), netip.MustParseAddrPort("10.1.0.2:53"), netip.MustParseAddrPort("10.1.0.4:53"),
	}
	lab.Same(t, want, got.Ports[0].Serving, "Serving")
}
