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

// Addresses lists the addresses of a family on which node ports are served, sorted.
func (n NodePortAddresses) Addresses(f model.Family, node model.Node) ([]netip.Addr, error) {
	everywhere := n.everywhere(f, node)
	if len(n.Prefixes) == 0 && !everywhere {
		return []netip.Addr{node.IPs[f]}, nil
	}
	local, err := n.Local()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range local {
		inside := func(p netip.Prefix) bool { return p.Contains(a) }
		if model.FamilyOf(a) == f && !a.IsLoopback() && (everywhere || slices.ContainsFunc(n.Prefixes, inside)) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}
