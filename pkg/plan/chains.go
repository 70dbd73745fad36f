package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Rules are the part of a plan that depends on no Service: the sets, the constant chains, and the chains of classes.
type Rules struct {
	options Options
	layouts [2]*layout
	// tables have the sets and the constant chains.
	tables [2]*nft.Table
	// changed is called after a change.
	changed func()
}

// Rules returns the rules of the plan. Only [Rules.SetLocalPods] changes them.
func (p *Planner) Rules() *Rules { return &p.rules }

// build builds the constant part of a family's table.
func (r *Rules) build(f inet.Family) { r.tables[f] = r.layouts[f].table(&r.options) }

// SetLocalPods changes the property by which the rules of a family recognise traffic of this node's pods.
func (r *Rules) SetLocalPods(f inet.Family, pods LocalPods) {
	if r.layouts[f] == nil || r.options.LocalPods[f] == pods {
		return
	}
	r.options.LocalPods[f] = pods
	r.build(f)
	r.changed()
}

// ClassChain returns a chain of a class in a family's table, by the name of the chain. It returns nil for the name of
// any other chain.
func (r *Rules) ClassChain(f inet.Family, name string) *nft.Chain {
	c, ok := classOf(f, name)
	if !ok || c.kind.direct() && !r.options.DirectReturn {
		return nil
	}
	return r.layouts[f].classChain(&r.options, c)
}

// LeadsToClass reports whether an element of a dispatch map is one that leads to the chain of a class, and that is in
// the plan only while a Service needs it.
func (r *Rules) LeadsToClass(e *nft.Element) bool {
	if !e.Set.Verdict {
		return false
	}
	l := r.layouts[e.Set.Family]
	st := step(slices.Index(l.dispatch[:], e.Set))
	c, ok := classOf(l.family, e.Chain)
	if !ok {
		c, ok = classOfConstant(e.Chain)
	}
	if !ok || c.isFixed(st) {
		return false
	}
	if c.kind.hasRoute() {
		c.of = uint8(e.Key.AsUint32()&routeBits>>8) - 1 // the chain can be of several routes
	}
	return l.dispatchElement(st, c) == *e
}
