package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// The sentences of docs/dsr.md.

// wantsDirect reports whether a Service has direct server return, apart from properties of its ports and of the node.
// The own annotation precedes those of Cilium and Antrea.
func (r *Oracle) wantsDirect(s *corev1.Service) bool {
	mode := ""
	for _, name := range []string{
		"service.antrea.io/load-balancer-mode", "service.cilium.io/forwarding-mode", "kube-nftproxy.io/forwarding-mode",
	} {
		if value, given := s.Annotations[name]; given {
			mode = value
		}
	}
	most, _ := maximum(s)
	return r.machine.DirectServerReturn && mode == "dsr" && !externalLocal(s) && affinity(s) == 0 && most == 0 &&
		slowStart(s) == 0 && len(portRanges(s)) == 0 && selector(s) == nil
}

// direct reports whether a claim has direct server return: a load-balancer or external IP other than the primary address
// of the node and the address of a pod, or a node port, if the networks of all nodes are known. It has no SCTP, and no
// hints that select endpoints near the node.
func (r *Oracle) direct(c claim, to netip.Addr) bool {
	at := !slices.Contains(r.primary, to) && !r.isPod(to)
	if c.onNode {
		at = slices.ContainsFunc(r.machine.NodeNetworks, func(p netip.Prefix) bool { return p.Addr().Is6() == to.Is6() })
	}
	if c.allocated || !at || protocol(c.port.Protocol) == corev1.ProtocolSCTP || r.machine.LocalPod == nil {
		return false
	}
	if !r.machine.Pods[0].IsValid() && r.hasExternalIP(c.service, to.Is6()) {
		return false
	}
	_, near := hinted(ready(unique(r.listOf(key(c.service, c.port, to.Is6())))))
	return !near && r.wantsDirect(c.service)
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
