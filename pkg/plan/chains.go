package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// ClassChain returns a chain of a class in a family's table, by the name of the chain. It returns nil for the name of any other chain.
func (p *Planner) ClassChain(f inet.Family, name string) *nft.Chain {
	c, ok := classOf(f, name)
	if !ok {
		return nil
	}
	return p.layouts[f].classChain(&p.options, c)
}

// LeadsToClass reports whether an element of a dispatch map leads to the chain of a class, and whether the plan has its
// key. Elements that every plan has do not count.
func (p *Planner) LeadsToClass(e *nft.Element) (leads, wanted bool) {
	if !e.Set.Verdict {
		return false, false
	}
	l := p.layouts[e.Set.Family]
	st := step(slices.Index(l.dispatch[:], e.Set))
	c, ok := classOf(l.family, e.Chain)
	if !ok {
		c, ok = classOfConstant(e.Chain)
	}
	if !ok || c.isFixed(st) {
		return false, false
	}
	if c.kind.hasRoute() {
		c.of = uint8(e.Key.AsUint32()&routeBits>>8) - 1 // the chain can be of several routes
	}
	return l.dispatchElement(st, c) == *e, p.classes.Has(e.ID())
}
