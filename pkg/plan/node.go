package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// SetNodeAddresses sets the addresses of this node that serve the node ports of a family.
func (p *Planner) SetNodeAddresses(f inet.Family, addrs []netip.Addr) {
	l := p.rules.layouts[f]
	if l != nil && l.pingHost != nil {
		p.setNodeElements(l.pingHost, l.pingHosts(addrs))
	}
	if l == nil || p.rules.options.AnyNodeAddress[f] { // with AnyNodeAddress, no rule looks up the set
		return
	}
	var elements []nft.Element
	for _, a := range addrs {
		elements = append(elements, nft.Element{Set: l.nodeAddresses, Key: nft.Value{}.Addr(a)})
	}
	p.setNodeElements(l.nodeAddresses, elements)
	p.setRegions(l.nodeAddresses, l.regionsOf(addrs))
}

// SetServiceCIDRs sets the prefixes of a family from which the API server allocates cluster IPs. No prefix may contain another one. With RouteUnused,
// it sets none, because only the rule that drops packets to unused addresses depends on them.
func (p *Planner) SetServiceCIDRs(f inet.Family, cidrs []netip.Prefix) {
	l := p.rules.layouts[f]
	if l == nil || p.rules.options.RouteUnused {
		return
	}
	var elements []nft.Element
	for _, c := range cidrs {
		r := model.RangeOf(c)
		elements = append(elements, nft.Element{Set: l.serviceCIDRs, Key: nft.Value{}.Addr(r.First)})
		if next := r.Last.Next(); next.IsValid() {
			elements = append(elements, nft.Element{Set: l.serviceCIDRs, Key: nft.Value{}.Addr(next), IntervalEnd: true})
		}
	}
	p.setNodeElements(l.serviceCIDRs, elements)
	p.setRegions(l.serviceCIDRs, l.regionsIn(cidrs))
}

func (p *Planner) setNodeElements(s *nft.Set, elements []nft.Element) {
	for i := range p.nodeElements[s] {
		p.remove(p.nodeElements[s][i])
	}
	for i := range elements {
		p.put(elements[i])
	}
	p.nodeElements[s] = elements
}
