package apply

import (
	"slices"
	"time"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// change is the difference between the objects in the kernel and the objects of the ledger. [Kernel.update] defines
// their order in the batch.
type change struct {
	// rules is true if the constant rules have changed. The sync then becomes a full sync.
	rules bool
	// elements are the changed elements, in the order of their first change, and at are their indexes.
	elements []transition
	at       map[nft.ID]int
	// chains are chains to add, with their rules. unused are chains to delete.
	chains, unused []chainName
	// forget are elements to delete if packets have added them.
	forget map[nft.ID]nft.Element
	// remade are sets to delete and to add again with all their elements, see [ledger.remake]. elements then has none
	// of these elements.
	remade []*nft.Set
}

// transition has the element that the kernel has and the wanted element. The zero element stands for none.
type transition struct{ was, is nft.Element }

func newChange() *change { return &change{at: map[nft.ID]int{}, forget: map[nft.ID]nft.Element{}} }

func (c *change) empty() bool {
	return !c.rules && len(c.elements)+len(c.chains)+len(c.unused)+len(c.remade) == 0
}

// take returns the changes since the last call of take or track. If retained elements and chains are due, take retires
// them first. The result has no element that was added and deleted again, or deleted and added again with the same
// value.
func (l *ledger) take(now time.Time) *change {
	if !l.retireAt.IsZero() && !now.Before(l.retireAt) {
		l.retire()
	}
	c := l.change
	l.change = newChange()
	c.elements = slices.DeleteFunc(c.elements, func(t transition) bool { return t.was == t.is })
	if l.chooseRemade(c); len(c.remade) > 0 {
		c.elements = slices.DeleteFunc(c.elements, func(t transition) bool {
			return slices.Contains(c.remade, t.was.Set) || slices.Contains(c.remade, t.is.Set)
		})
	}
	return c
}

// fewRanges is the largest number of ranges of a set that a batch deletes one by one.
const fewRanges = 8

// chooseRemade chooses the sets to delete and to add again, and stores their new sizes.
//
// A set that is about to exceed its size gets a larger size. Kernels since 6.5 can raise the size of a set, but only
// after the commit. The hash table keeps its buckets: with a hundred times as many elements, a lookup takes a hundred
// times as long. A set with more than largeSet elements gets the size largeSize in a batch that adds no elements: a
// batch of the set and a large Service would delay the changes of other Services too long.
//
// A set of ranges (see hasRanges) is added again if the batch deletes more than fewRanges of them. The time to delete a
// range grows with the number of earlier ranges. To delete and add all ranges takes as long as a few hundred single
// deletions.
func (l *ledger) chooseRemade(c *change) {
	ranges, adds := map[*nft.Set]int{}, false
	for i := range c.elements {
		was, s := c.elements[i].was.Set, c.elements[i].is.Set
		if was != nil && hasRanges(was) {
			if ranges[was]++; ranges[was] == fewRanges+1 {
				c.remade = append(c.remade, was)
			}
		}
		if adds = adds || s != nil; s == nil || s.Size == 0 || s.Dynamic {
			continue
		}
		switch n := l.counts[s]; {
		case n > int(s.Size/4*3):
			s.Size = sizeFor(n)
			c.remade = append(c.remade, s)
		case n > largeSet && s.Size < largeSize && !slices.Contains(l.toGrow, s):
			l.toGrow = append(l.toGrow, s)
		}
	}
	if adds {
		return
	}
	for _, s := range l.toGrow {
		if n := l.counts[s]; n > largeSet && s.Size < largeSize {
			s.Size = sizeFor(n)
			c.remade = append(c.remade, s)
		}
	}
	l.toGrow = nil
}

// remake adds commands to a batch that delete a set and add it again, with its elements and the rules that look it up.
func (l *ledger) remake(b *nft.Batch, s *nft.Set) {
	var table *nft.Table
	var chains []*nft.Chain
	for _, t := range l.tables() {
		for _, c := range t.Chains {
			if t.Family == s.Family && slices.ContainsFunc(c.Rules, func(r nft.Rule) bool { return looksUp(r, s) }) {
				table, chains = t, append(chains, c)
			}
		}
	}
	for _, c := range chains {
		b.FlushRules(table, c.Name)
	}
	// The batch does not flush ranges, so their counts since the last reading are lost: a flush of a thousand ranges
	// takes half a second.
	if s.Counter && !hasRanges(s) {
		b.FlushSet(s, l.counts[s]) // the kernel reports no counters when it deletes a set
	}
	b.DeleteSet(s.Family, s.Table, s.Name)
	b.AddSet(s)
	for _, c := range chains {
		b.AddRules(table, c)
	}
	l.each(func(e *nft.Element) {
		if e.Set == s {
			b.AddElement(e)
		}
	}, s)
}

// hasRanges reports whether the elements of a set are ranges of several fields. The kernel takes very long to delete
// such an element.
func hasRanges(s *nft.Set) bool { return s.Interval && len(s.Key) > 1 }

// looksUp reports whether a rule looks up a set.
func looksUp(r nft.Rule, s *nft.Set) bool {
	return slices.ContainsFunc(r.Exprs, func(x expr.Any) bool {
		lookup, ok := x.(*expr.Lookup)
		return ok && lookup.SetName == s.Name
	})
}
