package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// RuleInfo describes any program's rule without decoding it.
type RuleInfo struct {
	Chain string
	// Handle is the rule's number in its table.
	Handle uint64
	// Targets are the chains of the rule's own jumps and gotos, without those in the elements of a map.
	Targets []string
	// Comment is the comment of nft or of an iptables rule.
	Comment string
	// AcceptsDNAT is true if the rule accepts all packets of connections that DNAT rules have translated, and has no other condition.
	AcceptsDNAT bool
}

// Rules returns the rules of a table in the order of their chains.
func (c *Conn) Rules(family inet.Family, table string) ([]RuleInfo, error) {
	return c.rules(family.Number(), family.Keyword(), table)
}

// RulesBeside returns the rules of the table of a base chain, which may be of family inet.
func (c *Conn) RulesBeside(ch *BaseChain) ([]RuleInfo, error) {
	number := map[string]uint8{"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6, "inet": unix.NFPROTO_INET}[ch.Family]
	return c.rules(number, ch.Family, ch.Table)
}

func (c *Conn) rules(number uint8, keyword, table string) ([]RuleInfo, error) {
	var list []RuleInfo
	request := attribute(unix.NFTA_RULE_TABLE, cstring(table))
	err := c.dump(unix.NFT_MSG_GETRULE, number, request, func() { list = nil }, func(b []byte) error {
		if r, in := parseRule(b); in == table {
			list = append(list, r)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of table %s %s: %w", keyword, table, err)
	}
	return list, nil
}

// rawRule is a rule in a message. Its comment is in userData.
type rawRule struct {
	table, chain          string
	handle                uint64
	userData, expressions []byte
}

func rawRuleOf(b []byte) (r rawRule) {
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			r.table = netlink.Text(v)
		case unix.NFTA_RULE_CHAIN:
			r.chain = netlink.Text(v)
		case unix.NFTA_RULE_HANDLE:
			r.handle = netlink.Uint64(v)
		case unix.NFTA_RULE_USERDATA:
			r.userData = v
		case unix.NFTA_RULE_EXPRESSIONS:
			r.expressions = v
		}
	}
	return r
}

func parseRule(b []byte) (r RuleInfo, table string) {
	raw := rawRuleOf(b)
	r = RuleInfo{Chain: raw.chain, Handle: raw.handle, Comment: commentOf(raw.userData), AcceptsDNAT: acceptsDNAT(raw.expressions)}
	for _, e := range netlink.Attributes(raw.expressions) {
		r.readExpression(e)
	}
	return r, raw.table
}

// readExpression extracts the target chain of a verdict, and the comment of iptables, which is a match.
func (r *RuleInfo) readExpression(e []byte) {
	switch name, data := expression(e); name {
	case "immediate":
		if chain, _ := verdict(netlink.Find(data, unix.NFTA_IMMEDIATE_DATA)); chain != "" {
			r.Targets = append(r.Targets, chain)
		}
	case "match":
		if netlink.Text(netlink.Find(data, unix.NFTA_MATCH_NAME)) == "comment" {
			comment, _, _ := bytes.Cut(netlink.Find(data, unix.NFTA_MATCH_INFO), []byte{0})
			r.Comment = string(comment)
		}
	}
}

// DeleteRule deletes one rule. The rule must exist.
func (b *Batch) DeleteRule(family inet.Family, table, chain string, handle uint64) {
	off := b.message(unix.NFT_MSG_DELRULE, 0, family)
	b.str(unix.NFTA_RULE_TABLE, table)
	b.str(unix.NFTA_RULE_CHAIN, chain)
	b.attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
	b.end(off)
}
