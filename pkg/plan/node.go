package plan

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// node is what the plan of a family depends on apart from Services.
type node struct {
	// addresses serve node ports. networks are those of all nodes, and cidrs the ServiceCIDRs.
	addresses       []netip.Addr
	networks, cidrs []netip.Prefix
	// crowded are the service ports whose new clients are not remembered.
	crowded []Number
}

// inNetworks reports whether an address is in the networks of all nodes.
func (n *node) inNetworks(a netip.Addr) bool {
	return slices.ContainsFunc(n.networks, func(p netip.Prefix) bool { return p.Contains(a) })
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
		l.prefixes(l.serviceCIDRs, n.cidrs, &w)
	}
	if l.dsr.nodes != nil {
		l.prefixes(l.dsr.nodes, n.networks, &w)
	}
	for _, port := range n.crowded {
		w.own = append(w.own, nft.Element{Set: l.crowded, Key: nft.Value{}.Uint32(port.Number)})
	}
	return w
}

// prefixes adds the elements of prefixes in a set of ranges, and their regions.
func (l *layout) prefixes(s *nft.Set, list []netip.Prefix, to *wants) {
	for _, p := range list {
		r := model.RangeOf(p)
		to.own = append(to.own, nft.Element{Set: s, Key: nft.Value{}.Addr(r.First)})
		if next := r.Last.Next(); next.IsValid() {
			to.own = append(to.own, nft.Element{Set: s, Key: nft.Value{}.Addr(next), IntervalEnd: true})
		}
		l.regionsIn(p, to)
	}
}

// Two small hash sets have networks, so that packets to most addresses need a single lookup: networks in postrouting,
// and regions at first. A packet to another address of a network needs more lookups, with the same outcome. A network
// of IPv6 has the four bytes behind the first four of its /64: the kernel looks up keys of four bytes in half of the
// time that a longer key takes. Networks that differ only in the first four bytes share an element.
//
// A region is a network with addresses for which the rules look: addresses of Services, addresses of this node that
// serve node ports, ServiceCIDRs, and the networks of all nodes. Most packets on a node are to other networks.

// RegionsSet is the name of the set of regions.
const RegionsSet = "regions"

// regionBits are the lengths of the prefixes of regions. With 20 bits, the ServiceCIDR of kubeadm (a /12) has 256
// regions.
var regionBits = [...]int{inet.IPv4: 20, inet.IPv6: 64}

// mostRegions is the greatest number of regions of a ServiceCIDR. A larger ServiceCIDR, an IPv4 /7, has regions only
// where Services have addresses: packets to its other addresses are not dropped. No network of nodes is larger, see
// [model.ParseNodeNetworks].
const mostRegions = 1 << 12

// networkBits are the lengths of the prefixes in the set networks. Pods of another node usually have another prefix.
var networkBits = [...]int{inet.IPv4: 24, inet.IPv6: 64}

// The bytes from networkFrom to networkEnd are those of an IPv6 address that stand for its network. networkOffset is
// their offset in the header, in which the destination begins at 24.
const (
	networkFrom, networkEnd = 4, 8
	networkOffset           = 24 + networkFrom
)

// networkField is the field of a destination in the sets of networks.
func (l *layout) networkField() nft.Field {
	if l.family == inet.IPv6 {
		return nft.Network(networkOffset, networkEnd-networkFrom)
	}
	return nft.DstAddr(l.family)
}

// inNetwork: ip daddr & MASK @set, or @nh,224,32 @set for IPv6; with negate != before the set
func (l *layout) inNetwork(s *nft.Set, bits int, negate bool) []expr.Any {
	words := key(l.networkField())
	if l.family == inet.IPv4 {
		words = append(words, masked(reg, l.family.AddrLen(), bits))
	}
	return append(words, loadedIn(s, negate))
}

// inRegions: see [layout.inNetwork]
func (l *layout) inRegions(negate bool) []expr.Any {
	return l.inNetwork(l.regions, regionBits[l.family], negate)
}

// regionsIn adds the regions in a prefix.
func (l *layout) regionsIn(cidr netip.Prefix, to *wants) {
	bits, n := regionBits[l.family], 1
	if cidr.Bits() < bits {
		n <<= min(bits-cidr.Bits(), 62) //nolint:mnd // an int has no more
	}
	if n > mostRegions {
		return
	}
	for at := cidr.Masked().Addr(); n > 0; n-- {
		to.vote(l.regions, networkKey(at, bits))
		at = model.RangeOf(netip.PrefixFrom(at, bits)).Last.Next()
	}
}
