package model

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// NodeOf returns the model of the named Node. The primary address of a family is its first internal IP or, without one,
// its first external IP (kube-proxy: GetNodeHostIPs). Invalid addresses are ignored. If node is nil, only the name is
// set.
func NodeOf(name string, node *corev1.Node) Node {
	n := Node{Name: name}
	if node == nil {
		return n
	}
	n.Zone, n.Labels = node.Labels[corev1.LabelTopologyZone], labels.Set(node.Labels).String()
	for _, kind := range [...]corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			if a.Type == kind {
				n.addIP(a.Address)
			}
		}
	}
	return n
}

// labels returns the labels of the node.
func (n Node) labels() labels.Set {
	set, _ := labels.ConvertSelectorToLabelsMap(n.Labels) // the API server has checked them
	return set
}

// WithIP returns the node with addr as the primary address of its family. If addr is invalid, the node is unchanged.
func (n Node) WithIP(addr netip.Addr) Node {
	if addr.IsValid() {
		n.IPs[inet.FamilyOf(addr)] = addr
	}
	return n
}

func (n *Node) addIP(s string) {
	addr, err := parseRaw(s)
	if err != nil {
		return
	}
	addr = addr.Unmap()
	none := addr.IsUnspecified() || addr.IsMulticast() || addr == broadcast
	if ip := &n.IPs[inet.FamilyOf(addr)]; !ip.IsValid() && !none {
		*ip = addr
	}
}

// InternalIPs returns the valid internal addresses of a Node, of both families.
func InternalIPs(node *corev1.Node) (list []netip.Addr) {
	for _, a := range node.Status.Addresses {
		if addr, err := parseRaw(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			list = append(list, addr.Unmap())
		}
	}
	return list
}

// Addresses returns the addresses of the endpoints of slices, ready or not. If a node is named, only its endpoints
// count.
func Addresses(slices []*Slice, node string) (list []netip.Addr) {
	for _, s := range slices {
		for i := range s.Endpoints {
			if node == "" || s.Endpoints[i].Node() == node {
				list = append(list, s.Endpoints[i].Addr)
			}
		}
	}
	return list
}

// PodCIDRs returns the first prefix of each family in a Node's spec.podCIDRs (kube-proxy: detect-local-mode NodeCIDR).
// A family without a prefix has the zero Prefix. An invalid prefix is left out and becomes a problem.
func PodCIDRs(node *corev1.Node) (cidrs [2]netip.Prefix, problems []Problem) {
	for i, s := range node.Spec.PodCIDRs {
		prefix, err := parsePrefix(s)
		if err != nil {
			problems = append(problems, Problem{
				Kind: "Node", Name: types.NamespacedName{Name: node.Name},
				Field: index("spec.podCIDRs", i), Reason: quoted(s, err.Error()),
			})
			continue
		}
		if cidr := &cidrs[inet.FamilyOf(prefix.Addr())]; !cidr.IsValid() {
			*cidr = prefix
		}
	}
	return cidrs, problems
}

// NodePortAddresses chooses the local addresses on which node ports are served (kube-proxy: --nodeport-addresses).
type NodePortAddresses struct {
	// Prefixes select local addresses. Primary, or an empty list of Prefixes, selects the Node's primary address of
	// each family.
	Prefixes []netip.Prefix
	Primary  bool
	// Local lists the addresses of this node's interfaces.
	Local func() ([]netip.Addr, error)
}

// Any reports whether Prefixes selects every address of a family, regardless of the Node. The rules
// never serve node ports on loopback (see pkg/beside/loopback).
func (n NodePortAddresses) Any(f inet.Family) bool {
	return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool {
		return inet.FamilyOf(p.Addr()) == f && p.Bits() == 0
	})
}

// Loopback reports whether a prefix of a family begins with a loopback address (kube-proxy: ContainsExplicitLoopback).
// A larger range that contains loopback addresses, such as 0.0.0.0/0, is not enough.
func (n NodePortAddresses) Loopback(f inet.Family) bool {
	return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool {
		return inet.FamilyOf(p.Addr()) == f && p.Masked().Addr().IsLoopback()
	})
}

// of returns the prefixes of a family that select addresses. It returns none if every local address serves node ports.
// As in kube-proxy, this also applies to a family that has no prefix, and whose primary address is unknown or not
// selected.
func (n NodePortAddresses) of(f inet.Family, node Node) (list []netip.Prefix) {
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

// Everywhere reports whether every local address of a family, except loopback, serves node ports.
func (n NodePortAddresses) Everywhere(f inet.Family, node Node) bool {
	return len(n.of(f, node)) == 0
}

// Fallback reports whether every local address of a family serves node ports only because the Node's primary address,
// which should serve them, is unknown.
func (n NodePortAddresses) Fallback(f inet.Family, node Node) bool {
	return (n.Primary || len(n.Prefixes) == 0) && !n.Any(f) && n.Everywhere(f, node)
}

// Addresses returns the addresses of a family on which node ports are served, sorted. All are addresses of this node's
// interfaces. As in kube-proxy, a primary address that no interface has yet is not included. It returns the error of
// n.Local.
func (n NodePortAddresses) Addresses(f inet.Family, node Node) ([]netip.Addr, error) {
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
