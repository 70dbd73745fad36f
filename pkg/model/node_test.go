package model

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		{name: "zone", labels: map[string]string{corev1.LabelTopologyZone: "z1"}, zone: "z1"},
		{name: "internal before external, whatever the order",
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
			if tc.ip4 != "" {
				want.IPs[IPv4] = netip.MustParseAddr(tc.ip4)
			}
			if tc.ip6 != "" {
				want.IPs[IPv6] = netip.MustParseAddr(tc.ip6)
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
