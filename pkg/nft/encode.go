package nft

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
)

// encoder appends netlink attributes. Its methods never fail: it keeps the first error.
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

func (b *encoder) str(typ uint16, s string) {
	n := 4 + len(s) + 1
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(n))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, typ)
	b.buf = append(b.buf, s...)
	b.buf = append(b.buf, 0)
	b.buf = netlink.Pad(b.buf, n)
}

// comment appends the comment of an object as nft stores it, cut to the length that nft can read.
func (b *encoder) comment(typ uint16, s string) {
	s = CutComment(s)
	n := 4 + 2 + len(s) + 1
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(n))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, typ)
	b.buf = append(b.buf, 0, byte(len(s)+1))
	b.buf = append(b.buf, s...)
	b.buf = append(b.buf, 0)
	b.buf = netlink.Pad(b.buf, n)
}

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

// setElemKeyEnd is NFTA_SET_ELEM_KEY_END (kernel 5.6), which golang.org/x/sys/unix lacks.
const setElemKeyEnd = 10

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
	if e.Comment != "" {
		b.comment(unix.NFTA_SET_ELEM_USERDATA, e.Comment)
	}
}
