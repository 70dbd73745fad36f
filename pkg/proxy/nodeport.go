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

// Addresses lists the addresses of a family on which node ports are served, sorted. Without a known primary address, or
// without a prefix of the family, kube-proxy serves every local address: so do we.
func (n NodePortAddresses) Addresses(f model.Family, node model.Node) ([]netip.Addr, error) {
	if len(n.Prefixes) == 0 && node.IPs[f].IsValid() && !node.IPs[f].IsLoopback() {
		return []netip.Addr{node.IPs[f]}, nil
	}
	local, err := n.Local()
	if err != nil {
		return nil, err
	}
	own := slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == f })
	var out []netip.Addr
	for _, a := range local {
		inside := func(p netip.Prefix) bool { return p.Contains(a) }
		if model.FamilyOf(a) == f && !a.IsLoopback() && (!own || slices.ContainsFunc(n.Prefixes, inside)) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}
