package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// maxValue is the size of the longest key: two IPv6 addresses, a protocol and a port.
const maxValue = 40

// Value is the key or the data of an element, in the layout that the kernel compares: every field in whole 32-bit
// words. It is comparable. Append the fields in the order of the set's fields.
type Value struct {
	n byte
	b [maxValue]byte
}

// ValueOf returns a key or data from its bytes in registers. It returns an error if a Value has no room for them.
func ValueOf(b []byte) (v Value, err error) {
	if len(b) > maxValue {
		return v, fmt.Errorf("read value: %d bytes", len(b))
	}
	v.n = byte(copy(v.b[:], b))
	return v, nil
}

// Bytes returns the encoded value. Do not change it.
func (v *Value) Bytes() []byte { return v.b[:v.n] }

// Empty reports whether the value has no fields.
func (v *Value) Empty() bool { return v.n == 0 }

// Addr appends an IP address of 4 or 16 bytes.
func (v Value) Addr(a netip.Addr) Value {
	b := a.As16()
	part := b[:]
	if a.Is4() {
		part = part[12:]
	}
	v.n += byte(copy(v.b[v.n:], part))
	return v
}

// Endpoint returns a value of an IP address and a port.
func Endpoint(e netip.AddrPort) Value { return Value{}.Addr(e.Addr()).Port(e.Port()) }

// Proto appends a protocol number as part of a concatenation.
func (v Value) Proto(p inet.Protocol) Value {
	v.b[v.n] = uint8(p)
	v.n += 4
	return v
}

// OnlyProto appends a protocol number as the only field, which has no padding.
func (v Value) OnlyProto(p inet.Protocol) Value {
	v.b[v.n] = uint8(p)
	v.n++
	return v
}

// Port appends a port as part of a concatenation.
func (v Value) Port(p uint16) Value {
	binary.BigEndian.PutUint16(v.b[v.n:], p)
	v.n += 4
	return v
}

// Uint32 appends a number in host byte order: an index, a priority or a mark.
func (v Value) Uint32(n uint32) Value {
	binary.NativeEndian.PutUint32(v.b[v.n:], n)
	v.n += 4
	return v
}

// BigEndian appends a number in network byte order.
func (v Value) BigEndian(n uint32) Value {
	binary.BigEndian.PutUint32(v.b[v.n:], n)
	v.n += 4
	return v
}

// AsUint32 returns the first 4 bytes of the value as a number in host byte order; 0 if the value is shorter.
func (v *Value) AsUint32() uint32 {
	if v.n < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v.b[:])
}

// Cut returns the bytes between two offsets as a value.
func (v *Value) Cut(from, to int) (out Value) {
	if from < to && to <= int(v.n) {
		out.n = byte(copy(out.b[:], v.b[from:to]))
	}
	return out
}

// AsEndpoint is the reverse of [Endpoint]. It returns the zero AddrPort if the value is too short.
func (v *Value) AsEndpoint(f inet.Family) netip.AddrPort {
	n := f.AddrLen()
	addr, ok := netip.AddrFromSlice(v.b[:n])
	if !ok || int(v.n) < n+2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(v.b[n:]))
}
