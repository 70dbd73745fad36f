package plan

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// NoLocalEndpoints counts a family's service ports that have endpoints, but none on this node, although their internal or external traffic policy is
// Local (kube-proxy: sync_proxy_rules_no_local_endpoints_total).
func (p *Planner) NoLocalEndpoints(f inet.Family) (internal, external int) {
	return p.noLocal[f].internal, p.noLocal[f].external
}

// countNoLocal counts the ports of a Service. n is 1 for a Service that is added, -1 for a Service that is removed.
func (p *Planner) countNoLocal(s *service, n int) {
	if s == nil {
		return
	}
	for _, port := range s.ports {
		if !port.HasEndpoints || len(port.slots[listLocal]) > 0 {
			continue
		}
		internal, external := port.localPolicies()
		if internal {
			p.noLocal[port.Family].internal += n
		}
		if external {
			p.noLocal[port.Family].external += n
		}
	}
}

// localPolicies reports whether the internal and the external traffic policy of a port's frontends are Local.
func (p *port) localPolicies() (internal, external bool) {
	for i := range p.Frontends {
		f := &p.Frontends[i]
		internal = internal || f.Local && f.Kind == model.ClusterIP
		external = external || f.Local && f.Kind != model.ClusterIP
	}
	return internal, external
}
