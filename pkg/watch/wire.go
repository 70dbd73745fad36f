package watch

import (
	"encoding/binary"
	"errors"
)

// kept says what is stored of a field of an encoded protobuf message: all of it, the first if it is repeated, or of a message
// what is stored of its fields, by their numbers. The zero value stands for nothing.
type kept struct {
	how
	fields []kept
}

type how byte

const (
	all how = iota + 1
	first
)

// What is stored of a Service and of an EndpointSlice, by the field numbers in generated.proto of their API groups. A field that is
// missing here is missing everywhere.
var (
	keptOfService = kept{fields: []kept{
		1: {fields: []kept{1: {how: all}, 3: {how: all}, 5: {how: all}, 8: {how: all}}}, // metadata: name, namespace, uid, creationTimestamp
		2: {fields: []kept{ // spec
			1:  {fields: []kept{1: {how: all}, 2: {how: all}, 3: {how: all}, 5: {how: all}}}, // ports: name, protocol, port, nodePort
			3:  {how: all},                                                                   // clusterIP
			4:  {how: all},                                                                   // type
			5:  {how: all},                                                                   // externalIPs
			7:  {how: all},                                                                   // sessionAffinity
			9:  {how: all},                                                                   // loadBalancerSourceRanges
			11: {how: all},                                                                   // externalTrafficPolicy
			12: {how: all},                                                                   // healthCheckNodePort
			14: {how: all},                                                                   // sessionAffinityConfig
			18: {how: all},                                                                   // clusterIPs
			19: {how: all},                                                                   // ipFamilies
			22: {how: all},                                                                   // internalTrafficPolicy
		}},
		3: {fields: []kept{1: {fields: []kept{ // status.loadBalancer
			// ingress: ip, ipMode. Entries without an address stay, so that the indexes of the others do.
			1: {fields: []kept{1: {how: all}, 3: {how: all}}},
		}}}},
	}}
	keptOfSlice = kept{fields: []kept{
		1: {fields: []kept{1: {how: all}, 3: {how: all}, 5: {how: all}}}, // metadata: name, namespace, uid
		2: {fields: []kept{ // endpoints
			1: {how: first}, // addresses: the API gives no meaning to the others
			2: {how: all},   // conditions
			6: {how: all},   // nodeName
			8: {how: all},   // hints
		}},
		3: {fields: []kept{1: {how: all}, 2: {how: all}, 3: {how: all}}}, // ports: name, protocol, port
		4: {how: all},                                                    // addressType
	}}
)

// strip appends to a buffer what is stored of an encoded message.
func strip(into, data []byte, keep []kept) ([]byte, error) {
	var seen uint64
	for r := (reader{rest: data}); r.next(); {
		if r.err != nil {
			return into, r.err
		}
		if r.number >= len(keep) {
			continue
		}
		field, bit := keep[r.number], uint64(1)<<r.number
		switch {
		case field.how == all, field.how == first && seen&bit == 0:
			into = append(into, r.field...)
		case field.fields != nil:
			into = append(into, r.tag()...)
			start := len(into)
			var err error
			if into, err = strip(into, r.content, field.fields); err != nil {
				return into, err
			}
			into = insertLength(into, start)
		}
		seen |= bit
	}
	return into, nil
}

// insertLength puts the length of what follows start before it.
func insertLength(b []byte, start int) []byte {
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(len(b)-start))
	b = append(b, length[:n]...)
	copy(b[start+n:], b[start:len(b)-n])
	copy(b[start:], length[:n])
	return b
}

var errWire = errors.New("not an encoded protobuf message")

// reader goes through the fields of an encoded message.
type reader struct {
	rest []byte
	// number is that of the present field, field all of it, content what it holds if it isn't a number.
	number         int
	field, content []byte
	tagLength      int
	err            error
}

// next goes to the next field, and reports false at the end. What isn't a field sets err.
func (r *reader) next() bool {
	if len(r.rest) == 0 || r.err != nil {
		return false
	}
	const variable, fixed64, bytes, fixed32 = 0, 1, 2, 5
	tag, n := binary.Uvarint(r.rest)
	r.number, r.tagLength = int(tag>>3), n
	size := uint64(0)
	if n > 0 {
		switch tag & 7 {
		case variable:
			_, m := binary.Uvarint(r.rest[n:])
			size = uint64(m)
			if m <= 0 {
				n = 0
			}
		case fixed64:
			size = 8
		case fixed32:
			size = 4
		case bytes:
			length, m := binary.Uvarint(r.rest[n:])
			if n += m; m <= 0 {
				n = 0
			}
			size = length
		default: // groups are of another age
			n = 0
		}
	}
	if n <= 0 || r.number <= 0 || size > uint64(len(r.rest)-n) {
		r.err = errWire
		return true
	}
	end := n + int(size)
	r.field, r.content, r.rest = r.rest[:end], r.rest[n:end], r.rest[end:]
	return true
}

// tag is the beginning of the present field, which says its number and type.
func (r *reader) tag() []byte { return r.field[:r.tagLength] }

// find returns what the last field of that number in a message holds, or nil.
func find(data []byte, number int) (content []byte) {
	for r := (reader{rest: data}); r.next() && r.err == nil; {
		if r.number == number {
			content = r.content
		}
	}
	return content
}

// count returns the number of fields of that number in a message.
func count(data []byte, number int) (n int) {
	for r := (reader{rest: data}); r.next() && r.err == nil; {
		if r.number == number {
			n++
		}
	}
	return n
}

// entry returns the value of a map's entry with a key, and whether there is one. The map is a field of that number.
func entry(data []byte, number int, key string) (value string, ok bool) {
	const keyField, valueField = 1, 2
	for r := (reader{rest: data}); r.next() && r.err == nil; {
		if r.number == number && string(find(r.content, keyField)) == key {
			value, ok = string(find(r.content, valueField)), true
		}
	}
	return value, ok
}
