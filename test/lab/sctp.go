package lab

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
)

// The SCTP chunks and the parameter in use, from RFC 9260 sections 3.3.2 and 3.3.3.
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpCookie  = 7

	// sctpHead is the length of the common header, sctpFixed that of an INIT chunk without parameters.
	sctpHead  = 12
	sctpFixed = 20
)

// castagnoli is the polynomial of SCTP's checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket is an SCTP packet with one INIT or INIT ACK chunk.
type sctpPacket struct {
	source, target uint16
	// tag is the verification tag: zero in an INIT, the INIT's own tag in its INIT ACK.
	tag uint32
	// chunk is sctpInit or sctpInitAck.
	chunk uint8
	// own is the tag that the sender expects in packets to it; not zero.
	own uint32
	// cookie is the state cookie of an INIT ACK. The lab's servers write their line into it.
	cookie []byte
}

// newInit returns the INIT that starts an association.
func newInit(source, target uint16) sctpPacket {
	return sctpPacket{source: source, target: target, chunk: sctpInit, own: rand.Uint32() | 1}
}

// answer returns the INIT ACK to an INIT.
func (p sctpPacket) answer(cookie []byte) sctpPacket {
	return sctpPacket{
		source: p.target, target: p.source, tag: p.own,
		chunk: sctpInitAck, own: rand.Uint32() | 1, cookie: cookie,
	}
}

// bytes encodes the packet with its checksum, which conntrack verifies.
func (p sctpPacket) bytes() []byte {
	length := sctpFixed
	if p.cookie != nil {
		length += 4 + len(p.cookie)
	}
	b := make([]byte, sctpHead+(length+3)&^3)
	binary.BigEndian.PutUint16(b[0:], p.source)
	binary.BigEndian.PutUint16(b[2:], p.target)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	chunk := b[sctpHead:]
	chunk[0] = p.chunk
	binary.BigEndian.PutUint16(chunk[2:], uint16(length))
	binary.BigEndian.PutUint32(chunk[4:], p.own)
	binary.BigEndian.PutUint32(chunk[8:], 1<<16) // receive window
	binary.BigEndian.PutUint16(chunk[12:], 1)    // outbound streams
	binary.BigEndian.PutUint16(chunk[14:], 1)    // inbound streams
	binary.BigEndian.PutUint32(chunk[16:], 1)    // first sequence number
	if p.cookie != nil {
		binary.BigEndian.PutUint16(chunk[20:], sctpCookie)
		binary.BigEndian.PutUint16(chunk[22:], uint16(4+len(p.cookie)))
		copy(chunk[24:], p.cookie)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// parseSCTP decodes the result of bytes. It returns false for other or invalid packets.
func parseSCTP(b []byte) (sctpPacket, bool) {
	if len(b) < sctpHead+sctpFixed || !sctpIntact(b) {
		return sctpPacket{}, false
	}
	chunk := b[sctpHead:]
	p := sctpPacket{
		source: binary.BigEndian.Uint16(b[0:]),
		target: binary.BigEndian.Uint16(b[2:]),
		tag:    binary.BigEndian.Uint32(b[4:]),
		chunk:  chunk[0],
		own:    binary.BigEndian.Uint32(chunk[4:]),
	}
	if p.chunk != sctpInit && p.chunk != sctpInitAck {
		return sctpPacket{}, false
	}
	if len(chunk) < 24 || binary.BigEndian.Uint16(chunk[20:]) != sctpCookie {
		return p, true
	}
	length := int(binary.BigEndian.Uint16(chunk[22:]))
	if length < 4 || 20+length > len(chunk) {
		return sctpPacket{}, false
	}
	p.cookie = chunk[24 : 20+length]
	return p, true
}

// sctpIntact verifies the checksum, which is computed over the packet with a zero in its place.
func sctpIntact(b []byte) bool {
	sum := crc32.Update(0, castagnoli, b[:8])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	sum = crc32.Update(sum, castagnoli, b[12:])
	return sum == binary.LittleEndian.Uint32(b[8:])
}

// withoutIPv4Header strips the header that a raw IPv4 socket delivers; raw IPv6 sockets deliver none.
func withoutIPv4Header(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b[min(int(b[0]&15)*4, len(b)):]
}
