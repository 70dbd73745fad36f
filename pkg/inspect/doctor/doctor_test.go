package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// settings creates a directory of sysctls: those of a healthy node, with some changed.
func settings(t *testing.T, changed map[string]string) string {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "1", "net/ipv4/conf/lo/rp_filter": "1",
		"net/ipv4/conf/eth0/rp_filter": "0", "net/ipv4/conf/eth1.7/rp_filter": "2",
		"net/netfilter/nf_conntrack_count": "100", "net/netfilter/nf_conntrack_max": "1000", "net/netfilter/nf_conntrack_tcp_be_liberal": "1",
	}
	for name, value := range changed {
		all[name] = value
	}
	for name, value := range all {
		file := filepath.Join(root, name)
		lab.Must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		lab.Must(t, os.WriteFile(file, []byte(value+"\n"), 0o600))
	}
	return root
}

// brief returns the severity and the fact of each finding, and an extra line for a finding that lacks a field.
func brief(list []view.Finding) (out []string) {
	for _, f := range list {
		if f.Impact == "" || f.Fix == "" || f.Affects == "" || f.Reason == "" || f.Object == "" {
			out = append(out, fmt.Sprintf("lacks a field: %+v", f))
		}
		out = append(out, string(f.Severity)+": "+f.What)
	}
	return out
}

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		name    string
		changed map[string]string
		want    []string
	}{
		{"a healthy node", nil, nil},
		{"no forwarding", map[string]string{"net/ipv4/ip_forward": "0"}, []string{"wrong: this node does not forward IPv4 packets (net.ipv4.ip_forward = 0)"}},
		{"no forwarding of IPv6", map[string]string{"net/ipv6/conf/all/forwarding": "0"},
			[]string{"wrong: this node does not forward IPv6 packets (net.ipv6.conf.all.forwarding = 0)"}},
		{"one interface does not forward", map[string]string{"net/ipv4/conf/eth1.7/forwarding": "0", "net/ipv4/conf/eth0/forwarding": "1", "net/ipv4/conf/lo/forwarding": "0"},
			[]string{"warning: this node does not forward IPv4 packets that arrive by eth1.7 (forwarding = 0)"}},
		{"no interface forwards", map[string]string{"net/ipv4/ip_forward": "0", "net/ipv4/conf/eth0/forwarding": "0"},
			[]string{"wrong: this node does not forward IPv4 packets (net.ipv4.ip_forward = 0)"}},
		{"strict on one interface", map[string]string{"net/ipv4/conf/eth0/rp_filter": "1"}, []string{"note: strict reverse path filtering (rp_filter = 1) on eth0"}},
		{"strict for all, loose on one", map[string]string{"net/ipv4/conf/all/rp_filter": "1"}, []string{"note: strict reverse path filtering (rp_filter = 1) on eth0"}},
		{"loose for all", map[string]string{"net/ipv4/conf/all/rp_filter": "2", "net/ipv4/conf/eth0/rp_filter": "1"}, nil},
		{"conntrack is at 79 %", map[string]string{"net/netfilter/nf_conntrack_count": "799"}, nil},
		{"conntrack is at 80 %", map[string]string{"net/netfilter/nf_conntrack_count": "800"}, []string{"warning: connection tracking is 80 % full (800 of 1000 connections)"}},
		{"conntrack is full", map[string]string{"net/netfilter/nf_conntrack_count": "1000"}, []string{"wrong: connection tracking is 100 % full (1000 of 1000 connections)"}},
		{"not liberal", map[string]string{"net/netfilter/nf_conntrack_tcp_be_liberal": "0"},
			[]string{"note: the kernel treats TCP packets outside the window as invalid (nf_conntrack_tcp_be_liberal = 0)"}},
		{"not loose", map[string]string{"net/netfilter/nf_conntrack_tcp_loose": "0"},
			[]string{"note: the kernel tracks only TCP connections that begin with a SYN (nf_conntrack_tcp_loose = 0)"}},
		{"not a number", map[string]string{"net/ipv4/ip_forward": "?"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := Config{NodeName: "n", Sysctls: settings(t, c.changed), Families: inet.Families[:]}
			lab.Same(t, c.want, brief(node.sysctls(&host.Networks{}, 0)), "")
		})
	}
	t.Run("a family that isn't served", func(t *testing.T) {
		root := settings(t, map[string]string{"net/ipv6/conf/all/forwarding": "0"})
		node := Config{NodeName: "n", Sysctls: root, Families: inet.Families[:1]}
		if got := brief(node.sysctls(&host.Networks{}, 0)); len(got) > 0 {
			t.Errorf("%q, want nothing", got)
		}
	})
}

// TestFullNeighbours: a neighbour table is reported if it has refused entries, and is nearly full. The text is that of Linux 6.12.
func TestFullNeighbours(t *testing.T) {
	const header = "entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast " +
		"periodic_gc_runs forced_gc_runs unresolved_discards table_fulls\n"
	row := func(entries, refused int) string {
		return fmt.Sprintf("%08x 00000001 00000001 00000003   00000001 00000001 00000000   00000000         00000000         "+
			"00000000         00000000       00000000            %08x\n", entries, refused)
	}
	node := Config{NodeName: "n", Sysctls: settings(t, map[string]string{
		"net/ipv4/neigh/default/gc_thresh3": "1024", "net/ipv6/neigh/default/gc_thresh3": "4096"})}
	for _, c := range []struct {
		name, statistics string
		family           inet.Family
		want             []string
	}{
		{"full, on two processors", header + row(1023, 10) + row(1023, 2), inet.IPv4,
			[]string{"warning: the table of IPv4 neighbours has 1023 of 1024 entries, and has refused 12 since the boot"}},
		{"IPv6 has its own limit", header + row(4000, 1), inet.IPv6,
			[]string{"warning: the table of IPv6 neighbours has 4000 of 4096 entries, and has refused 1 since the boot"}},
		{"full of permanent entries", header + row(2000, 0), inet.IPv4, nil},
		{"full yesterday", header + row(100, 10), inet.IPv4, nil},
		{"an older kernel", "entries  allocs\n00000400 00000001\n", inet.IPv4, nil},
		{"empty", "", inet.IPv4, nil},
	} {
		lab.Same(t, c.want, brief(node.fullNeighbours(c.family, c.statistics)), "%s", c.name)
	}
	node = Config{NodeName: "n", Sysctls: t.TempDir()}
	lab.Same(t, 0, len(node.fullNeighbours(inet.IPv4, header+row(1024, 9))), "findings without a known limit")
}

// TestFindings: each fact about a node is one finding, with all fields.
func TestFindings(t *testing.T) {
	c := Config{NodeName: "n", Sysctls: settings(t, map[string]string{"net/ipv4/conf/all/route_localnet": "1"})}
	left := takeover.Leftovers{takeover.IPVS: 3, takeover.NFTables: 0}
	chains := []read.BaseChain{{Family: "ip", ChainInfo: nft.ChainInfo{Table: "x", Name: "c", Priority: -150}}}
	ports := []model.Problem{{Kind: "Service", Name: types.NamespacedName{Namespace: "default", Name: "web"}, Event: "NodePortCollision",
		Reason: "on node n a local process listens on 30080/TCP (at 0.0.0.0:30080)", Impact: "it gets nothing", Fix: "move it"}}
	tunnel := host.Disguise{To: netip.MustParsePrefix("10.0.0.0/8"), Device: "tun0"}
	other := host.Disguise{To: netip.MustParsePrefix("0.0.0.0/0"), Device: "eth0", Source: netip.MustParseAddr("192.0.2.1"), Wanted: netip.MustParseAddr("192.0.2.9")}
	for want, got := range map[string][]view.Finding{
		"wrong: a kube-proxy runs on this node beside kube-nftproxy, with its own rules (ipvs 3): http://127.0.0.1:10249/proxyMode answers": c.kubeProxy(left,
			takeover.Rival{Page: "http://127.0.0.1:10249/proxyMode"}),
		"warning: a kube-proxy has left rules on this node: ipvs 3":                                          c.kubeProxy(left, takeover.Rival{}),
		"warning: a kube-proxy may run on this node: 127.0.0.1:10249 hangs":                                  c.kubeProxy(left, takeover.Rival{Unknown: errors.New("127.0.0.1:10249 hangs")}),
		"warning: chain ip x c (hook prerouting, priority -150) is evaluated before the rules of Services":   findings(chains, c.earlier),
		"warning: on node n a local process listens on 30080/TCP (at 0.0.0.0:30080)":                         findings(ports, nodePort),
		"warning: a program monitors nftables on this node: nft (pid 7), a process in another PID namespace": c.slowCommits([]Monitor{{PID: 7, Name: "nft"}, {}}),
		"warning: masqueraded IPv4 packets to these networks do not get the source address of the route: 10.0.0.0/8 by tun0 (no source), " +
			"0.0.0.0/0 by eth0 (source 192.0.2.1, the route has 192.0.2.9)": c.disguises([]host.Disguise{tunnel, other}),
		"warning: this node routes packets of its networks to 127.0.0.0/8 (net.ipv4.conf.all.route_localnet = 1), and the chain KUBE-FIREWALL, which drops them, is missing": c.localnet(false),
	} {
		lab.Same(t, []string{want}, brief(got), "")
	}
	if got := nodePort(&ports[0]); got.Impact != "it gets nothing" || got.Fix != "move it" || got.Object != "Service default/web" {
		t.Errorf("the collision: %+v", got)
	}
	lab.Same(t, view.Note, nodePort(&model.Problem{Event: "NodePortInEphemeralRange"}).Severity, "severity of the ephemeral range")
}

// TestChecksThatFail: the error of a check is a finding.
func TestChecksThatFail(t *testing.T) {
	lab.EnterNamespace(t)
	c := Config{NodeName: "n", Sysctls: settings(t, nil), NodePorts: func() ([]model.Problem, error) { return nil, errors.New("not permitted") }}
	lab.Same(t, []string{"warning: cannot check the sockets of this node: not permitted"}, brief(Look(t.Context(), c)), "")
}

var run = lab.Run

// TestChainsThatDrop creates chains as firewalls do, and runs the command of each finding. Then the chain accepts packets of translated
// connections, and the finding disappears.
func TestChainsThatDrop(t *testing.T) {
	const forward = "{ type filter hook forward priority 0; policy drop; }"
	for _, c := range []struct {
		name, nft string
		iptables  []string
		want      []Drop
	}{
		{"none", "add table ip x; add chain ip x c { type filter hook forward priority 0; policy accept; }", nil, nil},
		{"another hook", "add table ip x; add chain ip x c { type filter hook input priority 0; policy drop; }", nil, nil},
		{"inet, once for both families", "add table inet x; add chain inet x c " + forward, nil,
			[]Drop{{Chain: "table inet x, chain c", Command: "nft add rule inet x c ct status dnat accept"}}},
		{"with rules", "add table ip6 x; add chain ip6 x c " + forward + "; add rule ip6 x c tcp dport 80 ct status dnat accept; add rule ip6 x c ct status snat accept", nil,
			[]Drop{{Chain: "table ip6 x, chain c", Command: "nft add rule ip6 x c ct status dnat accept", Rules: true}}},
		{"of Docker", "add table ip y; add chain ip y c " + forward + "; add chain ip y DOCKER-USER; add rule ip y c jump DOCKER-USER", nil,
			[]Drop{{Chain: "table ip y, chain c", Command: "nft add rule ip y c ct status dnat accept", Rules: true, Firewall: "Docker"}}},
		{"accepts", "add table inet x; add chain inet x c " + forward + "; add rule inet x c ct status dnat counter accept comment \"Services\"", nil, nil},
		{"a rule", "add table inet x; add chain inet x c { type filter hook forward priority 0; }; add rule inet x c iifname lo accept; " +
			"add rule inet x c counter log reject; add rule inet x c ct status dnat accept", nil,
			[]Drop{{Chain: "table inet x, chain c", Command: "nft insert rule inet x c position 3 ct status dnat accept", Rules: true,
				Rule: "rule 2: reject with icmp code 1"}}},
		{"an earlier rule accepts", "add table inet x; add chain inet x c { type filter hook forward priority 0; }; add chain inet x other; " +
			"add rule inet x other ct status dnat accept; add rule inet x c jump other; add rule inet x c drop", nil, nil},
		{"only another chain accepts", "add table inet x; add chain inet x c " + forward + "; add chain inet x other; add rule inet x other ct status dnat accept", nil,
			[]Drop{{Chain: "table inet x, chain c", Command: "nft add rule inet x c ct status dnat accept"}}},
		{"a rule of iptables-nft", "", []string{"iptables-nft", "-A", "FORWARD", "-j", "REJECT"},
			[]Drop{{Chain: "table ip filter, chain FORWARD", Command: "iptables -I FORWARD 1 -m conntrack --ctstate DNAT -j ACCEPT", Rules: true,
				Rule: "rule 1: reject"}}},
		{"iptables-nft", "", []string{"iptables-nft", "-P", "FORWARD", "DROP"},
			[]Drop{{Chain: "table ip filter, chain FORWARD", Command: "iptables -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT"}}},
		{"iptables-legacy", "", []string{"iptables-legacy", "-P", "FORWARD", "DROP"},
			[]Drop{{Chain: "chain FORWARD of iptables-legacy", Command: "iptables-legacy -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT", Rules: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lab.EnterNamespace(t)
			if c.nft != "" {
				run(t, "nft", c.nft)
			}
			if len(c.iptables) > 0 {
				run(t, c.iptables[0], c.iptables[1:]...)
			}
			drops := func() []Drop {
				got, err := Drops(inet.Families[:])
				lab.Must(t, err)
				return got
			}
			got := drops()
			lab.Same(t, c.want, got, "")
			for _, d := range got {
				args := strings.Fields(strings.Replace(d.Command, "iptables ", "iptables-nft ", 1))
				run(t, args[0], args[1:]...)
			}
			if got := drops(); len(got) > 0 && c.name != "iptables-legacy" { // the program does not read the rules of iptables-legacy
				t.Errorf("after the fix: %+v", got)
			}
		})
	}
}

// TestEarlierChains: the chains of type nat that have rules, and that the kernel may evaluate before the rules of Services. At one priority, the younger
// chain is first.
func TestEarlierChains(t *testing.T) {
	lab.EnterNamespace(t)
	for _, table := range []string{"ip x", "ip6 x", "inet y", "ip kube-nftproxy"} {
		run(t, "nft", "add table "+table)
		for hook, priorities := range map[string][]int{"prerouting": {-150, plan.FirstPriority, -100}, "output": {-102}, "postrouting": {-150}} {
			for _, priority := range priorities {
				chain := fmt.Sprintf("%s %s%d", table, hook, -priority)
				run(t, "nft", fmt.Sprintf("add chain %s { type nat hook %s priority %d; }; add rule %[1]s counter", chain, hook, priority))
			}
		}
		run(t, "nft", "add chain "+table+" empty { type nat hook prerouting priority -150; }; "+
			"add chain "+table+" filter { type filter hook prerouting priority -150; }; add rule "+table+" filter counter")
	}
	c := Config{Families: inet.Families[:], Table: plan.TableName, First: plan.FirstPriority}
	chains, err := c.chainsBefore()
	lab.Must(t, err)
	var got, want []string
	for i := range chains {
		got = append(got, chains[i].String())
	}
	for _, table := range []string{"inet y", "ip x", "ip6 x"} {
		want = append(want, "chain "+table+" output102 (hook output, priority -102)", "chain "+table+" prerouting101 (hook prerouting, priority -101)",
			"chain "+table+" prerouting150 (hook prerouting, priority -150)")
	}
	slices.Sort(got)
	lab.Same(t, want, got, "")
}

// TestMonitors starts nft's monitor beside a listener of this process.
func TestMonitors(t *testing.T) {
	lab.EnterNamespace(t)
	own, err := nft.Listen("x")
	lab.Must(t, err)
	defer own.Close()
	if got, err := Monitors(); err != nil || len(got) > 0 {
		t.Errorf("without a monitor: %v, %v", got, err)
	}
	cmd := exec.CommandContext(t.Context(), "nft", "monitor")
	lab.Must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	want := []Monitor{{PID: cmd.Process.Pid, Name: "nft"}}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // until it listens
		got, err := Monitors()
		if err == nil && cmp.Equal(want, got) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
	}
}
