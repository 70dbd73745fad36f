package read

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// ForeignRule describes any program's rule without decoding it.
type ForeignRule struct {
	Chain string
	// Handle is the rule's number in its table.
	Handle uint64
	// Targets are the chains of the rule's own jumps and gotos, without those in the elements of a map.
	Targets []string
	// Comment is the comment of nft or of an iptables rule.
	Comment string
	// AcceptsDNAT is true if the rule accepts all packets of connections that DNAT rules have translated, and has no
	// other condition.
	AcceptsDNAT bool
}

// Rules returns the rules of a table in the order of their chains.
func Rules(conn *nft.Conn, family inet.Family, table string) ([]ForeignRule, error) {
	return rules(conn, family.Number(), family.Keyword(), table)
}

// RulesBeside returns the rules of the table of a base chain, which may be of family inet.
func RulesBeside(conn *nft.Conn, ch *BaseChain) ([]ForeignRule, error) {
	number := map[string]uint8{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6, "inet": unix.NFPROTO_INET}[ch.Family]
	return rules(conn, number, ch.Family, ch.Table)
}

func rules(conn *nft.Conn, number uint8, keyword, table string) (list []ForeignRule, err error) {
	found, err := conn.Rules(number, table)
	if err != nil {
		return nil, fmt.Errorf("list rules of table %s %s: %w", keyword, table, err)
	}
	for _, info := range found {
		r := ForeignRule{
			Chain: info.Chain, Handle: info.Handle, Comment: info.Comment, AcceptsDNAT: acceptsDNAT(info.Expressions),
		}
		for _, e := range netlink.Attributes(info.Expressions) {
			r.expression(e)
		}
		list = append(list, r)
	}
	return list, nil
}

// expression extracts the target chain of a verdict, and the comment of iptables, which is a match.
func (r *ForeignRule) expression(e []byte) {
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

// RuleTexts returns the rules of any table as text, by chain. family is the kernel's number of the table's family. The
// texts have only the names of the extensions of iptables.
func RuleTexts(conn *nft.Conn, family uint8, table string) (map[string][]string, error) {
	found, err := conn.Rules(family, table)
	if err != nil {
		return nil, fmt.Errorf("list rules of table %s: %w", table, err)
	}
	of := inet.IPv4 // also for tables of both families: their rules test the family first
	if family == unix.NFPROTO_IPV6 {
		of = inet.IPv6
	}
	texts := map[string][]string{}
	for _, info := range found {
		r := ForeignRule{Comment: info.Comment}
		var exprs []Expr
		for _, e := range netlink.Attributes(info.Expressions) {
			r.expression(e)
			exprs = append(exprs, decode(of, e))
		}
		texts[info.Chain] = append(texts[info.Chain], ruleLine(Text(of, exprs, nil), r.Comment))
	}
	return texts, nil
}
