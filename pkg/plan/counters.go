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
	switch kind(e.Data.AsUint32() >> 24) {
	case kindReject:
		m = NoEndpoints
	case kindDrop:
		m = NoLocalEndpoints
	case kindFirewall:
		m = Examined
	case kindExternalLocal, kindNodePortExternalLocal:
		m = Silent
	default:
		m = Forwarded
	}
	return m, r.also
}

// Counters tells what the counters of a planner's elements mean. It doesn't change, and may be used by any goroutine.
type Counters struct {
	sets         map[*nft.Set]role
	list, owners []*nft.Set
}

// role is what all elements of a set have in common.
type role struct {
	// fixed is their meaning, where their class doesn't say it; also is one that they have besides.
	fixed, also Meaning
	// affine says that they are endpoints known by their ids.
	affine bool
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
			c.owners = append(c.owners, l.scopes[scopeVIP].affinity, l.scopes[scopeNodePort].affinity)
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

// Owners returns the sets whose elements tell, by their comments, to which service port the ids belong that endpoints with affinity
// have: the id is [Endpoint.Service].
func (c *Counters) Owners() []*nft.Set { return c.owners }

// Endpoint is what an element with the meaning ToEndpoint stands for.
type Endpoint struct {
	netip.AddrPort
	// Frontend is the key of the frontend; empty where there is affinity, and Service is the number of the service port.
	Frontend nft.Value
	Service  uint32
}

// Endpoint returns what an element with the meaning ToEndpoint stands for.
func (c *Counters) Endpoint(e *nft.Element) (out Endpoint) {
	const index, proto = 4, 4
	out.AddrPort = e.Data.AsEndpoint(e.Set.Family)
	if c.sets[e.Set].affine {
		id := e.Key.Cut(proto, len(e.Key.Bytes()))
		out.Service = ServiceID(&id)
		return out
	}
	out.Frontend = e.Key.Cut(0, len(e.Key.Bytes())-index)
	return out
}

// ServiceID returns the number of a service port with affinity out of a register's value.
func ServiceID(v *nft.Value) uint32 { return v.AsUint32() & serviceBits }

// counted calls each for every set whose elements have counters.
func (l *layout) counted(each func(*nft.Set, role)) {
	each(l.unusedPorts, role{fixed: UnusedPort})
	each(l.serviceCIDRs, role{fixed: UnusedAddress})
	for i := range l.scopes {
		s := &l.scopes[i]
		each(s.classes, role{})
		each(s.shortCircuit, role{})
		each(s.local, role{})
		if s.restricted != nil {
			each(s.restricted, role{also: Allowed})
		}
	}
}

// countedEndpoints calls each for every set of endpoints.
func (l *layout) countedEndpoints(each func(*nft.Set, role)) {
	for i := range l.scopes {
		for _, s := range l.scopes[i].endpoints {
			each(s, role{fixed: ToEndpoint})
		}
	}
	for _, s := range l.backends {
		each(s, role{fixed: ToEndpoint, affine: true})
	}
}

// FrontendID returns how a frontend's elements show it: its family, and its key in the maps.
func FrontendID(k model.Key) (nft.Family, nft.Value) { return NFT(k.Family), value(&k) }
