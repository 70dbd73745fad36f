package apply

import (
	"maps"
	"slices"
	"time"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// change is the difference between the objects in the kernel and the objects of the ledger. [Kernel.update] defines their order in the batch.
type change struct {
	// rules is true if the constant rules have changed. The sync then becomes a full sync.
	rules bool
	// chains are chains to add, with their rules.
	chains []chainName
	// del and add are elements. A replaced element is in both.
	del, add []*nft.Element
	// remade are sets to delete and to add again with all their elements, see [ledger.remake]. The elements of these sets are not in del and
	// add.
	remade []remade
	// forget are elements to delete if packets have added them.
	forget []nft.Element
	// unused are chains to delete.
	unused []chainName
}

// remade is a set to delete and to add again.
type remade struct {
	set *nft.Set
	// chains are the chains whose rules look up the set.
	chains   []*nft.Chain
	elements []nft.Element
}

func (c *change) empty() bool {
	return !c.rules && len(c.chains)+len(c.remade)+len(c.del)+len(c.add)+len(c.unused) == 0
}

// take returns the changes since the last call of take or track. If retained elements and chains are due, take retires them first.
func (l *ledger) take(now time.Time) *change {
	if l.isRetirementDue(now) {
		l.retire()
	}
	d := l.delta
	c := &change{rules: l.rulesChanged, chains: d.chains, unused: d.unused}
	c.del, c.add = d.elementsChanged()
	c.forget = slices.Collect(maps.Values(d.forget))
	l.remake(c)
	d.reset()
	return c
}

// fewRanges is the largest number of ranges of a set that a batch deletes one by one.
const fewRanges = 8

// remake moves the changes of some sets to c.remade.
//
// A set that is about to exceed its size is added again with a larger size. Kernels since 6.5 can raise the size of a set, but only after the
// commit. The hash table keeps its buckets: with a hundred times as many elements, a lookup takes a hundred times as long.
//
// A set of ranges (see hasRanges) is added again if the batch deletes more than fewRanges of them. The time to delete a range grows with the
// number of earlier ranges. To delete and add all ranges takes as long as a few hundred single deletions.
func (l *ledger) remake(c *change) {
	sets := l.grow(c.add)
	deleted := map[*nft.Set]int{}
	for _, e := range c.del {
		if hasRanges(e.Set) {
			if deleted[e.Set]++; deleted[e.Set] == fewRanges+1 {
				sets = append(sets, e.Set)
			}
		}
	}
	for _, s := range sets {
		l.remakeSet(c, s)
	}
}

// grow returns the sets to make larger, and stores their new sizes. If the batch adds elements, these are the sets that outgrow their sizes. Otherwise,
// these are the crowded sets. A large set is written in its own batch. A batch of the set and a large Service would delay the changes of other
// Services too long.
func (l *ledger) grow(added []*nft.Element) (sets []*nft.Set) {
	if len(added) == 0 {
		sets, l.crowded = slices.DeleteFunc(l.crowded, func(s *nft.Set) bool { return !l.crowds(s) }), nil
	}
	var last *nft.Set
	for _, e := range added {
		if e.Set == last {
			continue
		}
		last = e.Set
		switch {
		case slices.Contains(sets, last):
		case l.outgrows(last):
			sets = append(sets, last)
		case l.crowds(last) && !slices.Contains(l.crowded, last):
			l.crowded = append(l.crowded, last)
		}
	}
	for _, s := range sets {
		s.Size = sizeFor(l.counts[s])
	}
	return sets
}

// remakeSet moves the changes of a set to c.remade.
func (l *ledger) remakeSet(c *change, s *nft.Set) {
	of := func(e *nft.Element) bool { return e.Set == s }
	c.del, c.add = slices.DeleteFunc(c.del, of), slices.DeleteFunc(c.add, of)
	r := remade{set: s, elements: make([]nft.Element, 0, l.counts[s])}
	for _, t := range l.tables() {
		for _, chain := range t.Chains {
			if t.Family == s.Family && slices.ContainsFunc(chain.Rules, func(r nft.Rule) bool { return looksUp(r, s) }) {
				r.chains = append(r.chains, chain)
			}
		}
	}
	add := func(e *nft.Element) {
		if of(e) {
			r.elements = append(r.elements, *e)
		}
	}
	l.eachRetained(add)
	l.planner.Elements(add, s)
	c.remade = append(c.remade, r)
}

// hasRanges reports whether the elements of a set are ranges of several fields. The kernel takes very long to delete such an element.
func hasRanges(s *nft.Set) bool { return s.Interval && len(s.Key) > 1 }

// looksUp reports whether a rule looks up a set.
func looksUp(r nft.Rule, s *nft.Set) bool {
	return slices.ContainsFunc(r.Exprs, func(x expr.Any) bool {
		lookup, ok := x.(*expr.Lookup)
		return ok && lookup.SetName == s.Name
	})
}

// delta collects the changes between two calls of take. It has no change for an element that was added and deleted again, or deleted and added
// again with the same value.
type delta struct {
	elements map[nft.ID]*transition
	order    []*transition
	// room is memory for the next transitions, allocated for several at once.
	room []transition
	// chains are the chains to add, unused the chains to delete.
	chains, unused []chainName
	// forget are elements to delete if packets have added them.
	forget map[nft.ID]nft.Element
}

// transition has the earlier and the current value of an element. The zero element stands for none.
type transition struct{ was, is nft.Element }

func newDelta() *delta {
	return &delta{elements: map[nft.ID]*transition{}, forget: map[nft.ID]nft.Element{}}
}

// lasting is the number of elements up to which a delta keeps its memory for the next batch.
const lasting = 256

// reset removes all changes. It keeps the memory, unless there were many elements.
func (d *delta) reset() {
	if len(d.order) > lasting {
		*d = *newDelta()
		return
	}
	clear(d.elements)
	clear(d.order)
	clear(d.forget)
	*d = delta{elements: d.elements, order: d.order[:0], room: d.room, forget: d.forget}
}

func (d *delta) put(e *nft.Element) { d.touch(e, nft.Element{}).is = *e }

func (d *delta) remove(e *nft.Element) { d.touch(e, *e).is = nft.Element{} }

// touch returns the transition of an element. The first call for an element stores its earlier value.
func (d *delta) touch(e *nft.Element, was nft.Element) *transition {
	id := e.ID()
	t := d.elements[id]
	if t == nil {
		const atOnce = 32
		if len(d.room) == 0 {
			d.room = make([]transition, atOnce)
		}
		t, d.room = &d.room[0], d.room[1:]
		t.was = was
		d.elements[id] = t
		d.order = append(d.order, t)
	}
	return t
}

// elementsChanged returns the elements to delete and to add, in the order of their first change.
func (d *delta) elementsChanged() (del, add []*nft.Element) {
	if len(d.order) == 0 {
		return nil, nil
	}
	del, add = make([]*nft.Element, 0, len(d.order)), make([]*nft.Element, 0, len(d.order))
	for _, t := range d.order {
		if t.was == t.is {
			continue
		}
		if t.was.Set != nil {
			del = append(del, &t.was)
		}
		if t.is.Set != nil {
			add = append(add, &t.is)
		}
	}
	return del, add
}
