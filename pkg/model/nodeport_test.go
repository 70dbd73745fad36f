package model

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestNodePortAddresses(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	local := addrs("127.0.0.1", "192.0.2.1", "198.51.100.1", "::1", "2001:db8::1", "192.0.2.1")
	known := Node{IPs: [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	for _, c := range []struct {
		name     string
		prefixes []netip.Prefix
		primary  bool
		node     Node
		want     [2][]netip.Addr
		any      [2]bool
		// everywhere is true for families in which health checks listen on all addresses.
		everywhere [2]bool
	}{
		{"primary", nil, false, known, [2][]netip.Addr{addrs("192.0.2.1"), addrs("2001:db8::1")}, [2]bool{}, [2]bool{}},
		{"primary of one family only", nil, false, Node{IPs: [2]netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			[2][]netip.Addr{addrs("192.0.2.1"), addrs("2001:db8::1")}, [2]bool{}, [2]bool{false, true}},
		{"primary unknown", nil, false, Node{}, [2][]netip.Addr{addrs("192.0.2.1", "198.51.100.1"), addrs("2001:db8::1")}, [2]bool{},
			[2]bool{true, true}},
		{"primary on no interface", nil, false, Node{IPs: [2]netip.Addr{netip.MustParseAddr("198.51.100.200"), netip.MustParseAddr("2001:db8::1")}},
			[2][]netip.Addr{nil, addrs("2001:db8::1")}, [2]bool{}, [2]bool{}},
		{"prefixes", prefixes("198.51.100.0/24", "2001:db8::/64"), false, known,
			[2][]netip.Addr{addrs("198.51.100.1"), addrs("2001:db8::1")}, [2]bool{}, [2]bool{}},
		{"a prefix without addresses", prefixes("203.0.113.0/24"), false, known, [2][]netip.Addr{nil, addrs("2001:db8::1")}, [2]bool{},
			[2]bool{false, true}},
		{"everything", prefixes("0.0.0.0/0", "::/0"), false, known,
			[2][]netip.Addr{addrs("192.0.2.1", "198.51.100.1"), addrs("2001:db8::1")}, [2]bool{true, true}, [2]bool{true, true}},
		{"loopback", prefixes("127.0.0.0/8", "::1/128"), false, known, [2][]netip.Addr{nil, nil}, [2]bool{}, [2]bool{}},
		{"loopback and primary", prefixes("127.0.0.0/8", "::1/128"), true, known,
			[2][]netip.Addr{addrs("192.0.2.1"), addrs("2001:db8::1")}, [2]bool{}, [2]bool{}},
		{"a prefix and primary", prefixes("198.51.100.0/24"), true, known,
			[2][]netip.Addr{addrs("192.0.2.1", "198.51.100.1"), addrs("2001:db8::1")}, [2]bool{}, [2]bool{}},
		{"loopback and primary unknown", prefixes("127.0.0.0/8", "::1/128"), true, Node{}, [2][]netip.Addr{nil, nil}, [2]bool{}, [2]bool{}},
		{"a prefix and primary unknown", prefixes("198.51.100.0/24"), true, Node{},
			[2][]netip.Addr{addrs("198.51.100.1"), addrs("2001:db8::1")}, [2]bool{}, [2]bool{false, true}},
		{"everything and primary", prefixes("0.0.0.0/0", "::/0"), true, known,
			[2][]netip.Addr{addrs("192.0.2.1", "198.51.100.1"), addrs("2001:db8::1")}, [2]bool{true, true}, [2]bool{true, true}},
	} {
		n := NodePortAddresses{Prefixes: c.prefixes, Primary: c.primary, Local: func() ([]netip.Addr, error) { return local, nil }}
		for _, f := range inet.Families {
			got, err := n.Addresses(f, c.node)
			if err != nil || !slices.Equal(got, c.want[f]) {
				t.Errorf("%s, %s: %v, %v, want %v", c.name, f, got, err, c.want[f])
			}
			lab.Same(t, c.any[f], n.Any(f), "%s, %s: Any()", c.name, f)
			lab.Same(t, c.everywhere[f], n.Everywhere(f, c.node), "%s, %s: Everywhere()", c.name, f)
			fallback := c.everywhere[f] && !c.any[f] && c.name != "a prefix without addresses"
			lab.Same(t, fallback, n.Fallback(f, c.node), "%s, %s: Fallback()", c.name, f)
		}
	}
}
