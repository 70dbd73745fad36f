package proxy

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// NodePortAddresses chooses the local addresses on which node ports are served (kube-proxy: --nodeport-addresses).
type NodePortAddresses struct {
	// Prefixes are those from which local addresses are taken; empty stands for "primary".
	Prefixes []netip.Prefix
	// Local lists the addresses of this node's interfaces.
	Local func() ([]netip.Addr, error)
}

// Any reports whether every local address of a family but loopback is meant.
func (n NodePortAddresses) Any(f model.Family) bool {
	return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool {
		return model.FamilyOf(p.Addr()) == f && p.Bits() == 0
	})
}

// everywhere reports whether every local address of a family is meant, as with kube-proxy: also without a known primary
// address, and without a prefix of the family.
func (n NodePortAddresses) everywhere(f model.Family, node model.Node) bool {
	if len(n.Prefixes) == 0 {
		return !node.IPs[f].IsValid() || node.IPs[f].IsLoopback()
	}
	own := slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == f })
	return !own || n.Any(f)
}

// Addresses lists the addresses of a family on which node ports are served, sorted. All are addresses of this node's interfaces: as with
// kube-proxy, a primary address that no interface has is none of them until one has it. It returns the error of n.Local.
func (n NodePortAddresses) Addresses(f model.Family, node model.Node) ([]netip.Addr, error) {
	everywhere := n.everywhere(f, node)
	local, err := n.Local()
	if err != nil {
		return nil, err
	}
	wanted := func(a netip.Addr) bool {
		if everywhere || len(n.Prefixes) == 0 {
			return everywhere || a == node.IPs[f]
		}
		return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	var out []netip.Addr
	for _, a := range local {
		if model.FamilyOf(a) == f && !a.IsLoopback() && wanted(a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}
