package oracle

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// The sentences of docs/dsr.md.

// wantsDirect reports whether a Service has direct server return, apart from properties of its ports and of the node.
// The own annotation precedes those of Cilium and Antrea, and these precede the default of the node.
func (r *Oracle) wantsDirect(s *corev1.Service) bool {
	mode := map[bool]string{true: "dsr"}[r.machine.DirectByDefault]
	for _, name := range []string{
		"service.antrea.io/load-balancer-mode", "service.cilium.io/forwarding-mode", "kube-nftproxy.io/forwarding-mode",
	} {
		if value, given := s.Annotations[name]; given {
			mode = value
		}
	}
	most, _ := maximum(s)
	return r.machine.DirectServerReturn && mode == "dsr" && !externalLocal(s) && affinity(s) == 0 && most == 0 &&
		slowStart(s) == 0 && len(portRanges(s)) == 0 && selector(s) == nil && !spreads(s)
}

// direct reports whether a claim has direct server return: a load-balancer or external IP other than the primary address
// of the node and the address of a pod, or a node port, if the networks of all nodes are known. It has no SCTP, and no
// hints that select endpoints near the node.
func (r *Oracle) direct(c claim, to netip.Addr) bool {
	at := !slices.Contains(r.primary, to) && !r.isPod(to)
	if c.onNode {
		at = slices.ContainsFunc(r.machine.NodeNetworks, func(p netip.Prefix) bool { return p.Addr().Is6() == to.Is6() })
	}
	return !c.allocated && !c.ofPod && at && r.permitsDirect(c.service, c.port, to.Is6())
}

// permitsDirect reports whether a port may have direct server return in a family, apart from the addresses.
func (r *Oracle) permitsDirect(s *corev1.Service, port *corev1.ServicePort, six bool) bool {
	if protocol(port.Protocol) == corev1.ProtocolSCTP || r.machine.LocalPod == nil ||
		!r.machine.Pods[0].IsValid() && r.hasExternalIP(s, six) {
		return false
	}
	_, near := hinted(ready(unique(r.listOf(key(s, port, six)))))
	return !near && r.wantsDirect(s)
}

// hashes reports whether Maglev replaces the random algorithm of a port, also at its cluster IP: if one of its
// addresses may have direct server return.
func (r *Oracle) hashes(c claim, six bool) bool {
	others := slices.Concat(clusterIPs(c.service), r.primary)
	balanced := exposes(c.service, corev1.ServiceTypeLoadBalancer) &&
		slices.ContainsFunc(balancerIPs(c.service), func(a netip.Addr) bool {
			return a.Is6() == six && !slices.Contains(others, a)
		})
	nodePort := c.port.NodePort != 0 && exposes(c.service, corev1.ServiceTypeNodePort) &&
		slices.ContainsFunc(r.machine.NodeNetworks, func(p netip.Prefix) bool { return p.Addr().Is6() == six })
	return !c.ofPod && (balanced || nodePort || r.hasExternalIP(c.service, six)) && r.permitsDirect(c.service, c.port, six)
}

// spreads reports whether the connections of a Service are spread (docs/stale-connections.md).
func spreads(s *corev1.Service) bool {
	n, err := strconv.Atoi(s.Annotations["kube-nftproxy.io/spread-connections"])
	_, hashed := algorithm(s, 0, false)
	return err == nil && n >= 5 && n <= 3600 && affinity(s) == 0 && !hashed &&
		s.Annotations["kube-nftproxy.io/terminate-connections"] == "gone"
}

// hasExternalIP reports whether a Service has an external IP of a family that is no other address of the Service or of the
// node.
func (r *Oracle) hasExternalIP(s *corev1.Service, six bool) bool {
	others := slices.Concat(clusterIPs(s), balancerIPs(s), r.primary)
	return !r.machine.IgnoreExternalIPs && slices.ContainsFunc(s.Spec.ExternalIPs, func(text string) bool {
		a, ok := usable(text)
		return ok && a.Is6() == six && !slices.Contains(others, a)
	})
}

func (r *Oracle) isPod(a netip.Addr) bool {
	return slices.ContainsFunc(r.machine.Pods[:], func(p netip.Prefix) bool { return p.Contains(a) })
}

// passes reports whether the node passes a packet for an endpoint on to the endpoint's node. Packets to a node port must
// be for an address in the networks of all nodes, and come from outside of these.
func (r *Oracle) passes(c claim, p Packet, e endpoint) bool {
	ofNode := func(a netip.Addr) bool {
		return slices.ContainsFunc(r.machine.NodeNetworks, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	intoNetworks := !c.onNode || ofNode(p.To.Addr()) && !ofNode(p.From)
	return r.direct(c, p.To.Addr()) && intoNetworks && !e.local && !e.nodeless && !r.isLocalPod(p) && !r.isNode(p)
}
