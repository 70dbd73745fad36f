package takeover

import (
	"slices"
	"strings"
)

// tables are the tables of iptables in which kube-proxy creates chains, with the names of these chains (kube-proxy:
// cleanupLeftovers in iptables/cleanup.go, iptablesCleanupChains in ipvs/proxier.go). The chains of the kubelet are
// not included: KUBE-FIREWALL, KUBE-MARK-DROP, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT.
var tables = []struct {
	name   string
	chains []string
}{
	{"nat", []string{
		"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER",
	}},
	{"filter", []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS", "KUBE-PROXY-FIREWALL",
		"KUBE-PROXY-CANARY", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER",
		"KUBE-IPVS-OUT-FILTER",
	}},
	{"mangle", []string{"KUBE-PROXY-CANARY"}},
}

// perService are the prefixes of nat chains for one service port or endpoint. Versions before 1.24 use KUBE-XLB-.
var perService = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-", "KUBE-FW-", "KUBE-XLB-"}

// isKubeProxys reports whether a chain has the name of a chain that kube-proxy creates.
func isKubeProxys(table, chain string) bool {
	for _, t := range tables {
		if t.name == table && slices.Contains(t.chains, chain) {
			return true
		}
	}
	return table == "nat" && slices.ContainsFunc(perService, func(p string) bool { return strings.HasPrefix(chain, p) })
}

// shared are chains that a kubelet before 1.28 also creates, and restores after a deletion. If a table has no other
// chains of kube-proxy, they are the kubelet's.
var shared = []string{"KUBE-MARK-MASQ", "KUBE-POSTROUTING"}

// count returns the number of kube-proxy's chains in a table, or 0 if there are only shared ones.
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

// isKubeProxysJump reports whether a rule with this comment is kube-proxy's. Call it for jumps from built-in chains
// to chains of kube-proxy: all versions of kube-proxy add a comment to these rules.
func isKubeProxysJump(comment string) bool {
	return strings.HasPrefix(comment, "kubernetes ") || strings.HasPrefix(comment, "kube-proxy ")
}

// device is the network device to which mode ipvs adds the addresses of Services.
const device = "kube-ipvs0"

// ipsets returns the names of the sets of mode ipvs (kube-proxy: ipvs/ipset.go).
func ipsets() []string {
	// kube-proxy truncates the names of IPv6 sets to the kernel's limit.
	const longest = 31
	var names []string
	for _, suffix := range []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL",
		"LOAD-BALANCER-FW", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR",
		"NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP",
		"NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	} {
		six := "KUBE-6-" + suffix
		names = append(names, "KUBE-"+suffix, six[:min(len(six), longest)])
	}
	return names
}
