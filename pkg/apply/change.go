package apply

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
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

// fewRanges is the largest number of ranges of a set that a batch deletes one by one. The deletion of three ranges may
// take longer than to delete and add all of them, at any size of the set.
const fewRanges = 2

// chooseRemade chooses the sets to delete and to add again, and stores their new sizes.
//
// A set that is about to exceed its size gets a larger size. Kernels since 6.5 can raise the size of a set, but only
// after the commit. The hash table keeps its buckets: with a hundred times as many elements, a lookup takes a hundred
// times as long. A set with more than largeSet elements gets the size largeSize in a batch that adds no elements: a
// batch of the set and a large Service would delay the changes of other Services too long.
//
// A set of ranges (see hasRanges) is added again if the batch deletes more than fewRanges of them. The time to delete a
// range grows with the number of earlier ranges.
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

// retireAfter is the time for which the ledger retains elements that lead to chains, and after that the chains. When a
// batch adds a chain, the kernel walks the map that the chain looks up. So a Service whose size alternates must not
// cause a new chain each time. Kernels before 6.2 hold a reference to a chain for some milliseconds after the deletion
// of the last element that led to it.
const retireAfter = 30 * time.Second

// retireEmptyAfter is the time for which the ledger retains an empty chain, see [ledger.retainEmptied].
const retireEmptyAfter = 2 * time.Second

// chainName identifies a chain of one family's table.
type chainName struct {
	family inet.Family
	name   string
}

// classChain is a chain of a class in the kernel, or a chain of an earlier version of the program.
type classChain struct {
	// leading is the number of elements that lead to the chain, wanted and retained. At 0 the chain is retained.
	leading int
	// empty is true if the chain has no rules: a rewrite has emptied it and could not delete it.
	empty bool
}

// countLeading counts n more elements that lead to a chain. If the kernel does not have the chain, the next batch adds
// it.
func (l *ledger) countLeading(e *nft.Element, n int) {
	name := chainName{e.Set.Family, e.Chain}
	c, known := l.chains[name]
	if !known && l.planner.Rules().ClassChain(name.family, name.name) == nil {
		return // a constant chain
	}
	if n > 0 && l.change != nil && (!known || c.empty) {
		l.change.chains = append(l.change.chains, name)
	}
	l.chains[name] = classChain{leading: c.leading + n, empty: c.empty && n < 0}
}

// eachRetained calls f for every retained element.
func (l *ledger) eachRetained(f func(*nft.Element)) {
	for _, e := range l.retained {
		f(&e)
	}
}

// tables returns the tables without elements, with the retained chains.
func (l *ledger) tables() []*nft.Table {
	list := l.planner.Tables()
	for _, t := range list {
		wanted := map[string]bool{}
		for _, c := range t.Chains {
			wanted[c.Name] = true
		}
		for _, name := range slices.SortedFunc(maps.Keys(l.chains), chainName.compare) {
			if name.family == t.Family && !wanted[name.name] {
				t.Chains = append(t.Chains, l.chain(name))
			}
		}
	}
	return list
}

func (n chainName) compare(o chainName) int {
	return cmp.Or(cmp.Compare(n.family, o.family), cmp.Compare(n.name, o.name))
}

// chain returns a chain of a class with its rules, or without rules if it is empty in the kernel.
func (l *ledger) chain(name chainName) *nft.Chain {
	if l.chains[name].empty {
		return &nft.Chain{Name: name.name, Timeouts: l.timeouts(name)}
	}
	return l.planner.Rules().ClassChain(name.family, name.name)
}

// timeouts returns the timeouts of a chain of a class. They exist as long as the chain.
func (l *ledger) timeouts(name chainName) (t nft.Timeouts) {
	if c := l.planner.Rules().ClassChain(name.family, name.name); c != nil {
		t = c.Timeouts
	}
	return t
}

// retainElement retains an element of the kernel that is not wanted, if it leads to the chain of a class. An earlier
// process exited before it retired the element.
func (l *ledger) retainElement(e *nft.Element) {
	if _, known := l.retained[e.ID()]; !known && l.planner.Rules().LeadsToClass(e) {
		l.count(e, 1)
		l.retained[e.ID()] = *e
	}
}

// retainChain retains a chain of a class of the kernel, for the same reason as retainElement.
func (l *ledger) retainChain(f inet.Family, name string) {
	key := chainName{f, name}
	if _, known := l.chains[key]; !known && l.planner.Rules().ClassChain(f, name) != nil {
		l.chains[key] = classChain{}
	}
}

// retainEmptied retains chains that a rewrite has emptied. The rewrite could not delete the chains, because the same
// batch deleted the elements that led to them.
func (l *ledger) retainEmptied(f inet.Family, names []string) {
	for _, name := range names {
		l.chains[chainName{f, name}] = classChain{empty: true}
	}
}

// forgetRetained removes all retained elements and chains from the ledger. The first full sync of a process then
// deletes them.
func (l *ledger) forgetRetained() {
	l.eachRetained(func(e *nft.Element) { l.count(e, -1) })
	clear(l.retained)
	maps.DeleteFunc(l.chains, func(_ chainName, c classChain) bool { return c.leading == 0 })
}

// retire adds the deletion of retained elements and chains to the change: the chains to which no element leads, and the
// retained elements. The chains of these elements stay until the next call.
func (l *ledger) retire() {
	for _, name := range slices.SortedFunc(maps.Keys(l.chains), chainName.compare) {
		if l.chains[name].leading == 0 {
			delete(l.chains, name)
			l.change.unused = append(l.change.unused, name)
		}
	}
	l.eachRetained(func(e *nft.Element) { l.count(e, -1) })
	clear(l.retained)
	l.retireAt = time.Time{}
}

// scheduleRetirement sets and returns the time of the next retirement; zero if nothing is retained.
func (l *ledger) scheduleRetirement(now time.Time) time.Time {
	retains, empty := len(l.retained) > 0, false
	for _, c := range l.chains {
		retains, empty = retains || c.leading == 0, empty || c.empty
	}
	if at := now.Add(retireEmptyAfter); empty && (l.retireAt.IsZero() || at.Before(l.retireAt)) {
		l.retireAt = at
	}
	switch {
	case !retains:
		l.retireAt = time.Time{}
	case l.retireAt.IsZero():
		l.retireAt = now.Add(retireAfter)
	}
	return l.retireAt
}
