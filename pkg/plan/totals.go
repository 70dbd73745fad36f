package plan

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Totals are numbers of the whole plan.
type Totals struct {
	// Services and Conflicts are the numbers of planned Services, and of frontends that a Service claims and another
	// Service has.
	Services, Conflicts int
	// NoLocal has the numbers of each family's service ports without local endpoints.
	NoLocal [2]NoLocal
	// Next is the number at which a family starts its next search for a free number for service ports that are not
	// affine.
	Next [2]uint32
	// Freed is true if a Service that waits for room may have room since the last call of [Planner.TakeWaiting].
	Freed bool
}

// NoLocal counts a family's service ports that have endpoints, but none on this node, although their internal or
// external traffic policy is Local (kube-proxy: sync_proxy_rules_no_local_endpoints_total).
type NoLocal struct{ Internal, External int }

// Totals returns the numbers of the plan.
func (p *Planner) Totals() Totals {
	t := Totals{
		Services: len(p.services), Conflicts: p.claims.conflicts(), NoLocal: p.noLocal, Freed: p.freed && len(p.waiting) > 0,
	}
	for _, f := range p.rules.options.Families {
		t.Next[f] = p.numbers[f].others.next
	}
	return t
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
			p.noLocal[port.Family].Internal += n
		}
		if external {
			p.noLocal[port.Family].External += n
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
