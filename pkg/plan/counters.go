package plan

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Each element that decides the outcome of a connection has a counter. The rules see only the first packet of a connection, so the counter counts
// new connections. The set and the class of the element give the meaning of the count. If the class changes, the element is replaced, and the
// count of the new element starts at 0.

// Meaning is the outcome of the connections that an element's counter has counted.
type Meaning uint8

// The meanings. At most one element on the path of a connection has a meaning from Forwarded to UnusedAddress, its outcome. Others may have a
// meaning from Examined on.
const (
	// Silent: the elements of the set have no counters.
	Silent Meaning = iota
	// Forwarded: translated to an endpoint.
	Forwarded
	// NoEndpoints: refused, because there is no endpoint.
	NoEndpoints
	// NoLocalEndpoints: dropped, because the policy is Local and no endpoint is on this node, or because no number was left for the service port.
	NoLocalEndpoints
	// UnusedPort: refused, because the destination is a cluster IP, on a port that the Service does not have.
	UnusedPort
	// UnusedAddress: the destination is an address of a ServiceCIDR that no Service has. Dropped, unless it is an address of this node.
	UnusedAddress
	// Examined: the firewall looked the source up in loadBalancerSourceRanges. The connections that are not also among Allowed were dropped.
	Examined
	// Allowed: the source was in loadBalancerSourceRanges.
	Allowed
	// Arrived: at a frontend with the external policy Local. Another element, of the service port, counts the outcome.
	Arrived
	// Meanings is the number of meanings.
	Meanings
)

// Meaning returns the meaning of an element's counter. An element of services-restricted has a second meaning, otherwise also is Silent.
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

// Counters gives the meanings of the counters of a planner's elements. It is immutable, and any goroutine may use it.
type Counters struct {
	sets map[*nft.Set]role
	list []*nft.Set
}

// role has the properties that all elements of a set have in common.
type role struct {
	// fixed is their meaning if it does not depend on their class, else Silent. also is a second meaning.
	fixed, also Meaning
	// ofPort is true if they belong to a service port, and not to one of its frontends.
	ofPort bool
}

// Counters returns the meanings of the counters.
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

// Sets returns the sets to read, in this order: those of Examined before those of Allowed. So the difference of the two is never more than the
// number of connections that the firewall has dropped.
func (c *Counters) Sets() []*nft.Set { return c.list }

// Allows reports whether the elements of a set count connections that source ranges have allowed.
func (c *Counters) Allows(s *nft.Set) bool { return c.sets[s].also == Allowed }

// OfPort reports whether the elements of a set belong to a service port, and not to one of its frontends.
func (c *Counters) OfPort(s *nft.Set) bool { return c.sets[s].ofPort }

// counted calls each for every set whose elements have counters, in the order of [Counters.Sets].
func (l *layout) counted(each func(*nft.Set, role)) {
	each(l.unusedPorts, role{fixed: UnusedPort})
	each(l.serviceCIDRs, role{fixed: UnusedAddress})
	each(l.services, role{})
	each(l.nodePorts, role{})
	each(l.shortCircuit, role{ofPort: true})
	each(l.local, role{ofPort: true})
	each(l.restricted, role{also: Allowed})
}

// FrontendID returns the family of a frontend, and its key in the maps.
func FrontendID(k model.Key) (inet.Family, nft.Value) { return k.Family, value(&k) }
