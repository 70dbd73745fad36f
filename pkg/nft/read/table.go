package read

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Expr is an expression of a rule.
type Expr struct {
	// Name is the kernel's name of the expression.
	Name string
	// Any is the decoded expression, or nil for an unknown one.
	Any expr.Any
}

// Planned returns the expressions of a planned rule in the form of [Rule.Exprs], without their names.
func Planned(r *nft.Rule) []Expr {
	list := make([]Expr, len(r.Exprs))
	for i, e := range r.Exprs {
		list[i].Any = e
	}
	return list
}

// Rule is a rule in the kernel.
type Rule struct {
	Handle  uint64
	Comment string
	Exprs   []Expr
}

// Chain is a chain in the kernel.
type Chain struct {
	nft.ChainInfo
	Rules []Rule
}

// Table is a table in the kernel, without elements.
type Table struct {
	Family inet.Family
	Name   string
	nft.TableInfo
	Chains map[string]*Chain
	// Infos describe the sets, including anonymous ones. Sets are the same sets in the form that the functions for
	// elements need.
	Sets    map[string]*nft.Set
	Infos   map[string]nft.SetInfo
	Objects []nft.ObjectInfo
}

// Load reads a table with its rules. If the ruleset changes meanwhile, Load starts again.
func Load(conn *nft.Conn, family inet.Family, name string) (*Table, error) {
	const attempts = 10
	for range attempts {
		before, err := conn.Generation()
		if err != nil {
			return nil, err
		}
		found, err := conn.ReadTable(family, name)
		if err != nil {
			return nil, fmt.Errorf("read table %s %s: %w", family.Keyword(), name, err)
		}
		after, err := conn.Generation()
		if err != nil || after == before {
			return decoded(found, family, name), err
		}
	}
	return nil, fmt.Errorf("read table %s %s: the ruleset kept changing: %w", family.Keyword(), name, unix.EINTR)
}

// decoded returns a table with decoded rules.
func decoded(found *nft.KernelTable, family inet.Family, name string) *Table {
	t := &Table{
		Family: family, Name: name, TableInfo: found.TableInfo,
		Chains: map[string]*Chain{}, Sets: map[string]*nft.Set{}, Infos: found.Sets, Objects: found.Objects,
	}
	for _, info := range found.Anonymous {
		t.Infos[info.Name] = info
	}
	for _, info := range t.Infos {
		t.Sets[info.Name] = info.Set(family, name)
	}
	for _, c := range found.Chains {
		ch := &Chain{ChainInfo: c.ChainInfo}
		for _, info := range c.Rules {
			exprs := decodeAll(family, info.Expressions)
			ch.Rules = append(ch.Rules, Rule{Handle: info.Handle, Comment: info.Comment, Exprs: exprs})
		}
		t.Chains[c.Name] = ch
	}
	return t
}

// decodeAll decodes the expressions of a rule.
func decodeAll(family inet.Family, expressions []byte) (list []Expr) {
	for _, e := range netlink.Attributes(expressions) {
		list = append(list, decode(family, e))
	}
	return list
}

// decode decodes an expression. [Expr.Any] is nil for kinds that Service rules do not use.
func decode(family inet.Family, b []byte) Expr {
	name, data := nft.Expression(b)
	e := Expr{Name: name}
	known := kindOf(name)
	switch {
	case name == "byteorder":
		e.Any = byteOrderOf(data)
	case name == "immediate" && isVerdict(data):
		e.Any = verdictOf(data)
	case known != nil && expr.Unmarshal(family.Number(), data, known) == nil:
		e.Any = known
	}
	return e
}

// byteOrderOf decodes an expression that the library does not decode.
func byteOrderOf(data []byte) *expr.Byteorder {
	e := &expr.Byteorder{}
	for typ, v := range netlink.Attributes(data) {
		switch typ {
		case unix.NFTA_BYTEORDER_SREG:
			e.SourceRegister = netlink.Uint32(v)
		case unix.NFTA_BYTEORDER_DREG:
			e.DestRegister = netlink.Uint32(v)
		case unix.NFTA_BYTEORDER_OP:
			e.Op = expr.ByteorderOp(netlink.Uint32(v))
		case unix.NFTA_BYTEORDER_LEN:
			e.Len = netlink.Uint32(v)
		case unix.NFTA_BYTEORDER_SIZE:
			e.Size = netlink.Uint32(v)
		}
	}
	return e
}

// verdictOf decodes a verdict. The library panics if its code is too short.
func verdictOf(data []byte) *expr.Verdict {
	verdict := netlink.Find(netlink.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
	return &expr.Verdict{
		Kind:  expr.VerdictKind(int32(netlink.Uint32(netlink.Find(verdict, unix.NFTA_VERDICT_CODE)))),
		Chain: netlink.Text(netlink.Find(verdict, unix.NFTA_VERDICT_CHAIN)),
	}
}

func isVerdict(data []byte) (verdict bool) {
	for typ, v := range netlink.Attributes(data) {
		verdict = verdict || typ == unix.NFTA_IMMEDIATE_DREG && netlink.Uint32(v) == unix.NFT_REG_VERDICT
	}
	return verdict
}

func kindOf(name string) expr.Any {
	switch name {
	case "bitwise":
		return &expr.Bitwise{}
	case "cmp":
		return &expr.Cmp{}
	case "counter":
		return &expr.Counter{}
	case "ct":
		return &expr.Ct{}
	case "dup":
		return &expr.Dup{}
	case "dynset":
		return &expr.Dynset{}
	case "fib":
		return &expr.Fib{}
	case "immediate":
		return &expr.Immediate{}
	case "lookup":
		return &expr.Lookup{}
	case "masq":
		return &expr.Masq{}
	case "meta":
		return &expr.Meta{}
	case "nat":
		return &expr.NAT{}
	case "objref":
		return &expr.Objref{}
	case "numgen":
		return &expr.Numgen{}
	case "hash":
		return &expr.Hash{}
	case "payload":
		return &expr.Payload{}
	case "range":
		return &expr.Range{}
	case "reject":
		return &expr.Reject{}
	}
	return nil
}
