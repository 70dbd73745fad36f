package read

import (
	"bytes"
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
	// Encoded are the expressions in the kernel's form.
	Encoded []byte
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
	Sets  map[string]*nft.Set
	Infos map[string]nft.SetInfo
}

// Load reads a table with its rules. If the ruleset changes meanwhile, Load starts again.
func Load(conn *nft.Conn, family inet.Family, name string) (*Table, error) {
	const attempts = 10
	for range attempts {
		before, err := conn.Generation()
		if err != nil {
			return nil, err
		}
		t := &Table{
			Family: family, Name: name,
			Chains: map[string]*Chain{}, Sets: map[string]*nft.Set{}, Infos: map[string]nft.SetInfo{},
		}
		if err := t.load(conn); err != nil {
			return nil, fmt.Errorf("read table %s %s: %w", family.Keyword(), name, err)
		}
		after, err := conn.Generation()
		if err != nil || after == before {
			return t, err
		}
	}
	return nil, fmt.Errorf("read table %s %s: the ruleset kept changing: %w", family.Keyword(), name, unix.EINTR)
}

func (t *Table) load(conn *nft.Conn) (err error) {
	if t.TableInfo, err = conn.Table(t.Family, t.Name); err != nil || !t.Exists {
		return err
	}
	chains, err := conn.Chains(t.Family, t.Name)
	if err != nil {
		return err
	}
	for _, info := range chains {
		t.Chains[info.Name] = &Chain{ChainInfo: info}
	}
	sets, err := conn.Sets(t.Family, t.Name)
	if err != nil {
		return err
	}
	for _, info := range sets {
		t.Infos[info.Name], t.Sets[info.Name] = info, info.Set(t.Family, t.Name)
	}
	begin := func() {
		for _, ch := range t.Chains {
			ch.Rules = nil
		}
	}
	return conn.EachRule(t.Family.Number(), t.Name, begin, func(info *nft.RuleInfo) {
		ch := t.Chains[info.Chain]
		if ch == nil {
			return // it was added after the reading of the chains, so Load starts again
		}
		r := Rule{Handle: info.Handle, Comment: info.Comment, Encoded: bytes.Clone(info.Expressions)}
		for _, e := range netlink.Attributes(info.Expressions) {
			r.Exprs = append(r.Exprs, decode(t.Family, e))
		}
		ch.Rules = append(ch.Rules, r)
	})
}

// decode decodes an expression. [Expr.Any] is nil for kinds that Service rules do not use.
func decode(family inet.Family, b []byte) Expr {
	name, data := nft.Expression(b)
	e := Expr{Name: name}
	known := kindOf(name)
	if name == "byteorder" {
		e.Any = byteOrderOf(data)
		return e
	}
	if name == "immediate" && isVerdict(data) {
		known = &expr.Verdict{}
	}
	if known != nil && expr.Unmarshal(family.Number(), data, known) == nil {
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
