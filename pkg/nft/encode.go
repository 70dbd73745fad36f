package nft

import (
	"cmp"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

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
	if !e.KeyEnd.Empty() {
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
