package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// labelServiceProxyName is the label of Services that are another proxy's, whatever its value (KEP-2447).
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

func ours(s *corev1.Service) bool {
	_, others := s.Labels[labelServiceProxyName]
	return !others && s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone && len(clusterIPs(s)) > 0
}

// clusterIPs are those of a Service, one of each family at most.
func clusterIPs(s *corev1.Service) (list []netip.Addr) {
	texts := s.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{s.Spec.ClusterIP}
	}
	for _, text := range texts {
		if a, ok := usable(text); ok && !has(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// usable reads an address that can be a Service's.
func usable(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	bad := err != nil || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a == netip.MustParseAddr("255.255.255.255")
	return a, !bad
}

// has tells whether there is an address of a's family.
func has(list []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
}

// readService makes a Service's claims. A family in which it has no cluster IP it doesn't serve. Of two of its own ports
// that want the same, the first has it; of equal addresses, that of the load balancer goes first, then the external IP, then the cluster IP.
func (r *Oracle) readService(s *corev1.Service) {
	internal := clusterIPs(s)
	balancers := balancerIPs(s)
	mine := map[target]bool{}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		for _, a := range balancers {
			if has(internal, a) {
				r.claim(mine, a, p.Port, claim{service: s, port: p, allocated: slices.Contains(internal, a), balanced: true, sources: r.sources(s, a, balancers)})
			}
		}
		for _, text := range s.Spec.ExternalIPs {
			if a, ok := usable(text); ok && has(internal, a) && !r.machine.IgnoreExternalIPs {
				r.claim(mine, a, p.Port, claim{service: s, port: p, allocated: slices.Contains(internal, a)})
			}
		}
		for _, a := range internal {
			r.inUse[a] = true
			r.affinities[key(s, p, a.Is6())] = affinity(s)
			r.claim(mine, a, p.Port, claim{service: s, port: p, internal: true, allocated: true})
		}
		for _, a := range internal {
			if p.NodePort != 0 {
				r.claimTarget(mine, target{port: uint16(p.NodePort), protocol: protocol(p.Protocol), six: a.Is6()}, claim{service: s, port: p})
			}
		}
	}
}

func (r *Oracle) claim(mine map[target]bool, a netip.Addr, port int32, c claim) {
	r.claimTarget(mine, target{a, uint16(port), protocol(c.port.Protocol), a.Is6()}, c)
}

// claimTarget: a cluster IP, which is allocated, goes before an address that a load balancer has, and that before what anybody can
// write into a Service; then the older Service, then the one whose name comes first.
func (r *Oracle) claimTarget(mine map[target]bool, t target, c claim) {
	if mine[t] {
		return
	}
	mine[t] = true
	if other, taken := r.claims[t]; !taken || c.before(other) {
		r.claims[t] = c
	}
}

func (c claim) before(d claim) bool {
	for _, ahead := range [][2]bool{{c.allocated, d.allocated}, {c.balanced, d.balanced}} {
		if ahead[0] != ahead[1] {
			return ahead[0]
		}
	}
	a, b := c.service, d.service
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name)) < 0
}

// balancerIPs are the addresses to which a load balancer passes packets on unchanged.
func balancerIPs(s *corev1.Service) (list []netip.Addr) {
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		a, ok := usable(ingress.IP)
		if ok && (ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP) {
			list = append(list, a)
		}
	}
	return list
}

// sources are who may send to a load balancer's address; nil means everybody, and a list of which nothing can be read nobody. What a
// node that may sends to an address that it has itself, comes from that address.
func (r *Oracle) sources(s *corev1.Service, to netip.Addr, balancers []netip.Addr) (list []netip.Prefix) {
	node, readable, given := false, false, false
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		text = strings.TrimSpace(text)
		p, err := netip.ParsePrefix(text)
		readable, given = readable || err == nil, given || text != ""
		if err != nil || p.Addr().Is4() != to.Is4() {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		list = append(list, p)
		node = node || slices.ContainsFunc(r.primary, p.Contains)
	}
	if given && !readable {
		return []netip.Prefix{}
	}
	for _, a := range balancers {
		if node {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return list
}

// externalLocal: the external policy is that of Services that are open to the outside.
func externalLocal(s *corev1.Service) bool {
	open := s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer || len(s.Spec.ExternalIPs) > 0
	return open && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func affinity(s *corev1.Service) time.Duration {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

func protocol(p corev1.Protocol) corev1.Protocol { return cmp.Or(p, corev1.ProtocolTCP) }

// portName names a service port.
func portName(s *corev1.Service, p *corev1.ServicePort) string {
	return fmt.Sprintf("%s/%s:%s/%s", s.Namespace, s.Name, p.Name, strings.ToLower(string(protocol(p.Protocol))))
}

// key names a service port's endpoints of a family.
func key(s *corev1.Service, p *corev1.ServicePort, six bool) string {
	return fmt.Sprintf("%s six=%v", portName(s, p), six)
}
