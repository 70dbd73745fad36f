package watch

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// kept defines the stored part of a field of an encoded protobuf message. This is the whole field, the first element of a repeated field, some fields
// of a message by their numbers, or some entries of a map. The zero value stores nothing.
type kept struct {
	how
	fields []kept
	keys   []string
	// unknown also stores up to mostUnknown entries with other keys, if these have the prefix of the program's annotations. They become problems.
	unknown bool
}

// mostUnknown limits the stored annotations without a meaning: the author of a Service may write thousands. The API server sorts them by name, so all
// nodes store the same ones.
const mostUnknown = 20

type how byte

const (
	all how = iota + 1
	first
)

// The stored fields of a Service and of an EndpointSlice, by the field numbers in generated.proto of their API groups. All other
// fields are empty for the program. The name and the namespace are fields of [object].
var (
	keptOfService = kept{fields: []kept{
		1: {fields: []kept{ // metadata
			5:  {how: all},                                        // uid
			8:  {how: all},                                        // creationTimestamp
			12: {keys: model.AnnotationsOf(false), unknown: true}, // annotations
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
		1: {fields: []kept{12: {keys: model.AnnotationsOf(true)}}}, // metadata: annotations
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
	unknown := 0
	f := fieldReader[[]byte]{rest: data}
	for f.next() {
		if f.number >= len(keep) {
			continue
		}
		stored, bit := keep[f.number], uint64(1)<<f.number
		switch {
		case stored.how == all, stored.how == first && seen&bit == 0:
			into = append(into, f.encoded...)
		case stored.keys != nil:
			key := find(f.content, keyField)
			switch {
			case slices.Contains(stored.keys, string(key)):
				into = append(into, f.encoded...)
			case stored.unknown && unknown < mostUnknown && model.IsOwnAnnotation(key):
				into = append(into, f.encoded...)
				unknown++
			}
		case stored.fields != nil && protowire.Type(f.encoded[0]&7) != protowire.BytesType:
			return into, errWire // a message has no other type
		case stored.fields != nil:
			into = append(into, f.encoded[:f.tagLen]...)
			start := len(into)
			var err error
			if into, err = strip(into, f.content, stored.fields); err != nil {
				return into, err
			}
			into = insertLength(into, start)
		}
		seen |= bit
	}
	return into, f.err
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
