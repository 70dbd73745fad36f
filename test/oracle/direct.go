package oracle

import corev1 "k8s.io/api/core/v1"

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
		slowStart(s) == 0 && len(portRanges(s)) == 0
}

// direct reports whether a claim has direct server return: a load-balancer or external IP, without SCTP and without
// hints that select endpoints near the node.
func (r *Oracle) direct(c claim, six bool) bool {
	if c.allocated || c.onNode || protocol(c.port.Protocol) == corev1.ProtocolSCTP || r.machine.LocalPod == nil {
		return false
	}
	_, near := hinted(ready(unique(r.listOf(key(c.service, c.port, six)))))
	return !near && r.wantsDirect(c.service)
}

// passes reports whether the node passes a packet for an endpoint on to the endpoint's node.
func (r *Oracle) passes(c claim, p Packet, e endpoint) bool {
	return r.direct(c, p.To.Addr().Is6()) && !e.local && !e.nodeless && !r.isLocalPod(p) && !r.isNode(p)
}
