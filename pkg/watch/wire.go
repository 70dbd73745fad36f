package watch

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// kept defines the stored part of a field of an encoded protobuf message. This is the whole field, the first element of
// a repeated field, some fields of a message by their numbers, or some entries of a map. The zero value stores nothing.
// A stored text is cut at [model.LongestText].
type kept struct {
	how
	fields []kept
	// most is the number of stored elements of a repeated field. It is one above the limit of the list, so that
	// pkg/model detects a longer list. 0 stands for no limit.
	most int
	// keys are the keys of stored entries, each with the limit in bytes of its value.
	keys map[string]int
	// unknown also stores up to mostUnknown entries with other keys, if these have the prefix of the program's
	// annotations. They become problems. The values of these entries are not stored.
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

// annotations are the stored annotations of EndpointSlices, or of Services.
func annotations(slice bool) map[string]int {
	keys := map[string]int{}
	for _, a := range model.Annotations {
		if a.Slice == slice {
			keys[a.Name] = a.Longest()
		}
	}
	return keys
}

// keptOfService returns the stored fields of a Service, by the field numbers in generated.proto of the API group. All
// other fields are empty for the program. The name and the namespace are fields of [object].
func keptOfService(l model.Limits) kept {
	return kept{fields: []kept{
		1: {fields: []kept{ // metadata
			5:  {how: all},                                // uid
			8:  {how: all},                                // creationTimestamp
			12: {keys: annotations(false), unknown: true}, // annotations
		}},
		2: {fields: []kept{ // spec
			1:  {fields: []kept{1: {how: all}, 2: {how: all}, 3: {how: all}, 5: {how: all}}, most: l.Ports + 1}, // ports: name, protocol, port, nodePort
			3:  {how: all},                                                                                      // clusterIP
			4:  {how: all},                                                                                      // type
			5:  {how: all, most: l.Addresses + 1},                                                               // externalIPs
			7:  {how: all},                                                                                      // sessionAffinity
			9:  {how: all, most: l.Items() + 1},                                                                 // loadBalancerSourceRanges
			11: {how: all},                                                                                      // externalTrafficPolicy
			12: {how: all},                                                                                      // healthCheckNodePort
			14: {how: all},                                                                                      // sessionAffinityConfig
			18: {how: all, most: model.MostFamilies + 1},                                                        // clusterIPs
			19: {how: all, most: model.MostFamilies + 1},                                                        // ipFamilies
			21: {how: all},                                                                                      // loadBalancerClass
			22: {how: all},                                                                                      // internalTrafficPolicy
		}},
		3: {fields: []kept{1: {fields: []kept{ // status.loadBalancer
			// ingress: ip, ipMode. Entries without an address are stored, too, because problems contain the index of an entry.
			1: {fields: []kept{1: {how: all}, 3: {how: all}}, most: l.Addresses + 1},
		}}}},
	}}
}

// keptOfSlice returns the stored fields of an EndpointSlice. It has the zones of endpoints only on request, because
// only counters of endpoints need them. It has the names of pods only on request: with an API server, commands query the API server for them.
func keptOfSlice(l model.Limits, zones, pods bool) kept {
	zone, target := kept{}, kept{}
	if zones {
		zone.how = all
	}
	if pods {
		target.fields = []kept{1: {how: all}, 2: {how: all}, 3: {how: all}}
	}
	name := kept{fields: []kept{1: {how: all}}, most: model.MostHints + 1}
	return kept{fields: []kept{
		1: {fields: []kept{12: {keys: annotations(true)}}}, // metadata: annotations
		2: {fields: []kept{ // endpoints
			1: {how: first},                       // addresses: the API does not define a meaning of further addresses
			2: {how: all},                         // conditions
			4: target,                             // targetRef: kind, namespace, name
			6: {how: all},                         // nodeName
			7: zone,                               // zone
			8: {fields: []kept{1: name, 2: name}}, // hints: forZones, forNodes
		}, most: l.Pairs + 1},
		3: {fields: []kept{1: {how: all}, 2: {how: all}, 3: {how: all}}, most: l.SlicePorts + 1}, // ports: name, protocol, port
		4: {how: all},                                                                            // addressType
	}}
}

// mostFields is above the number of each stored field.
const mostFields = 24

// strip appends the stored fields of an encoded message to a buffer.
func strip(into, data []byte, keep []kept) ([]byte, error) {
	var seen [mostFields]int
	unknown := 0
	f := fieldReader[[]byte]{rest: data}
	for f.next() {
		if f.number >= len(keep) {
			continue
		}
		stored, n := &keep[f.number], &seen[f.number]
		if *n++; stored.most > 0 && *n > stored.most {
			continue
		}
		switch {
		case stored.how == all, stored.how == first && *n == 1:
			into = f.appendText(into, model.LongestText)
		case stored.keys != nil:
			key := find(f.content, keyField)
			if longest, known := stored.keys[string(key)]; known {
				into = f.appendEntry(into, longest)
			} else if stored.unknown && unknown < mostUnknown && model.IsOwnAnnotation(key) {
				into = f.appendEntry(into, 0)
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
	}
	return into, f.err
}

// appendText appends the current field to a buffer. It cuts a text.
func (f *fieldReader[T]) appendText(into []byte, longest int) []byte {
	if len(f.content) <= longest {
		return append(into, f.encoded...)
	}
	into = append(into, f.encoded[:f.tagLen]...)
	return protowire.AppendString(into, model.Cut(string(f.content[:longest+1]), longest))
}

// appendEntry appends the current field, an entry of a map, to a buffer. It cuts the key and the value. If the limit of
// the value is 0, it appends the key only.
func (f *fieldReader[T]) appendEntry(into []byte, longest int) []byte {
	into = append(into, f.encoded[:f.tagLen]...)
	start := len(into)
	for entry := (fieldReader[T]{rest: f.content}); entry.next(); {
		switch {
		case entry.number == keyField:
			into = entry.appendText(into, model.LongestText)
		case entry.number == valueField && longest > 0:
			into = entry.appendText(into, longest)
		}
	}
	return insertLength(into, start)
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
