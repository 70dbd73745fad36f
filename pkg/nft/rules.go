package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// RuleInfo is a rule of any program in the kernel.
type RuleInfo struct {
	Chain string
	// Handle is the rule's number in its table.
	Handle uint64
	// Comment is nft's comment of the rule.
	Comment string
	// Expressions are the expressions in the kernel's form. Copy them to keep them.
	Expressions []byte
}

// EachRule calls f for each rule of a table, in the order of its chains. family is the kernel's number of the table's
// family. If the ruleset changes meanwhile, EachRule calls begin and starts again.
func (c *Conn) EachRule(family uint8, table string, begin func(), f func(*RuleInfo)) error {
	request := attribute(unix.NFTA_RULE_TABLE, cstring(table))
	return c.dump(unix.NFT_MSG_GETRULE, family, request, begin, func(b []byte) error {
		if r, in := parseRule(b); in == table {
			f(&r)
		}
		return nil
	})
}

func parseRule(b []byte) (r RuleInfo, table string) {
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			table = netlink.Text(v)
		case unix.NFTA_RULE_CHAIN:
			r.Chain = netlink.Text(v)
		case unix.NFTA_RULE_HANDLE:
			r.Handle = netlink.Uint64(v)
		case unix.NFTA_RULE_USERDATA:
			r.Comment = commentOf(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.Expressions = v
		}
	}
	return r, table
}

// RuleComments returns the comments of the rules of each chain of a table, in the order of the rules.
func (c *Conn) RuleComments(family inet.Family, table string) (map[string][]string, error) {
	var byChain map[string][]string
	begin := func() { byChain = map[string][]string{} }
	err := c.EachRule(family.Number(), table, begin, func(r *RuleInfo) {
		byChain[r.Chain] = append(byChain[r.Chain], r.Comment)
	})
	return byChain, err
}

// DeleteRule deletes one rule. The rule must exist.
func (b *Batch) DeleteRule(family inet.Family, table, chain string, handle uint64) {
	b.message(unix.NFT_MSG_DELRULE, 0, family)
	b.str(unix.NFTA_RULE_TABLE, table)
	b.str(unix.NFTA_RULE_CHAIN, chain)
	b.attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
}
