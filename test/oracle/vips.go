package oracle

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The sentences of docs/vips.md.

// outside returns the load-balancer and external IPs of a Service that are not its cluster IPs.
func (r *Oracle) outside(s *corev1.Service) (list []netip.Addr) {
	all := balancerIPs(s)
	for _, text := range s.Spec.ExternalIPs {
		if a, ok := usable(text); ok && !r.machine.IgnoreExternalIPs {
			all = append(all, a)
		}
	}
	for _, a := range all {
		if internal := clusterIPs(s); has(internal, a) && !slices.Contains(internal, a) {
			list = append(list, a)
		}
	}
	return list
}

// refuses: "An unused port of a load-balancer or external IP is refused", with its exceptions. A Service without a port
// at the address does not count.
func (r *Oracle) refuses(p Packet) bool {
	flag, to := r.machine.RefuseUnusedPorts, p.To.Addr()
	if flag == "" || flag == "cluster" || p.Protocol == "" || r.isOwn(to) {
		return false
	}
	all := flag == "all"
	if all && (p.Device == "" || r.machine.Out(to) != p.Device) {
		return false
	}
	if !all && !slices.ContainsFunc(strings.Split(flag, ","), func(c string) bool { return netip.MustParsePrefix(c).Contains(to) }) {
		return false
	}
	wanted := false
	for _, s := range r.services {
		if !r.has(s, to) || !slices.Contains(r.outside(s), to) {
			continue
		}
		text, given := s.Annotations["kube-nftproxy.io/refuse-unused-ports"]
		whole := s.Annotations["networking.cozystack.io/wholeIP"] == "true"
		if given && text != "true" || !given && (whole || all && s.Spec.LoadBalancerClass != nil) {
			return false
		}
		wanted = true
	}
	return wanted
}

// echoes: "An address answers echo requests", with its exceptions.
func (r *Oracle) echoes(p Packet) bool {
	flag, to := r.machine.AnswerPing, p.To.Addr()
	if flag == "" || flag == "none" || p.Protocol != "" || r.isOwn(to) || !r.hasOwn(to) {
		return false
	}
	answers := false
	for _, s := range r.services {
		internal, outside := slices.Contains(clusterIPs(s), to), slices.Contains(r.outside(s), to)
		if !r.has(s, to) || !internal && !outside {
			continue
		}
		how, given := s.Annotations["kube-nftproxy.io/answer-ping"]
		if !given {
			how = flag
			if outside && s.Spec.LoadBalancerClass != nil || r.restricted(s, to) {
				how = "annotated"
			}
		}
		switch how {
		case "always":
			answers = true
		case "ready":
			answers = answers || r.reachable(s, to)
		case "annotated":
		default:
			return false
		}
	}
	return answers
}

// reachable reports whether a connection from outside to a port of a Service's address reaches an endpoint.
func (r *Oracle) reachable(s *corev1.Service, to netip.Addr) bool {
	var claims []claim
	for t, c := range r.claims {
		if t.addr == to {
			claims = append(claims, c)
		}
	}
	for at, list := range r.ranges {
		for _, c := range list {
			if at.addr == to {
				claims = append(claims, c.claim)
			}
		}
	}
	for _, c := range claims {
		if c.service != s {
			continue
		}
		all, onNode := r.choose(r.listOf(key(c.service, c.port, to.Is6())))
		local := externalLocal(s)
		if c.internal {
			policy := s.Spec.InternalTrafficPolicy
			local = policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal
		}
		if local && len(onNode) > 0 || !local && len(all) > 0 {
			return true
		}
	}
	return false
}

// hasOwn reports whether this node has an address of the family of an address.
func (r *Oracle) hasOwn(like netip.Addr) bool {
	return slices.ContainsFunc(r.machine.Addresses, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
}
