package apply

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/dchest/siphash"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// ledger records the elements and chains that the kernel must have for a plan. They are either wanted, or retained: the
// plan no longer contains retained ones, but they stay for a while. The ledger is the [plan.Sink] of the planner. For
// wanted elements, it stores only counts and digests.
type ledger struct {
	planner *plan.Planner
	// sets are the sets of all tables, stateSets the set state of each family.
	sets      []*nft.Set
	stateSets [2]*nft.Set
	// counts has the number of elements of each set, wanted and retained. digests has their digest in each family.
	counts  map[*nft.Set]int
	digests [2]digest
	// layouts are the fingerprints of the tables; nil before the first use.
	layouts map[inet.Family]uint64
	// chains are the chains of classes, wanted and retained.
	chains map[chainName]classChain
	// retained are the retained elements. Each leads to the chain of a class.
	retained map[nft.ID]nft.Element
	// retireAt is the time to delete retained elements and chains. It is zero if none are retained, and before the
	// first sync with them.
	retireAt time.Time
	// toGrow are sets to make larger in a batch of their own, without the elements of another large Service.
	toGrow []*nft.Set
	// change has the changes since the last sync. It is nil before the first sync, and from a comparison until the sync
	// succeeds.
	change *change
}

// newLedger returns a ledger of a plan, and makes the planner report to it.
func newLedger(p *plan.Planner) *ledger {
	l := &ledger{
		planner: p, counts: map[*nft.Set]int{}, chains: map[chainName]classChain{}, retained: map[nft.ID]nft.Element{},
	}
	for _, t := range p.Tables() {
		l.sets = append(l.sets, t.Sets...)
		l.digests[t.Family].key = newDigestKey()
	}
	for _, s := range plan.SetsNamed(p.Tables(), plan.StateSet) {
		l.stateSets[s.Family] = s
	}
	p.ReportTo(l)
	return l
}

// Put adds an element that is wanted now. If the same element is retained, the kernel still has it, and no change is
// necessary.
func (l *ledger) Put(e nft.Element) {
	if _, retained := l.retained[e.ID()]; retained {
		delete(l.retained, e.ID())
		return
	}
	l.count(&e, 1)
}

// Remove removes an element that is not wanted any more. An element that leads to a chain is retained instead.
func (l *ledger) Remove(e nft.Element) {
	if e.Set.Verdict {
		l.retained[e.ID()] = e
		return
	}
	l.count(&e, -1)
}

// Discard records an element to delete if packets have added it.
func (l *ledger) Discard(e nft.Element) {
	if l.change != nil {
		l.change.forget[e.ID()] = e
	}
}

// ChangeRules records that the constant rules have changed.
func (l *ledger) ChangeRules() {
	if l.layouts = nil; l.change != nil {
		l.change.rules = true
	}
}

// count adds an element to those that the kernel must have, with n = 1, or removes it from them, with n = -1. It
// records the change.
func (l *ledger) count(e *nft.Element, n int) {
	d := &l.digests[e.Set.Family]
	d.sum += uint64(n) * d.key.hash(e)
	l.counts[e.Set] += n
	if e.Set.Verdict {
		l.countLeading(e, n)
	}
	c := l.change
	if c == nil {
		return
	}
	id := e.ID()
	i, known := c.at[id]
	if !known {
		i = len(c.elements)
		c.at[id] = i
		c.elements = append(c.elements, transition{})
		if n < 0 {
			c.elements[i].was = *e
		}
	}
	c.elements[i].is = nft.Element{}
	if n > 0 {
		c.elements[i].is = *e
	}
}

// resume computes the digest of a family again with the key of an earlier process, so that the digests of both
// processes are comparable.
func (l *ledger) resume(f inet.Family, key digestKey) {
	d := &l.digests[f]
	*d = digest{key: key}
	l.each(func(e *nft.Element) {
		if e.Set.Family == f {
			d.sum += key.hash(e)
		}
	})
}

// each calls f for every element, wanted or retained. With sets, it may skip elements of other sets.
func (l *ledger) each(f func(*nft.Element), of ...*nft.Set) {
	l.eachRetained(f)
	l.planner.Elements(f, of...)
}

// track starts to record changes. Call it when the kernel's tables equal the ledger.
func (l *ledger) track() { l.change, l.toGrow = newChange(), nil }

// untrack drops the recorded changes and stops recording, because the kernel's tables are unknown.
func (l *ledger) untrack() { l.change = nil }

// fit sets the size of every set, see [sizeFor].
func fit(sets []*nft.Set, counts map[*nft.Set]int) {
	for _, s := range sets {
		if s.Size > 0 && !s.Dynamic {
			s.Size = sizeFor(counts[s])
		}
	}
}

// A set with more elements than mediumSet has at least the size mediumSize, with 1 MB of buckets: a large Service fits
// into it. A set with more elements than largeSet has at least the size largeSize, with 16 MB of buckets. Above
// largeSize, a replacement would delay other changes too long. The kernel rounds 4/3 of a size up to a power of two to
// get the number of buckets. Each bucket has 8 bytes. For both sizes, 4/3 is a power of two.
const (
	mediumSet, mediumSize = 1 << 12, 3 << 15
	largeSet, largeSize   = 3 << 13, 3 << 19
)

// sizeFor returns the size of a set for n elements: at least 2n.
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

// EachCount calls each for every set of a family with elements from the plan, with the number of its elements. It
// returns the number of chains of classes. Before the first call of [Kernel.Recall] or [Kernel.Sync],
// it does not call each and returns 0.
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

// state describes a family's table for a later process. It is the comment of the only element of the set
// [plan.StateSet].
type state struct {
	// layout is a fingerprint of sets, chains and rules.
	layout uint64
	digest
	// next is [plan.Totals.Next].
	next uint32
}

// stateComment is the format of the comment of the element. It contains the key: no log, page or command may show it.
const stateComment = "layout %016x key %016x%016x next %x digest %016x"

// readState reads the state from its element.
func readState(e *nft.Element) (s state, err error) {
	if _, err := fmt.Sscanf(e.Comment, stateComment, &s.layout, &s.key[0], &s.key[1], &s.next, &s.sum); err != nil {
		return s, fmt.Errorf("read state: %w", err)
	}
	return s, nil
}

// differingParts names the parts in which two states differ, without their values. It returns "" if they are equal.
func (s state) differingParts(other state) string {
	var parts []string
	if s.layout != other.layout {
		parts = append(parts, "sets, chains or rules")
	}
	if s.digest != other.digest {
		parts = append(parts, "elements")
	}
	if s.next != other.next {
		parts = append(parts, "the next number")
	}
	return strings.Join(parts, ", ")
}

// digest is the sum of the hashes of elements, so their order does not matter. It includes only elements of sets that
// are [plan.Planned].
type digest struct {
	key digestKey
	sum uint64
}

// digestKey is the key of the hashes. It is random, so that a tenant cannot create objects whose elements have the same
// digest as other elements.
type digestKey [2]uint64

func newDigestKey() (k digestKey) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return digestKey{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// hash returns a keyed hash (SipHash) of the element's set name and all its fields, or 0 for an element of a set that
// is not compared.
func (k digestKey) hash(e *nft.Element) uint64 {
	if !plan.Planned(e.Set) {
		return 0
	}
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
	b = append(b, nft.CutComment(e.Comment)...) // the kernel has only this part
	if e.MaxConnections > 0 {
		b = append(b, 0, byte(e.MaxConnections>>8), byte(e.MaxConnections))
	}
	return siphash.Hash(k[0], k[1], b)
}

// state returns the state of a family's table, as an element.
func (l *ledger) state(f inet.Family) *nft.Element {
	if l.layouts == nil {
		l.layouts = map[inet.Family]uint64{}
		for _, t := range l.planner.Rules().Samples() {
			l.layouts[t.Family] = nft.Fingerprint(t)
		}
	}
	d := l.digests[f]
	comment := fmt.Sprintf(stateComment, l.layouts[f], d.key[0], d.key[1], l.planner.Totals().Next[f], d.sum)
	return &nft.Element{Set: l.stateSets[f], Key: nft.Value{}.Uint32(1), Comment: comment}
}
