package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// use notes that a class is chosen at a step; its chain is made if it isn't there.
func (p *Planner) use(u use) {
	if !u.kind.numbered() {
		return // its chain is always there
	}
	n, dispatched := p.uses[u]
	p.uses[u] = n + 1
	if dispatched {
		return
	}
	if u.kind >= kindRemember {
		p.releaseBlock(u)
	}
	key := classKey{u.family, u.ofChain()}
	chain, exists := p.chains[key]
	if !exists && p.delta != nil {
		p.delta.addChain(key)
	}
	p.chains[key] = chain + 1
	e := p.layouts[u.family].dispatchElement(u.step, u.class)
	p.put(&e)
}

// releaseBlock takes away what leads from a block of numbers to the chain of another timeout: the block has been empty.
func (p *Planner) releaseBlock(now use) {
	for u := range p.uses {
		if u.family == now.family && u.kind >= kindRemember && u.block == now.block && u.n != now.n {
			p.retireUse(u)
		}
	}
}

// drop notes that a class is chosen at a step once less. Its chain stays until [Planner.Retire].
func (p *Planner) drop(u use) {
	if u.kind.numbered() {
		p.uses[u]--
	}
}

// Unused reports whether there are chains that nothing needs any more.
func (p *Planner) Unused() bool {
	for _, n := range p.uses {
		if n == 0 {
			return true
		}
	}
	for _, dispatched := range p.chains {
		if dispatched == 0 {
			return true
		}
	}
	return p.HasLeftOvers()
}

// HasLeftOvers reports whether there are chains that a rewrite has left behind, see [Planner.LeftOver].
func (p *Planner) HasLeftOvers() bool { return len(p.leftovers) > 0 }

// Retire gives up chains that nothing needs any more, in two steps that must be a second apart: the first call takes away
// what leads to them, the next one the chains, because kernels before 6.2 hold on to a chain for a while after the last
// element that led there has gone. What it does comes out of the next [Planner.Take].
func (p *Planner) Retire() {
	for key, dispatched := range p.chains {
		if dispatched == 0 {
			delete(p.chains, key)
			p.delta.removeChain(Chain{key.family, p.layouts[key.family].classChain(&p.options, key.class)}, key)
		}
	}
	p.delta.unused = append(p.delta.unused, slices.DeleteFunc(p.leftovers, p.inUse)...)
	p.leftovers = nil
	p.retireUses()
}

// inUse tells whether a class's chain has the name of one that was found in the kernel.
func (p *Planner) inUse(c Chain) bool {
	for key := range p.chains {
		if key.family == c.Family && key.chain() == c.Name {
			return true
		}
	}
	return false
}

// retireUses takes away what leads to chains at steps at which nothing chooses them.
func (p *Planner) retireUses() {
	for u, n := range p.uses {
		if n == 0 {
			p.retireUse(u)
		}
	}
}

func (p *Planner) retireUse(u use) {
	delete(p.uses, u)
	p.chains[classKey{u.family, u.ofChain()}]--
	e := p.layouts[u.family].dispatchElement(u.step, u.class)
	p.remove(&e)
}

// LeftOver notes chains that were found in the kernel and that nothing leads to; [Planner.Retire] gives them up.
func (p *Planner) LeftOver(f nft.Family, names []string) {
	for _, name := range names {
		p.leftovers = append(p.leftovers, Chain{ofNFT(f), &nft.Chain{Name: name}})
	}
}

// LeftOvers counts the chains of a family that were found in the kernel, that nothing has needed again, and that await
// [Planner.Retire].
func (p *Planner) LeftOvers(f nft.Family) int {
	n := 0
	for _, c := range p.leftovers {
		if c.Family == ofNFT(f) && !p.inUse(c) {
			n++
		}
	}
	return n
}

// ForgetLeftOvers forgets the chains of [Planner.LeftOver]: a rewrite is about to delete them, or to leave them behind once more.
func (p *Planner) ForgetLeftOvers() { p.leftovers = nil }

// Prune lets go of chains that nothing leads to, all at once. Only a planner that does not keep track can: the kernel's tables
// are about to be rewritten.
func (p *Planner) Prune() {
	p.ForgetLeftOvers()
	p.retireUses()
	for key, dispatched := range p.chains {
		if dispatched == 0 {
			delete(p.chains, key)
		}
	}
}

// ClassChains returns the number of a family's chains that are there for a number of endpoints or a timeout.
func (p *Planner) ClassChains(f model.Family) int {
	n := 0
	for key := range p.chains {
		if key.family == f {
			n++
		}
	}
	return n
}

// Dispatches lists the maps of a family by which classes choose their chains.
func (p *Planner) Dispatches(f nft.Family) []*nft.Set { return p.layouts[ofNFT(f)].dispatch[:] }

// FoundDispatch takes note of an element of such a map that is in the kernel though nothing wants it: an earlier process
// ended before it could retire the class. It will be retired. Only a planner that doesn't keep track can take note.
func (p *Planner) FoundDispatch(e *nft.Element) {
	l := p.layouts[familyOf(e.Set)]
	c, ok := classOf(e.Chain)
	switch word := e.Key.AsUint32(); {
	case c.kind >= kindRemember:
		c.block = blockOf(word)
	case c.kind >= kindDirect && c.kind < kindPick:
		c.kind = kindOf(word)
	}
	u := use{l.family, step(slices.Index(l.dispatch[:], e.Set)), c}
	if _, known := p.uses[u]; known || !ok || l.dispatchElement(u.step, u.class) != *e {
		return
	}
	p.uses[u] = 0
	p.chains[classKey{u.family, c.ofChain()}]++
	p.put(e)
}

// FoundChain does the same for the chain of a class to which nothing leads any more.
func (p *Planner) FoundChain(f nft.Family, name string) {
	c, ok := classOf(name)
	key := classKey{ofNFT(f), c}
	leftOver := func(l Chain) bool { return l.Family == key.family && l.Name == name }
	if !ok || slices.ContainsFunc(p.leftovers, leftOver) {
		return // a chain that was left over has no rules any more
	}
	if p.chains[key] == 0 {
		p.chains[key] = 0
	}
}
