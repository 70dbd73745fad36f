package model

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// exact compares addresses by value: they have unexported fields.
var exact = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestParseAddrPort(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1:80", "010.0.0.1:080": "10.0.0.1:80", "[FD00:0001::1]:65535": "[fd00:1::1]:65535", "[::ffff:10.0.0.1]:1": "10.0.0.1:1",
		"10.0.0.1": "", "fd00::1:80": "", "10.0.0.1:65536": "", "10.0.0.1:http": "", "[fe80::1%eth0]:80": "", ":80": "", "": "",
	} {
		if got, err := ParseAddrPort(in); (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("ParseAddrPort(%q) = %v, %v; want %q", in, got, err, want)
		}
	}
}

func TestParseAddr(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"10.0.0.1", "10.0.0.1"},
		{"010.000.00.01", "10.0.0.1"},
		{"08.09.0100.1", "8.9.100.1"},
		{"fd00::1", "fd00::1"},
		{"fd00:0001::00000a", "fd00:1::a"},
		{"FD00::0", "fd00::"},
		{"::ffff:10.0.0.1", "10.0.0.1"},
		{"::ffff:010.0.0.1", "10.0.0.1"},
		{"0.0.0.0", "0.0.0.0"},
		{"", ""},
		{"10.0.0", ""},
		{"10.0.0.256", ""},
		{" 10.0.0.1", ""},
		{"10.0.0.1/32", ""},
		{"0x10.0.0.1", ""},
		{"fe80::1%eth0", ""},
		{"host.example", ""},
	} {
		got, err := ParseAddr(tc.in)
		if (err != nil) != (tc.want == "") {
			t.Errorf("ParseAddr(%q) = %v, error %v, want %q", tc.in, got, err, tc.want)
			continue
		}
		if err == nil && got.String() != tc.want || err != nil && got.IsValid() {
			t.Errorf("ParseAddr(%q) = %v, want %q", tc.in, got, tc.want)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"10.1.2.3/8", "10.0.0.0/8"},
		{"010.01.2.3/08", "10.0.0.0/8"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"fd00::1/64", "fd00::/64"},
		{"::/0", "::/0"},
		{"::ffff:10.1.2.3/104", "10.0.0.0/8"},
		{"::ffff:10.1.2.3/64", "::/64"},
		{"10.0.0.1", ""},
		{"10.0.0.1/33", ""},
		{"10.0.0.1/+8", ""},
		{"10.0.0.1/-1", ""},
		{"10.0.0.1/", ""},
		{"/8", ""},
		{"fd00::/129", ""},
		{"fe80::1%eth0/64", ""},
	} {
		got, err := ParsePrefix(tc.in)
		if (err != nil) != (tc.want == "") {
			t.Errorf("ParsePrefix(%q) = %v, error %v, want %q", tc.in, got, err, tc.want)
			continue
		}
		if err == nil && got.String() != tc.want || err != nil && got.IsValid() {
			t.Errorf("ParsePrefix(%q) = %v, want %q", tc.in, got, tc.want)
		}
	}
}

func TestServiceCIDRs(t *testing.T) {
	obj := func(name string, cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		}
	}
	want := [2][]netip.Prefix{
		prefixes("10.96.0.0/12", "172.30.0.0/16"),
		prefixes("fd00::/108", "fd01::/112"),
	}
	wantProblems := []Problem{
		{Kind: "ServiceCIDR", Name: types.NamespacedName{Name: "a"}, Field: "spec.cidrs[0]",
			Reason: `"x": not an IP address, a slash, and a prefix length`},
		{Kind: "ServiceCIDR", Name: types.NamespacedName{Name: "b"}, Field: "spec.cidrs[1]",
			Reason: `"10.0.0.0/33": IPv4 has no prefix of 33 bits`},
	}
	got, problems := ServiceCIDRs([]*networkingv1.ServiceCIDR{
		obj("b", "172.30.1.0/24", "10.0.0.0/33", "fd00::1:0/112"),
		nil,
		obj("kubernetes", "10.96.0.0/12", "fd00::/108"),
		obj("a", "x", "172.30.0.0/16", "10.96.0.0/12", "fd01::/112"),
	})
	if diff := cmp.Diff(want, got, exact); diff != "" {
		t.Errorf("prefixes (-want +got):\n%s", diff)
	}
	lab.Same(t, wantProblems, problems, "problems")
}

// ranges returns nil for no prefixes.
func ranges(list ...string) (out []AddrRange) {
	for _, s := range list {
		out = append(out, RangeOf(netip.MustParsePrefix(s)))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
