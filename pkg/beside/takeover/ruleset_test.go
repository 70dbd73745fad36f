package takeover

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKubeProxysPart(t *testing.T) {
	const portals = "kubernetes service portals"
	for _, tc := range []struct {
		name, table string
		chains      []string
		rules       []rule
		elsewhere   string
		gone        []string
		jumps       []int
		kept        map[string]string
	}{
		{name: "nothing", table: "nat", chains: []string{"PREROUTING", "KUBE-FIREWALL"}},
		{
			name: "chains with jumps to each other", table: "nat",
			chains: []string{"PREROUTING", "KUBE-SERVICES", "KUBE-SVC-A", "KUBE-SEP-B", "KUBE-MARK-MASQ"},
			rules: []rule{
				{"PREROUTING", []string{"KUBE-SERVICES"}, portals},
				{"PREROUTING", nil, ""},
				{"KUBE-SERVICES", []string{"KUBE-SVC-A"}, ""},
				{"KUBE-SVC-A", []string{"KUBE-SEP-B"}, ""},
				{"KUBE-SEP-B", []string{"KUBE-MARK-MASQ"}, ""},
			},
			gone: []string{"KUBE-MARK-MASQ", "KUBE-SEP-B", "KUBE-SERVICES", "KUBE-SVC-A"}, jumps: []int{0},
		},
		{
			name: "another program's rule jumps to a chain, which jumps to others", table: "nat",
			chains: []string{"PREROUTING", "mine", "KUBE-SERVICES", "KUBE-SVC-A", "KUBE-SEP-B", "KUBE-MARK-MASQ", "KUBE-NODEPORTS"},
			rules: []rule{
				{"PREROUTING", []string{"KUBE-SERVICES"}, portals},
				{"PREROUTING", []string{"mine"}, ""},
				{"KUBE-SVC-A", []string{"KUBE-SEP-B"}, ""},
				{"KUBE-SEP-B", []string{"KUBE-MARK-MASQ"}, ""},
				{"mine", []string{"KUBE-SVC-A"}, ""},
			},
			gone: []string{"KUBE-NODEPORTS", "KUBE-SERVICES"}, jumps: []int{0},
			kept: map[string]string{
				"KUBE-SVC-A": "a rule of chain mine", "KUBE-SEP-B": "a rule of chain KUBE-SVC-A", "KUBE-MARK-MASQ": "a rule of chain KUBE-SEP-B",
			},
		},
		{
			name: "a built-in chain's rule without kube-proxy's comment is another program's", table: "filter",
			chains: []string{"FORWARD", "KUBE-FORWARD"},
			rules: []rule{
				{"FORWARD", []string{"KUBE-FORWARD"}, "kubernetes forwarding rules"},
				{"FORWARD", []string{"KUBE-FORWARD"}, "the administrator's"},
			},
			jumps: []int{0}, kept: map[string]string{"KUBE-FORWARD": "a rule of chain FORWARD"},
		},
		{
			name: "an unreadable reference to a chain", table: "nat", chains: []string{"KUBE-MARK-MASQ", "KUBE-SEP-B"}, elsewhere: "KUBE-MARK-MASQ",
			gone: []string{"KUBE-SEP-B"}, kept: map[string]string{"KUBE-MARK-MASQ": "a map, or an unreadable rule"},
		},
		{
			name: "chains of the kubelet", table: "filter", chains: []string{"INPUT", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-PROXY-CANARY"},
			rules: []rule{
				{"INPUT", []string{"KUBE-FIREWALL"}, ""},
				{"INPUT", []string{"KUBE-FIREWALL"}, "kubernetes firewall rules"},
			},
			gone: []string{"KUBE-PROXY-CANARY"},
		},
		{name: "a chain name of another table", table: "filter", chains: []string{"KUBE-SVC-A", "KUBE-POSTROUTING", "KUBE-SERVICES-MINE"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &ruleset{table: tc.table, rules: tc.rules}
			for _, name := range tc.chains {
				builtin := name == "PREROUTING" || name == "FORWARD" || name == "INPUT"
				s.chains = append(s.chains, chain{name: name, builtin: builtin, elsewhere: name == tc.elsewhere})
			}
			want := removal{chains: map[string]bool{}, jumps: tc.jumps, kept: tc.kept}
			for _, name := range tc.gone {
				want.chains[name] = true
			}
			if want.kept == nil {
				want.kept = map[string]string{}
			}
			if diff := cmp.Diff(want, s.removal(), cmp.AllowUnexported(removal{})); diff != "" {
				t.Errorf("removal (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNamesOfSetsFitTheKernel(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range ipsets() {
		if len(name) > 31 || seen[name] {
			t.Errorf("set %q: %d bytes, twice %t", name, len(name), seen[name])
		}
		seen[name] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^create (\S+)`).FindAllStringSubmatch(testFile(t, "ipvs-ipset.txt"), -1) {
		if !seen[m[1]] {
			t.Errorf("set %q is missing", m[1])
		}
	}
}
