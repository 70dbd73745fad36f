package nft

import (
	"bytes"
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
	// Expressions are the expressions in the kernel's form.
	Expressions []byte
}

// Rules returns the rules of a table, in the order of its chains. family is the kernel's number of the table's family.
func (c *Conn) Rules(family uint8, table string) ([]RuleInfo, error) {
	var request encoder
	request.Text(unix.NFTA_RULE_TABLE, table)
	return dump(c, unix.NFT_MSG_GETRULE, family, request.Buf, func(b []byte, add func(RuleInfo)) error {
		if r, in := parseRule(b); in == table {
			add(r)
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
			r.Expressions = bytes.Clone(v)
		}
	}
	return r, table
}

// DeleteRule deletes one rule. The rule must exist.
func (b *Batch) DeleteRule(family inet.Family, table, chain string, handle uint64) {
	b.message(unix.NFT_MSG_DELRULE, 0, family)
	b.Text(unix.NFTA_RULE_TABLE, table)
	b.Text(unix.NFTA_RULE_CHAIN, chain)
	b.Attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
}
