package plan

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Owned is a property of service ports whose Services the planner reports, see [Planner.TakeOwners].
type Owned uint8

const (
	// Holding: the service port holds packets.
	Holding Owned = iota
	// Remembering: the service port remembers clients.
	Remembering
	owned
)

// owners are the Services of the service ports with a property.
type owners struct {
	names map[Number]types.NamespacedName
	// changed are the service ports that may have got or lost their Service since the last call of TakeOwners.
	changed map[Number]struct{}
}

func newOwners() owners {
	return owners{names: map[Number]types.NamespacedName{}, changed: map[Number]struct{}{}}
}

// note records that a service port belongs to a Service, or does not any more.
func (o *owners) note(port Number, service types.NamespacedName, present bool) {
	o.changed[port] = struct{}{}
	if present {
		o.names[port] = service
	} else if o.names[port] == service {
		delete(o.names, port)
	}
}

// TakeOwners returns the service ports that got or lost a property since the last call. The name is that of the
// Service, or the zero name if the service port lost the property.
func (p *Planner) TakeOwners(of Owned) map[Number]types.NamespacedName {
	o := &p.owners[of]
	taken := make(map[Number]types.NamespacedName, len(o.changed))
	for port := range o.changed {
		taken[port] = o.names[port]
	}
	clear(o.changed)
	return taken
}

// NumberOfClient returns the service port of a remembered client, an element of a map [AffinitySet].
func NumberOfClient(e *nft.Element) Number {
	return Number{e.Set.Family, e.Key.AsUint32() & affineBits}
}
