package plan

import (
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// A region is a network with addresses for which the rules look: addresses of Services, addresses of this node that
// serve node ports, and ServiceCIDRs. The small hash set regions has all regions. Most packets on a node are to other
// networks, and need only the lookup in this set. A packet to another address in a region needs more lookups, with the
// same outcome.

// RegionsSet is the name of the set of regions.
const RegionsSet = "regions"

// regionBits are the lengths of the prefixes of regions. With 20 bits, the ServiceCIDR of kubeadm (a /12) has 256
// regions.
var regionBits = [...]int{inet.IPv4: 20, inet.IPv6: 64}

// mostRegions is the greatest number of regions of a ServiceCIDR. A larger ServiceCIDR, an IPv4 /7, has regions only
// where Services have addresses: packets to its other addresses are not dropped.
const mostRegions = 1 << 12

// inRegions: ip daddr & 255.255.240.0 @regions, or ip daddr & 255.255.240.0 != @regions
func (l *layout) inRegions(negate bool) []expr.Any {
	return l.inNetwork(l.regions, regionBits[l.family], negate)
}

// regionsIn adds the regions in a ServiceCIDR.
func (l *layout) regionsIn(cidr netip.Prefix, to *wants) {
	bits, n := regionBits[l.family], 1
	if cidr.Bits() < bits {
		n <<= min(bits-cidr.Bits(), 62) //nolint:mnd // an int has no more
	}
	if n > mostRegions {
		return
	}
	for at := cidr.Masked().Addr(); n > 0; n-- {
		to.inNetwork(l.regions, at, bits)
		at = model.RangeOf(netip.PrefixFrom(at, bits)).Last.Next()
	}
}
