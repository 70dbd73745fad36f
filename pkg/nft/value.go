package nft

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"net/netip"
	"strconv"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// maxValue is the size of the longest key: two IPv6 addresses, a protocol and a port.
const maxValue = 40

// Value is the key or the data of an element, in the layout that the kernel compares: every field in whole 32-bit
// words. It is comparable, and the zero Value has no fields. Append the fields in the order of the set's fields.
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

// Field is one part of the key or the data of a set: its name in nft, its layout, and the expression that loads it from
// a packet. The type numbers and the typeof encoding are nft's (enum datatypes in its include/datatype.h and the typeof
// userdata of src/expression.c). nft aborts on a listing with wrong numbers, so tests compare them with the numbers
// that nft writes.
type Field struct {
	name   string
	typ    uint32
	len    int
	order  uint32
	typeof []byte
	load   func(reg uint32) expr.Any
	print  func([]byte) string
}

// Load returns the expression that loads the field's value from a packet into a register. Do not call it for [Index],
// which needs a modulus.
func (f Field) Load(reg uint32) expr.Any { return f.load(reg) }

// Registers returns the number of 32-bit registers that the field takes.
func (f Field) Registers() int { return f.slot() / 4 }

// Name returns the field's name in nft's language.
func (f Field) Name() string { return f.name }

// Len returns the length of the field's values in bytes.
func (f Field) Len() int { return f.len }

// Print returns a value of the field as nft prints it.
func (f Field) Print(b []byte) string { return f.print(b) }

// slot returns the size in bytes of a field in a concatenation: a multiple of 4.
func (f Field) slot() int { return (f.len + 3) &^ 3 }

const (
	orderInvalid = 0
	orderHost    = 1
	orderBig     = 2
)

// Expression types and payload descriptions in nft's typeof userdata.
const (
	etypeVerdict = 1
	etypePayload = 7
	etypeMeta    = 9
	etypeConcat  = 13
	etypeNumgen  = 23

	descRaw = 0
	descTH  = 11
	descIP  = 12
	descIP6 = 13
)

// DstAddr is the packet's destination address.
func DstAddr(f inet.Family) Field {
	if f == inet.IPv4 {
		return addrField("ip daddr", f, descIP, 12, 16)
	}
	return addrField("ip6 daddr", f, descIP6, 9, 24)
}

// SrcAddr is the packet's source address.
func SrcAddr(f inet.Family) Field {
	if f == inet.IPv4 {
		return addrField("ip saddr", f, descIP, 11, 12)
	}
	return addrField("ip6 saddr", f, descIP6, 8, 8)
}

func addrField(name string, f inet.Family, desc, tmpl, offset uint32) Field {
	typ := uint32(7)
	if f == inet.IPv6 {
		typ = 8
	}
	return Field{
		name: name, typ: typ, len: f.AddrLen(), order: orderBig,
		typeof: typeofExpr(etypePayload, tlvU32(0, desc), tlvU32(1, tmpl)),
		load: func(reg uint32) expr.Any {
			return &expr.Payload{
				DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(f.AddrLen()),
			}
		},
		print: func(b []byte) string {
			addr, _ := netip.AddrFromSlice(b)
			return addr.String()
		},
	}
}

// SrcPort is the source port of TCP, UDP and SCTP.
func SrcPort() Field { return portField("th sport", 1, 0) }

// DstPort is the destination port of TCP, UDP and SCTP.
func DstPort() Field { return portField("th dport", 2, 2) }

func portField(name string, tmpl, offset uint32) Field {
	return Field{
		name: name, typ: 13, len: 2, order: orderBig,
		typeof: typeofExpr(etypePayload, tlvU32(0, descTH), tlvU32(1, tmpl)),
		load: func(reg uint32) expr.Any {
			return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
		},
		print: func(b []byte) string { return strconv.Itoa(int(binary.BigEndian.Uint16(b))) },
	}
}

// Transport is a field of bytes behind the start of the transport header.
func Transport(offset, length uint32) Field {
	const header = 3 // nft's enum proto_bases
	f := raw("th", header, expr.PayloadBaseTransportHeader, offset, length)
	f.print = func(b []byte) string { return new(big.Int).SetBytes(b).String() }
	return f
}

// Network is a field of bytes behind the start of the network header.
func Network(offset, length uint32) Field {
	const header = 2 // nft's enum proto_bases
	f := raw("nh", header, expr.PayloadBaseNetworkHeader, offset, length)
	f.print = func(b []byte) string { return fmt.Sprintf("%#x", new(big.Int).SetBytes(b)) }
	return f
}

func raw(name string, header uint32, base expr.PayloadBase, offset, length uint32) Field {
	const bits = 8
	return Field{
		name: fmt.Sprintf("@%s,%d,%d", name, offset*bits, length*bits), typ: 4, len: int(length), order: orderBig,
		typeof: typeofExpr(etypePayload, tlvU32(0, descRaw), tlvU32(1, 0), tlvU32(2, header),
			tlvU32(3, offset*bits), tlvU32(4, length*bits)),
		load: func(reg uint32) expr.Any {
			return &expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length}
		},
	}
}

// L4Proto is the packet's transport protocol.
func L4Proto() Field {
	return metaField("meta l4proto", expr.MetaKeyL4PROTO, 12, 1, orderHost, func(b []byte) string {
		return inet.Protocol(b[0]).String()
	})
}

// FlowProtocol is the transport protocol in the packet's entry of connection tracking. In keys of sets with ranges, it
// replaces [L4Proto]: there, nft 1.0 converts the byte order of meta l4proto, which some kernels refuse for a single
// byte.
func FlowProtocol() Field {
	f := L4Proto()
	f.name = "ct protocol"
	f.load = func(reg uint32) expr.Any { return &expr.Ct{Key: expr.CtKeyPROTOCOL, Register: reg} }
	return f
}

// Priority is the packet's priority, the program's 32-bit scratch register. nft cannot print a rule in which the result
// of a map lookup is a key. But a map lookup can set the priority, and the priority can be a key.
func Priority() Field {
	return metaField("meta priority", expr.MetaKeyPRIORITY, 23, 4, orderHost, func(b []byte) string {
		v := binary.NativeEndian.Uint32(b)
		return fmt.Sprintf("%x:%x", v>>16, v&0xffff)
	})
}

// NetworkPriority is the packet's priority in network byte order, which nft uses in concatenations with ranges.
func NetworkPriority() Field {
	f := Priority()
	f.print = func(b []byte) string {
		return fmt.Sprintf("%x:%x", binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]))
	}
	return f
}

// Mark is the packet's mark.
func Mark() Field {
	return metaField("meta mark", expr.MetaKeyMARK, 19, 4, orderHost, func(b []byte) string {
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	})
}

func metaField(name string, key expr.MetaKey, typ uint32, length int, order uint32, show func([]byte) string) Field {
	return Field{
		name: name, typ: typ, len: length, order: order,
		typeof: typeofExpr(etypeMeta, tlvU32(0, uint32(key))),
		load:   func(reg uint32) expr.Any { return &expr.Meta{Key: key, Register: reg} },
		print:  show,
	}
}

// Index is a random number from numgen. Its type is "numgen random mod 2", regardless of the modulus in a rule, because
// nft compares only types. With a mark as the type, nft cannot load its own listing. With a jhash as the type, nft
// crashes.
func Index() Field {
	return Field{
		name: "numgen random mod 2", typ: 4, len: 4, order: orderHost,
		typeof: typeofExpr(etypeNumgen, tlvU32(0, 1), tlvU32(1, 2), tlvU32(2, 0)),
		print:  func(b []byte) string { return strconv.Itoa(int(binary.NativeEndian.Uint32(b))) },
	}
}

// nft's userdata is a list of types, lengths and values, with one byte each for type and length.

func tlv(typ byte, value []byte) []byte {
	return append([]byte{typ, byte(len(value))}, value...)
}

func tlvU32(typ byte, v uint32) []byte {
	return tlv(typ, binary.NativeEndian.AppendUint32(nil, v))
}

func typeofExpr(etype uint32, parts ...[]byte) []byte {
	var data []byte
	for _, p := range parts {
		data = append(data, p...)
	}
	return append(tlvU32(0, etype), tlv(1, data)...)
}

// typeofFields encodes one field, or the concatenation of several.
func typeofFields(fields []Field) []byte {
	if len(fields) == 1 {
		return fields[0].typeof
	}
	var parts []byte
	for i, f := range fields {
		parts = append(parts, tlv(byte(i), f.typeof)...)
	}
	return typeofExpr(etypeConcat, parts)
}

// typeID returns the number of the (concatenated) datatype: six bits for each part.
func typeID(fields []Field) uint32 {
	var id uint32
	for _, f := range fields {
		id = id<<6 | f.typ
	}
	return id
}

func byteOrder(fields []Field) uint32 {
	if len(fields) != 1 {
		return orderInvalid
	}
	return fields[0].order
}

func length(fields []Field) int {
	if len(fields) == 1 {
		return fields[0].len
	}
	n := 0
	for _, f := range fields {
		n += f.slot()
	}
	return n
}

// Text returns a value of some fields as nft prints it.
func (v *Value) Text(fields []Field) string {
	b := v.Bytes()
	var s []byte
	for i, f := range fields {
		if len(b) < f.len {
			return string(s) + "?"
		}
		if i > 0 {
			s = append(s, " . "...)
		}
		s = append(s, f.print(b[:f.len])...)
		b = b[min(len(b), f.slot()):]
	}
	return string(s)
}
