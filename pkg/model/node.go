package model

import (
	"net/netip"

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
