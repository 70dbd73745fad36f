package plan

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
		Services: len(p.services), Conflicts: p.claims.conflicts(), NoLocal: p.noLocal,
		Freed: p.freed && len(p.waiting) > 0,
	}
	for _, f := range p.rules.options.Families {
		t.Next[f] = p.numbers[f].others.next
	}
	return t
}
