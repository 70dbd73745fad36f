package model

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeOf returns what the proxy needs to know of the Node with the given name. The primary address of a family is the
// first internal IP, else the first external IP, of that family (kube-proxy: GetNodeHostIPs). Addresses that cannot
// be read are passed over. If node is nil, only the name is known.
func NodeOf(name string, node *corev1.Node) Node {
	n := Node{Name: name}
	if node == nil {
		return n
	}
	n.Zone = node.Labels[corev1.LabelTopologyZone]
	for _, kind := range [...]corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range node.Status.Addresses {
			if a.Type == kind {
				n.addIP(a.Address)
			}
		}
	}
	return n
}

// WithIP returns the node with addr as its primary address of addr's family, or the node as it is if addr is invalid.
func (n Node) WithIP(addr netip.Addr) Node {
	if addr.IsValid() {
		n.IPs[FamilyOf(addr)] = addr
	}
	return n
}

func (n *Node) addIP(s string) {
	addr, err := parseRaw(s)
	if err != nil {
		return
	}
	addr = addr.Unmap()
	if ip := &n.IPs[FamilyOf(addr)]; !ip.IsValid() && unusable(addr) == "" {
		*ip = addr
	}
}

// InternalIPs are all internal addresses of a Node that can be read, of both families.
func InternalIPs(node *corev1.Node) (list []netip.Addr) {
	for _, a := range node.Status.Addresses {
		if addr, err := parseRaw(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			list = append(list, addr.Unmap())
		}
	}
	return list
}

// LocalAddresses are the addresses of those endpoints of slices that are on the named node and can be read.
func LocalAddresses(epSlices []*discoveryv1.EndpointSlice, nodeName string) (list []netip.Addr) {
	for _, slice := range epSlices {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName == nil || *e.NodeName != nodeName || len(e.Addresses) == 0 {
				continue
			}
			if addr, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				list = append(list, addr)
			}
		}
	}
	return list
}

// PodCIDRs returns the first prefix of each family in a Node's spec.podCIDRs, from which the node's pods have their
// addresses (kube-proxy: detect-local-mode NodeCIDR). A family without one has the zero Prefix. What can't be read is left
// out and is one of the problems.
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
		if cidr := &cidrs[FamilyOf(prefix.Addr())]; !cidr.IsValid() {
			*cidr = prefix
		}
	}
	return cidrs, problems
}

// unusable says why no packet can be sent to an address as to one peer; it is empty where one can.
func unusable(addr netip.Addr) string {
	switch {
	case addr.IsUnspecified():
		return "is the unspecified address"
	case addr.IsMulticast():
		return "is a multicast address"
	case addr == broadcast:
		return "is the broadcast address"
	}
	return ""
}

// broadcast is the address of everybody on the link.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})
