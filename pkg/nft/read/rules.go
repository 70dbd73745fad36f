package read

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// ForeignRule is a rule of any program. Its comment is that of nft, or that of an iptables rule.
type ForeignRule struct {
	nft.RuleInfo
	// Targets are the chains of the rule's own jumps and gotos, without those in the elements of a map.
	Targets []string
	family  inet.Family
}

// Rules returns the rules of a table in the order of their chains. family is nft's keyword of the table's family.
func Rules(conn *nft.Conn, family, table string) (list []ForeignRule, err error) {
	found, err := conn.Rules(numbers[family], table)
	if err != nil {
		return nil, fmt.Errorf("list rules of table %s %s: %w", family, table, err)
	}
	of := inet.IPv4 // also for tables of both families: their rules test the family first
	if family == inet.IPv6.Keyword() {
		of = inet.IPv6
	}
	for _, info := range found {
		list = append(list, foreignRule(of, info))
	}
	return list, nil
}

// foreignRule extracts the targets of verdicts, and the comment of iptables, which is a match.
func foreignRule(family inet.Family, info nft.RuleInfo) ForeignRule {
	r := ForeignRule{RuleInfo: info, family: family}
	for _, e := range netlink.Attributes(info.Expressions) {
		switch name, data := nft.Expression(e); name {
		case "immediate":
			if chain, _ := nft.Verdict(netlink.Find(data, unix.NFTA_IMMEDIATE_DATA)); chain != "" {
				r.Targets = append(r.Targets, chain)
			}
		case "match":
			if netlink.Text(netlink.Find(data, unix.NFTA_MATCH_NAME)) == "comment" {
				comment, _, _ := bytes.Cut(netlink.Find(data, unix.NFTA_MATCH_INFO), []byte{0})
				r.Comment = string(comment)
			}
		}
	}
	return r
}

// Text returns the rule in nft's language. It has only the names of the extensions of iptables.
func (r *ForeignRule) Text() string {
	return ruleLine(Text(r.family, decodeAll(r.family, r.Expressions), nil), r.Comment)
}

// translated is the condition that a DNAT rule has translated the connection of a packet.
const translated = "ct status dnat "

// AcceptsDNAT reports whether the rule accepts all packets of connections that DNAT rules have translated, and has no
// other condition. It has one of the forms
//
//	ct status dnat accept
//	-m conntrack --ctstate DNAT -j ACCEPT
//
// in which --ctstate may list other states.
func (r *ForeignRule) AcceptsDNAT() bool { return r.essence() == translated+"accept" }

// StopsAll returns the verdict of a rule that drops or rejects each packet that reaches it, or "".
func (r *ForeignRule) StopsAll() string {
	if text := r.essence(); text == "drop" || text == "reject" || strings.HasPrefix(text, "reject with ") {
		return text
	}
	return ""
}

// essence returns the conditions and the verdict of the rule in nft's language: without counters, logs and comments.
func (r *ForeignRule) essence() string {
	text, rest := "", []Expr{}
	for _, e := range netlink.Attributes(r.Expressions) {
		name, data := nft.Expression(e)
		extension := netlink.Text(netlink.Find(data, unix.NFTA_MATCH_NAME)) // also the name of a target
		switch {
		case name == "counter", name == "log", name == "match" && extension == "comment":
		case name == "match" && matchesDNAT(extension, netlink.Find(data, unix.NFTA_MATCH_INFO)):
			text += translated
		case name == "target" && extension == "REJECT":
			text += "reject"
		default:
			rest = append(rest, decode(r.family, e))
		}
	}
	return text + Text(r.family, rest, nil)
}

// matchesDNAT reports whether a match of iptables (struct xt_conntrack_mtinfo3) tests only states of a connection, and
// accepts the state DNAT.
func matchesDNAT(name string, info []byte) bool {
	const (
		flags, inverted, states = 146, 148, 150
		onlyState, dnat         = 1 << 0, 1 << 7
	)
	if name != "conntrack" || len(info) < states+2 {
		return false
	}
	at := func(offset int) uint16 { return binary.NativeEndian.Uint16(info[offset:]) }
	return at(flags)&^(1<<13) == onlyState && at(inverted) == 0 && at(states)&dnat != 0
}
