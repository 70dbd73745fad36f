package proxy

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// NodePortAddresses chooses the local addresses on which node ports are served (kube-proxy: --nodeport-addresses).
type NodePortAddresses struct {
	// Prefixes select local addresses; empty stands for "primary".
	Prefixes []netip.Prefix
	// Local lists the addresses of this node's interfaces.
	Local func() ([]netip.Addr, error)
}

// Any reports whether node ports are served on every local address of a family except loopback.
func (n NodePortAddresses) Any(f model.Family) bool {
	return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool {
		return model.FamilyOf(p.Addr()) == f && p.Bits() == 0
	})
}

// everywhere reports whether health checks listen on all local addresses of a family. As in kube-proxy, this includes a family
// without a known primary address or without a prefix.
func (n NodePortAddresses) everywhere(f model.Family, node model.Node) bool {
	if len(n.Prefixes) == 0 {
		return !node.IPs[f].IsValid() || node.IPs[f].IsLoopback()
	}
	own := slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == f })
	return !own || n.Any(f)
}

// Addresses returns the addresses of a family on which node ports are served, sorted. All are addresses of this node's
// interfaces. As in kube-proxy, this excludes a primary address that no interface has yet. It returns the error of n.Local.
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
