package plan

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// node is what the plan of a family depends on apart from Services.
type node struct {
	// addresses serve node ports. cidrs are the ServiceCIDRs.
	addresses []netip.Addr
	cidrs     []netip.Prefix
	// crowded are the service ports whose new clients are not remembered.
	crowded []Number
}

// SetNodeAddresses sets the addresses of this node that serve the node ports of a family.
func (p *Planner) SetNodeAddresses(f inet.Family, addrs []netip.Addr) {
	p.setNode(f, func(n *node) { n.addresses = slices.Clone(addrs) })
}

// SetServiceCIDRs sets the prefixes of a family from which the API server allocates cluster IPs. No prefix may contain
// another one.
func (p *Planner) SetServiceCIDRs(f inet.Family, cidrs []netip.Prefix) {
	p.setNode(f, func(n *node) { n.cidrs = slices.Clone(cidrs) })
}

// SetCrowded sets the service ports of a family whose new clients are not remembered. Clients that are remembered
// already stay with their endpoints.
func (p *Planner) SetCrowded(f inet.Family, ports []Number) {
	p.setNode(f, func(n *node) { n.crowded = slices.Clone(ports) })
}

func (p *Planner) setNode(f inet.Family, change func(*node)) {
	l, n := p.rules.layouts[f], &p.nodes[f]
	if l == nil {
		return
	}
	old := l.nodeElements(n)
	change(n)
	now := l.nodeElements(n)
	p.replace(&old, &now)
}

// nodeElements returns the elements that depend on no Service, apart from those that every plan has.
func (l *layout) nodeElements(n *node) (w wants) {
	if l.pingHost != nil {
		w.own = l.pingHosts(n.addresses)
	}
	if !l.anyNodeAddress { // otherwise, no rule looks up the set
		for _, a := range n.addresses {
			w.own = append(w.own, nft.Element{Set: l.nodeAddresses, Key: nft.Value{}.Addr(a)})
			w.vote(l.regions, networkKey(a, regionBits[l.family]))
		}
	}
	if !l.routeUnused { // otherwise, no rule drops packets to unused addresses
		for _, c := range n.cidrs {
			r := model.RangeOf(c)
			w.own = append(w.own, nft.Element{Set: l.serviceCIDRs, Key: nft.Value{}.Addr(r.First)})
			if next := r.Last.Next(); next.IsValid() {
				w.own = append(w.own, nft.Element{Set: l.serviceCIDRs, Key: nft.Value{}.Addr(next), IntervalEnd: true})
			}
			l.regionsIn(c, &w)
		}
	}
	for _, port := range n.crowded {
		w.own = append(w.own, nft.Element{Set: l.crowded, Key: nft.Value{}.Uint32(port.Number)})
	}
	return w
}
