package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Drop is a chain that drops forwarded packets unless a rule accepts them.
type Drop struct {
	// Chain is the name of the chain, with its table. Command adds a rule that accepts packets of translated
	// connections: at the end of the chain, or before Rule.
	Chain, Command string
	// Rule is the number and the verdict of the rule without conditions that stops packets, or "" if the policy does.
	Rule string
	// Firewall is the program that made the chain, if it is known.
	Firewall string
	// Rules is true if the chain has rules, which may accept packets.
	Rules bool
}

// drop reports a chain that drops forwarded packets.
func (c *Config) drop(d *Drop) view.Finding {
	until := "The rule lasts until the next boot"
	if d.Firewall != "" {
		until += ", or until " + d.Firewall + " loads its rules again: add the same rule to its configuration"
	}
	f := view.NewFinding(view.Warning, view.ForwardPolicyDrop, d.Chain,
		fmt.Sprintf("%s drops forwarded packets that none of its rules accepts (policy drop)", d.Chain),
		"pods and external clients cannot reach Services, unless the rules of the pod network accept the packets. Connections of the node "+
			"itself are not affected",
		c.on(d.Command),
		"only forwarded connections whose destination a rule of this node has translated: to Services, and to ports that other programs publish. All "+
			"other packets are dropped as before. "+until)
	if d.Rule != "" {
		f.What = fmt.Sprintf("%s stops all forwarded packets that no earlier rule accepts (%s)", d.Chain, d.Rule)
	}
	if !d.Rules {
		f.Severity = view.Wrong
		f.What = fmt.Sprintf("%s drops all forwarded packets (policy drop, and it has no rules)", d.Chain)
	}
	return f
}

// Drops returns the chains that drop forwarded packets: of nftables, which includes iptables-nft, and of
// iptables-legacy. It omits a chain of nftables if one of its rules, or of the chains to which they lead, accepts
// packets of translated connections.
func Drops(families []inet.Family) (list []Drop, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	chains, err := read.BaseChains(conn, families...)
	if err != nil {
		return nil, err
	}
	for i := range chains {
		ch := &chains[i]
		if ch.Type != "filter" || ch.Hook != unix.NF_INET_FORWARD {
			continue
		}
		rules, err := read.Rules(conn, ch.Family, ch.Table)
		if err != nil {
			return list, err
		}
		if d, drops := dropOf(ch, rules); drops {
			list = append(list, d)
		}
	}
	legacy, err := takeover.LegacyForwardDrops()
	for _, command := range legacy {
		list = append(list, Drop{Chain: "chain FORWARD of " + command, Command: command + " -A FORWARD" + acceptTranslated, Rules: true})
	}
	return list, err
}

// LegacyTables returns the backends that have tables in this network namespace: iptables-legacy, ip6tables-legacy. A
// trace does not show their rules.
func LegacyTables() (commands []string) {
	for _, prefix := range []string{"ip", "ip6"} {
		names, err := os.ReadFile("/proc/thread-self/net/" + prefix + "_tables_names")
		if err == nil && len(names) > 0 {
			commands = append(commands, prefix+"tables-legacy")
		}
	}
	return commands
}

// acceptTranslated are the conditions and the verdict of a rule of iptables for packets of translated connections.
const acceptTranslated = " -m conntrack --ctstate DNAT -j ACCEPT"

// dropOf describes a chain with the hook forward, by the rules of its table. drops is true if its policy or a rule
// without conditions stops all packets that no earlier rule accepts, and no earlier rule accepts the packets of
// translated connections.
func dropOf(ch *read.BaseChain, rules []read.ForeignRule) (d Drop, drops bool) {
	d = Drop{Chain: fmt.Sprintf("table %s %s, chain %s", ch.Family, ch.Table, ch.Name), Rules: ch.Uses > 0}
	names := []string{ch.Table}
	of := map[string][]read.ForeignRule{}
	for _, r := range rules {
		of[r.Chain] = append(of[r.Chain], r)
		names = append(append(names, r.Chain), r.Targets...)
	}
	d.Firewall = firewall(names)
	own := of[ch.Name]
	at := slices.IndexFunc(own, func(r read.ForeignRule) bool { return r.StopsAll() != "" })
	isIPTables := ch.Table == "filter" && ch.Name == "FORWARD" && (ch.Family == "ip" || ch.Family == "ip6")
	switch place := ch.Family + " " + ch.Table + " " + ch.Name; {
	case at < 0 && !ch.Drops:
		return d, false
	case at < 0 && isIPTables:
		d.Command = ch.Family + "tables -A FORWARD" + acceptTranslated
	case at < 0:
		d.Command = "nft add rule " + place + " ct status dnat accept"
	case isIPTables:
		d.Command = fmt.Sprintf("%stables -I FORWARD %d", ch.Family, at+1) + acceptTranslated
	default:
		d.Command = fmt.Sprintf("nft insert rule %s position %d ct status dnat accept", place, own[at].Handle)
	}
	if at >= 0 {
		d.Rule, own = fmt.Sprintf("rule %d: %s", at+1, own[at].StopsAll()), own[:at]
	}
	return d, !accepts(own, of, map[string]bool{ch.Name: true})
}

// accepts reports whether a rule, or one to which the rules lead, accepts packets of translated connections. seen are
// the chains on the way.
func accepts(list []read.ForeignRule, of map[string][]read.ForeignRule, seen map[string]bool) bool {
	for i := range list {
		if list[i].AcceptsDNAT() {
			return true
		}
		for _, to := range list[i].Targets {
			if !seen[to] {
				if seen[to] = true; accepts(of[to], of, seen) {
					return true
				}
			}
		}
	}
	return false
}

// firewall derives the program that made a table from the names of the table and its chains. It returns "" for an
// unknown program.
func firewall(names []string) string {
	for _, n := range names {
		switch {
		case n == "firewalld":
			return "firewalld"
		case strings.HasPrefix(n, "ufw"):
			return "ufw"
		case strings.HasPrefix(n, "DOCKER"):
			return "Docker"
		}
	}
	return ""
}
