package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// ChainInfo describes a chain in the kernel.
type ChainInfo struct {
	Table, Name, Comment string
	// Type, Hook and Priority are those of a base chain. Type is empty for other chains.
	Type     string
	Hook     uint32
	Priority int32
	// Drops is true if the policy of a base chain is drop.
	Drops bool
	// Uses is the number of rules in the chain, plus the number of rules and elements that lead to the chain.
	Uses uint32
}

// nfDrop is NF_DROP, which golang.org/x/sys/unix lacks.
const nfDrop = 0

// SetInfo describes a set in the kernel.
type SetInfo struct {
	Name string
	// Size is the declared size; 0 means no limit.
	Size uint32
	// Count is the current number of elements, or -1 if the kernel does not report it (before 6.16).
	Count int
	// Anonymous is true for a set that belongs to a rule. The kernel has chosen its name.
	Anonymous bool
	shape     setShape
}

// setShape holds the properties of a set that are constant while the set exists.
type setShape struct {
	flags, keyType, keyLen, dataType, dataLen uint32
	timeout                                   time.Duration
	userData                                  string
	// expr are the names of the expressions that each element gets, separated by a space, or "".
	expr string
}

// Is reports whether the set in the kernel has the same form as s, except its size.
func (i *SetInfo) Is(s *Set) bool {
	want := setShape{
		flags: s.flags(), keyType: typeID(s.Key), keyLen: uint32(length(s.Key)), userData: string(s.userData()),
		timeout: s.Timeout,
	}
	switch {
	case s.Counter && s.MaxConnections > 0:
		want.expr = connlimitName + " " + counterName
	case s.Counter:
		want.expr = counterName
	case s.MaxConnections > 0:
		want.expr = connlimitName
	}
	if s.IsMap() {
		want.dataType, want.dataLen = s.dataType(), uint32(s.dataLen())
	}
	return i.shape == want
}

// ErrChanged means that the result of several readings may be wrong, because [Conn.Generation] changed meanwhile.
var ErrChanged = errors.New("the ruleset changed during the reading")

// Generation returns the generation number of the ruleset in this network namespace. Every commit of any program
// increments it.
func (c *Conn) Generation() (uint32, error) {
	m, err := c.socket.AskOne(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, unix.NFPROTO_UNSPEC, nil)
	generation := netlink.Uint32(netlink.Find(m.Object(), unix.NFTA_GEN_ID))
	if err == nil && generation == 0 {
		err = netlink.ErrTruncated
	}
	if err != nil {
		return 0, fmt.Errorf("read ruleset generation: %w", err)
	}
	return generation, nil
}

// TableInfo describes a table in the kernel.
type TableInfo struct {
	Exists bool
	// Dormant is true if the kernel ignores the table's chains.
	Dormant bool
	// Handle is the table's number. The kernel does not reuse it in this network namespace.
	Handle uint64
}

// Table describes the table with a name. Exists is false if there is none.
func (c *Conn) Table(family inet.Family, name string) (TableInfo, error) {
	parse := func(b []byte, add func(TableInfo)) error {
		if t, its := parseTable(b); its == name {
			add(t)
		}
		return nil
	}
	found, err := dump(c, unix.NFT_MSG_GETTABLE, family.Number(), nil, parse)
	if err != nil || len(found) == 0 {
		return TableInfo{}, err
	}
	return found[0], nil
}

// dormant is the table flag NFT_TABLE_F_DORMANT.
const dormant = 1

// tableHandle is NFTA_TABLE_HANDLE, which golang.org/x/sys/unix lacks.
const tableHandle = 4

func parseTable(b []byte) (t TableInfo, name string) {
	t.Exists = true
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_TABLE_NAME:
			name = netlink.Text(v)
		case unix.NFTA_TABLE_FLAGS:
			t.Dormant = netlink.Uint32(v)&dormant != 0
		case tableHandle:
			t.Handle = netlink.Uint64(v)
		}
	}
	return t, name
}

// HasTable reports whether a table exists.
func (c *Conn) HasTable(family inet.Family, name string) (bool, error) {
	t, err := c.Table(family, name)
	return t.Exists, err
}

// Chains returns the chains of a table.
func (c *Conn) Chains(family inet.Family, table string) ([]ChainInfo, error) {
	list, err := c.AllChains(family.Number())
	return slices.DeleteFunc(list, func(ch ChainInfo) bool { return ch.Table != table }), err
}

// AllChains returns the chains of all tables of a family, which is the kernel's number.
func (c *Conn) AllChains(family uint8) ([]ChainInfo, error) {
	return dump(c, unix.NFT_MSG_GETCHAIN, family, nil, func(b []byte, add func(ChainInfo)) error {
		add(parseChain(b))
		return nil
	})
}

func parseChain(b []byte) (ch ChainInfo) {
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			ch.Table = netlink.Text(v)
		case chainUserData:
			ch.Comment = commentOf(v)
		case unix.NFTA_CHAIN_NAME:
			ch.Name = netlink.Text(v)
		case unix.NFTA_CHAIN_TYPE:
			ch.Type = netlink.Text(v)
		case unix.NFTA_CHAIN_POLICY:
			ch.Drops = netlink.Uint32(v) == nfDrop
		case unix.NFTA_CHAIN_USE:
			ch.Uses = netlink.Uint32(v)
		case unix.NFTA_CHAIN_HOOK:
			for typ, v := range netlink.Attributes(v) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					ch.Hook = netlink.Uint32(v)
				case unix.NFTA_HOOK_PRIORITY:
					ch.Priority = int32(netlink.Uint32(v))
				}
			}
		}
	}
	return ch
}

// Sets returns the sets and maps of a table.
func (c *Conn) Sets(family inet.Family, table string) ([]SetInfo, error) {
	var request encoder
	request.Text(unix.NFTA_SET_TABLE, table)
	return dump(c, unix.NFT_MSG_GETSET, family.Number(), request.Buf, func(b []byte, add func(SetInfo)) error {
		if s, in := parseSet(b); in == table {
			add(s)
		}
		return nil
	})
}

// setCount is NFTA_SET_COUNT (kernel 6.16), which golang.org/x/sys/unix lacks.
const setCount = 20

func parseSet(b []byte) (s SetInfo, table string) {
	s.Count = -1
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_TABLE:
			table = netlink.Text(v)
		case unix.NFTA_SET_NAME:
			s.Name = netlink.Text(v)
		case unix.NFTA_SET_FLAGS:
			s.shape.flags = netlink.Uint32(v)
			s.Anonymous = s.shape.flags&unix.NFT_SET_ANONYMOUS != 0
		case unix.NFTA_SET_KEY_TYPE:
			s.shape.keyType = netlink.Uint32(v)
		case unix.NFTA_SET_KEY_LEN:
			s.shape.keyLen = netlink.Uint32(v)
		case unix.NFTA_SET_DATA_TYPE:
			s.shape.dataType = netlink.Uint32(v)
		case unix.NFTA_SET_DATA_LEN:
			s.shape.dataLen = netlink.Uint32(v)
		case unix.NFTA_SET_USERDATA:
			s.shape.userData = string(v)
		case unix.NFTA_SET_TIMEOUT:
			s.shape.timeout = time.Duration(netlink.Uint64(v)) * time.Millisecond
		case setExpr:
			s.shape.expr, _ = Expression(v)
		case setExpressions:
			var names []string
			for _, v := range netlink.Attributes(v) {
				name, _ := Expression(v)
				names = append(names, name)
			}
			s.shape.expr = strings.Join(names, " ")
		case setCount:
			s.Count = int(netlink.Uint32(v))
		case unix.NFTA_SET_DESC:
			for typ, v := range netlink.Attributes(v) {
				if typ == unix.NFTA_SET_DESC_SIZE {
					s.Size = netlink.Uint32(v)
				}
			}
		}
	}
	return s, table
}

// commentOf returns the comment (type 0) in nft's userdata of a rule or an element.
func commentOf(udata []byte) string {
	for len(udata) >= 2 && len(udata) >= 2+int(udata[1]) {
		if udata[0] == 0 {
			return netlink.Text(udata[2 : 2+int(udata[1])])
		}
		udata = udata[2+int(udata[1]):]
	}
	return ""
}

// Verdict returns the chain and the code of a verdict.
func Verdict(data []byte) (chain string, code int32) {
	v := netlink.Find(data, unix.NFTA_DATA_VERDICT)
	chain = netlink.Text(netlink.Find(v, unix.NFTA_VERDICT_CHAIN))
	return chain, int32(netlink.Uint32(netlink.Find(v, unix.NFTA_VERDICT_CODE)))
}

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

// Set returns a Set that suffices to read and print the elements, also for a set of another program.
func (i *SetInfo) Set(family inet.Family, table string) *Set {
	s := &Set{
		Family: family, Table: table, Name: i.Name, Key: fieldsOf(i.shape.keyType, i.shape.keyLen), Size: i.Size,
		Timeout:  i.shape.timeout,
		Interval: i.shape.flags&unix.NFT_SET_INTERVAL != 0, Dynamic: i.shape.flags&unix.NFT_SET_EVAL != 0,
		Timeouts: i.shape.flags&unix.NFT_SET_TIMEOUT != 0 && i.shape.timeout == 0,
		Counter:  strings.HasSuffix(i.shape.expr, counterName),
	}
	if i.shape.flags&unix.NFT_SET_MAP != 0 {
		if s.Verdict = i.shape.dataType == verdictType; !s.Verdict {
			s.Data = fieldsOf(i.shape.dataType, i.shape.dataLen)
		}
	}
	return s
}

// verdictType is NFT_DATA_VERDICT, the data type of verdict maps.
const verdictType = 0xffffff00

// fieldsOf returns the fields for a type number, six bits for each. An unknown type becomes one unnamed field.
func fieldsOf(typ, length uint32) []Field {
	var fields []Field
	n := 0
	for shift := 30; shift >= 0; shift -= 6 {
		part := typ >> shift & 0x3f
		if part == 0 && len(fields) == 0 {
			continue
		}
		f, ok := fieldOf(part)
		if !ok {
			return []Field{opaque(int(length))}
		}
		fields = append(fields, f)
		n += f.slot()
	}
	if first := int(length) - n + 4; len(fields) > 1 && fields[0].typ == Index().typ && first > 4 {
		// An integer has any length. In direct-quoted, the first one is an address.
		fields[0], n = Transport(0, uint32(first)), int(length)
	}
	if len(fields) == 0 || n != int(length) && fields[0].len != int(length) {
		return []Field{opaque(int(length))}
	}
	return fields
}

func fieldOf(typ uint32) (Field, bool) {
	known := []Field{DstAddr(inet.IPv4), DstAddr(inet.IPv6), L4Proto(), DstPort(), Priority(), Mark(), Index()}
	for _, f := range known {
		if f.typ == typ {
			return f, true
		}
	}
	return Field{}, false
}

func opaque(length int) Field {
	return Field{name: "?", len: length, print: func(b []byte) string { return fmt.Sprintf("0x%x", b) }}
}
