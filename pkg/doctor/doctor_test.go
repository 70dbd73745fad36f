package doctor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// settings creates a directory of settings. The defaults are those of a healthy node.
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
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// brief returns findings as severity and fact.
func brief(list []view.Finding) (out []string) {
	for _, f := range list {
		if f.Impact == "" || f.Fix == "" {
			out = append(out, "has no impact or no fix:")
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
		{"all is well", nil, nil},
		{"no forwarding", map[string]string{"net/ipv4/ip_forward": "0"}, []string{"wrong: this node does not forward IPv4 packets (net.ipv4.ip_forward = 0)"}},
		{"no forwarding of IPv6", map[string]string{"net/ipv6/conf/all/forwarding": "0"},
			[]string{"wrong: this node does not forward IPv6 packets (net.ipv6.conf.all.forwarding = 0)"}},
		{"all but one forward", map[string]string{"net/ipv4/conf/eth1.7/forwarding": "0", "net/ipv4/conf/eth0/forwarding": "1", "net/ipv4/conf/lo/forwarding": "0"},
			[]string{"warning: this node does not forward IPv4 packets that arrive by eth1.7 (forwarding = 0)"}},
		{"none forwards", map[string]string{"net/ipv4/ip_forward": "0", "net/ipv4/conf/eth0/forwarding": "0"},
			[]string{"wrong: this node does not forward IPv4 packets (net.ipv4.ip_forward = 0)"}},
		{"strict on one interface", map[string]string{"net/ipv4/conf/eth0/rp_filter": "1"}, []string{"note: strict reverse path filtering (rp_filter = 1) on eth0"}},
		{"strict for all, loose on one", map[string]string{"net/ipv4/conf/all/rp_filter": "1"}, []string{"note: strict reverse path filtering (rp_filter = 1) on eth0"}},
		{"loose for all", map[string]string{"net/ipv4/conf/all/rp_filter": "2", "net/ipv4/conf/eth0/rp_filter": "1"}, nil},
		{"conntrack is at 79 %", map[string]string{"net/netfilter/nf_conntrack_count": "799"}, nil},
		{"conntrack is at 80 %", map[string]string{"net/netfilter/nf_conntrack_count": "800"}, []string{"warning: connection tracking is 80 % full (800 of 1000 connections)"}},
		{"conntrack is full", map[string]string{"net/netfilter/nf_conntrack_count": "1000"}, []string{"wrong: connection tracking is 100 % full (1000 of 1000 connections)"}},
		{"not liberal", map[string]string{"net/netfilter/nf_conntrack_tcp_be_liberal": "0"},
			[]string{"note: the kernel treats TCP packets outside the window as invalid (nf_conntrack_tcp_be_liberal = 0)"}},
		{"not a number", map[string]string{"net/ipv4/ip_forward": "?"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := brief(Look(t.Context(), Config{Sysctls: settings(t, c.changed), Families: inet.Families[:]}))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a family that isn't served", func(t *testing.T) {
		root := settings(t, map[string]string{"net/ipv6/conf/all/forwarding": "0"})
		if got := brief(Look(t.Context(), Config{Sysctls: root, Families: inet.Families[:1]})); len(got) > 0 {
			t.Errorf("%q, want nothing", got)
		}
	})
}

func TestEverythingElse(t *testing.T) {
	c := Config{
		Sysctls: settings(t, nil),
		Others:  []view.Finding{{Severity: view.Warning, What: "a finding of the caller", Impact: "this", Fix: "so"}},
		Drops:   func([]inet.Family) ([]Drop, error) { return nil, errors.New("not permitted") },
		Leftovers: func() (takeover.Leftovers, error) {
			return takeover.Leftovers{takeover.IPVS: 3, takeover.NFTables: 0}, nil
		},
		Rival: func(context.Context) bool { return true },
		NodePorts: func() ([]model.Problem, error) {
			return []model.Problem{{Kind: "Service", Name: types.NamespacedName{Namespace: "default", Name: "web"}, Event: "NodePortCollision",
				Reason: "on node n a local process listens on 30080/TCP (at 0.0.0.0:30080)", Impact: "it gets nothing", Fix: "move it"}}, nil
		},
	}
	want := []string{
		"wrong: a kube-proxy runs on this node beside kube-nftproxy, with its own rules (ipvs 3)",
		"warning: a finding of the caller",
		"warning: cannot check chains of other programs: not permitted",
		"warning: Service default/web: on node n a local process listens on 30080/TCP (at 0.0.0.0:30080)",
	}
	got := Look(t.Context(), c)
	if diff := cmp.Diff(want, brief(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if last := got[3]; last.Impact != "it gets nothing" || last.Fix != "move it" {
		t.Errorf("the collision: %+v", last)
	}
	c.Rival = func(context.Context) bool { return false }
	if got := brief(Look(t.Context(), c)); !strings.Contains(strings.Join(got, "\n"), "warning: a kube-proxy has left rules on this node: ipvs 3") {
		t.Errorf("without a kube-proxy that runs: %q", got)
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// TestChainsThatDrop creates chains as firewalls do.
func TestChainsThatDrop(t *testing.T) {
	for _, c := range []struct {
		name, nft string
		iptables  []string
		want      []Drop
	}{
		{"none", "add table ip x; add chain ip x c { type filter hook forward priority 0; policy accept; }", nil, nil},
		{"another hook", "add table ip x; add chain ip x c { type filter hook input priority 0; policy drop; }", nil, nil},
		{"inet, once for both families", "add table inet x; add chain inet x c { type filter hook forward priority 0; policy drop; }", nil,
			[]Drop{{Chain: "table inet x, chain c", Fix: "nft chain inet x c '{ policy accept; }'"}}},
		{"with rules", "add table ip6 x; add chain ip6 x c { type filter hook forward priority 0; policy drop; }; add rule ip6 x c accept", nil,
			[]Drop{{Chain: "table ip6 x, chain c", Fix: "nft chain ip6 x c '{ policy accept; }'", Rules: true}}},
		{"iptables-nft", "", []string{"iptables-nft", "-P", "FORWARD", "DROP"}, []Drop{{Chain: "table ip filter, chain FORWARD", Fix: "iptables -P FORWARD ACCEPT"}}},
		{"iptables-legacy", "", []string{"iptables-legacy", "-P", "FORWARD", "DROP"},
			[]Drop{{Chain: "chain FORWARD of iptables-legacy", Fix: "iptables-legacy -P FORWARD ACCEPT", Rules: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lab.EnterNamespace(t)
			if c.nft != "" {
				run(t, "nft", c.nft)
			}
			if len(c.iptables) > 0 {
				run(t, c.iptables[0], c.iptables[1:]...)
			}
			got, err := Drops(inet.Families[:])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
