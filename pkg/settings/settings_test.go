package settings

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func parse(t *testing.T, args string) *Settings {
	t.Helper()
	o := config.NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	err := fs.Parse(strings.Fields(args))
	if err == nil {
		err = o.Complete(fs)
	}
	if err == nil {
		err = o.Validate()
	}
	lab.Must(t, err)
	s, err := New(o, fs)
	lab.Must(t, err)
	return s
}

func TestTerminateConnections(t *testing.T) {
	for args, want := range map[string]model.Termination{"": "off", "--terminate-connections=gone": "gone"} {
		if got := parse(t, "--hostname-override=n "+args).ModelOptions().Terminate; got != want {
			t.Errorf("%q: %v, want %v", args, got, want)
		}
	}
}

// TestUnusedAddresses: only mode nftables of kube-proxy drops packets to unused addresses of a ServiceCIDR. Without a mode, kube-proxy uses iptables. Among the
// addresses with --refuse-unused-ports=all may be those of other nodes: only packets in a routing loop are refused.
func TestUnusedAddresses(t *testing.T) {
	for args, routed := range map[string]bool{"": true, "--proxy-mode=iptables": true, "--proxy-mode=ipvs": true, "--proxy-mode=nftables": false} {
		if got := parse(t, "--hostname-override=n "+args).PlanOptions(inet.Families[:]).RouteUnused; got != routed {
			t.Errorf("%q: RouteUnused %v, want %v", args, got, routed)
		}
	}
	for value, want := range map[string][2]bool{"cluster": {}, "192.0.2.0/24": {true, false}, "all": {true, true}} {
		o := parse(t, "--hostname-override=n --refuse-unused-ports="+value).PlanOptions(inet.Families[:])
		lab.Same(t, want, [2]bool{o.RefuseUnused, o.RefuseLoops}, "%s: unused ports are refused, and only in loops", value)
	}
}

func TestSettings(t *testing.T) {
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	ip4 := netip.MustParsePrefix("10.244.0.0/16")
	for _, tc := range []struct {
		args      string
		name      string
		nodeIP    netip.Addr
		pods      [2]plan.LocalPods
		nodePorts []netip.Prefix
		primary   bool
	}{
		{args: "--hostname-override=Node-1", name: "node-1", nodePorts: all},
		{args: "--hostname-override=n --proxy-mode=nftables", name: "n", primary: true},
		{args: "--hostname-override=n --proxy-mode=nftables --nodeport-addresses=localhost,primary,10.244.0.0/16", name: "n", primary: true,
			nodePorts: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"), ip4}},
		{args: "--hostname-override=n --proxy-mode=nftables --nodeport-addresses=all", name: "n", nodePorts: all},
		{args: "--hostname-override=n --nodeport-addresses=10.244.0.0/16 --bind-address=192.0.2.9", name: "n",
			nodePorts: []netip.Prefix{ip4}, nodeIP: netip.MustParseAddr("192.0.2.9")},
		{args: "--hostname-override=n --nodeport-addresses=primary --cluster-cidr=fd00::/56,10.244.0.0/16", name: "n", primary: true,
			pods: [2]plan.LocalPods{{Prefix: ip4}, {Prefix: netip.MustParsePrefix("fd00::/56")}}},
		{args: "--hostname-override=n --proxy-mode=nftables --detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth --cluster-cidr=10.0.0.0/8",
			name: "n", primary: true, pods: [2]plan.LocalPods{{Interface: "veth", InterfacePrefix: true}, {Interface: "veth", InterfacePrefix: true}}},
		{args: "--hostname-override=n --proxy-mode=nftables --detect-local-mode=BridgeInterface --pod-bridge-interface=br0",
			name: "n", primary: true, pods: [2]plan.LocalPods{{Interface: "br0"}, {Interface: "br0"}}},
		{args: "--hostname-override=n --proxy-mode=nftables --detect-local-mode=NodeCIDR --cluster-cidr=10.0.0.0/8", name: "n", primary: true},
	} {
		s := parse(t, tc.args)
		if s.NodeName != tc.name || s.NodeIP != tc.nodeIP || s.LocalPods != tc.pods || !slices.Equal(s.nodePorts.Prefixes, tc.nodePorts) ||
			s.nodePorts.Primary != tc.primary {
			t.Errorf("%s: name %q, address %v, pods %v, node ports %v, primary %t", tc.args, s.NodeName, s.NodeIP, s.LocalPods,
				s.nodePorts.Prefixes, s.nodePorts.Primary)
		}
	}
}

// TestLoopbackFamilies: as with kube-proxy, the list must name loopback, and a range that contains loopback among other addresses does not.
func TestLoopbackFamilies(t *testing.T) {
	const gate = " --feature-gates=KubeProxyNFTablesLocalhostNodePorts="
	both := inet.Families[:]
	for _, tc := range []struct {
		list           string
		families, want []inet.Family
	}{
		{"", both, nil}, {"primary", both, nil}, {"all", both, nil}, {"0.0.0.0/0,::/0", both, nil}, {"126.0.0.0/7", both, nil},
		{"localhost", both, both}, {"primary,localhost", both, both}, {"all,localhost", both, both}, {"localhost", both[1:], both[1:]},
		{"127.0.0.0/8", both, both[:1]}, {"127.0.0.1/32", both, both[:1]}, {"192.0.2.0/24,::1/128", both, both[1:]}, {"::1/128", both[:1], nil},
		{"localhost" + gate + "false", both, nil}, {"localhost" + gate + "true", both, both}, {"primary" + gate + "true", both, nil},
	} {
		for _, mode := range []string{"nftables", "iptables"} {
			s := parse(t, "--hostname-override=n --proxy-mode="+mode+" --nodeport-addresses="+tc.list)
			if got := s.LoopbackFamilies(tc.families); !slices.Equal(got, tc.want) {
				t.Errorf("mode %s, %q of %v: %v, want %v", mode, tc.list, tc.families, got, tc.want)
			}
		}
	}
}

func TestWithoutANameTheHostHasOne(t *testing.T) {
	if s := parse(t, ""); s.NodeName == "" || s.NodeName != strings.ToLower(s.NodeName) {
		t.Errorf("the node's name is %q", s.NodeName)
	}
	if inet.FamilyOf(parse(t, "--bind-address=::").NodeIP) != inet.IPv6 && parse(t, "--bind-address=::").NodeIP.IsValid() {
		t.Error("an unspecified --bind-address is taken for the node's")
	}
}

func TestConnectionsAreCountedByDefault(t *testing.T) {
	for args, want := range map[string][2]bool{
		"": {true}, "--count-connections": {true}, "--count-connections=true": {true}, "--count-connections=false": {}, "--count-connections=zones": {true, true},
	} {
		o := parse(t, args).PlanOptions(inet.Families[:])
		if got := [2]bool{!o.Uncounted, o.CountEndpoints}; got != want {
			t.Errorf("%q: connections and endpoints are counted: %v, want %v", args, got, want)
		}
	}
}

func TestLimitsByName(t *testing.T) {
	service, node, err := limits(nil)
	if err != nil || service != model.DefaultLimits() || node != plan.DefaultRoom() {
		t.Errorf("without any: %+v, %+v, %v", service, node, err)
	}
	want, room := model.DefaultLimits(), plan.Room{Elements: 5, SourceRanges: 6, PortRanges: 7}
	want.Pairs, want.SourceRanges = 30_000, 3_000
	service, node, err = limits(map[string]int{
		"pairs": 30_000, "source-ranges": 3_000, "node-elements": 5, "node-source-ranges": 6, "node-port-ranges": 7,
	})
	if err != nil || service != want || node != room {
		t.Errorf("with all: %+v, %+v, %v", service, node, err)
	}
	for text, given := range map[string]map[string]int{
		`"ports" is unknown: use node-elements,`:  {"ports": 1},
		"limit pairs is 0: it must be at least 1": {"pairs": 0},
	} {
		if _, _, err := limits(given); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: error %v, want one with %q", given, err, text)
		}
	}
}
