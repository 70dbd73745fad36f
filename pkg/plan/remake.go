package plan

import (
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// fewRanges is the number of source ranges that are deleted one by one.
const fewRanges = 8

// remake moves the changes of some sets from c.Delete and c.Add to c.Remade.
//
// A set that is about to exceed its size gets a new one. Kernels since 6.5 would raise the size of a set, but only after the commit, and the
// hash table keeps its buckets: a lookup takes a hundred times as long where there are a hundred times as many elements.
//
// The kernel deletes a source range in a time that grows with the number of ranges that were added before it. It deletes and adds all ranges
// in the time of some hundred deletions.
func (p *Planner) remake(c *Change) {
	for _, s := range p.delta.grown {
		s.Size = sizeFor(p.counts[s])
		p.remakeSet(c, s, p.Elements)
	}
	for _, l := range p.layouts {
		if l == nil {
			continue
		}
		deleted := 0
		for _, e := range c.Delete {
			if e.Set == l.allowedSources {
				deleted++
			}
		}
		if deleted > fewRanges {
			p.remakeSet(c, l.allowedSources, l.eachSource(p.services))
		}
	}
}

// remakeSet moves the changes of a set to c.Remade. The function each calls another one for all elements of the set, and perhaps for others.
func (p *Planner) remakeSet(c *Change, s *nft.Set, each func(func(*nft.Element))) {
	of := func(e *nft.Element) bool { return e.Set == s }
	c.Delete, c.Add = slices.DeleteFunc(c.Delete, of), slices.DeleteFunc(c.Add, of)
	r := Remade{Set: s, Elements: make([]nft.Element, 0, p.counts[s])}
	for _, t := range p.Tables() {
		for _, chain := range t.Chains {
			if t.Family == s.Family && slices.ContainsFunc(chain.Rules, func(r nft.Rule) bool { return looksUp(r, s) }) {
				r.Chains = append(r.Chains, Chain{ofNFT(s.Family), chain})
			}
		}
	}
	each(func(e *nft.Element) {
		if of(e) {
			r.Elements = append(r.Elements, *e)
		}
	})
	c.Remade = append(c.Remade, r)
}

// looksUp reports whether a rule looks up a set.
func looksUp(r nft.Rule, s *nft.Set) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
		lookup, ok := e.(*expr.Lookup)
		return ok && lookup.SetName == s.Name
	})
}
