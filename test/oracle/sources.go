package oracle

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The annotations of docs/source-ranges.md.
const (
	annotationNodePorts   = "kube-nftproxy.io/node-port-source-ranges"
	annotationExternalIPs = "kube-nftproxy.io/external-ip-source-ranges"
	annotationDenied      = "kube-nftproxy.io/denied-source-ranges"
	annotationCilium      = "service.cilium.io/src-ranges-policy"
)

// The kinds of frontends with source ranges.
const (
	fromBalancer = iota
	fromExternalIP
	fromNodePort
)

// ownAddresses returns the addresses of a Service other than its cluster IPs, by kind.
func ownAddresses(s *corev1.Service) [3][]netip.Addr {
	own := [3][]netip.Addr{fromBalancer: balancerIPs(s)}
	for _, text := range s.Spec.ExternalIPs {
		if a, ok := usable(text); ok {
			own[fromExternalIP] = append(own[fromExternalIP], a)
		}
	}
	return own
}

// restricted reports whether a load-balancer or external IP of a Service has source ranges.
func (r *Oracle) restricted(s *corev1.Service, a netip.Addr) bool {
	own := ownAddresses(s)
	balanced := slices.Contains(own[fromBalancer], a)
	if !balanced && (r.machine.IgnoreExternalIPs || !slices.Contains(own[fromExternalIP], a)) {
		return false
	}
	c := r.guard(claim{service: s, balanced: balanced}, a, own)
	return c.sources != nil || c.denied != nil
}

// guard adds the source ranges to a claim of an address other than the cluster IP. own are the addresses of the Service by kind.
//
// Each kind of frontends has its list, and a list without a valid entry admits no source. Denied sources are never admitted. If a denied
// source cannot be read, no source is admitted.
func (r *Oracle) guard(c claim, to netip.Addr, own [3][]netip.Addr) claim {
	s := c.service
	balancers, denied := s.Spec.LoadBalancerSourceRanges, strings.Split(s.Annotations[annotationDenied], ",")
	policy, hasPolicy := s.Annotations[annotationCilium]
	if policy == "deny" {
		denied, balancers = append(denied, balancers...), nil
	}
	var all []netip.Addr
	for _, list := range own {
		all = append(all, list...)
	}
	for _, text := range denied {
		text = strings.TrimSpace(text)
		if _, err := netip.ParsePrefix(text); text != "" && err != nil {
			c.sources = []netip.Prefix{}
			return c
		}
	}
	c.denied, _ = r.list(denied, to, all)
	switch {
	case c.balanced && hasPolicy && policy != "deny" && policy != "allow":
		c.sources = []netip.Prefix{}
	case c.balanced:
		c.sources = r.admitted(balancers, to, own[fromBalancer])
	case c.onNode:
		c.sources = r.annotated(s, annotationNodePorts, to, own[fromNodePort])
	default:
		c.sources = r.annotated(s, annotationExternalIPs, to, own[fromExternalIP])
	}
	return c
}

// annotated reads the list of an annotation, which admits no source without a valid entry.
func (r *Oracle) annotated(s *corev1.Service, name string, to netip.Addr, own []netip.Addr) []netip.Prefix {
	text, given := s.Annotations[name]
	if !given {
		return nil
	}
	return r.admitted(append(strings.Split(text, ","), "none"), to, own)
}

// admitted returns the sources that a list admits; nil means all. A list that is given without a valid entry admits none, a list without an
// entry of the family, or with /0, all.
func (r *Oracle) admitted(texts []string, to netip.Addr, own []netip.Addr) []netip.Prefix {
	given := slices.ContainsFunc(texts, func(text string) bool { return strings.TrimSpace(text) != "" })
	list, readable := r.list(texts, to, own)
	switch {
	case given && !readable:
		return []netip.Prefix{}
	case slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Bits() == 0 }):
		return nil
	}
	return list
}

// list returns the valid entries of a family, and whether an entry of any family is valid. If a node is in one of them and has an address of the
// Service itself, its packets have that address as source.
func (r *Oracle) list(texts []string, to netip.Addr, own []netip.Addr) (list []netip.Prefix, readable bool) {
	node := false
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		readable = readable || err == nil
		if err == nil && p.Addr().Is4() == to.Is4() {
			list = append(list, p)
			node = node || slices.ContainsFunc(r.primary, p.Contains)
		}
	}
	for _, a := range own {
		if node {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return list, readable
}
