package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Expr is an expression of a rule.
type Expr struct {
	// Name is the kernel's name of the expression.
	Name string
	// Any is the decoded expression, or nil for an unknown one.
	Any expr.Any
}

// Planned returns the expressions of a rule in the form of [ReadRule.Exprs], without their names.
func (r *Rule) Planned() []Expr {
	list := make([]Expr, len(r.Exprs))
	for i, e := range r.Exprs {
		list[i].Any = e
	}
	return list
}

// ReadRule is a rule in the kernel.
type ReadRule struct {
	Handle  uint64
	Comment string
	Exprs   []Expr
}

// ReadChain is a chain in the kernel.
type ReadChain struct {
	ChainInfo
	Comment string
	Rules   []ReadRule
}

// ReadTable is a table in the kernel, without elements.
type ReadTable struct {
	Family inet.Family
	Name   string
	TableInfo
	Chains map[string]*ReadChain
	// Infos describe the sets, including anonymous ones. Sets are the same sets in the form that the functions for elements need.
	Sets  map[string]*Set
	Infos map[string]SetInfo
}

// Read reads a table with its rules. If the ruleset changes meanwhile, Read starts again.
func (c *Conn) Read(family inet.Family, name string) (*ReadTable, error) {
	const attempts = 10
	for range attempts {
		before, err := c.Generation()
		if err != nil {
			return nil, err
		}
		t, err := c.readOnce(family, name)
		if err != nil {
			return nil, fmt.Errorf("read table %s %s: %w", family.Keyword(), name, err)
		}
		after, err := c.Generation()
		if err != nil || after == before {
			return t, err
		}
	}
	return nil, fmt.Errorf("read table %s %s: the ruleset kept changing: %w", family.Keyword(), name, unix.EINTR)
}

func (c *Conn) readOnce(family inet.Family, name string) (*ReadTable, error) {
	t := &ReadTable{Family: family, Name: name, Chains: map[string]*ReadChain{}, Sets: map[string]*Set{}, Infos: map[string]SetInfo{}}
	var err error
	if t.TableInfo, err = c.Table(family, name); err != nil || !t.Exists {
		return t, err
	}
	if err := c.readChains(t); err != nil {
		return t, err
	}
	if err := c.readSets(t); err != nil {
		return t, err
	}
	return t, c.readRules(t)
}

// readSets reads all sets, including anonymous ones.
func (c *Conn) readSets(t *ReadTable) error {
	begin := func() {
		clear(t.Sets)
		clear(t.Infos)
	}
	request := attribute(unix.NFTA_SET_TABLE, cstring(t.Name))
	return c.dump(unix.NFT_MSG_GETSET, t.Family.Number(), request, begin, func(b []byte) error {
		if s, in := parseSet(b); in == t.Name {
			t.Infos[s.Name], t.Sets[s.Name] = s, s.set(t.Family, t.Name)
		}
		return nil
	})
}

func (c *Conn) readChains(t *ReadTable) error {
	begin := func() { clear(t.Chains) }
	return c.dump(unix.NFT_MSG_GETCHAIN, t.Family.Number(), nil, begin, func(b []byte) error {
		info, in := parseChain(b)
		if in != t.Name {
			return nil
		}
		ch := &ReadChain{ChainInfo: info}
		for typ, v := range netlink.Attributes(b) {
			if typ == chainUserData {
				ch.Comment = commentOf(v)
			}
		}
		t.Chains[info.Name] = ch
		return nil
	})
}

func (c *Conn) readRules(t *ReadTable) error {
	begin := func() {
		for _, ch := range t.Chains {
			ch.Rules = nil
		}
	}
	request := attribute(unix.NFTA_RULE_TABLE, cstring(t.Name))
	return c.dump(unix.NFT_MSG_GETRULE, t.Family.Number(), request, begin, func(b []byte) error {
		info, in := parseRule(b)
		ch := t.Chains[info.Chain]
		if in != t.Name || ch == nil {
			return nil
		}
		r := ReadRule{Handle: info.Handle, Comment: info.Comment}
		for _, e := range netlink.Attributes(netlink.Find(b, unix.NFTA_RULE_EXPRESSIONS)) {
			r.Exprs = append(r.Exprs, decode(t.Family, e))
		}
		ch.Rules = append(ch.Rules, r)
		return nil
	})
}

// decode decodes an expression. [Expr.Any] is nil for kinds that Service rules do not use.
func decode(family inet.Family, b []byte) Expr {
	name, data := expression(b)
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

// set returns a Set that suffices to read and print the elements, also for a set of another program.
func (i *SetInfo) set(family inet.Family, table string) *Set {
	s := &Set{
		Family: family, Table: table, Name: i.Name, Key: fieldsOf(i.shape.keyType, i.shape.keyLen), Size: i.Size, Timeout: i.shape.timeout,
		Interval: i.shape.flags&unix.NFT_SET_INTERVAL != 0, Dynamic: i.shape.flags&unix.NFT_SET_EVAL != 0,
		Timeouts: i.shape.flags&unix.NFT_SET_TIMEOUT != 0 && i.shape.timeout == 0, Counter: strings.HasSuffix(i.shape.expr, counterName),
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

// KeyLen returns the length of the key in bytes.
func (s *Set) KeyLen() int { return length(s.Key) }

// ValueOf returns a key or data from its bytes in registers. It returns an error if a Value has no room for them.
func ValueOf(b []byte) (v Value, err error) {
	if len(b) > maxValue {
		return v, fmt.Errorf("read value: %d bytes", len(b))
	}
	v.n = byte(copy(v.b[:], b))
	return v, nil
}

// Found is the result of a lookup of an element.
type Found struct {
	Element
	// Verdict is the verdict code of an element of a verdict map.
	Verdict int32
	// Expires is the remaining time of the element; 0 if it has no timeout.
	Expires time.Duration
}

// getAtOnce is the largest number of keys in one request: the answers must fit in the socket's buffer.
const getAtOnce = 256

// Get looks up elements by key. The result is nil for a missing element. The kernel matches keys as it does for a packet.
func (c *Conn) Get(s *Set, keys []Value) ([]*Found, error) {
	found := make([]*Found, len(keys))
	for from := 0; from < len(keys); {
		n, missing, err := c.getSome(s, keys[from:min(len(keys), from+getAtOnce)], found[from:])
		if err != nil {
			return nil, fmt.Errorf("get elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
		}
		from += n
		if missing {
			from++
		}
	}
	return found, nil
}

// getSome sends one request. The kernel answers up to the first missing element.
func (c *Conn) getSome(s *Set, keys []Value, found []*Found) (n int, missing bool, err error) {
	for m, err := range c.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_ACK, s.Family.Number(), getRequest(s, keys)) {
		if err == unix.ENOENT {
			return n, true, nil
		}
		if err != nil || m.Ends() {
			return n, false, err
		}
		for _, b := range elements(m.Object()) {
			f, err := parseFound(s, b)
			if err != nil {
				return n, false, err
			}
			if n < len(found) {
				found[n] = &f
				n++
			}
		}
	}
	return n, false, nil
}

func parseFound(s *Set, b []byte) (f Found, err error) {
	f.Element, err = parseElement(s, b)
	for typ, v := range netlink.Attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_EXPIRATION:
			f.Expires = time.Duration(netlink.Uint64(v)) * time.Millisecond
		case unix.NFTA_SET_ELEM_DATA:
			_, f.Verdict = verdict(v)
		}
	}
	return f, err
}

// EachFound calls f for each element of a set.
func (c *Conn) EachFound(s *Set, f func(*Found)) error {
	return c.FoundUntil(s, func(found *Found) (more bool) {
		f(found)
		return true
	})
}

// errEnough ends a reading before its end.
var errEnough = errors.New("enough")

// FoundUntil calls f for elements of a set until f returns false. The first n elements of a large set take the kernel
// much less time than all: its work grows with the square of n. The order is that of the hash table, so the first
// elements are a random sample. f may sleep.
func (c *Conn) FoundUntil(s *Set, f func(*Found) (more bool)) error {
	_, err := c.list(unix.NFT_MSG_GETSETELEM, s.Family.Number(), elementsOf(s), func(object []byte) error {
		for _, b := range elements(object) {
			found, err := parseFound(s, b)
			if err != nil {
				return err
			}
			if !f(&found) {
				return errEnough
			}
		}
		return nil
	})
	if err != nil && err != errEnough { //nolint:errorlint // never wrapped
		return fmt.Errorf("list elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
	}
	return nil
}

// Count returns the number of elements of a set, or -1 if the kernel does not report it (before 6.16).
func (c *Conn) Count(s *Set) (int, error) {
	request := append(attribute(unix.NFTA_SET_TABLE, cstring(s.Table)), attribute(unix.NFTA_SET_NAME, cstring(s.Name))...)
	m, err := c.socket.AskOne(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSET, s.Family.Number(), request)
	if err != nil {
		return 0, fmt.Errorf("count elements of %s %s: %w", s.Family.Keyword(), s.Name, err)
	}
	info, _ := parseSet(m.Object())
	return info.Count, nil
}

func getRequest(s *Set, keys []Value) []byte {
	var b encoder
	b.str(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table)
	b.str(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	list := b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for i := range keys {
		e := b.nest(unix.NFTA_LIST_ELEM)
		b.value(unix.NFTA_SET_ELEM_KEY, &keys[i])
		if s.Interval && len(s.Key) > 1 {
			b.value(setElemKeyEnd, &keys[i])
		}
		b.unnest(e)
	}
	b.unnest(list)
	return b.buf
}

// BaseChain is a base chain of any table.
type BaseChain struct {
	// Family is nft's keyword for the table's family, Table its name.
	Family, Table string
	ChainInfo
}

// String names the chain with its place.
func (ch *BaseChain) String() string {
	return fmt.Sprintf("chain %s %s %s (hook %s, priority %d)", ch.Family, ch.Table, ch.Name, HookName(ch.Hook), ch.Priority)
}

// MayTranslateBefore reports whether the chain may translate packets before a chain of type nat with the same hook and a priority. Of two chains with
// the same priority, the kernel evaluates the younger one first, and does not show which one that is.
func (ch *BaseChain) MayTranslateBefore(priority int32) bool {
	return ch.Type == "nat" && ch.Priority <= priority && ch.Uses > 0
}

// BaseChains returns the base chains of all tables that apply to packets of a family.
func (c *Conn) BaseChains(family inet.Family) (list []BaseChain, err error) {
	for _, of := range []struct {
		number uint8
		name   string
	}{{family.Number(), family.Keyword()}, {unix.NFPROTO_INET, "inet"}} {
		var some []BaseChain
		err := c.dump(unix.NFT_MSG_GETCHAIN, of.number, nil, func() { some = nil }, func(b []byte) error {
			if ch, in := parseChain(b); ch.Type != "" {
				some = append(some, BaseChain{Family: of.name, Table: in, ChainInfo: ch})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list chains of family %s: %w", of.name, err)
		}
		list = append(list, some...)
	}
	return list, nil
}

// register returns the index of a register's first word among the 16 words of 32 bits. ok is false for the verdict register, which has
// no word, and for unknown numbers.
func register(number uint32) (at int, ok bool) {
	const oldRegisters = 4 // of 128 bits each
	switch {
	case number == unix.NFT_REG_VERDICT:
		return 0, false
	case number <= oldRegisters:
		return int(number-1) * 4, true
	case number >= unix.NFT_REG32_00 && number <= unix.NFT_REG32_15:
		return int(number - unix.NFT_REG32_00), true
	}
	return 0, false
}

// Register returns the offset in bytes of a register within all registers (see [Registers]). ok is false for the verdict register and for
// unknown numbers.
func Register(number uint32) (offset int, ok bool) {
	at, ok := register(number)
	return at * 4, ok
}

// Registers is the size of all registers together, in bytes.
const Registers = 64

func hostWord(b []byte) (uint32, bool) {
	if len(b) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(b), true
}

// KeyText returns a key of the set in nft's language.
func (s *Set) KeyText(v Value) string { return printValue(s.Key, &v) }

// ValueText returns the data or verdict of an element in nft's language; "" if the set is no map.
func (f *Found) ValueText() string {
	switch {
	case f.Set.Verdict:
		return VerdictText(f.Verdict, f.Chain)
	case f.Set.IsMap():
		return printValue(f.Set.Data, &f.Data)
	}
	return ""
}
