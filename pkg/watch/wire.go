package watch

import (
	"errors"
	"iter"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// kept defines the stored part of a field of an encoded protobuf message. This is the whole field, the first element of a repeated
// field, some fields of a message, by their numbers, or the entries of a map with some keys. The zero value stores nothing.
type kept struct {
	how
	fields []kept
	keys   []string
	// own also stores the entries whose key has the prefix of the program's annotations: a wrong name becomes a problem.
	own bool
}

type how byte

const (
	all how = iota + 1
	first
)

// The stored fields of a Service and of an EndpointSlice, by the field numbers in generated.proto of their API groups. All other
// fields are empty for the program.
var (
	keptOfService = kept{fields: []kept{
		1: {fields: []kept{ // metadata
			1: {how: all}, 3: {how: all}, 8: {how: all}, // name, namespace, creationTimestamp
			12: {keys: model.AnnotationsOf(false), own: true}, // annotations
		}},
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
			21: {how: all},                                                                   // loadBalancerClass
			22: {how: all},                                                                   // internalTrafficPolicy
		}},
		3: {fields: []kept{1: {fields: []kept{ // status.loadBalancer
			// ingress: ip, ipMode. Entries without an address are stored, too, because problems contain the index of an entry.
			1: {fields: []kept{1: {how: all}, 3: {how: all}}},
		}}}},
	}}
	keptOfSlice = kept{fields: []kept{
		1: {fields: []kept{1: {how: all}, 3: {how: all}, 12: {keys: model.AnnotationsOf(true)}}}, // metadata: name, namespace, annotations
		2: {fields: []kept{ // endpoints
			1: {how: first}, // addresses: the API does not define a meaning of further addresses
			2: {how: all},   // conditions
			6: {how: all},   // nodeName
			7: {},           // zone: see withZones
			8: {how: all},   // hints
		}},
		3: {fields: []kept{1: {how: all}, 2: {how: all}, 3: {how: all}}}, // ports: name, protocol, port
		4: {how: all},                                                    // addressType
	}}
)

func (k *kept) hasKey(key []byte) bool {
	return slices.Contains(k.keys, string(key)) || k.own && model.IsOwnAnnotation(key)
}

// withZones returns keptOfSlice and the zones of endpoints. These take memory that only counters of endpoints need.
func withZones() kept {
	const endpoints, zone = 2, 7
	k := kept{fields: slices.Clone(keptOfSlice.fields)}
	k.fields[endpoints].fields = slices.Clone(k.fields[endpoints].fields)
	k.fields[endpoints].fields[zone].how = all
	return k
}

// strip appends the stored fields of an encoded message to a buffer.
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
		case stored.how == all, stored.how == first && seen&bit == 0,
			stored.keys != nil && stored.hasKey(find(f.content(), keyField)):
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

// insertLength inserts the length of b[start:] at start.
func insertLength(b []byte, start int) []byte {
	size := len(b) - start
	n := protowire.SizeVarint(uint64(size))
	b = append(b, make([]byte, n)...)
	copy(b[start+n:], b[start:start+size])
	protowire.AppendVarint(b[:start], uint64(size))
	return b
}

var errWire = errors.New("not an encoded protobuf message")

// field is one field of an encoded message: its encoded tag and value.
type field struct {
	number     protowire.Number
	kind       protowire.Type
	tag, value []byte
}

// content returns the bytes of a string or a message, or nil for a number.
func (f *field) content() []byte {
	if f.kind != protowire.BytesType {
		return nil
	}
	content, _ := protowire.ConsumeBytes(f.value)
	return content
}

// fieldsOf yields the fields of an encoded message. If the rest of the message is invalid, the last pair has an error. Protobuf
// groups are invalid, because no API object uses them.
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

// find returns the content of a message's last field with the given number, or nil.
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

// count returns how often a message contains the field with the given number.
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

// Numbers of the fields of a map's entry.
const keyField, valueField = 1, 2

// entry returns the value of a key in the map field with the given number, and reports whether the map has the key.
func entry(data []byte, number protowire.Number, key string) (value string, ok bool) {
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
