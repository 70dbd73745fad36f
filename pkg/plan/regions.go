package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Two small hash sets have networks, so that packets to most addresses need a single lookup: networks in postrouting,
// and regions at first. A packet to another address of a network needs more lookups, with the same outcome. A network
// of IPv6 has the four bytes behind the first four of its /64: the kernel looks up keys of four bytes in half of the
// time that a longer key takes. Networks that differ only in the first four bytes share an element.
//
// A region is a network with addresses for which the rules look: addresses of Services, addresses of this node that
// serve node ports, and ServiceCIDRs. Most packets on a node are to other networks.

// RegionsSet is the name of the set of regions.
const RegionsSet = "regions"

// regionBits are the lengths of the prefixes of regions. With 20 bits, the ServiceCIDR of kubeadm (a /12) has 256
// regions.
var regionBits = [...]int{inet.IPv4: 20, inet.IPv6: 64}

// mostRegions is the greatest number of regions of a ServiceCIDR. A larger ServiceCIDR, an IPv4 /7, has regions only
// where Services have addresses: packets to its other addresses are not dropped.
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

// networkKey returns the key of the network of an address in a set of networks.
func networkKey(a netip.Addr, bits int) nft.Value {
	if a.Is6() {
		b := a.As16()
		return nft.Value{}.BigEndian(binary.BigEndian.Uint32(b[networkFrom:networkEnd]))
	}
	return nft.Value{}.Addr(netip.PrefixFrom(a, bits).Masked().Addr())
}

// inRegions: see [layout.inNetwork]
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
		to.vote(l.regions, networkKey(at, bits))
		at = model.RangeOf(netip.PrefixFrom(at, bits)).Last.Next()
	}
}
