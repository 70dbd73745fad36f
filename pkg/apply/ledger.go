package apply

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// ledger keeps account of the elements and chains that the kernel has to hold for a plan: the wanted ones, and the retained ones, which the plan no
// longer contains and which stay for a while. It is the [plan.Sink] of the planner. Instead of the wanted elements, it has counts and digests.
type ledger struct {
	planner *plan.Planner
	// sets are the sets of all tables, stateSets the set state of each family.
	sets      []*nft.Set
	stateSets [2]*nft.Set
	// counts has the number of elements of each set, wanted and retained. digests has their digest in each family.
	counts  map[*nft.Set]int
	digests [2]digest
	// layouts are the fingerprints of the tables for layoutPods; nil before the first use.
	layouts    map[inet.Family]uint64
	layoutPods [2]plan.LocalPods
	// chains are the chains of classes, wanted and retained.
	chains map[chainName]heldChain
	// retained are the retained elements. Each leads to the chain of a class.
	retained map[nft.ID]nft.Element
	// retireAt is the time to delete retained elements and chains. It is zero if there are none, or before the first sync with them.
	retireAt time.Time
	// crowded are sets to make larger in a batch of their own, without the elements of another large Service.
	crowded []*nft.Set
	// delta is nil while the kernel's tables are not known. It starts from tables with rules for writtenPods.
	delta       *delta
	writtenPods [2]plan.LocalPods
}

// newLedger returns a ledger of a plan, and makes the planner report to it.
func newLedger(p *plan.Planner) *ledger {
	l := &ledger{
		planner: p, counts: map[*nft.Set]int{}, chains: map[chainName]heldChain{}, retained: map[nft.ID]nft.Element{},
	}
	for _, t := range p.Tables() {
		l.sets = append(l.sets, t.Sets...)
		l.digests[t.Family].key = newDigestKey()
	}
	for _, s := range l.sets {
		if s.Name == plan.StateSet {
			l.stateSets[s.Family] = s
		}
	}
	p.Report(l)
	return l
}

// Put enters an element that is wanted now. If the element is retained, the kernel still has it, and no change is necessary.
func (l *ledger) Put(e nft.Element) {
	if !e.Set.Verdict || !l.restore(&e) {
		l.enter(&e)
	}
}

// Remove removes an element that is not wanted any more. An element that leads to a chain is retained instead.
func (l *ledger) Remove(e nft.Element) {
	if e.Set.Verdict {
		l.retained[e.ID()] = e
	} else {
		l.strike(&e)
	}
}

// Expect allocates memory for an approximate number of changes.
func (l *ledger) Expect(elements int) {
	if l.delta != nil {
		l.delta.expect(elements)
	}
}

// enter adds an element to the elements that the kernel has to hold.
func (l *ledger) enter(e *nft.Element) {
	d := &l.digests[e.Set.Family]
	d.sum += d.key.hash(e)
	l.counts[e.Set]++
	if e.Set.Verdict {
		l.lead(e)
	}
	if l.delta != nil {
		l.delta.put(e)
	}
}

// strike removes an element from the elements that the kernel has to hold.
func (l *ledger) strike(e *nft.Element) {
	d := &l.digests[e.Set.Family]
	d.sum -= d.key.hash(e)
	l.counts[e.Set]--
	if e.Set.Verdict {
		l.unlead(e)
	}
	if l.delta != nil {
		l.delta.remove(e)
	}
}

// hash returns the hash of an element, which is a summand of the digest of its family.
func (l *ledger) hash(e *nft.Element) uint64 {
	return l.digests[e.Set.Family].key.hash(e)
}

// resume computes the digest of a family again with the key of an earlier process, so that it can be compared with that process's digest.
func (l *ledger) resume(f inet.Family, key digestKey) {
	d := &l.digests[f]
	*d = digest{key: key}
	l.each(func(e *nft.Element) {
		if e.Set.Family == f {
			d.sum += key.hash(e)
		}
	})
}

// each calls f for every element, wanted or retained.
func (l *ledger) each(f func(*nft.Element)) {
	l.eachRetained(f)
	l.planner.Elements(f)
}

// track starts to note changes: the kernel holds just what the ledger has.
func (l *ledger) track() { l.delta, l.writtenPods, l.crowded = newDelta(), l.planner.LocalPods(), nil }

// untrack stops it: what the kernel holds is not known.
func (l *ledger) untrack() { l.delta = nil }

// fit sets the size of every set, for its elements and at least as many again.
func (l *ledger) fit() { fit(l.sets, l.counts) }

func fit(sets []*nft.Set, counts map[*nft.Set]int) {
	for _, s := range sets {
		if s.Size == 0 || s.Dynamic {
			continue
		}
		s.Size = sizeFor(counts[s])
	}
}

// A set with more elements than mediumSet has at least room for mediumSize, 2 MB of buckets, so that a large Service fits into it. A set with more
// elements than largeSet has at least room for largeSize, 32 MB of buckets: to delete and add a larger set would delay other changes too long.
const (
	mediumSet, mediumSize = 1 << 12, 1 << 17
	largeSet, largeSize   = 3 << 13, 1 << 21
)

// sizeFor returns the size of a set for n elements: at least room for as many again.
func sizeFor(n int) uint32 {
	size := uint32(plan.MinimumSize)
	switch {
	case n > largeSet:
		size = largeSize
	case n > mediumSet:
		size = mediumSize
	}
	for int(size) < 2*n {
		size *= 2
	}
	return size
}

// Fit sets the sizes of a plan's sets as a first sync would.
func Fit(p *plan.Planner) {
	counts := map[*nft.Set]int{}
	p.Elements(func(e *nft.Element) { counts[e.Set]++ })
	for _, t := range p.Tables() {
		fit(t.Sets, counts)
	}
}

// outgrows reports whether a set has too little room left.
func (l *ledger) outgrows(s *nft.Set) bool {
	return s.Size > 0 && !s.Dynamic && l.counts[s] > int(s.Size/4*3)
}

// crowds reports whether a set has more than largeSet elements, and a size below largeSize.
func (l *ledger) crowds(s *nft.Set) bool {
	return s.Size > 0 && s.Size < largeSize && !s.Dynamic && l.counts[s] > largeSet
}

// EachCount calls each for every set of a family whose elements come from the plan, with the number of its elements. It returns the number of
// chains of classes. Before the first call of [Kernel.Recall] or [Kernel.Sync], it calls nothing and returns 0.
func (k *Kernel) EachCount(f inet.Family, each func(s *nft.Set, n int)) (classChains int) {
	l := k.ledger
	if l == nil {
		return 0
	}
	for _, s := range l.sets {
		if s.Family == f && !s.Dynamic && s.Timeout == 0 && s.Name != plan.StateSet {
			each(s, l.counts[s])
		}
	}
	for c := range l.chains {
		if c.family == f {
			classChains++
		}
	}
	return classChains
}
