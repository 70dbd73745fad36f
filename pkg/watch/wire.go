package watch

import (
	"errors"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
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
		1: {fields: []kept{1: {how: all}, 3: {how: all}, 8: {how: all}}}, // metadata: name, namespace, creationTimestamp
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
		1: {fields: []kept{1: {how: all}, 3: {how: all}}}, // metadata: name, namespace
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
	for f, err := range fieldsOf(data) {
		if err != nil {
			return into, err
		}
		if int(f.number) >= len(keep) {
			continue
		}
		stored, bit := keep[f.number], uint64(1)<<f.number
		switch {
		case stored.how == all, stored.how == first && seen&bit == 0:
			into = append(append(into, f.tag...), f.value...)
		case stored.fields != nil:
			into = append(into, f.tag...)
			start := len(into)
			var err error
			if into, err = strip(into, f.content(), stored.fields); err != nil {
				return into, err
			}
			into = insertLength(into, start)
		}
		seen |= bit
	}
	return into, nil
}

// insertLength inserts, at start, the length of all bytes from there to the end.
func insertLength(b []byte, start int) []byte {
	size := len(b) - start
	n := protowire.SizeVarint(uint64(size))
	b = append(b, make([]byte, n)...)
	copy(b[start+n:], b[start:start+size])
	protowire.AppendVarint(b[:start], uint64(size))
	return b
}

var errWire = errors.New("not an encoded protobuf message")

// field is one field of an encoded message: its tag and its value, as they are encoded.
type field struct {
	number     protowire.Number
	kind       protowire.Type
	tag, value []byte
}

// content returns the bytes of a string or a message, and nil of a number.
func (f *field) content() []byte {
	if f.kind != protowire.BytesType {
		return nil
	}
	content, _ := protowire.ConsumeBytes(f.value)
	return content
}

// fieldsOf iterates over the fields of an encoded message. The last pair has an error if the rest is not a field. Groups, which no API
// object uses, count as such.
func fieldsOf(data []byte) iter.Seq2[field, error] {
	return func(yield func(field, error) bool) {
		for len(data) > 0 {
			number, kind, n := protowire.ConsumeTag(data)
			if n < 0 || kind == protowire.StartGroupType {
				yield(field{}, errWire)
				return
			}
			m := protowire.ConsumeFieldValue(number, kind, data[n:])
			if m < 0 {
				yield(field{}, errWire)
				return
			}
			if !yield(field{number, kind, data[:n], data[n : n+m]}, nil) {
				return
			}
			data = data[n+m:]
		}
	}
}

// find returns what the last field of that number in a message holds, or nil.
func find(data []byte, number protowire.Number) (content []byte) {
	for f, err := range fieldsOf(data) {
		if err != nil {
			break
		}
		if f.number == number {
			content = f.content()
		}
	}
	return content
}

// count returns the number of fields of that number in a message.
func count(data []byte, number protowire.Number) (n int) {
	for f, err := range fieldsOf(data) {
		if err != nil {
			break
		}
		if f.number == number {
			n++
		}
	}
	return n
}

// entry returns the value of a map's entry with a key, and whether there is one. The map is a field of that number.
func entry(data []byte, number protowire.Number, key string) (value string, ok bool) {
	const keyField, valueField = 1, 2
	for f, err := range fieldsOf(data) {
		if err != nil {
			break
		}
		if f.number == number && string(find(f.content(), keyField)) == key {
			value, ok = string(find(f.content(), valueField)), true
		}
	}
	return value, ok
}
