package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// use notes that one more chooses a class at a step.
func (p *Planner) use(u use) {
	if !u.kind.numbered() {
		return // its chain is constant
	}
	n := p.uses[u]
	if p.uses[u] = n + 1; n == 0 {
		e := p.layouts[u.family].dispatchElement(u.step, u.class)
		p.put(&e)
	}
}

// drop notes that one less chooses a class at a step.
func (p *Planner) drop(u use) {
	if !u.kind.numbered() {
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

// ClassChain returns the chain of a class in a family's table, by its name; nil if no class that has a chain of its own has this name.
func (p *Planner) ClassChain(f inet.Family, name string) *nft.Chain {
	c, ok := classOf(name)
	if !ok {
		return nil
	}
	return p.layouts[f].classChain(&p.options, c)
}

// LeadsToClass reports whether an element is one of those that lead to a class with a chain of its own, and whether an element with its key
// is wanted.
func (p *Planner) LeadsToClass(e *nft.Element) (leads, wanted bool) {
	l := p.layouts[e.Set.Family]
	c, ok := classOf(e.Chain)
	st := step(slices.Index(l.dispatch[:], e.Set))
	if !ok || !e.Set.Verdict {
		return false, false
	}
	switch word := e.Key.AsUint32(); {
	case c.kind >= kindRemember:
		c.block = blockOf(word)
	case c.kind >= kindDirect && c.kind < kindPick:
		c.kind = kindOf(word)
	}
	for u := range p.uses {
		wanted = wanted || u.family == l.family && u.step == st && u.number() == c.number()
	}
	return l.dispatchElement(st, c) == *e, wanted
}
