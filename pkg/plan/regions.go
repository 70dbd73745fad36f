package plan

import (
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// A region is a network with addresses for which the rules look: addresses of Services, addresses of this node that serve node ports, and
// ServiceCIDRs. The small hash set regions has all regions. Most packets on a node are to other networks, and need only the lookup in this set. A
// packet to another address in a region needs more lookups, with the same outcome.

// RegionsSet is the name of the set of regions.
const RegionsSet = "regions"

// regionBits are the lengths of the prefixes of regions. With 20 bits, the ServiceCIDR of kubeadm (a /12) has 256 regions.
var regionBits = [...]int{inet.IPv4: 20, inet.IPv6: 64}

// mostRegions is the greatest number of regions of a ServiceCIDR. A larger ServiceCIDR, an IPv4 /7, has regions only where Services have addresses: packets
// to its other addresses are not dropped.
const mostRegions = 1 << 12

// inRegions: ip daddr & 255.255.240.0 @regions, or ip daddr & 255.255.240.0 != @regions
func (l *layout) inRegions(negate bool) []expr.Any {
	return l.inNetwork(l.regions, regionBits[l.family], negate)
}

// region returns the element of the region of an address.
func (l *layout) region(a netip.Addr) nft.Element {
	return networkElement(l.regions, a, regionBits[l.family])
}

func (l *layout) regionsOf(addrs []netip.Addr) (list []nft.Element) {
	for _, a := range addrs {
		list = append(list, l.region(a))
	}
	return list
}

// regionsIn returns the elements of the regions in ServiceCIDRs.
func (l *layout) regionsIn(cidrs []netip.Prefix) (list []nft.Element) {
	bits := regionBits[l.family]
	for _, c := range cidrs {
		n := 1
		if c.Bits() < bits {
			n <<= min(bits-c.Bits(), 62) //nolint:mnd // an int has no more
		}
		if n > mostRegions {
			continue
		}
		for at := c.Masked().Addr(); n > 0; n-- {
			list = append(list, l.region(at))
			at = model.RangeOf(netip.PrefixFrom(at, bits)).Last.Next()
		}
	}
	return list
}

// setRegions sets the regions of the addresses or prefixes in a set that depends on no Service.
func (p *Planner) setRegions(of *nft.Set, regions []nft.Element) {
	voters := func(list []nft.Element) func(emit) {
		return func(to emit) {
			for i := range list {
				to.vote(list[i], 1, 0)
			}
		}
	}
	p.replace(voters(p.regions[of]), voters(regions))
	p.regions[of] = regions
}
