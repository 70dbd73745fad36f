package model

import (
	gonet "net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/net"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// FuzzParseAddr: ParseAddr accepts the same strings as Kubernetes, with the same results. It reads the result of String as the same address.
func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{
		"10.0.0.1", "010.000.00.01", "fd00:0001::00000a", "::ffff:010.0.0.1", "::ffff:a00:1", "10.0.0", "10.0.0.256", "fe80::1%eth0", "", ".", "::", "0::0:0.0.0.00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseAddr(s)
		want, ok := netip.AddrFromSlice(net.ParseIPSloppy(s))
		if want = want.Unmap(); ok != (err == nil) || ok && err == nil && got != want {
			t.Errorf("ParseAddr(%q) = %v, %v; Kubernetes reads %v, %v", s, got, err, want, ok)
		}
		if err != nil {
			if got.IsValid() {
				t.Errorf("ParseAddr(%q) = %v with error %v", s, got, err)
			}
			return
		}
		if again, err := ParseAddr(got.String()); again != got || got.Is4In6() {
			t.Errorf("ParseAddr(%q) = %v, and that is %v, %v", s, got, again, err)
		}
	})
}

// FuzzParsePrefix: ParsePrefix accepts the same strings as Kubernetes, with the same results. The prefix has no host bits. ParsePrefix reads the result
// of String as the same prefix.
func FuzzParsePrefix(f *testing.F) {
	for _, s := range []string{
		"10.1.2.3/8", "010.01.2.3/08", "::ffff:1.2.3.4/096", "0.0.0.0/0", "::/0", "::ffff:10.1.2.3/104", "::ffff:10.1.2.3/64", "10.0.0.0/33", "10.0.0.0/+8", "fd00::/129", "/", "10.0.0.0/",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParsePrefix(s)
		_, want, refused := net.ParseCIDRSloppy(s)
		if (refused == nil) != (err == nil) {
			t.Errorf("ParsePrefix(%q) = %v, %v; Kubernetes reads %v, %v", s, got, err, want, refused)
		}
		if err != nil {
			if got.IsValid() {
				t.Errorf("ParsePrefix(%q) = %v with error %v", s, got, err)
			}
			return
		}
		if refused == nil && !samePrefix(got, want) {
			t.Errorf("ParsePrefix(%q) = %v; Kubernetes reads %v", s, got, want)
		}
		if again, err := ParsePrefix(got.String()); again != got || got != got.Masked() {
			t.Errorf("ParsePrefix(%q) = %v, and that is %v, %v", s, got, again, err)
		}
	})
}

// samePrefix compares address and length. Kubernetes may write an IPv4 prefix as an IPv6 prefix.
func samePrefix(p netip.Prefix, n *gonet.IPNet) bool {
	ones, bits := n.Mask.Size()
	first, _ := netip.AddrFromSlice(n.IP)
	if first.Is4In6() && ones >= 96 {
		first, ones, bits = first.Unmap(), ones-96, bits-96
	}
	return p.Addr() == first && p.Bits() == ones && p.Addr().BitLen() == bits
}

// Build does not panic on any Service and EndpointSlices. The order of slices does not change the result, and the result has the
// properties that the plan relies on.
func FuzzBuild(f *testing.F) {
	mustMarshal := func(m interface{ Marshal() ([]byte, error) }) []byte {
		data, err := m.Marshal()
		lab.Must(f, err)
		return data
	}
	v4 := slice("v4", discoveryv1.Endpoint{Addresses: []string{"10.1.0.2"}, NodeName: &here.Name},
		discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-a"}}}},
		discoveryv1.Endpoint{Addresses: []string{"224.0.0.1"}}, discoveryv1.Endpoint{Addresses: []string{"127.0.0.1"}}, discoveryv1.Endpoint{})
	v4.Ports = []discoveryv1.EndpointPort{endpointPort("web", corev1.ProtocolTCP, 8080), endpointPort("dns", corev1.ProtocolUDP, 53), {}}
	v6 := slice("v6", discoveryv1.Endpoint{Addresses: []string{"fd01::1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Terminating: new(true)}})
	v6.AddressType = discoveryv1.AddressTypeIPv6
	nasty := edit(func(svc *corev1.Service) {
		svc.Spec.ExternalIPs = []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "::1", "10.0.0.1", " ", "fe80::1%eth0", "255.255.255.255"}
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Port: -1}, corev1.ServicePort{Port: 80, NodePort: 70000, Protocol: "ICMP"})
		svc.Spec.HealthCheckNodePort = -5
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(-1))}}
		svc.Spec.LoadBalancerSourceRanges = []string{"", "10.0.0.0/8", "10.0.0.0/33", "10.1.0.0/16", "::/0"}
	})
	for _, svc := range []*corev1.Service{service(), dual(), nasty} {
		f.Add(mustMarshal(svc), mustMarshal(v4), mustMarshal(v6), "here", false)
		f.Add(mustMarshal(svc), mustMarshal(v6), mustMarshal(v4), "", true)
		f.Add(mustMarshal(svc), mustMarshal(v4), mustMarshal(v4), "other", false)
	}
	for i := range 6 { // all annotations at once, with their first values, and so on
		svc := []*corev1.Service{nasty, dual()}[i%2]
		svc.Annotations, v4.Annotations = map[string]string{}, map[string]string{}
		for _, a := range Annotations {
			of := svc.Annotations
			if a.OfSlices() {
				of = v4.Annotations
			}
			all := slices.Concat(a.Samples, a.Wrong)
			of[a.Name] = all[i%len(all)]
		}
		f.Add(mustMarshal(svc), mustMarshal(v4), mustMarshal(v6), "here", false)
	}
	f.Fuzz(func(t *testing.T, service, a, b []byte, nodeName string, ignore bool) {
		var svc corev1.Service
		var one, two discoveryv1.EndpointSlice
		if svc.Unmarshal(service) != nil || one.Unmarshal(a) != nil || two.Unmarshal(b) != nil {
			return
		}
		if one.Namespace == two.Namespace && one.Name == two.Name {
			two.Name += "'" // problems are sorted by the slice's name, so names must differ
		}
		node, opts := here, Options{IgnoreExternalIPs: ignore}
		node.Name = nodeName
		got := buildFrom(&svc, []*discoveryv1.EndpointSlice{&one, &two}, node, opts)
		other := buildFrom(&svc, []*discoveryv1.EndpointSlice{&two, &one}, node, opts)
		if diff := cmp.Diff(got, other, exact); diff != "" {
			t.Fatalf("the order of slices matters (-one, two +two, one):\n%s", diff)
		}
		redirected := Objects{Service: &svc, Slices: stored([]*discoveryv1.EndpointSlice{&one}, Limits{})}
		redirected.Redirect = stored([]*discoveryv1.EndpointSlice{&two}, Limits{})
		for _, s := range []*Service{got, Build(redirected, node, opts)} {
			if s != nil {
				checkService(t, s)
			}
		}
	})
}

// checkService checks the properties that the plan relies on.
func checkService(t *testing.T, s *Service) {
	t.Helper()
	keys := map[Key]bool{}
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			switch {
			case keys[f.Key]:
				t.Errorf("two frontends have the key %v", f.Key)
			case f.Port == 0 || f.Protocol != p.Protocol || f.Family != p.Family:
				t.Errorf("frontend %+v of port %+v", f, p.Name)
			case f.Kind == NodePort && f.Addr.IsValid():
				t.Errorf("node port %+v has an address", f)
			case f.Kind != NodePort && (!f.Addr.IsValid() || inet.FamilyOf(f.Addr) != p.Family || f.Addr.Zone() != ""):
				t.Errorf("frontend %+v of family %v", f, p.Family)
			case f.Kind == ClusterIP && f.ReplacesClusterIP:
				t.Errorf("cluster IP %+v replaces itself", f)
			case f.Kind != NodePort && (!onePeer(f.Addr) || f.Addr.IsLoopback()):
				t.Errorf("frontend at %v", f.Addr)
			}
			keys[f.Key] = true
			if f.Kind == ClusterIP && f.Sources != nil {
				t.Errorf("cluster IP %+v has source ranges", f)
			}
			var sources Sources
			if f.Sources != nil {
				sources = *f.Sources
			}
			for _, list := range [][]AddrRange{sources.Allowed, sources.Denied} {
				for i, a := range list {
					if inet.FamilyOf(a.First) != p.Family || inet.FamilyOf(a.Last) != p.Family || a.Last.Less(a.First) || i > 0 && !list[i-1].Last.Less(a.First) {
						t.Errorf("sources %v", list)
					}
				}
			}
		}
		for _, list := range [][]netip.AddrPort{p.Cluster, p.Local, p.Hairpin, p.Serving} {
			checkEndpoints(t, p, list)
		}
		if p.Affinity < 0 {
			t.Errorf("affinity of %v", p.Affinity)
		}
	}
}

func onePeer(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && a.String() != "255.255.255.255"
}

func checkEndpoints(t *testing.T, p *ServicePort, list []netip.AddrPort) {
	t.Helper()
	for i, e := range list {
		if inet.FamilyOf(e.Addr()) != p.Family || (e.Port() == 0) != p.Ranged() || !onePeer(e.Addr()) || e.Addr().Zone() != "" {
			t.Errorf("endpoint %v of %+v", e, p.Name)
		}
		if i > 0 && list[i-1].Compare(e) >= 0 {
			t.Errorf("endpoints %v are not sorted, or have a duplicate", list)
		}
	}
	for _, e := range p.Hairpin {
		if !slices.Contains(p.Cluster, e) && !slices.Contains(p.Local, e) {
			t.Errorf("%v is in Hairpin, but neither in Cluster %v nor in Local %v", e, p.Cluster, p.Local)
		}
	}
}
