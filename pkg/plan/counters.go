package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Every element that says what becomes of a connection has a counter. Only a connection's first packet meets the rules, so it
// counts new connections. What a number means follows from where the element stands and what its class is: one that is
// replaced because its class is another now doesn't pass its number on.

// Meaning says what becomes of the connections that an element's counter has counted.
type Meaning uint8

// The meanings. On its way a connection meets one element with a meaning up to UnusedAddress, and perhaps
// others of those that follow.
const (
	// Silent: another element on the way tells.
	Silent Meaning = iota
	// Forwarded: sent on to an endpoint.
	Forwarded
	// NoEndpoints: refused, because there is no endpoint.
	NoEndpoints
	// NoLocalEndpoints: dropped, because the policy is Local and no endpoint is on this node.
	NoLocalEndpoints
	// UnusedPort: the destination is a cluster IP, on a port that the Service doesn't have. Refused.
	UnusedPort
	// UnusedAddress: the destination is an address of a ServiceCIDR that no Service has. Dropped, unless it is this node's own.
	UnusedAddress
	// Examined: the source was looked for in loadBalancerSourceRanges. It was dropped unless it shows among Allowed.
	Examined
	// Allowed: the source was in loadBalancerSourceRanges.
	Allowed
	// Arrived: at a frontend with policy Local. Another element, of its service port, tells what became of it.
	Arrived
	// ToEndpoint: sent on to this endpoint, where [Options.CountEndpoints] is set.
	ToEndpoint
	// Meanings is the number of meanings.
	Meanings
)

// Meaning returns what an element's counter has counted, with a second meaning of those of restricted addresses.
func (c *Counters) Meaning(e *nft.Element) (m, also Meaning) {
	r, ok := c.sets[e.Set]
	switch {
	case !ok:
		return Silent, Silent
	case r.fixed != Silent:
		return r.fixed, Silent
	}
	switch kindOf(e.Data.AsUint32()) {
	case kindReject:
		m = NoEndpoints
	case kindDrop:
		m = NoLocalEndpoints
	case kindFirewall:
		m = Examined
	case kindExternalLocal:
		m = Arrived
	default:
		m = Forwarded
	}
	return m, r.also
}

// Counters tells what the counters of a planner's elements mean. It doesn't change, and may be used by any goroutine.
type Counters struct {
	sets         map[*nft.Set]role
	list   []*nft.Set
	owners []*nft.Set
}

// role is what all elements of a set have in common.
type role struct {
	// fixed is their meaning, where their class doesn't say it; also is one that they have besides.
	fixed, also Meaning
	// ofPort says that they belong to no single frontend.
	ofPort bool
}

// Counters returns what the counters mean.
func (p *Planner) Counters() *Counters {
	c := &Counters{sets: map[*nft.Set]role{}}
	for _, f := range p.options.Families {
		l := p.layouts[f]
		each := func(s *nft.Set, r role) {
			c.sets[s] = r
			c.list = append(c.list, s)
		}
		l.counted(each)
		if p.options.CountEndpoints {
			c.owners = append(c.owners, l.services, l.nodePorts, l.restricted)
			l.countedEndpoints(each)
		}
	}
	return c
}

// Sets returns the sets to read: those of Examined before those of Allowed, so that what is dropped is never more than the
// difference of the two, and endpoints last.
func (c *Counters) Sets() []*nft.Set { return c.list }

// Allows reports whether the elements of a set count what source ranges have allowed.
func (c *Counters) Allows(s *nft.Set) bool { return c.sets[s].also == Allowed }

// OfPort reports whether the elements of a set belong to a service port, and not to one of its frontends.
func (c *Counters) OfPort(s *nft.Set) bool { return c.sets[s].ofPort }

// Owners returns the sets whose elements tell, by their comments, to which service port a number belongs that their data has.
func (c *Counters) Owners() []*nft.Set { return c.owners }

// OwnedNumber returns the number of a service port in an element of one of the Owners; false if it is no service port's.
func OwnedNumber(e *nft.Element) (number uint32, ok bool) {
	word := e.Data.AsUint32()
	return word & portBits, kindOf(word) != kindFirewall
}

// Endpoint returns what an element with the meaning ToEndpoint stands for: an endpoint, and the number of the service port.
func (c *Counters) Endpoint(e *nft.Element) (endpoint netip.AddrPort, number uint32) {
	const proto = 4
	word := e.Key.Cut(proto, len(e.Key.Bytes()))
	number = word.AsUint32() & portBits
	if isAffine(number) {
		number &= affineBits
	}
	return e.Data.AsEndpoint(e.Set.Family), number
}

// counted calls each for every set whose elements have counters.
func (l *layout) counted(each func(*nft.Set, role)) {
	each(l.unusedPorts, role{fixed: UnusedPort})
	each(l.serviceCIDRs, role{fixed: UnusedAddress})
	each(l.services, role{})
	each(l.nodePorts, role{})
	each(l.shortCircuit, role{ofPort: true})
	each(l.local, role{ofPort: true})
	each(l.restricted, role{also: Allowed})
}

// countedEndpoints calls each for every set of endpoints.
func (l *layout) countedEndpoints(each func(*nft.Set, role)) {
	for ls := range lists {
		each(l.endpoints[ls], role{fixed: ToEndpoint})
		each(l.backends[ls], role{fixed: ToEndpoint})
	}
}

// FrontendID returns how a frontend's elements show it: its family, and its key in the maps.
func FrontendID(k model.Key) (nft.Family, nft.Value) { return NFT(k.Family), value(&k) }
