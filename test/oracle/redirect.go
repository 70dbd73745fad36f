package oracle

import (
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var serviceName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// settleRedirects: "While the other Service has a ready endpoint on this node, only its endpoints on this node serve
// the cluster IPs", for each port of a Service that has no other addresses (docs/vips.md). The other Service's own
// redirect does not count. "An existing UDP flow stays with its endpoint while this endpoint serves."
func (r *Oracle) settleRedirects() {
	own := maps.Clone(r.endpoints)
	for _, s := range r.services {
		name := s.Annotations["kube-nftproxy.io/local-redirect"]
		internal := s.Spec.Type == "" || s.Spec.Type == corev1.ServiceTypeClusterIP
		others := len(s.Spec.ExternalIPs) + len(s.Status.LoadBalancer.Ingress)
		if !serviceName.MatchString(name) || !internal || others > 0 {
			continue
		}
		other := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
		for i := range s.Spec.Ports {
			for _, six := range []bool{false, true} {
				here := only(own[key(other, &s.Spec.Ports[i], six)], func(e endpoint) bool { return e.local })
				for i := range here { // hints are for clients of the other Service
					e := &here[i]
					e.forSomeNode, e.forNode, e.forSomeZone, e.forZone = false, false, false, false
				}
				of := key(s, &s.Spec.Ports[i], six)
				if len(ready(here)) > 0 {
					r.endpoints[of] = append(here, passive(own[of])...)
				} else {
					r.endpoints[of] = slices.Concat(own[of], passive(here))
				}
			}
		}
	}
}

// passive returns endpoints without new connections.
func passive(list []endpoint) (out []endpoint) {
	for _, e := range list {
		e.passive, e.serving, e.ready, e.terminating = true, e.ready || e.serving, false, false
		out = append(out, e)
	}
	return out
}
