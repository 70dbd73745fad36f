package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Differing compares the rules in the kernel with the rules of t, and returns the name of the first chain with different rules, or
// "". It ignores chains that have no rules in the kernel, and chains that t lacks.
func (c *Conn) Differing(t *Table) (chain string, err error) {
	var found map[string][][]byte
	begin := func() { found = map[string][][]byte{} }
	err = c.EachRule(t.Family.Number(), t.Name, begin, func(r *RuleInfo) {
		found[r.Chain] = append(found[r.Chain], bytes.Clone(r.Expressions))
	})
	if err != nil {
		return "", fmt.Errorf("list rules of %s %s: %w", t.Family.Keyword(), t.Name, err)
	}
	for _, ch := range t.Chains {
		rules, ok := found[ch.Name]
		if !ok {
			continue
		}
		same, err := SameRules(t.Family, ch.Rules, rules)
		if err != nil || !same {
			return ch.Name, err
		}
	}
	return "", nil
}

// SameRules reports whether the rules of a chain in the kernel, of which it gets the expressions in the kernel's form,
// are the wanted rules. It ignores comments.
func SameRules(family inet.Family, want []Rule, found [][]byte) (bool, error) {
	if len(found) != len(want) {
		return false, nil
	}
	for i := range found {
		same, err := sameExpressions(family, want[i].Exprs, found[i])
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// sameExpressions reports whether the kernel's list of expressions has the sent attributes. The kernel adds attributes with
// default values.
func sameExpressions(family inet.Family, want []expr.Any, list []byte) (bool, error) {
	var got [][]byte
	for _, v := range netlink.Attributes(list) {
		got = append(got, v)
	}
	if len(got) != len(want) {
		return false, nil
	}
	for i, e := range want {
		sent, err := expr.Marshal(family.Number(), e)
		if err != nil {
			return false, fmt.Errorf("encode expression: %w", err)
		}
		if !sameExpression(got[i], sent) {
			return false, nil
		}
	}
	return true, nil
}

func sameExpression(got, sent []byte) bool {
	kindGot, dataGot := Expression(got)
	kind, data := Expression(sent)
	switch kind {
	case "nat":
		dataGot = withoutMapIPs(dataGot)
	case "counter":
		data = nil // ignore counted packets
	}
	return kind == kindGot && holds(dataGot, data)
}

// withoutMapIPs clears a flag that the kernel sets in a nat expression with an address.
func withoutMapIPs(b []byte) []byte {
	const mapIPs = 1 // NF_NAT_RANGE_MAP_IPS
	b = bytes.Clone(b)
	for typ, v := range netlink.Attributes(b) {
		if typ == unix.NFTA_NAT_FLAGS && len(v) == 4 {
			v[3] &^= mapIPs
		}
	}
	return b
}

// Expression splits an expression into its name and its data.
func Expression(b []byte) (name string, data []byte) {
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			name = netlink.Text(v)
		case unix.NFTA_EXPR_DATA:
			data = v
		}
	}
	return name, data
}

// holds reports whether a list has all wanted attributes. Attributes with value zero may be missing.
func holds(list, wanted []byte) bool {
	all := true
	for b := wanted; len(b) >= 4; {
		n, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		want := b[4:n]
		nested, plain := typ&unix.NLA_F_NESTED != 0, typ&^unix.NLA_F_NESTED
		there, same := false, false
		for t, v := range netlink.Attributes(list) {
			if t == plain {
				there, same = true, bytes.Equal(v, want) || sameRegister(v, want) || nested && holds(v, want)
			}
		}
		all = all && (same || !there && len(bytes.Trim(want, "\x00")) == 0)
		b = b[min((n+3)&^3, len(b)):]
	}
	return all
}

// sameRegister reports whether two numbers stand for the same register. The kernel reports the 32-bit registers 8, 12, 16 and 20
// under their old numbers 1 to 4.
func sameRegister(got, sent []byte) bool {
	return len(got) == 4 && len(sent) == 4 && netlink.Uint32(sent) >= 8 && netlink.Uint32(sent)%4 == 0 && netlink.Uint32(got) == netlink.Uint32(sent)/4-1
}
