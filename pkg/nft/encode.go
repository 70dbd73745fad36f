package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// encoder appends netlink attributes. Its methods never fail: the encoder keeps the first error.
type encoder struct {
	buf []byte
	err error
}

func (b *encoder) nest(typ uint16) int {
	off := len(b.buf)
	b.buf = append(b.buf, 0, 0, 0, 0)
	binary.NativeEndian.PutUint16(b.buf[off+2:], typ|unix.NLA_F_NESTED)
	return off
}

func (b *encoder) unnest(off int) {
	n := len(b.buf) - off
	if n > 0xffff {
		b.fail(fmt.Errorf("encode attribute: %d bytes exceed an attribute's length", n))
	}
	binary.NativeEndian.PutUint16(b.buf[off:], uint16(n))
}

func (b *encoder) attr(typ uint16, value []byte) {
	b.buf = netlink.AppendAttribute(b.buf, typ, value)
}

func (b *encoder) str(typ uint16, s string) { b.attr(typ, []byte(s+"\x00")) }

// comment appends the comment of an object as nft stores it, cut to the length that nft can read.
func (b *encoder) comment(typ uint16, s string) { b.attr(typ, tlv(0, cstring(s))) }

func (b *encoder) u32(typ uint16, v uint32) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, 8)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, typ)
	b.buf = binary.BigEndian.AppendUint32(b.buf, v)
}

// counter appends a counter expression. Each added element gets a copy.
func (b *encoder) counter(typ uint16) {
	n := b.nest(typ)
	b.str(unix.NFTA_EXPR_NAME, counterName)
	data := b.nest(unix.NFTA_EXPR_DATA)
	b.attr(unix.NFTA_COUNTER_BYTES, make([]byte, 8))
	b.attr(unix.NFTA_COUNTER_PACKETS, make([]byte, 8))
	b.unnest(data)
	b.unnest(n)
}

// connlimit appends an expression that counts the connections of an element. Each added element has its own count. If
// the count exceeds most, a rule that looks up the element does not match.
func (b *encoder) connlimit(typ uint16, most uint16) {
	n := b.nest(typ)
	b.str(unix.NFTA_EXPR_NAME, connlimitName)
	data := b.nest(unix.NFTA_EXPR_DATA)
	b.u32(connlimitCount, uint32(most))
	b.unnest(data)
	b.unnest(n)
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
	n := b.nest(list)
	b.connlimit(unix.NFTA_LIST_ELEM, most)
	b.counter(unix.NFTA_LIST_ELEM)
	b.unnest(n)
}

// connlimitName is the kernel's name of the expression connlimit, and connlimitCount is NFTA_CONNLIMIT_COUNT.
const (
	connlimitName  = "connlimit"
	connlimitCount = 1
)

// counterName is the kernel's name of the counter expression.
const counterName = "counter"

func (b *encoder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *encoder) value(typ uint16, v *Value) {
	n := b.nest(typ)
	b.attr(unix.NFTA_DATA_VALUE, v.Bytes())
	b.unnest(n)
}

// element appends one element to a list. A deletion omits the attributes of new elements.
func (b *encoder) element(e *Element, added bool) {
	el := b.nest(unix.NFTA_LIST_ELEM)
	b.value(unix.NFTA_SET_ELEM_KEY, &e.Key)
	if !e.KeyEnd.Empty() {
		b.value(setElemKeyEnd, &e.KeyEnd)
	}
	if e.IntervalEnd {
		b.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	if added {
		b.elementData(e)
	}
	b.unnest(el)
}

// NFTA_SET_ELEM_KEY_END (kernel 5.6) and NFTA_SET_ELEM_EXPRESSIONS (5.11), which golang.org/x/sys/unix lacks.
const (
	setElemKeyEnd      = 10
	setElemExpressions = 11
)

func (b *encoder) elementData(e *Element) {
	switch {
	case e.Set.Verdict:
		d := b.nest(unix.NFTA_SET_ELEM_DATA)
		v := b.nest(unix.NFTA_DATA_VERDICT)
		code := int32(unix.NFT_GOTO)
		if e.Jump {
			code = unix.NFT_JUMP
		}
		b.u32(unix.NFTA_VERDICT_CODE, uint32(code))
		b.str(unix.NFTA_VERDICT_CHAIN, e.Chain)
		b.unnest(v)
		b.unnest(d)
	case e.Set.IsMap():
		b.value(unix.NFTA_SET_ELEM_DATA, &e.Data)
	}
	if e.Timeout > 0 {
		const milliseconds = 1000
		b.attr(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, milliseconds*uint64(e.Timeout)))
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
