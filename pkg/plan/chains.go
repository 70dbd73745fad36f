package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// use adds a user of a class at a step. The first user adds the element that leads to the chain of the class.
func (p *Planner) use(u use) {
	if u.constant() {
		return
	}
	n := p.uses[u]
	if p.uses[u] = n + 1; n == 0 {
		e := p.layouts[u.family].dispatchElement(u.step, u.class)
		p.put(&e)
	}
}

// drop removes a user of a class at a step. The last user removes the element that leads to the chain of the class.
func (p *Planner) drop(u use) {
	if u.constant() {
		return
	}
	n := p.uses[u] - 1
	if n > 0 {
		p.uses[u] = n
		return
	}
	delete(p.uses, u)
	e := p.layouts[u.family].dispatchElement(u.step, u.class)
	p.remove(&e)
}

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
	if !ok || (use{step: st, class: c}).constant() {
		return false, false
	}
	if c.kind >= kindAffinity && c.kind < kindPick {
		c.kind = kindOf(e.Key.AsUint32())
	}
	for u := range p.uses {
		wanted = wanted || u.family == l.family && u.step == st && u.number() == c.number()
	}
	return l.dispatchElement(st, c) == *e, wanted
}
