package apply

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

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
