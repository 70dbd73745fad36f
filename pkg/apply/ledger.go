package apply

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// ledger keeps account of what the kernel has to hold for a plan: the wanted elements and chains, and the retained ones, which are not
// wanted any more and stay for a while. It is the [plan.Sink] of the planner, and has counts and digests instead of the elements.
type ledger struct {
	planner *plan.Planner
	// sets are those of all tables, stateSets those of the states.
	sets      []*nft.Set
	stateSets [2]*nft.Set
	// counts are the numbers of elements, wanted and retained, and digests their digests.
	counts  map[*nft.Set]int
	digests [2]digest
	// layouts are the fingerprints of the tables for layoutPods; nil before the first use.
	layouts    map[inet.Family]uint64
	layoutPods [2]plan.LocalPods
	// chains are the chains of classes, wanted and retained.
	chains map[chainName]heldChain
	// retained are the retained elements. Each leads to the chain of a class.
	retained map[nft.ID]nft.Element
	// retireAt is the time to delete what is retained; zero if nothing is, or before the first sync with it.
	retireAt time.Time
	// crowded are sets to make larger in a batch of their own, without the elements of another large Service.
	crowded []*nft.Set
	// delta is nil while the kernel's tables are not known. It starts from tables with rules for writtenPods.
	delta       *delta
	writtenPods [2]plan.LocalPods
}

// newLedger returns a ledger of all that a planner wants, and makes the planner report to it.
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

// Put enters an element that is wanted now. If it is retained, the kernel has it.
func (l *ledger) Put(e nft.Element) {
	if !e.Set.Verdict || !l.restore(&e) {
		l.enter(&e)
	}
}

// Remove takes an element out that is not wanted any more. If it leads to a chain, it is retained.
func (l *ledger) Remove(e nft.Element) {
	if e.Set.Verdict {
		l.retained[e.ID()] = e
	} else {
		l.strike(&e)
	}
}

// Expect makes room for about so many changes.
func (l *ledger) Expect(elements int) {
	if l.delta != nil {
		l.delta.expect(elements)
	}
}

// enter adds an element to those that the kernel has to hold.
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

// strike removes an element from those that the kernel has to hold.
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

// hash is what an element adds to the digest of its family.
func (l *ledger) hash(e *nft.Element) uint64 {
	return l.digests[e.Set.Family].key.hash(e)
}

// resume makes the digest of a family continue that of an earlier process.
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

// fit sets the size of every set to what its elements need, with room for as many again.
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

// Fit sets the sizes of a plan's sets to those that a first sync would give them.
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

// crowds reports whether a set has become large and has room for its present elements only.
func (l *ledger) crowds(s *nft.Set) bool {
	return s.Size > 0 && s.Size < largeSize && !s.Dynamic && l.counts[s] > largeSet
}

// EachCount calls f for each set of a family that holds what the cluster wants, with the number of its elements. It returns the number of
// chains of classes. There are none before the first call of [Kernel.Recall] or [Kernel.Sync].
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
