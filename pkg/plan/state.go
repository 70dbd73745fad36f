package plan

import (
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// put notes that an element is wanted which was not. It doesn't keep the element.
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

// share counts the elements that service ports have in common: n is 1 for a Service that comes, -1 for one that goes. The other is
// its other form, if there is one.
func (p *Planner) share(s, other *service, n int) {
	if s == nil {
		return
	}
	for _, port := range s.ports {
		p.layouts[port.family].shared(port, other.port(port.id()), func(e nft.Element) { p.shareElement(e, int32(n)) })
	}
}

func (p *Planner) shareElement(e nft.Element, n int32) {
	id := e.ID()
	s, shared := p.shared[id]
	if !shared {
		s.data = e.Data
		p.put(&e)
	}
	if s.users += n; s.users > 0 {
		p.shared[id] = s
		return
	}
	e.Data = s.data
	p.remove(&e)
	delete(p.shared, id)
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
				n.keepIDs(old.port(n.id()))
			}
		}
	}
}

// Take returns what has changed since the last call, or since [Planner.Track], and forgets it. It is what leads from the tables as they were then
// to [Planner.Tables] and [Planner.Elements].
func (p *Planner) Take() *Change {
	d := p.delta
	c := &Change{Grown: d.grown, Rules: d.rules, Unused: d.unused}
	for _, key := range d.chains {
		if _, ok := p.chains[key]; ok {
			c.Chains = append(c.Chains, Chain{key.family, p.layouts[key.family].classChain(&p.options, key.class)})
		}
	}
	c.Delete, c.Add = d.elementsChanged()
	for _, e := range c.Delete {
		if l := p.layouts[familyOf(e.Set)]; e.Set == l.clusterIPs {
			c.Forget = append(c.Forget, nft.Element{Set: l.unusedPorts, Key: e.Key})
		}
	}
	d.reset()
	return c
}

// Changed reports whether there is something for [Planner.Take] to return.
func (p *Planner) Changed() bool {
	d := p.delta
	return d != nil && (d.rules || len(d.elements)+len(d.chains)+len(d.unused)+len(d.grown) > 0)
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

// Track starts keeping track of changes: the kernel holds just what is wanted now.
func (p *Planner) Track() { p.delta = newDelta() }

// Elements calls f for every element that should be there; f must not keep or change it.
func (p *Planner) Elements(f func(*nft.Element)) {
	var room nft.Element // one for all: there may be a million
	each := func(e nft.Element) {
		room = e
		f(&room)
	}
	for _, fam := range p.options.Families {
		for _, e := range p.layouts[fam].fixed() {
			each(e)
		}
	}
	for u := range p.uses {
		each(p.layouts[u.family].dispatchElement(u.step, u.class))
	}
	for _, elements := range p.ranges {
		for _, e := range elements {
			each(e)
		}
	}
	for id, s := range p.shared {
		each(nft.Element{Set: id.Set, Key: id.Key, Data: s.data})
	}
	for _, list := range p.claims {
		c := &list.winner
		l := p.layouts[c.port.family]
		l.head(c.port, c.frontend, each)
		for ls := range lists {
			s := &p.slots[0]
			s.fill(l, c, ls)
			for i, e := range s.endpoints() {
				f(s.at(i, e))
			}
		}
	}
}

// Conflicts counts the claims that another Service has won.
func (p *Planner) Conflicts() int { return p.losers }

// State returns the element that tells a later process what a family's table holds: the form of the table, and a digest
// of its elements that doesn't depend on their order.
func (p *Planner) State(nf nft.Family) *nft.Element {
	f := ofNFT(nf)
	return &nft.Element{
		Set: p.layouts[f].state, Key: nft.Value{}.Uint32(1),
		Comment: fmt.Sprintf(stateComment, p.layout[f], p.digests[f]),
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
	b = append(b, nft.CutComment(e.Comment)...) // as it is read back
	return xxhash.Sum64(b)
}

// fingerprint is a hash of everything in a table that isn't an element, with one chain of every kind of class.
func (l *layout) fingerprint(o *Options) uint64 {
	return nft.Fingerprint(l.sample(o))
}
