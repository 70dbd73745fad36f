package plan

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// Each element that determines the outcome of a connection has a counter. The kernel evaluates the rules only for the
// first packet of a connection, so the counter counts new connections. The set and the class of the element determine
// the meaning of the count. If the class changes, the element is replaced, and the count of the new element starts at
// 0.

// The steps of connections that elements count, too. Another element counts the outcome. Their codes follow those
// of the outcomes.
const (
	// Examined: the rules looked up the source in source ranges. A connection without the meaning Allowed was dropped.
	Examined = outcome.Codes + iota
	// Allowed: source ranges allow the source.
	Allowed
	// Arrived: at a frontend with the external policy Local. Another element, of the service port, counts the outcome.
	Arrived
	// ToEndpoint: translated to this endpoint. Such a connection also counts as [outcome.Forwarded].
	ToEndpoint
	// Meanings is the number of outcomes and steps.
	Meanings
)

// OutcomeOf returns the outcome of all packets in a chain, or None. The reason may also be in the chain or element
// before it.
func OutcomeOf(chain string) outcome.Code {
	c, _ := classOfConstant(chain)
	return kinds[c.kind].outcome
}

// Meaning returns the meaning of an element's counter: an outcome or a step, or None if the elements of its set
// have no counters. At most one element on the path of a connection has the outcome as its meaning. Only a
// connection at the maximum also counts as Forwarded. An element of a map for allowed sources, such as
// services-restricted, also has the meaning Allowed. For all other elements, also is None.
func (c *Counters) Meaning(e *nft.Element) (m, also outcome.Code) {
	r, ok := c.sets[e.Set]
	switch {
	case !ok:
		return outcome.None, outcome.None
	case r.fixed != outcome.None:
		return r.fixed, outcome.None
	}
	k := kindOf(e.Data.AsUint32())
	switch m = kinds[k].outcome; {
	case m != outcome.None:
	case k.restricts():
		m = Examined
	case k == kindExternalLocal:
		m = Arrived
	default:
		m = outcome.Forwarded
	}
	return m, r.also
}

// Counters gives the meanings of the counters of a plan's elements. It is immutable, and any goroutine may use it.
type Counters struct {
	sets map[*nft.Set]role
	list []*nft.Set
	// endpoints is true if there are sets whose elements have the meaning ToEndpoint.
	endpoints bool
}

// role has the properties that all elements of a set with counters have in common.
type role struct {
	// of is the thing whose connections an element counts.
	of counts
	// fixed is the meaning of the elements if it does not depend on their class, else None. also is a second meaning.
	fixed, also outcome.Code
}

// counts is a thing whose connections elements count. The sets are read in the order of these constants: elements of
// frontends name the owner of an address, and elements of endpoints have the number of a service port.
type counts uint8

const (
	ofAddress counts = iota
	ofFrontend
	ofPort
	ofEndpoint
)

// isCounted reports whether the elements of a set have counters. The role may be nil.
func (r *role) isCounted(o *Options) bool {
	return r != nil && (r.of == ofEndpoint && o.CountEndpoints || r.of != ofEndpoint && !o.Uncounted)
}

// Counters returns the meanings of the counters.
func (r *Rules) Counters() *Counters {
	c := &Counters{sets: map[*nft.Set]role{}, endpoints: r.options.CountEndpoints}
	for _, f := range r.options.Families {
		for _, row := range r.layouts[f].rows {
			if row.counts != nil && (row.counts.of != ofEndpoint || c.endpoints) {
				c.list = append(c.list, *row.to)
				c.sets[*row.to] = *row.counts
			}
		}
	}
	slices.SortStableFunc(c.list, func(a, b *nft.Set) int { return cmp.Compare(c.sets[a].of, c.sets[b].of) })
	return c
}

// Sets returns the sets to read, in this order: those of Examined before those of Allowed. So the difference of the two
// is never more than the number of connections that the firewall has dropped. The sets of addresses are first, and the
// sets of endpoints follow the sets whose elements name the owners of numbers.
func (c *Counters) Sets() []*nft.Set { return c.list }

// Allows reports whether the elements of a set count connections that source ranges have allowed.
func (c *Counters) Allows(s *nft.Set) bool { return c.sets[s].also == Allowed }

// OfPort reports whether the elements of a set belong to a service port, and not to one of its frontends.
func (c *Counters) OfPort(s *nft.Set) bool {
	of := c.sets[s].of
	return of == ofPort || of == ofEndpoint
}

// CountsEndpoints reports whether elements have the meaning ToEndpoint.
func (c *Counters) CountsEndpoints() bool { return c.endpoints }

// Number identifies a service port in the elements of a family.
type Number struct {
	Family inet.Family
	Number uint32
}

// Owned returns the number of the service port that the comment of an element names. It returns false if the element
// has no such number.
func (c *Counters) Owned(e *nft.Element) (Number, bool) {
	if c.sets[e.Set].of != ofFrontend || e.Comment == "" {
		return Number{}, false
	}
	of, known := SubjectOf(e)
	return of.Number, known && !of.Sources
}

// Endpoint returns the service port and the address of the endpoint of an element with the meaning ToEndpoint.
func (c *Counters) Endpoint(e *nft.Element) (Number, netip.Addr) {
	const field = 4
	word, data := e.Key, e.Data
	if len(word.Bytes()) > field {
		word = word.Cut(field, len(word.Bytes())) // after the protocol
	} else {
		data = data.Port(0) // range-backends: no protocol, and no port
	}
	number := word.AsUint32() & portBits
	if isAffine(number) {
		number &= affineBits
	}
	return Number{e.Set.Family, number}, data.AsEndpoint(e.Set.Family).Addr()
}

// FrontendID returns the family of a frontend, and its key in the maps.
func FrontendID(k model.Key) (inet.Family, nft.Value) {
	if k.Last != 0 {
		return k.Family, frontendKey(&k).Port(k.Last)
	}
	return k.Family, frontendKey(&k)
}

// ElementID returns the same values as [FrontendID], from an element of the frontend.
func ElementID(e *nft.Element) (inet.Family, nft.Value) {
	if e.KeyEnd == (nft.Value{}) {
		return e.Set.Family, e.Key
	}
	n := len(e.KeyEnd.Bytes())
	last := e.KeyEnd.Cut(n-4, n)
	return e.Set.Family, e.Key.Port(binary.BigEndian.Uint16(last.Bytes()))
}

// Subject is the object of an element: a service port, or the source ranges of a Service.
type Subject struct {
	Number
	Sources bool
}

// SubjectOf returns the subject of an element. The data of an element with the name of its service port as a comment
// has the number, unless it is an endpoint. Other elements have the number in their key. The result is false if an
// element has none.
func SubjectOf(e *nft.Element) (Subject, bool) {
	word, sources := e.Data.AsUint32(), e.Set.Interval
	if e.Comment != "" && len(e.Set.Data) == 1 {
		sources = kindOf(word).restricts()
	} else if word = numberIn(e); isAffine(word) {
		word &= affineBits
	}
	number := word & portBits
	return Subject{Number{e.Set.Family, number}, sources}, number&topBit != 0 && number != topBit
}

// numberIn returns the word with a number in the key of an element, or 0.
func numberIn(e *nft.Element) uint32 {
	at := 0
	for _, f := range e.Set.Key {
		const word = 4
		if f.Name() == nft.Priority().Name() {
			value := e.Key.Cut(at, at+word)
			if e.Set.Interval {
				return binary.BigEndian.Uint32(value.Bytes())
			}
			return value.AsUint32()
		}
		at += word * f.Registers()
	}
	return 0
}
