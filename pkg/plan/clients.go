package plan

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// owners are the Services of some service ports, by a number of the service port.
type owners[K comparable] struct {
	names map[K]types.NamespacedName
	// changed are the service ports that may have got or lost their Service since the last call of take.
	changed map[K]struct{}
}

func newOwners[K comparable]() owners[K] {
	return owners[K]{names: map[K]types.NamespacedName{}, changed: map[K]struct{}{}}
}

// note records that a service port belongs to a Service, or does not any more.
func (o *owners[K]) note(port K, service types.NamespacedName, present bool) {
	o.changed[port] = struct{}{}
	if present {
		o.names[port] = service
	} else if o.names[port] == service {
		delete(o.names, port)
	}
}

// take calls each for the service ports in changed. The name is the zero name if the service port has no Service any
// more.
func (o *owners[K]) take(each func(K, types.NamespacedName)) {
	for port := range o.changed {
		each(port, o.names[port])
	}
	clear(o.changed)
}

// TakeSticky returns the service ports that began or stopped to remember clients since the last call. The name is that
// of the Service, or the zero name if the service port stopped.
func (p *Planner) TakeSticky() map[Number]types.NamespacedName {
	changed := make(map[Number]types.NamespacedName, len(p.sticky.changed))
	p.sticky.take(func(port Number, service types.NamespacedName) { changed[port] = service })
	return changed
}

// SetCrowded sets the service ports of a family whose new clients are not remembered. Clients that are remembered
// already stay with their endpoints.
func (p *Planner) SetCrowded(f inet.Family, ports []Number) {
	l, list := p.rules.layouts[f], make([]nft.Element, 0, len(ports))
	for _, port := range ports {
		list = append(list, nft.Element{Set: l.crowded, Key: nft.Value{}.Uint32(port.number)})
	}
	p.setNodeElements(l.crowded, list)
}

// NumberOfClient returns the service port of a remembered client, an element of a map [AffinitySet].
func NumberOfClient(e *nft.Element) Number {
	return Number{e.Set.Family, e.Key.AsUint32() & affineBits}
}
