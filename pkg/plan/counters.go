package plan

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
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
	sets map[*nft.Set]role
	list []*nft.Set
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
		p.layouts[f].counted(func(s *nft.Set, r role) {
			c.sets[s] = r
			c.list = append(c.list, s)
		})
	}
	return c
}

// Sets returns the sets to read: those of Examined before those of Allowed, so that what is dropped is never more than the
// difference of the two.
func (c *Counters) Sets() []*nft.Set { return c.list }

// Allows reports whether the elements of a set count what source ranges have allowed.
func (c *Counters) Allows(s *nft.Set) bool { return c.sets[s].also == Allowed }

// OfPort reports whether the elements of a set belong to a service port, and not to one of its frontends.
func (c *Counters) OfPort(s *nft.Set) bool { return c.sets[s].ofPort }

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

// FrontendID returns how a frontend's elements show it: its family, and its key in the maps.
func FrontendID(k model.Key) (inet.Family, nft.Value) { return k.Family, value(&k) }
