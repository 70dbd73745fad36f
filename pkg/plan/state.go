package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// put notes that an element is wanted which was not.
func (p *Planner) put(e *nft.Element) {
	f := familyOf(e.Set)
	p.digests[f] += digest(e)
	p.counts[e.Set]++
	if p.delta != nil {
		p.delta.put(e)
		p.grow(e.Set)
	}
}

// remove notes that an element is not wanted any more.
func (p *Planner) remove(e *nft.Element) {
	f := familyOf(e.Set)
	p.digests[f] -= digest(e)
	p.counts[e.Set]--
	if p.delta != nil {
		p.delta.remove(e)
	}
}

func familyOf(s *nft.Set) model.Family { return ofNFT(s.Family) }

func ofNFT(f nft.Family) model.Family {
	if f == nft.IPv4 {
		return model.IPv4
	}
	return model.IPv6
}

// NFT returns nftables' number of a family.
func NFT(f model.Family) nft.Family {
	if f == model.IPv4 {
		return nft.IPv4
	}
	return nft.IPv6
}

// share counts the elements that service ports have in common: n is 1 for a Service that comes, -1 for one that goes.
func (p *Planner) share(s *service, n int) {
	if s == nil {
		return
	}
	for _, port := range s.ports {
		for _, e := range p.layouts[port.family].shared(port) {
			p.shareElement(e, n)
		}
	}
}

func (p *Planner) shareElement(e *nft.Element, n int) {
	id := e.ID()
	s := p.shared[id]
	if s == nil {
		s = &sharedElement{element: e}
		p.shared[id] = s
	}
	before := s.users
	s.users += n
	switch {
	case before == 0 && s.users > 0:
		p.put(s.element)
	case before > 0 && s.users == 0:
		p.remove(s.element)
		delete(p.shared, id)
	}
}

// releaseIDs gives back the numbers that a Service has used and doesn't need any more.
func (p *Planner) releaseIDs(old, now *service) {
	if old != nil {
		for _, o := range old.ports {
			if o.ids != nil && now.port(o.id()).ids == nil {
				p.ids[o.family].release(o.id())
			}
		}
	}
	if now != nil {
		for _, n := range now.ports {
			if n.ids != nil {
				n.ids.keep(n.lists[:]...)
			}
		}
	}
}

// use notes that a class is chosen at a step; its chain is made if it isn't there.
func (p *Planner) use(u use) {
	n, dispatched := p.uses[u]
	p.uses[u] = n + 1
	if dispatched {
		return
	}
	key := classKey{u.family, u.class}
	chain, exists := p.chains[key]
	if !exists && p.delta != nil {
		p.delta.addChain(key)
	}
	p.chains[key] = chain + 1
	p.put(p.layouts[u.family].dispatchElement(u.step, u.class))
}

// drop notes that a class is chosen at a step once less. Its chain stays until [Planner.Retire].
func (p *Planner) drop(u use) { p.uses[u]-- }

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
	return len(p.leftovers) > 0
}

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
			delete(p.uses, u)
			p.chains[classKey{u.family, u.class}]--
			p.remove(p.layouts[u.family].dispatchElement(u.step, u.class))
		}
	}
}

// LeftOver notes chains that were found in the kernel and that nothing leads to; [Planner.Retire] gives them up.
func (p *Planner) LeftOver(f nft.Family, names []string) {
	for _, name := range names {
		p.leftovers = append(p.leftovers, Chain{ofNFT(f), &nft.Chain{Name: name}})
	}
}

// SetNodeAddresses sets the addresses of this node on which node ports of a family are served.
func (p *Planner) SetNodeAddresses(f model.Family, addrs []netip.Addr) {
	l := p.layouts[f]
	if l == nil {
		return
	}
	var elements []*nft.Element
	for _, a := range addrs {
		elements = append(elements, &nft.Element{Set: l.nodeAddresses, Key: nft.Value{}.Addr(a)})
	}
	p.setRange(l.nodeAddresses, elements)
}

// SetServiceCIDRs sets the prefixes of a family from which service addresses come. None may contain another.
func (p *Planner) SetServiceCIDRs(f model.Family, cidrs []netip.Prefix) {
	l := p.layouts[f]
	if l == nil {
		return
	}
	var elements []*nft.Element
	for _, c := range cidrs {
		elements = append(elements, &nft.Element{Set: l.serviceCIDRs, Key: nft.Value{}.Addr(c.Masked().Addr())})
		if next := last(c).Next(); next.IsValid() {
			elements = append(elements, &nft.Element{Set: l.serviceCIDRs, Key: nft.Value{}.Addr(next), IntervalEnd: true})
		}
	}
	p.setRange(l.serviceCIDRs, elements)
}

func (p *Planner) setRange(s *nft.Set, elements []*nft.Element) {
	for _, e := range p.ranges[s] {
		p.remove(e)
	}
	for _, e := range elements {
		p.put(e)
	}
	p.ranges[s] = elements
}

// grow raises a set's size before it fills up.
func (p *Planner) grow(s *nft.Set) {
	if s.Size == 0 || s.Dynamic || p.counts[s] <= int(s.Size/4*3) {
		return
	}
	s.Size *= 4
	if !slices.Contains(p.delta.grown, s) {
		p.delta.grown = append(p.delta.grown, s)
	}
}

// Fit sets the size of every set to what its elements need, with room for as many again; for a kernel that is about to
// make them anew.
func (p *Planner) Fit() {
	for s, n := range p.counts {
		if s.Size == 0 || s.Dynamic {
			continue
		}
		s.Size = minimumSize
		for int(s.Size) < 2*n {
			s.Size *= 2
		}
	}
}

// Take returns what has changed since the last call, or since [Planner.Track], and forgets it. It is what leads from the tables as they were then
// to [Planner.Tables] and [Planner.Elements].
func (p *Planner) Take() *Change {
	d := p.delta
	p.delta = newDelta()
	c := &Change{Grown: d.grown, Unused: d.unused}
	for _, key := range d.chains {
		if _, ok := p.chains[key]; ok {
			c.Chains = append(c.Chains, Chain{key.family, p.layouts[key.family].classChain(&p.options, key.class)})
		}
	}
	c.Delete, c.Add = d.elementsChanged()
	return c
}

// Changed reports whether there is something for [Planner.Take] to return.
func (p *Planner) Changed() bool {
	d := p.delta
	return d != nil && len(d.elements)+len(d.chains)+len(d.unused)+len(d.grown) > 0
}

// LeftOvers counts the chains of a family that were found in the kernel and await [Planner.Retire].
func (p *Planner) LeftOvers(f nft.Family) int {
	n := 0
	for _, c := range p.leftovers {
		if c.Family == ofNFT(f) {
			n++
		}
	}
	return n
}

// Tables returns the tables as they should be, without elements.
func (p *Planner) Tables() []*nft.Table {
	var out []*nft.Table
	for _, f := range p.options.Families {
		t := *p.tables[f]
		t.Chains = slices.Clip(t.Chains)
		var classes []class
		for key := range p.chains {
			if key.family == f {
				classes = append(classes, key.class)
			}
		}
		slices.SortFunc(classes, class.compare)
		for _, c := range classes {
			t.Chains = append(t.Chains, p.layouts[f].classChain(&p.options, c))
		}
		out = append(out, &t)
	}
	return out
}

// Untrack stops keeping track of changes, because what the kernel holds isn't known: the tables will be compared or written
// as a whole.
func (p *Planner) Untrack() { p.delta = nil }

// Prune lets go of chains that nothing leads to, all at once. Only a planner that doesn't keep track can: the kernel's tables
// are about to be written anew.
func (p *Planner) Prune() {
	p.leftovers = nil
	p.retireUses()
	for key, dispatched := range p.chains {
		if dispatched == 0 {
			delete(p.chains, key)
		}
	}
}

// Track starts keeping track of changes: the kernel holds just what is wanted now.
func (p *Planner) Track() { p.delta = newDelta() }

// Elements calls f for every element that should be there; f must not keep or change it.
func (p *Planner) Elements(f func(*nft.Element)) {
	for _, fam := range p.options.Families {
		for _, e := range p.layouts[fam].fixed() {
			f(e)
		}
	}
	for u := range p.uses {
		f(p.layouts[u.family].dispatchElement(u.step, u.class))
	}
	for _, elements := range p.ranges {
		for _, e := range elements {
			f(e)
		}
	}
	for _, s := range p.shared {
		f(s.element)
	}
	for _, list := range p.claims {
		p.claimElements(&list[0], f)
	}
}

func (p *Planner) claimElements(c *claim, f func(*nft.Element)) {
	l := p.layouts[c.port.family]
	elements, _ := l.head(c.port, c.frontend)
	for _, e := range elements {
		f(e)
	}
	for ls := range lists {
		for i := range p.slots(c, ls) {
			f(l.slot(c.port, c.frontend, ls, i))
		}
	}
}

// Count returns the number of elements that a set should have.
func (p *Planner) Count(s *nft.Set) int { return p.counts[s] }

// Conflicts counts the claims that another Service has won.
func (p *Planner) Conflicts() int { return p.losers }

// State returns the element that tells a later process what a family's table holds: the form of the table, and a digest
// of its elements that doesn't depend on their order.
func (p *Planner) State(nf nft.Family) *nft.Element {
	f := ofNFT(nf)
	return &nft.Element{
		Set: p.layouts[f].state, Key: nft.Value{}.Uint32(1),
		Comment: fmt.Sprintf("layout %016x digest %016x", p.layout[f], p.digests[f]),
	}
}

// digest is a hash of all that makes up an element. Digests of elements are added up.
func digest(e *nft.Element) uint64 {
	var room [256]byte
	b := append(room[:0], e.Set.Name...)
	b = append(b, 0, byte(len(e.Key.Bytes())))
	b = append(b, e.Key.Bytes()...)
	b = append(b, byte(len(e.KeyEnd.Bytes())))
	b = append(b, e.KeyEnd.Bytes()...)
	if e.IntervalEnd || e.Jump {
		b = append(b, 1)
	}
	b = append(b, byte(len(e.Data.Bytes())))
	b = append(b, e.Data.Bytes()...)
	b = append(b, e.Chain...)
	b = append(b, 0)
	b = append(b, e.Comment...)
	return xxhash.Sum64(b)
}

// fingerprint is a hash of everything in a table that isn't an element, with one chain of every kind of class.
func (l *layout) fingerprint(o *Options) uint64 {
	t := *l.table(o)
	for _, c := range l.samples() {
		t.Chains = append(t.Chains, l.classChain(o, c))
	}
	return nft.Fingerprint(&t)
}

// EachCount calls f with the number of elements of each of a family's sets that is not filled by rules.
func (p *Planner) EachCount(f model.Family, each func(s *nft.Set, n int)) {
	for _, s := range p.tables[f].Sets {
		if !s.Dynamic && s.Name != StateSet {
			each(s, p.counts[s])
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
