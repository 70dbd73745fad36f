package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// commands runs commands of ip in the test's network namespace.
func commands(t *testing.T, lines ...string) {
	t.Helper()
	for _, l := range lines {
		run(t, "ip", strings.Fields(l)...)
	}
}

// uplinks creates two interfaces with addresses.
func uplinks(t *testing.T) {
	t.Helper()
	lab.EnterNamespace(t)
	commands(t, "link add e0 type veth peer name p0", "link add e1 type veth peer name p1",
		"link set e0 up", "link set p0 up", "link set e1 up", "link set p1 up", "address add 192.0.2.1/24 dev e0", "address add 2001:db8::1/64 dev e0 nodad")
}

// TestOverlaps gives a node networks inside of ServiceCIDRs.
func TestOverlaps(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	cidrs := prefixes("10.96.0.0/12", "fd00:10:96::/108")
	const routed = "warning: networks have addresses of the ServiceCIDR 10.96.0.0/12: 10.100.0.0/16 by e0"
	for _, c := range []struct {
		name     string
		commands []string
		s        ServiceNetworks
		want     []string
	}{
		{"none", []string{"route add default dev e0", "route add 10.0.0.0/16 dev e0", "-6 route add default dev e0"}, ServiceNetworks{CIDRs: cidrs, Pods: prefixes("10.244.0.0/16")}, nil},
		{"a route", []string{"route add 10.100.0.0/16 dev e0"}, ServiceNetworks{CIDRs: cidrs}, []string{routed}},
		{"a route, in mode iptables", []string{"route add 10.100.0.0/16 dev e0"}, ServiceNetworks{CIDRs: cidrs, RouteUnused: true}, []string{routed}},
		{"a route of another table", []string{"route add 10.100.0.0/16 dev e0 table 7"}, ServiceNetworks{CIDRs: cidrs}, []string{routed}},
		{"a route of IPv6", []string{"-6 route add fd00:10:96::7:0/112 dev e0"}, ServiceNetworks{CIDRs: cidrs},
			[]string{"warning: networks have addresses of the ServiceCIDR fd00:10:96::/108: fd00:10:96::7:0/112 by e0"}},
		{"a network and an address of this node", []string{"address add 10.96.5.1/24 dev e1"}, ServiceNetworks{CIDRs: cidrs}, []string{
			"wrong: networks have addresses of the ServiceCIDR 10.96.0.0/12: node address 10.96.5.1",
			"warning: networks have addresses of the ServiceCIDR 10.96.0.0/12: 10.96.5.0/24 by e1",
		}},
		{"pods and the Node", nil, ServiceNetworks{CIDRs: cidrs, Pods: append(prefixes("10.97.0.0/16"), netip.Prefix{}), Nodes: []netip.Addr{netip.MustParseAddr("10.96.0.9")}},
			[]string{"wrong: networks have addresses of the ServiceCIDR 10.96.0.0/12: pods 10.97.0.0/16, node address 10.96.0.9"}},
		{"pods, in mode ipvs", nil, ServiceNetworks{CIDRs: cidrs, Pods: prefixes("10.97.0.0/16"), RouteUnused: true},
			[]string{"warning: networks have addresses of the ServiceCIDR 10.96.0.0/12: pods 10.97.0.0/16"}},
		{"the ServiceCIDR by an interface, and a wider route", []string{"route add 10.96.0.0/12 dev e1", "route add 10.0.0.0/8 dev e0"}, ServiceNetworks{CIDRs: cidrs},
			[]string{"note: routes lead to the ServiceCIDR 10.96.0.0/12 and beyond it: 10.0.0.0/8 by e0, 10.96.0.0/12 by e1"}},
		{"addresses of Services: on loopback, unreachable, and routed",
			[]string{"address add 10.96.0.1/32 dev lo", "route add unreachable 10.97.0.0/16", "route add 10.96.0.10/32 dev e0"},
			ServiceNetworks{CIDRs: cidrs, IsService: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.96.0.10") }}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			uplinks(t)
			commands(t, c.commands...)
			networks, err := host.ReadNetworks()
			lab.Must(t, err)
			got := (&Config{Services: c.s}).overlaps(&networks)
			got.Sort()
			lab.Same(t, c.want, brief(got), "")
		})
	}
}

// TestAsymmetricRoutes: strict reverse path filtering is a warning if the routes show that it drops packets, or if it has dropped some.
func TestAsymmetricRoutes(t *testing.T) {
	const strict = "strict reverse path filtering (rp_filter = 1) on e1"
	for _, c := range []struct {
		name     string
		commands []string
		drops    uint64
		want     string
	}{
		{"one uplink", []string{"route add default dev e0"}, 0, "note: " + strict},
		{"two default routes", []string{"route add default via 192.0.2.9", "route add default dev e1 metric 9"}, 0,
			"warning: " + strict + ": e1 has a route to other networks (the default route), but packets to there leave by e0"},
		{"two default routes, and the strict interface has the better one", []string{"route add default via 192.0.2.9 metric 9", "route add default dev e1"}, 0, "note: " + strict},
		{"one network on two interfaces", []string{"address add 192.0.2.7/24 dev e1", "route change 192.0.2.0/24 dev e0", "route append 192.0.2.0/24 dev e1 metric 5"}, 0,
			"warning: " + strict + ": e1 has a route to 192.0.2.0/24, but packets to there leave by e0"},
		{"both interfaces in turn", []string{"route add 198.51.100.0/24 nexthop dev e0 nexthop dev e1"}, 0, "note: " + strict},
		{"link-local networks", []string{"route add 169.254.0.0/16 dev e0 metric 1", "route add 169.254.0.0/16 dev e1 metric 2"}, 0, "note: " + strict},
		{"a rule may lead to the route", []string{"route add default via 192.0.2.9", "route add default dev e1 table 7"}, 0, "note: " + strict},
		{"dropped packets", nil, 14, "warning: " + strict + "; the kernel has dropped 14 packets by reverse path filtering since the boot (IPReversePathFilter)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			uplinks(t)
			commands(t, c.commands...)
			files := settings(t, map[string]string{"net/ipv4/conf/e0/rp_filter": "2", "net/ipv4/conf/e1/rp_filter": "1"})
			networks, err := host.ReadNetworks()
			lab.Must(t, err)
			node := Config{NodeName: "n", Sysctls: files, Families: inet.Families[:]}
			got := node.sysctls(&networks, c.drops)
			lab.Same(t, []string{c.want}, brief(got), "")
			lab.Same(t, "on node n: sysctl -w net.ipv4.conf.e1.rp_filter=2", got[0].Fix, "fix")
		})
	}
}
