package model

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestNodeOf(t *testing.T) {
	type addrs = []corev1.NodeAddress
	const internal, external = corev1.NodeInternalIP, corev1.NodeExternalIP
	for _, tc := range []struct {
		name     string
		labels   map[string]string
		addrs    addrs
		zone     string
		ip4, ip6 string
	}{
		{name: "nothing known"},
		{name: "zone", labels: map[string]string{corev1.LabelTopologyZone: "z1", "a": "b"}, zone: "z1"},
		{name: "internal before external, in any order",
			addrs: addrs{{Type: external, Address: "1.1.1.1"}, {Type: internal, Address: "10.0.0.1"},
				{Type: internal, Address: "10.0.0.2"}},
			ip4: "10.0.0.1"},
		{name: "external where the family has no internal one",
			addrs: addrs{{Type: external, Address: "2001:db8::1"}, {Type: internal, Address: "10.0.0.1"}},
			ip4:   "10.0.0.1", ip6: "2001:db8::1"},
		{name: "both families", addrs: addrs{{Type: internal, Address: "fd00::1"}, {Type: internal, Address: "010.0.0.1"}},
			ip4: "10.0.0.1", ip6: "fd00::1"},
		{name: "not addresses", addrs: addrs{{Type: internal, Address: "x"}, {Type: internal, Address: "0.0.0.0"},
			{Type: internal, Address: "fe80::1%eth0"}, {Type: corev1.NodeHostName, Address: "10.0.0.9"},
			{Type: internal, Address: "10.0.0.1"}},
			ip4: "10.0.0.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := Node{Name: "n1", Zone: tc.zone}
			if tc.labels != nil {
				want.Labels = "a=b,topology.kubernetes.io/zone=z1"
			}
			if tc.ip4 != "" {
				want.IPs[inet.IPv4] = netip.MustParseAddr(tc.ip4)
			}
			if tc.ip6 != "" {
				want.IPs[inet.IPv6] = netip.MustParseAddr(tc.ip6)
			}
			got := NodeOf("n1", &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Labels: tc.labels},
				Status:     corev1.NodeStatus{Addresses: tc.addrs},
			})
			if diff := cmp.Diff(want, got, exact); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(Node{Name: "n1"}, NodeOf("n1", nil), exact); diff != "" {
		t.Errorf("no node (-want +got):\n%s", diff)
	}
}

func TestEndpointAddressesAreReadAsKubernetesDoes(t *testing.T) {
	list := []*discoveryv1.EndpointSlice{{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{"010.0.0.1"}}, {Addresses: []string{"::ffff:10.0.0.2"}, NodeName: &here.Name}, {Addresses: []string{"none"}}, {},
	}}}
	want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	for node, want := range map[string][]netip.Addr{"": want, here.Name: want[1:]} {
		lab.Same(t, want, Addresses(stored(list, Limits{}), node), "addresses of node %q", node)
	}
}

func TestPodCIDRs(t *testing.T) {
	ip4, ip6 := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")
	for _, tc := range []struct {
		name  string
		cidrs []string
		want  [2]netip.Prefix
		bad   []string
	}{
		{name: "none"},
		{name: "one family", cidrs: []string{"10.244.1.0/24"}, want: [2]netip.Prefix{ip4}},
		{name: "the first of each", cidrs: []string{"fd00:10:244:1::/64", "10.244.1.0/24", "10.244.2.0/24", "fd01::/64"},
			want: [2]netip.Prefix{ip4, ip6}},
		{name: "host bits", cidrs: []string{"10.244.1.7/24"}, want: [2]netip.Prefix{ip4}},
		{name: "malformed", cidrs: []string{"10.244.1.0", "", "10.244.1.0/24", "fd00::/129"}, want: [2]netip.Prefix{ip4},
			bad: []string{"spec.podCIDRs[0]", "spec.podCIDRs[1]", "spec.podCIDRs[3]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := PodCIDRs(&corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: tc.cidrs}})
			if got != tc.want {
				t.Errorf("PodCIDRs(%q) = %v, want %v", tc.cidrs, got, tc.want)
			}
			var bad []string
			for _, p := range problems {
				bad = append(bad, p.Field)
			}
			lab.Same(t, tc.bad, bad, "problems of %q", tc.cidrs)
		})
	}
}

func TestInternalIPs(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "?"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.2"},
	}}}
	want := []string{"192.0.2.1", "2001:db8::1", "192.0.2.2"}
	lab.Same(t, want, texts(InternalIPs(node)), "")
}

func texts(list []netip.Addr) (out []string) {
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}
