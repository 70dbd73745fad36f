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
// port, or nil. The result doesn't depend on which; the time does: O(n) for each endpoint that differs. Neither argument
// is changed, and neither has duplicates.
func rearrange(before []netip.AddrPort, set []netip.AddrPort) []netip.AddrPort {
	if len(set) > maxScored {
		return byHash(set)
	}
	removed, added := difference(before, set)
	if len(removed) == 0 && len(added) == 0 {
		return before
	}
	if 4*(len(removed)+len(added)) > len(set) {
		return afresh(set) // which takes n²/2 scores, where each difference takes about 2n
	}
	var room [small]rival
	a := newArrangement(room[:0], before)
	for len(removed) > 0 && len(added) > 0 {
		a.exchange(newRival(added[0]), hashEndpoint(removed[0]), len(a)-1)
		removed, added = removed[1:], added[1:]
	}
	for _, e := range removed {
		a.remove(hashEndpoint(e))
	}
	for _, e := range added {
		a.insert(newRival(e))
	}
	return a.endpoints()
}

// maxScored is the number of endpoints of one service port above which they stand in the order of their hashes instead:
// from scratch, scoring takes a time that grows with the square, about 0.2 s at this number.
const maxScored = 8192

// small is the number of endpoints up to which an arrangement needs no memory of the heap.
const small = 32

// afresh lets every slot choose, the last one first.
func afresh(set []netip.AddrPort) []netip.AddrPort {
	var room [small]rival
	a := newArrangement(room[:0], set)
	for slot := len(a) - 1; slot > 0; slot-- {
		best, winner := score(slot, a[slot].hash), slot
		for i := range a[:slot] {
			if s := score(slot, a[i].hash); s < best {
				best, winner = s, i
			}
		}
		a[slot], a[winner] = a[winner], a[slot]
	}
	return a.endpoints()
}

func byHash(set []netip.AddrPort) []netip.AddrPort {
	a := newArrangement(nil, set)
	slices.SortFunc(a, func(x, y rival) int { return cmp.Compare(x.hash, y.hash) })
	return a.endpoints()
}

// difference returns what of the endpoints before is not in set, and what of set was not there before.
func difference(before, set []netip.AddrPort) (removed, added []netip.AddrPort) {
	if len(before) == 0 {
		return nil, set
	}
	old, now := sorted(before), sorted(set)
	for len(old) > 0 && len(now) > 0 {
		switch c := old[0].Compare(now[0]); {
		case c < 0:
			removed, old = append(removed, old[0]), old[1:]
		case c > 0:
			added, now = append(added, now[0]), now[1:]
		default:
			old, now = old[1:], now[1:]
		}
	}
	return append(removed, old...), append(added, now...)
}

func sorted(list []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(list, netip.AddrPort.Compare) {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// rival is an endpoint with the hash by which it competes for slots.
type rival struct {
	hash     uint64
	endpoint netip.AddrPort
}

func newRival(e netip.AddrPort) rival { return rival{hashEndpoint(e), e} }

// hashEndpoint returns a hash of 64 bits. That two endpoints of one service port share it is taken to be impossible.
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

type arrangement []rival

func newArrangement(room []rival, before []netip.AddrPort) arrangement {
	a := arrangement(slices.Grow(room, len(before)+1))
	for _, e := range before {
		a = append(a, newRival(e))
	}
	return a
}

func (a arrangement) endpoints() []netip.AddrPort {
	out := make([]netip.AddrPort, len(a))
	for i := range a {
		out[i] = a[i].endpoint
	}
	return out
}

// insert adds an endpoint and with it a slot, which is the first to choose.
func (a *arrangement) insert(in rival) {
	slot := len(*a)
	winner := a.lowest(slot, in.hash)
	if winner < 0 {
		*a = append(*a, in)
		return
	}
	w := (*a)[winner]
	*a = append(*a, w)
	a.exchange(in, w.hash, slot-1)
}

// remove takes out an endpoint and with it the last slot, whose holder is left over.
func (a *arrangement) remove(out uint64) {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	if last.hash != out {
		a.exchange(last, out, len(*a)-1)
	}
}

// exchange lets the slots from top downwards choose anew after one endpoint has come and another has gone.
func (a *arrangement) exchange(in rival, out uint64, top int) {
	for slot := top; slot >= 0; slot-- {
		holder := &(*a)[slot]
		if holder.hash != out {
			if score(slot, in.hash) < score(slot, holder.hash) {
				in, *holder = *holder, in
			}
			continue
		}
		winner := (*a)[:slot].lowest(slot, in.hash)
		if winner < 0 {
			*holder = in
			return
		}
		*holder = (*a)[winner]
		out = holder.hash
	}
}

// lowest returns the index of the endpoint with the lowest score for a slot, or -1 if the newcomer's is lower than all.
func (a arrangement) lowest(slot int, newcomer uint64) int {
	best, winner := score(slot, newcomer), -1
	for i := range a {
		if s := score(slot, a[i].hash); s < best {
			best, winner = s, i
		}
	}
	return winner
}
