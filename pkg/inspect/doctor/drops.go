package doctor

import (
	"fmt"
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
	// Chain is the name of the chain, with its table. Command appends a rule to the chain that accepts packets of
	// translated connections.
	Chain, Command string
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
	if !d.Rules {
		f.Severity = view.Wrong
		f.What = fmt.Sprintf("%s drops all forwarded packets (policy drop, and it has no rules)", d.Chain)
	}
	return f
}

// Drops returns the chains that drop forwarded packets: of nftables, which includes iptables-nft, and of
// iptables-legacy. It omits a chain of nftables if a rule of its table accepts packets of translated connections.
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
		if !ch.Drops || ch.Type != "filter" || ch.Hook != unix.NF_INET_FORWARD {
			continue
		}
		d := dropOf(ch)
		accepts, err := d.read(conn, ch)
		if err != nil {
			return list, err
		}
		if !accepts {
			list = append(list, d)
		}
	}
	legacy, err := takeover.LegacyForwardDrops()
	for _, command := range legacy {
		list = append(list, Drop{Chain: "chain FORWARD of " + command, Command: command + acceptTranslated, Rules: true})
	}
	return list, err
}

// acceptTranslated are the arguments of iptables that append a rule for packets of translated connections.
const acceptTranslated = " -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT"

func dropOf(ch *read.BaseChain) Drop {
	d := Drop{
		Chain: fmt.Sprintf("table %s %s, chain %s", ch.Family, ch.Table, ch.Name), Rules: ch.Uses > 0,
		Command: fmt.Sprintf("nft add rule %s %s %s ct status dnat accept", ch.Family, ch.Table, ch.Name),
	}
	if ch.Table == "filter" && ch.Name == "FORWARD" {
		if command := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[ch.Family]; command != "" {
			d.Command = command + acceptTranslated
		}
	}
	return d
}

// read sets the program that made a chain, and reports whether a rule of the table accepts packets of translated
// connections.
func (d *Drop) read(conn *nft.Conn, ch *read.BaseChain) (accepts bool, err error) {
	rules, err := read.Rules(conn, ch.Family, ch.Table)
	if err != nil {
		return false, err
	}
	names := []string{ch.Table}
	for i := range rules {
		names = append(append(names, rules[i].Chain), rules[i].Targets...)
		accepts = accepts || rules[i].AcceptsDNAT()
	}
	d.Firewall = firewall(names)
	return accepts, nil
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
