package netlink

import (
	"encoding/binary"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Encoder appends messages and attributes to a buffer. Its methods never fail: the encoder keeps the first error.
type Encoder struct {
	Buf []byte
	Err error
}

// Begin appends the header of a message about objects of a family, and returns the message's offset. [Encoder.Finish]
// sets its length.
func (e *Encoder) Begin(typ, flags uint16, seq uint32, family uint8) (start int) {
	start = len(e.Buf)
	e.Buf = append(e.Buf, 0, 0, 0, 0)
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, typ)
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, unix.NLM_F_REQUEST|flags)
	e.Buf = binary.NativeEndian.AppendUint32(e.Buf, seq)
	e.Buf = append(e.Buf, 0, 0, 0, 0, family, unix.NFNETLINK_V0, 0, 0)
	return start
}

// Finish sets the length of the message that begins at start and ends with the buffer.
func (e *Encoder) Finish(start int) {
	binary.NativeEndian.PutUint32(e.Buf[start:], uint32(len(e.Buf)-start))
}

// AddFlags sets flags of the message that begins at start.
func (e *Encoder) AddFlags(start int, flags uint16) {
	at := e.Buf[start+6:]
	binary.NativeEndian.PutUint16(at, binary.NativeEndian.Uint16(at)|flags)
}

// Attr appends an attribute. For an encoded nested one, the type includes NLA_F_NESTED.
func (e *Encoder) Attr(typ uint16, value []byte) {
	n := unix.SizeofNlAttr + len(value)
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, uint16(n))
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, typ)
	e.Buf = append(append(e.Buf, value...), make([]byte, align(n)-n)...)
}

// Text appends an attribute that is a string.
func (e *Encoder) Text(typ uint16, s string) { e.Attr(typ, []byte(s+"\x00")) }

// Uint32 appends an attribute in network byte order.
func (e *Encoder) Uint32(typ uint16, v uint32) {
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, unix.SizeofNlAttr+4)
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, typ)
	e.Buf = binary.BigEndian.AppendUint32(e.Buf, v)
}

// Nest begins an attribute whose value are the attributes up to a call of Unnest with the returned offset.
func (e *Encoder) Nest(typ uint16) (start int) {
	start = len(e.Buf)
	e.Attr(typ|unix.NLA_F_NESTED, nil)
	return start
}

// Unnest ends a nested attribute.
func (e *Encoder) Unnest(start int) {
	n := len(e.Buf) - start
	if n > math.MaxUint16 {
		e.Fail(fmt.Errorf("encode attribute: %d bytes exceed an attribute's length", n))
	}
	binary.NativeEndian.PutUint16(e.Buf[start:], uint16(n))
}

// Fail records an error, unless there was one.
func (e *Encoder) Fail(err error) {
	if e.Err == nil {
		e.Err = err
	}
}
