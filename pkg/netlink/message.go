package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"

	"golang.org/x/sys/unix"
)

// ErrTruncated means that the end of a reply is missing.
var ErrTruncated = errors.New("a reply is truncated")

// Message is one netlink message.
type Message struct {
	Type, Flags uint16
	// Seq is the number of the request that the message answers.
	Seq uint32
	// Payload is everything after the header. It is valid until the next message is received.
	Payload []byte
}

// Ends reports whether no message follows in answer to a request.
func (m Message) Ends() bool { return m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR }

// Errno returns the error in the last message of an answer; 0 for success, and for all other messages.
func (m Message) Errno() unix.Errno {
	if !m.Ends() || len(m.Payload) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Payload)))
}

// Explanation returns the kernel's text about an error; "" if it sent none.
func (m Message) Explanation() string {
	const capped, hasAttributes, text = 0x100, 0x200, 1
	if m.Flags&hasAttributes == 0 || len(m.Payload) < 4+unix.NLMSG_HDRLEN {
		return ""
	}
	skip := 4 + unix.NLMSG_HDRLEN
	if m.Flags&capped == 0 {
		skip = 4 + int(binary.NativeEndian.Uint32(m.Payload[4:]))
	}
	return Text(Find(m.Payload[min(skip, len(m.Payload)):], text))
}

// familyLen is the size of struct nfgenmsg, which begins with the family of an object.
const familyLen = 4

// Object returns the attributes of the object that the message is about.
func (m Message) Object() []byte { return m.Payload[min(familyLen, len(m.Payload)):] }

// Family returns the protocol family of the object that the message is about, one of NFPROTO_*.
func (m Message) Family() uint8 {
	if len(m.Payload) < familyLen {
		return unix.NFPROTO_UNSPEC
	}
	return m.Payload[0]
}

// Messages yields the messages in a buffer. If the last one is incomplete, it yields [ErrTruncated] last.
func Messages(buffer []byte) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for b := buffer; len(b) > 0; {
			n := 0
			if len(b) >= unix.NLMSG_HDRLEN {
				n = int(binary.NativeEndian.Uint32(b))
			}
			if n < unix.NLMSG_HDRLEN || n > len(b) {
				yield(Message{}, ErrTruncated)
				return
			}
			m := Message{
				Type:    binary.NativeEndian.Uint16(b[4:]),
				Flags:   binary.NativeEndian.Uint16(b[6:]),
				Seq:     binary.NativeEndian.Uint32(b[8:]),
				Payload: b[unix.NLMSG_HDRLEN:n],
			}
			if !yield(m, nil) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// Attributes yields the attributes in a list: types without their flags, and values. It stops at an incomplete one.
func Attributes(list []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for b := list; len(b) >= unix.SizeofNlAttr; {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofNlAttr || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// Find returns the value of the first attribute of a type in a list; nil if there is none.
func Find(list []byte, typ uint16) []byte {
	for t, v := range Attributes(list) {
		if t == typ {
			return v
		}
	}
	return nil
}

// Text reads an attribute that is a string.
func Text(b []byte) string {
	if n := len(b); n > 0 && b[n-1] == 0 {
		b = b[:n-1]
	}
	return string(b)
}

// Uint16 reads an attribute in network byte order. It returns 0 if the value is too short.
func Uint16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// Uint32 does the same as [Uint16] for 32 bits.
func Uint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Uint64 does the same as [Uint16] for 64 bits.
func Uint64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

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
