package plan

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// A service port's endpoints stand in numbered slots, so that a random number chooses one. Which endpoint stands in which
// slot is a function of the set of endpoints alone: whatever happened before, the same endpoints stand in the same slots.
// So a restart finds what it would write, and a step-by-step history ends like a fresh start. And it is stable: when an
// endpoint comes, goes or is replaced, about 2 ln n of n slots change, where the order by address would change a third.
//
// The rule: the last slot takes of all endpoints the one with the lowest score for that slot, a hash of both; the last slot
// but one takes the lowest of those that remain, and so on. After a change one endpoint is new among those that remain,
// and one is missing. At a slot that chooses among k, the newcomer wins with a chance of 1/k, and then whom it drove out is
// the newcomer below; the missing one was the holder with a chance of 1/k too. Hence 2/n + 2/(n-1) + ... slots change.

// rearrange returns the arrangement of a set of endpoints, given that of another set: an earlier one of the same service
// port, or nil. The result doesn't depend on which; the time does: O(n) for each endpoint that differs, of about three nanoseconds
// for an endpoint. The set is sorted, and neither list has duplicates.
//
// Of many endpoints it also returns what makes the next change cheap. Handed in as known, that is changed in place, and with it the
// list before.
func rearrange(before []netip.AddrPort, known *arrangement, set []netip.AddrPort) ([]netip.AddrPort, *arrangement) {
	if known != nil {
		known.undo, known.before, known.removed, known.added = known.undo[:0], len(before), nil, nil
	}
	if len(set) > maxScored {
		return byHash(set), nil
	}
	if len(before) > maxScored {
		return afresh(set), nil
	}
	removed, added := known.difference(before, set)
	differ := len(removed) + len(added)
	switch {
	case differ == 0:
		return before, known
	case 4*differ > len(set):
		return afresh(set), nil // which takes n²/2 scores, where each difference takes about 2n
	case len(set) < many:
		return rearrangeFew(before, len(set), removed, added), nil
	case known == nil:
		known = newArrangement(before, len(set))
	}
	known.change(removed, added)
	known.set, known.removed, known.added = set, removed, added
	known.sortUndo()
	return known.endpoints, known
}

// maxScored is the number of endpoints of one service port above which they stand in the order of their hashes instead:
// from scratch, scoring takes a time that grows with the square, about 0.1 s at this number.
const maxScored = 16384

// many is the number of endpoints from which arrangements are changed in place, small that up to which no memory of the heap is
// needed for hashes.
const many, small = 128, 32

// difference returns what of the endpoints before is not in set, and what of set was not there before.
func (a *arrangement) difference(before, set []netip.AddrPort) (removed, added []netip.AddrPort) {
	switch {
	case len(before) == 0:
		return nil, set
	case a != nil:
		return difference(a.set, set)
	}
	var room [small]netip.AddrPort
	return difference(sortedIn(room[:0], before), set)
}

func rearrangeFew(before []netip.AddrPort, n int, removed, added []netip.AddrPort) []netip.AddrPort {
	var room [small]uint64
	a := arrangement{
		endpoints: append(make([]netip.AddrPort, 0, max(len(before), n)), before...), hashes: appendHashes(room[:0], before), final: true,
	}
	a.change(removed, added)
	return a.endpoints
}

// afresh lets every slot choose, the last one first.
func afresh(set []netip.AddrPort) []netip.AddrPort {
	var room [small]uint64
	a := arrangement{endpoints: slices.Clone(set), hashes: appendHashes(room[:0], set), final: true}
	for slot := len(set) - 1; slot > 0; slot-- {
		holder := a.at(slot)
		if w := a.lowest(slot, holder); w >= 0 {
			a.put(slot, a.at(w))
			a.put(w, holder)
		}
	}
	return a.endpoints
}

func byHash(set []netip.AddrPort) []netip.AddrPort {
	list := make([]rival, len(set))
	for i, e := range set {
		list[i] = newRival(e)
	}
	slices.SortFunc(list, func(x, y rival) int { return x.compare(&y) })
	endpoints := make([]netip.AddrPort, len(set))
	for i := range list {
		endpoints[i] = list[i].endpoint
	}
	return endpoints
}

// difference returns what of one sorted list is not in another, and what of the other is not in the one.
func difference(old, now []netip.AddrPort) (removed, added []netip.AddrPort) {
	i, j := 0, 0
	for i < len(old) && j < len(now) {
		switch {
		case old[i] == now[j]: // almost always
			i++
			j++
		case old[i].Compare(now[j]) < 0:
			removed = append(removed, old[i])
			i++
		default:
			added = append(added, now[j])
			j++
		}
	}
	return append(removed, old[i:]...), append(added, now[j:]...)
}

// sorted returns a list if it is sorted, and otherwise a sorted copy.
func sorted(list []netip.AddrPort) []netip.AddrPort { return sortedIn(nil, list) }

// sortedIn makes the copy in the room given, if that is enough.
func sortedIn(room, list []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(list, netip.AddrPort.Compare) {
		return list
	}
	list = append(room, list...)
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// rival is an endpoint with the hash by which it competes for slots. The hash orders endpoints, the address tells them apart: anybody
// can find two endpoints with one hash.
type rival struct {
	hash     uint64
	endpoint netip.AddrPort
}

func newRival(e netip.AddrPort) rival { return rival{hashEndpoint(e), e} }

func (r *rival) compare(o *rival) int {
	return cmp.Or(cmp.Compare(r.hash, o.hash), r.endpoint.Compare(o.endpoint))
}

// beats tells whether one rival wins a slot over another.
func (r *rival) beats(o *rival, slot int) bool {
	mine, others := score(slot, r.hash), score(slot, o.hash)
	return mine < others || mine == others && r.compare(o) < 0
}

// hashEndpoint returns a hash of 64 bits.
func hashEndpoint(e netip.AddrPort) uint64 {
	var b [18]byte
	a := e.Addr().As16()
	copy(b[:], a[:])
	binary.LittleEndian.PutUint16(b[16:], e.Port())
	return xxhash.Sum64(b[:])
}

// score is an endpoint's number for a slot; the lowest wins.
func score(slot int, hash uint64) uint64 {
	hi, lo := bits.Mul64(hash^uint64(slot)*0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// appendHashes appends the hashes of endpoints.
func appendHashes(room []uint64, list []netip.AddrPort) []uint64 {
	room = slices.Grow(room, len(list))
	for _, e := range list {
		room = append(room, hashEndpoint(e))
	}
	return room
}

// arrangement is one that changes in place.
type arrangement struct {
	// endpoints and hashes are by slot; set has the endpoints in their own order.
	endpoints, set []netip.AddrPort
	hashes         []uint64
	// undo is what the last change has replaced, in order of the slots; before is the number of slots before it.
	undo   []replaced
	before int
	// removed and added are what made up the last change.
	removed, added []netip.AddrPort
	// final is set where nobody wants to know what has been replaced.
	final bool
}

// replaced is an endpoint that stood in a slot, and the turn at which it was replaced.
type replaced struct {
	slot, turn int
	endpoint   netip.AddrPort
}

// newArrangement copies one, with room for a number of endpoints.
func newArrangement(list []netip.AddrPort, n int) *arrangement {
	n = max(n, len(list))
	return &arrangement{
		endpoints: append(make([]netip.AddrPort, 0, n), list...), hashes: appendHashes(make([]uint64, 0, n), list), before: len(list),
	}
}

// was returns the endpoint that stood in a slot before the last change.
func (a *arrangement) was(slot int) netip.AddrPort {
	if i, ok := slices.BinarySearchFunc(a.undo, slot, func(r replaced, slot int) int { return cmp.Compare(r.slot, slot) }); ok {
		return a.undo[i].endpoint
	}
	return a.endpoints[:a.before][slot]
}

// undone returns the list as it was before the last change.
func (a *arrangement) undone() []netip.AddrPort {
	list := slices.Clone(a.endpoints[:a.before])
	for _, r := range a.undo {
		list[r.slot] = r.endpoint
	}
	return list
}

// sortUndo leaves of each slot what stood there first.
func (a *arrangement) sortUndo() {
	slices.SortFunc(a.undo, func(x, y replaced) int { return cmp.Or(cmp.Compare(x.slot, y.slot), cmp.Compare(x.turn, y.turn)) })
	a.undo = slices.CompactFunc(a.undo, func(x, y replaced) bool { return x.slot == y.slot })
}

// change makes it the arrangement of a set of which some endpoints have been removed and others added.
func (a *arrangement) change(removed, added []netip.AddrPort) {
	for len(removed) > 0 && len(added) > 0 {
		a.exchange(newRival(added[0]), newRival(removed[0]), len(a.hashes)-1)
		removed, added = removed[1:], added[1:]
	}
	for _, e := range removed {
		a.remove(newRival(e))
	}
	for _, e := range added {
		a.insert(newRival(e))
	}
}

func (a *arrangement) at(slot int) rival { return rival{a.hashes[slot], a.endpoints[slot]} }

func (a *arrangement) holds(slot int, r *rival) bool {
	return a.hashes[slot] == r.hash && a.endpoints[slot] == r.endpoint
}

func (a *arrangement) put(slot int, r rival) {
	if !a.final && slot < a.before {
		a.undo = append(a.undo, replaced{slot, len(a.undo), a.endpoints[slot]})
	}
	a.hashes[slot], a.endpoints[slot] = r.hash, r.endpoint
}

// insert adds an endpoint and with it a slot, which is the first to choose.
func (a *arrangement) insert(in rival) {
	slot := len(a.hashes)
	winner := a.lowest(slot, in)
	w := in
	if winner >= 0 {
		w = a.at(winner)
	}
	a.hashes, a.endpoints = append(a.hashes, w.hash), append(a.endpoints, w.endpoint)
	if winner >= 0 {
		a.exchange(in, w, slot-1)
	}
}

// remove takes out an endpoint and with it the last slot, whose holder is left over.
func (a *arrangement) remove(out rival) {
	slot := len(a.hashes) - 1
	last := a.at(slot)
	a.hashes, a.endpoints = a.hashes[:slot], a.endpoints[:slot]
	if last != out {
		a.exchange(last, out, slot-1)
	}
}

// exchange lets the slots from top downwards choose again after one endpoint has come and another has gone.
func (a *arrangement) exchange(in, out rival, top int) {
	for slot := top; slot >= 0; slot-- {
		if !a.holds(slot, &out) {
			if score(slot, in.hash) <= score(slot, a.hashes[slot]) {
				if holder := a.at(slot); in.beats(&holder, slot) {
					a.put(slot, in)
					in = holder
				}
			}
			continue
		}
		winner := a.lowest(slot, in)
		if winner < 0 {
			a.put(slot, in)
			return
		}
		out = a.at(winner)
		a.put(slot, out)
	}
}

// lowest returns which of the endpoints in the slots below has the lowest score for a slot, or -1 if the newcomer's is lower than all.
func (a *arrangement) lowest(slot int, newcomer rival) int {
	best, winner := score(slot, newcomer.hash), -1
	for i, h := range a.hashes[:slot] {
		s := score(slot, h)
		if s > best {
			continue
		}
		if s == best {
			r, holder := a.at(i), newcomer
			if winner >= 0 {
				holder = a.at(winner)
			}
			if r.compare(&holder) > 0 {
				continue
			}
		}
		best, winner = s, i
	}
	return winner
}
