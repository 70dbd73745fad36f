package proxy

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// NodePortAddresses chooses the local addresses on which node ports are served (kube-proxy: --nodeport-addresses).
type NodePortAddresses struct {
	// Prefixes select local addresses. Primary adds the Node's primary address of each family, as an empty list of Prefixes does.
	Prefixes []netip.Prefix
	Primary  bool
	// Local lists the addresses of this node's interfaces.
	Local func() ([]netip.Addr, error)
}

// Any reports whether node ports are served on every local address of a family except loopback.
func (n NodePortAddresses) Any(f inet.Family) bool {
	return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool {
		return inet.FamilyOf(p.Addr()) == f && p.Bits() == 0
	})
}

// Loopback reports whether the list names loopback addresses of a family, and not only a range that has others too (kube-proxy:
// ContainsExplicitLoopback).
func (n NodePortAddresses) Loopback(f inet.Family) bool {
	return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool {
		return inet.FamilyOf(p.Addr()) == f && p.Masked().Addr().IsLoopback()
	})
}

// of lists the prefixes of a family, or none if every local address is meant. As with kube-proxy, that is also the case without a known
// primary address and without a prefix of the family.
func (n NodePortAddresses) of(f inet.Family, node model.Node) (list []netip.Prefix) {
	if n.Any(f) {
		return nil
	}
	for _, p := range n.Prefixes {
		if inet.FamilyOf(p.Addr()) == f {
			list = append(list, p)
		}
	}
	if a := node.IPs[f]; (n.Primary || len(n.Prefixes) == 0) && a.IsValid() && !a.IsLoopback() {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}

// everywhere reports whether every local address of a family is meant.
func (n NodePortAddresses) everywhere(f inet.Family, node model.Node) bool {
	return len(n.of(f, node)) == 0
}

// Addresses returns the addresses of a family on which node ports are served, sorted. All are addresses of this node's interfaces.
// As in kube-proxy, a primary address that no interface has yet is not included. It returns the error of n.Local.
func (n NodePortAddresses) Addresses(f inet.Family, node model.Node) ([]netip.Addr, error) {
	prefixes := n.of(f, node)
	local, err := n.Local()
	if err != nil {
		return nil, err
	}
	wanted := func(a netip.Addr) bool {
		return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	var out []netip.Addr
	for _, a := range local {
		if inet.FamilyOf(a) == f && !a.IsLoopback() && wanted(a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}
