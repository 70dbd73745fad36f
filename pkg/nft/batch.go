package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// Batch is a list of changes that the kernel commits as a whole or not at all. Its methods never fail: the batch keeps
// the first error, and [Conn.Commit] returns it.
type Batch struct {
	encoder
	// Elements is the number of added and deleted elements.
	Elements int
	// ops is the number of messages.
	ops int
	// last is the offset of the last message, whose length is not set yet.
	last int

	// open are the unfinished lists of elements, one for each set, all of the same message type. So elements of many
	// sets can be added in any order and still need few messages.
	open     []*elementList
	openKind elementKind

	// Report requests the counters of all deleted elements. Set it before the first deletion.
	Report bool
	// Reports is the number of deleted elements whose counters the batch requests. If there are more than
	// [MostReports], [Conn.Commit] requests none. Gone are those whose counters were not 0, after the commit.
	Reports int
	Gone    []Found
	// echoes are the messages that request reports.
	echoes []echo
}

// elementList is an unfinished message with a list of elements.
type elementList struct {
	encoder
	set *Set
}

// elementKind is the type and flags of the messages that hold lists of elements.
type elementKind struct{ msg, flags uint16 }

var (
	adds    = elementKind{unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE | unix.NLM_F_EXCL}
	ensures = elementKind{unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE}
	deletes = elementKind{unix.NFT_MSG_DELSETELEM, 0}
)

// maxElementList is the largest size of a list of elements in bytes. An attribute's length has 16 bits.
const maxElementList = 60 << 10

// NewBatch returns an empty batch with a capacity in bytes. Any batch has room for a change of a small Service.
func NewBatch(capacity int) *Batch {
	const small = 2 << 10
	b := &Batch{}
	b.Buf = make([]byte, 0, capacity+small)
	b.control(unix.NFNL_MSG_BATCH_BEGIN)
	return b
}

// control appends the message that begins or ends the batch.
func (b *Batch) control(typ uint16) {
	off := b.Begin(typ, 0, uint32(b.ops), 0)
	binary.BigEndian.PutUint16(b.Buf[off+18:], unix.NFNL_SUBSYS_NFTABLES)
	b.Finish(off)
}

// Empty reports whether the batch has no changes.
func (b *Batch) Empty() bool { return b.ops == 0 && b.Elements == 0 }

// message opens a message of the nftables subsystem.
func (b *Batch) message(msg, flags uint16, family inet.Family) {
	b.closeElements()
	b.next(msg, flags, family)
}

// next ends the last message, and opens another one. It leaves the lists of elements open.
func (b *Batch) next(msg, flags uint16, family inet.Family) {
	b.Finish(b.last)
	b.ops++
	b.last = b.Begin(unix.NFNL_SUBSYS_NFTABLES<<8|msg, flags, uint32(b.ops), family.Number())
}

// AddTable creates a table. It does nothing if the table exists.
func (b *Batch) AddTable(t *Table) { b.addTable(t, 0, 0) }

func (b *Batch) addTable(t *Table, tableFlags uint32, flags uint16) {
	b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|flags, t.Family)
	b.Text(unix.NFTA_TABLE_NAME, t.Name)
	b.Uint32(unix.NFTA_TABLE_FLAGS, tableFlags)
	if t.Comment != "" {
		b.comment(tableUserData, t.Comment)
	}
}

// tableUserData is NFTA_TABLE_USERDATA (kernel 5.10), which golang.org/x/sys/unix lacks.
const tableUserData = 6

// DeleteTable deletes a table with its content. The table must exist.
func (b *Batch) DeleteTable(family inet.Family, name string) {
	b.message(unix.NFT_MSG_DELTABLE, 0, family)
	b.Text(unix.NFTA_TABLE_NAME, name)
}

// FlushRules deletes the rules of a chain, or of all chains of the table if chain is "".
func (b *Batch) FlushRules(t *Table, chain string) {
	b.message(unix.NFT_MSG_DELRULE, 0, t.Family)
	b.Text(unix.NFTA_RULE_TABLE, t.Name)
	if chain != "" {
		b.Text(unix.NFTA_RULE_CHAIN, chain)
	}
}

// AddChain creates a chain without rules, with its timeouts. If the chain exists, it must be of the same kind.
func (b *Batch) AddChain(t *Table, c *Chain) {
	b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t.Family)
	b.Text(unix.NFTA_CHAIN_TABLE, t.Name)
	b.Text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.IsBase() {
		h := b.Nest(unix.NFTA_CHAIN_HOOK)
		b.Uint32(unix.NFTA_HOOK_HOOKNUM, c.Hook)
		b.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
		b.Unnest(h)
		b.Uint32(unix.NFTA_CHAIN_POLICY, 1)
		b.Text(unix.NFTA_CHAIN_TYPE, c.Type)
	}
	if c.Comment != "" {
		b.comment(chainUserData, c.Comment)
	}
	if c.Timeouts != (Timeouts{}) {
		b.AddTimeouts(t, c.Name, c.Timeouts)
	}
}

// chainUserData is NFTA_CHAIN_USERDATA (kernel 5.10), which golang.org/x/sys/unix lacks.
const chainUserData = 12

// DeleteChain deletes a chain. The chain must have no rules, and no rule or element may lead to it.
func (b *Batch) DeleteChain(t *Table, name string) {
	b.message(unix.NFT_MSG_DELCHAIN, 0, t.Family)
	b.Text(unix.NFTA_CHAIN_TABLE, t.Name)
	b.Text(unix.NFTA_CHAIN_NAME, name)
}

// AddRules appends the chain's rules to the chain in the kernel.
func (b *Batch) AddRules(t *Table, c *Chain) {
	for i := range c.Rules {
		b.addRule(t, c, &c.Rules[i])
	}
}

func (b *Batch) addRule(t *Table, c *Chain, r *Rule) {
	b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t.Family)
	b.Text(unix.NFTA_RULE_TABLE, t.Name)
	b.Text(unix.NFTA_RULE_CHAIN, c.Name)
	list := b.Nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r.Exprs {
		data, err := expr.Marshal(t.Family.Number(), e)
		if err != nil {
			b.Fail(fmt.Errorf("encode rule of chain %s: %w", c.Name, err))
			continue
		}
		b.Attr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
	}
	b.Unnest(list)
	if r.Comment != "" {
		b.comment(unix.NFTA_RULE_USERDATA, r.Comment)
	}
}

// AddSet creates a set or map without elements. If the set exists, the commit can only raise its size (since kernel
// 6.5).
func (b *Batch) AddSet(s *Set) {
	b.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, s.Family)
	b.Text(unix.NFTA_SET_TABLE, s.Table)
	b.Text(unix.NFTA_SET_NAME, s.Name)
	b.Uint32(unix.NFTA_SET_FLAGS, s.flags())
	b.Uint32(unix.NFTA_SET_KEY_TYPE, typeID(s.Key))
	b.Uint32(unix.NFTA_SET_KEY_LEN, uint32(length(s.Key)))
	if s.IsMap() {
		b.Uint32(unix.NFTA_SET_DATA_TYPE, s.dataType())
		b.Uint32(unix.NFTA_SET_DATA_LEN, uint32(s.dataLen()))
	}
	if s.Timeout > 0 {
		b.Attr(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(s.Timeout.Milliseconds())))
	}
	b.Uint32(unix.NFTA_SET_ID, uint32(b.ops+1))
	b.setDesc(s)
	b.Attr(unix.NFTA_SET_USERDATA, s.userData())
	b.expressions(s, setExpr, setExpressions, s.MaxConnections)
}

// NFTA_SET_EXPR (kernel 5.7) and NFTA_SET_EXPRESSIONS (5.11), which golang.org/x/sys/unix lacks.
const (
	setExpr        = 17
	setExpressions = 18
)

func (b *Batch) setDesc(s *Set) {
	desc := b.Nest(unix.NFTA_SET_DESC)
	if s.Size > 0 {
		b.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if s.Interval && len(s.Key) > 1 {
		fields := b.Nest(setDescConcat)
		for _, f := range s.Key {
			e := b.Nest(unix.NFTA_LIST_ELEM)
			b.Uint32(setFieldLen, uint32(f.len))
			b.Unnest(e)
		}
		b.Unnest(fields)
	}
	b.Unnest(desc)
}

// NFTA_SET_DESC_CONCAT and NFTA_SET_FIELD_LEN (kernel 5.6), which golang.org/x/sys/unix lacks.
const (
	setDescConcat = 2
	setFieldLen   = 1
)

// DeleteSet deletes a set with its elements. No rule may use the set.
func (b *Batch) DeleteSet(family inet.Family, table, name string) {
	b.message(unix.NFT_MSG_DELSET, 0, family)
	b.Text(unix.NFTA_SET_TABLE, table)
	b.Text(unix.NFTA_SET_NAME, name)
}

// FlushSet deletes all elements of a set. n is their approximate number: with [Batch.Report], the batch reserves space
// in the socket for so many reports.
func (b *Batch) FlushSet(s *Set, n int) {
	b.message(unix.NFT_MSG_DELSETELEM, 0, s.Family)
	b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table)
	b.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	if b.Report && s.Counter {
		b.Reports += n
		b.echo(s)
	}
}

// AddElement adds an element. The commit fails if the element exists.
func (b *Batch) AddElement(e *Element) { b.element(adds, e) }

// EnsureElement adds an element if it does not exist.
func (b *Batch) EnsureElement(e *Element) { b.element(ensures, e) }

// DeleteElement deletes an element. The commit fails if the element does not exist.
func (b *Batch) DeleteElement(e *Element) {
	b.element(deletes, e)
	if b.Report && e.Set.Counter {
		b.Reports++
	}
}

// element appends an element to the unfinished list of its set. Batches have a few dozen sets, and successive elements
// often share one.
func (b *Batch) element(kind elementKind, e *Element) {
	if b.openKind != kind {
		b.closeElements()
		b.openKind = kind
	}
	i := 0
	for i < len(b.open) && b.open[i].set != e.Set {
		i++
	}
	if i == len(b.open) {
		b.open = append(b.open, &elementList{set: e.Set})
	}
	b.Elements++
	b.open[i].element(e, kind != deletes)
	if len(b.open[i].Buf) > maxElementList {
		b.closeElements()
	}
}

// closeElements writes each unfinished list as a message.
func (b *Batch) closeElements() {
	for _, l := range b.open {
		if len(l.Buf) == 0 {
			continue
		}
		b.next(b.openKind.msg, b.openKind.flags, l.set.Family)
		b.Text(unix.NFTA_SET_ELEM_LIST_TABLE, l.set.Table)
		b.Text(unix.NFTA_SET_ELEM_LIST_SET, l.set.Name)
		b.Attr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, l.Buf)
		if b.Report && l.set.Counter && b.openKind == deletes {
			b.echo(l.set)
		}
		if l.Err != nil {
			b.Fail(l.Err)
		}
		l.Buf = l.Buf[:0]
	}
}

// requestAck ends the last change and requests an acknowledgement of it: kernels before 6.10 do not acknowledge the end
// of a batch. It returns the index of the acknowledged message in the batch.
func (b *Batch) requestAck() (ack uint32) {
	b.closeElements()
	b.Finish(b.last)
	b.AddFlags(b.last, unix.NLM_F_ACK)
	return uint32(b.ops)
}

// describe names the change that a message with a sequence number makes, for an error message.
func (b *Batch) describe(seq uint32) string {
	for m, err := range netlink.Messages(b.Buf) {
		if err == nil && m.Seq == seq {
			return fmt.Sprintf("%s %s", messageName(m.Type), names(m.Object()))
		}
	}
	return fmt.Sprintf("message %d", seq)
}

func messageName(typ uint16) string {
	switch typ {
	case unix.NFNL_MSG_BATCH_BEGIN, unix.NFNL_MSG_BATCH_END:
		return "commit"
	}
	switch typ &^ (unix.NFNL_SUBSYS_NFTABLES << 8) {
	case unix.NFT_MSG_NEWTABLE:
		return "add table"
	case unix.NFT_MSG_DELTABLE:
		return "delete table"
	case unix.NFT_MSG_NEWCHAIN:
		return "add chain"
	case unix.NFT_MSG_DELCHAIN:
		return "delete chain"
	case unix.NFT_MSG_NEWRULE:
		return "add rule to"
	case unix.NFT_MSG_DELRULE:
		return "delete rules of"
	case unix.NFT_MSG_NEWSET:
		return "add set"
	case unix.NFT_MSG_DELSET:
		return "delete set"
	case unix.NFT_MSG_NEWSETELEM:
		return "add elements to"
	case unix.NFT_MSG_DELSETELEM:
		return "delete elements from"
	case unix.NFT_MSG_NEWOBJ:
		return "add object"
	case unix.NFT_MSG_DELOBJ:
		return "delete object"
	}
	return fmt.Sprintf("message type %d", typ)
}

// names returns the leading string attributes of a message: the table and the chain or set.
func names(attributes []byte) string {
	var list []string
	for typ, v := range netlink.Attributes(attributes) {
		name := netlink.Text(v)
		if len(list) == 2 || typ > 2 || name == "" || strings.Contains(name, "\x00") {
			break // a number, such as a table's flags
		}
		list = append(list, name)
	}
	return strings.Join(list, " ")
}

// encoder appends attributes of nftables.
type encoder struct{ netlink.Encoder }

// comment appends the comment of an object as nft stores it, cut to the length that nft can read.
func (b *encoder) comment(typ uint16, s string) { b.Attr(typ, tlv(0, []byte(CutComment(s)+"\x00"))) }

// counter appends a counter expression. Each added element gets a copy.
func (b *encoder) counter(typ uint16) {
	n := b.Nest(typ)
	b.Text(unix.NFTA_EXPR_NAME, counterName)
	data := b.Nest(unix.NFTA_EXPR_DATA)
	b.Attr(unix.NFTA_COUNTER_BYTES, make([]byte, 8))
	b.Attr(unix.NFTA_COUNTER_PACKETS, make([]byte, 8))
	b.Unnest(data)
	b.Unnest(n)
}

// connlimit appends an expression that counts the connections of an element. Each added element has its own count. If
// the count exceeds most, a rule that looks up the element does not match.
func (b *encoder) connlimit(typ uint16, most uint16) {
	n := b.Nest(typ)
	b.Text(unix.NFTA_EXPR_NAME, connlimitName)
	data := b.Nest(unix.NFTA_EXPR_DATA)
	b.Uint32(connlimitCount, uint32(most))
	b.Unnest(data)
	b.Unnest(n)
}

// expressions appends the expressions of a set or of its elements: one as the attribute single, two as the attribute
// list. The kernel evaluates them in this order, and stops after the first that does not match: a connection above the
// limit is not counted.
func (b *encoder) expressions(s *Set, single, list uint16, most uint16) {
	if !s.Counter || s.MaxConnections == 0 {
		if s.Counter {
			b.counter(single)
		}
		if s.MaxConnections > 0 {
			b.connlimit(single, most)
		}
		return
	}
	n := b.Nest(list)
	b.connlimit(unix.NFTA_LIST_ELEM, most)
	b.counter(unix.NFTA_LIST_ELEM)
	b.Unnest(n)
}

// connlimitName is the kernel's name of the expression connlimit, and connlimitCount is NFTA_CONNLIMIT_COUNT.
const (
	connlimitName  = "connlimit"
	connlimitCount = 1
)

// counterName is the kernel's name of the counter expression.
const counterName = "counter"

func (b *encoder) value(typ uint16, v *Value) {
	n := b.Nest(typ)
	b.Attr(unix.NFTA_DATA_VALUE, v.Bytes())
	b.Unnest(n)
}

// element appends one element to a list. A deletion omits the attributes of new elements.
func (b *encoder) element(e *Element, added bool) {
	el := b.Nest(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, &e.Key)
	if e.KeyEnd != (Value{}) {
		b.value(setElemKeyEnd, &e.KeyEnd)
	}
	if e.IntervalEnd {
		b.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	if added {
		b.elementData(e)
	}
	b.Unnest(el)
}

// NFTA_SET_ELEM_KEY_END (kernel 5.6) and NFTA_SET_ELEM_EXPRESSIONS (5.11), which golang.org/x/sys/unix lacks.
const (
	setElemKeyEnd      = 10
	setElemExpressions = 11
)

func (b *encoder) elementData(e *Element) {
	switch {
	case e.Set.Verdict:
		d := b.Nest(unix.NFTA_SET_ELEM_DATA)
		v := b.Nest(unix.NFTA_DATA_VERDICT)
		code := int32(unix.NFT_GOTO)
		if e.Jump {
			code = unix.NFT_JUMP
		}
		b.Uint32(unix.NFTA_VERDICT_CODE, uint32(code))
		b.Text(unix.NFTA_VERDICT_CHAIN, e.Chain)
		b.Unnest(v)
		b.Unnest(d)
	case e.Set.IsMap():
		b.value(unix.NFTA_SET_ELEM_DATA, &e.Data)
	}
	if e.Timeout > 0 {
		const milliseconds = 1000
		b.Attr(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, milliseconds*uint64(e.Timeout)))
	}
	if e.Comment != "" {
		b.comment(unix.NFTA_SET_ELEM_USERDATA, e.Comment)
	}
	if e.Set.MaxConnections > 0 {
		// Without its own expression, an element gets a copy of the set's. Its deletion then releases a reference to
		// conntrack that the element does not hold.
		most := cmp.Or(e.MaxConnections, e.Set.MaxConnections)
		b.expressions(e.Set, unix.NFTA_SET_ELEM_EXPR, setElemExpressions, most)
	}
}
