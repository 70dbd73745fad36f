package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// labelServiceProxyName is the label of Services of another proxy, with any value (KEP-2447).
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

func ours(s *corev1.Service) bool {
	_, others := s.Labels[labelServiceProxyName]
	return !others && s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone && len(clusterIPs(s)) > 0
}

// clusterIPs returns the cluster IPs of a Service, at most one of each family.
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

// usable parses an address that a Service can have.
func usable(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	bad := err != nil || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a == netip.MustParseAddr("255.255.255.255")
	return a, !bad
}

// has reports whether a list has an address of a's family.
func has(list []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
}

// readService adds a Service's claims. It does not serve a family without a cluster IP. If two of its own ports claim the same,
// the first one gets it. Of equal addresses, the load balancer's precedes the external IP, and that the cluster IP.
func (r *Oracle) readService(s *corev1.Service) {
	internal := clusterIPs(s)
	balancers := balancerIPs(s)
	if !r.here(s) {
		for _, a := range internal {
			r.inUse[a] = r.inUse[a] || len(s.Spec.Ports) > 0
		}
		return
	}
	own := ownAddresses(s)
	mine := map[target]bool{}
	var fronts []front
	for _, a := range balancers {
		if has(internal, a) && exposes(s, corev1.ServiceTypeLoadBalancer) {
			fronts = append(fronts, front{a, r.guard(claim{service: s, allocated: slices.Contains(internal, a), balanced: true}, a, own)})
		}
	}
	for _, text := range s.Spec.ExternalIPs {
		if a, ok := usable(text); ok && has(internal, a) && !r.machine.IgnoreExternalIPs {
			fronts = append(fronts, front{a, r.guard(claim{service: s, allocated: slices.Contains(internal, a)}, a, own)})
		}
	}
	for _, a := range internal {
		if !exposes(s, corev1.ServiceTypeClusterIP) {
			break
		}
		fronts = append(fronts, front{a, claim{service: s, internal: true, allocated: true}})
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		for _, f := range fronts {
			f.port = p
			r.claimTarget(mine, target{f.addr, uint16(p.Port), protocol(p.Protocol), f.addr.Is6()}, f.claim)
		}
		for _, a := range internal {
			r.inUse[a] = true
			r.affinities[key(s, p, a.Is6())] = affinity(s)
			if p.NodePort != 0 && exposes(s, corev1.ServiceTypeNodePort) {
				r.claimTarget(mine, target{port: uint16(p.NodePort), protocol: protocol(p.Protocol), six: a.Is6()}, r.guard(claim{service: s, port: p, onNode: true}, a, own))
			}
		}
	}
	r.readRanges(s, fronts)
}

// exposes reports whether a Service is served at addresses of a type; an annotation may name the only one.
func exposes(s *corev1.Service, t corev1.ServiceType) bool {
	only := corev1.ServiceType(s.Annotations["service.cilium.io/type"])
	all := only != corev1.ServiceTypeClusterIP && only != corev1.ServiceTypeNodePort && only != corev1.ServiceTypeLoadBalancer
	return all || only == t
}

// selector returns the selector of the nodes that serve a Service, or nil for all nodes.
func selector(s *corev1.Service) labels.Selector {
	if text, given := s.Annotations["service.cilium.io/node-selector"]; given {
		found, err := labels.Parse(text)
		if err != nil || len(text) > 1024 || strings.Count(text, ",") > 32 {
			return nil
		}
		return found
	}
	if value, given := s.Annotations["service.cilium.io/node"]; given {
		return labels.SelectorFromSet(labels.Set{"service.cilium.io/node": value})
	}
	return nil
}

// here reports whether this node serves a Service: an annotation may select nodes.
func (r *Oracle) here(s *corev1.Service) bool {
	of := selector(s)
	return of == nil || of.Matches(r.labels)
}

// front is an address of a Service, with the claim for each of its ports.
type front struct {
	addr netip.Addr
	claim
}

// claimTarget decides conflicts: an allocated cluster IP precedes an address of a load balancer, and that precedes an address
// from the Service's spec; then the older Service wins, then the first one by name.
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
	return c.older(d)
}

// older reports whether the object of a claim is older than that of another one, or the first by name.
func (c claim) older(d claim) bool {
	a, b := c.service, d.service
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name)) < 0
}

// settleClusterIPs: a cluster IP belongs to its Service alone, also its unused ports.
func (r *Oracle) settleClusterIPs() {
	for t, c := range r.claims {
		if r.inUse[t.addr] && !c.allocated {
			delete(r.claims, t)
		}
	}
	for at, list := range r.ranges {
		if r.inUse[at.addr] {
			r.ranges[at] = slices.DeleteFunc(list, func(c rangeClaim) bool { return !c.allocated })
		}
	}
}

// has reports whether a Service has a port at an address.
func (r *Oracle) has(s *corev1.Service, a netip.Addr) bool {
	for t, c := range r.claims {
		if t.addr == a && c.service == s {
			return true
		}
	}
	for at, list := range r.ranges {
		if at.addr == a && slices.ContainsFunc(list, func(c rangeClaim) bool { return c.service == s }) {
			return true
		}
	}
	return false
}

// balancerIPs returns the addresses that a load balancer leaves in packets.
func balancerIPs(s *corev1.Service) (list []netip.Addr) {
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		a, ok := usable(ingress.IP)
		if ok && (ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP) {
			list = append(list, a)
		}
	}
	return list
}

// externalLocal: the external policy applies to Services that are reachable from outside.
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
