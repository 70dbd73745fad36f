package takeover

import (
	"slices"
	"strings"
)

// tables are the tables of iptables in which kube-proxy makes chains, and the names of these (kube-proxy: cleanupLeftovers in
// iptables/cleanup.go, iptablesCleanupChains in ipvs/proxier.go). Those of the kubelet aren't among them: KUBE-FIREWALL,
// KUBE-MARK-DROP, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT.
var tables = []struct {
	name   string
	chains []string
}{
	{"nat", []string{
		"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER",
	}},
	{"filter", []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}},
	{"mangle", []string{"KUBE-PROXY-CANARY"}},
}

// perService begin the names of nat chains that belong to one service or endpoint; KUBE-XLB- is that of versions before 1.24.
var perService = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-", "KUBE-FW-", "KUBE-XLB-"}

// isKubeProxys tells whether a chain has the name of one that kube-proxy makes.
func isKubeProxys(table, chain string) bool {
	for _, t := range tables {
		if t.name == table && slices.Contains(t.chains, chain) {
			return true
		}
	}
	return table == "nat" && slices.ContainsFunc(perService, func(p string) bool { return strings.HasPrefix(chain, p) })
}

// shared are chains that a kubelet before 1.28 makes, too, and makes anew when they have gone: by themselves they say nothing of
// a kube-proxy.
var shared = []string{"KUBE-MARK-MASQ", "KUBE-POSTROUTING"}

// count counts kube-proxy's chains among those of a table.
func count(table string, chains []string) (n int) {
	certain := false
	for _, c := range chains {
		if isKubeProxys(table, c) {
			n++
			certain = certain || !slices.Contains(shared, c)
		}
	}
	if !certain {
		return 0
	}
	return n
}

// isKubeProxysJump tells whether a rule of a built-in chain that leads to one of kube-proxy's chains was made by kube-proxy:
// all versions mark theirs with a comment.
func isKubeProxysJump(comment string) bool {
	return strings.HasPrefix(comment, "kubernetes ") || strings.HasPrefix(comment, "kube-proxy ")
}

// device is that on which mode ipvs places the addresses of Services.
const device = "kube-ipvs0"

// ipsets lists the sets of mode ipvs (kube-proxy: ipvs/ipset.go).
func ipsets() []string {
	// A longer name of a set for IPv6 is cut to what the kernel takes.
	const longest = 31
	var names []string
	for _, suffix := range []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL",
		"LOAD-BALANCER-FW", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP",
		"NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT",
		"IPVS-IPS",
	} {
		six := "KUBE-6-" + suffix
		names = append(names, "KUBE-"+suffix, six[:min(len(six), longest)])
	}
	return names
}
