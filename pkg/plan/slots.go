package plan

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
)

// The endpoints of a service port have numbered slots, so that a random number draws an endpoint. An arrangement assigns the endpoints to the slots.
// It depends only on the set of endpoints, and not on earlier sets. So after a restart, the plan equals the tables of the earlier process. An
// arrangement is also stable: after an endpoint is added, removed or replaced, about 2 ln n of n slots change. With an order by address, a third
// of the slots would change. See docs/decisions/0002-slots.md.
//
// The slots choose one after the other, from the last to the first. Each slot takes the endpoint with the lowest score among the endpoints that
// are left. The score is a hash of the slot and the endpoint. If one endpoint replaces another, each slot chooses among the same endpoints as
// before, except that one endpoint is new and one is missing. A slot that chooses among k endpoints takes the new endpoint with a probability of
// 1/k. The endpoint that it took before is then the new endpoint for the next slots. The slot had the missing endpoint with the same probability.
// So 2/n + 2/(n-1) + ... slots change.

// rearrange returns the arrangement of a set of endpoints, in the order of the slots. before is the arrangement of an earlier set of the service
// port, or nil. The result does not depend on before, but the time does: about 3 ns × n for each endpoint that differs. The set is sorted, and
// neither list has duplicates.
//
// For many endpoints, rearrange also returns an arrangement that makes the next change cheap. Pass it to the next call as known. The next call
// changes known and the list before in place.
func rearrange(before []netip.AddrPort, known *arrangement, set []netip.AddrPort) ([]netip.AddrPort, *arrangement) {
	if known != nil {
		known.undo, known.before, known.removed, known.added = known.undo[:0], len(before), nil, nil
	}
	removed, added := known.difference(before, set)
	differ := len(removed) + len(added)
	switch {
	case differ == 0:
		return before, known
	case 4*differ > len(set):
		return fromScratch(set), nil // takes n²/2 scores, and each difference about 2n
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

// mostScored is the largest number of endpoints of a service port that all compete with each other. The time of an arrangement from scratch grows
// with the square of the number. It is about 15 ms for mostScored endpoints, so a Service with many ports has a lower limit.
const mostScored = 5120

// scoredOf returns the limit for each list of endpoints of a Service with a number of ports.
func scoredOf(ports int) int { return min(mostScored, 4*mostScored/max(ports, 1)) }

// perGroup is the approximate size of the groups of competing endpoints above the limit. A hash selects the group, so the sizes differ. mostOfGroup
// is the largest group that competes.
const perGroup, mostOfGroup = 512, 4 * 512

// grouping is the arrangement of very many endpoints. A hash divides them into groups, and the endpoints of each group compete. Then the groups
// take slots in turn. An added or removed endpoint changes a few hundred slots. A grouping is immutable.
type grouping struct {
	// set has all endpoints, sorted.
	set    []netip.AddrPort
	groups []group
}

// group has competing endpoints, sorted, and in the order of their slots.
type group struct{ set, list []netip.AddrPort }

// change returns the grouping of a sorted set. g is the grouping of an earlier set, or nil. Only the time depends on it: groups without a change stay.
func (g *grouping) change(set []netip.AddrPort) *grouping {
	now := &grouping{set: set, groups: make([]group, 1<<bits.Len(uint(len(set)/perGroup)))}
	if g == nil || len(g.groups) != len(now.groups) {
		g = &grouping{groups: make([]group, len(now.groups))}
	}
	removed, added := difference(g.set, set)
	of := func(e netip.AddrPort) uint64 { return hashEndpoint(e) >> 32 % uint64(len(now.groups)) }
	gone, come := make([][]netip.AddrPort, len(now.groups)), make([][]netip.AddrPort, len(now.groups))
	for _, e := range removed {
		gone[of(e)] = append(gone[of(e)], e)
	}
	for _, e := range added {
		come[of(e)] = append(come[of(e)], e)
	}
	for i := range now.groups {
		now.groups[i] = g.groups[i].change(gone[i], come[i])
	}
	return now
}

// change returns the group after sorted endpoints were removed and added.
func (c group) change(removed, added []netip.AddrPort) group {
	if len(removed)+len(added) == 0 {
		return c
	}
	set := make([]netip.AddrPort, 0, len(c.set)+len(added))
	for _, e := range c.set {
		if len(removed) > 0 && removed[0] == e {
			removed = removed[1:]
		} else {
			set = append(set, e)
		}
	}
	set = append(set, added...)
	slices.SortFunc(set, netip.AddrPort.Compare)
	before := c.list
	switch {
	case len(set) > mostOfGroup: // a tenant has selected endpoints with hashes of the same group
		return group{set, set}
	case len(before) > mostOfGroup:
		before = nil
	}
	list, _ := rearrange(before, nil, set)
	return group{set, list}
}

// inTurn returns the endpoints in the order of the slots.
func (g *grouping) inTurn() []netip.AddrPort {
	list := make([]netip.AddrPort, 0, len(g.set))
	for row := 0; len(list) < len(g.set); row++ {
		for i := range g.groups {
			if rows := g.groups[i].list; row < len(rows) {
				list = append(list, rows[row])
			}
		}
	}
	return list
}

// many is the smallest number of endpoints with an arrangement that changes in place. small is the largest number of endpoints whose hashes are on
// the stack.
const many, small = 128, 32

// difference returns the endpoints that only before has, and the endpoints that only set has. a is the arrangement of before, or nil.
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

// fromScratch returns the arrangement of a set: every slot chooses, the last slot first.
func fromScratch(set []netip.AddrPort) []netip.AddrPort {
	if len(set) < 2 {
		return set
	}
	var room [small]uint64
	list := slices.Clone(set)
	a := arrangement{endpoints: list, hashes: appendHashes(room[:0], set)}
	for slot := len(set) - 1; slot > 0; slot-- {
		if w := a.lowest(slot, a.at(slot)); w >= 0 { // without put, and with list as the result, so that the hashes stay on the stack
			a.hashes[slot], a.hashes[w] = a.hashes[w], a.hashes[slot]
			a.endpoints[slot], a.endpoints[w] = a.endpoints[w], a.endpoints[slot]
		}
	}
	return list
}

// difference returns the endpoints that only the sorted list old has, and the endpoints that only the sorted list now has.
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

// sortedIn does the same as sorted, and makes the copy in room if the list fits.
func sortedIn(room, list []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(list, netip.AddrPort.Compare) {
		return list
	}
	list = append(room, list...)
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// rival is an endpoint with the hash by which it competes for slots. The address distinguishes endpoints with the same hash, because a tenant can
// find such endpoints.
type rival struct {
	hash     uint64
	endpoint netip.AddrPort
}

func newRival(e netip.AddrPort) rival { return rival{hashEndpoint(e), e} }

func (r *rival) compare(o *rival) int {
	return cmp.Or(cmp.Compare(r.hash, o.hash), r.endpoint.Compare(o.endpoint))
}

// beats reports whether one rival wins a slot over another.
func (r *rival) beats(o *rival, slot int) bool {
	own, other := score(slot, r.hash), score(slot, o.hash)
	return own < other || own == other && r.compare(o) < 0
}

// hashMask is all ones except in tests, which shorten hashes to make them collide.
var hashMask = ^uint64(0)

func hashEndpoint(e netip.AddrPort) uint64 { return balance.Hash(e) & hashMask }

// score returns the score of an endpoint for a slot. The lowest score wins.
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

// arrangement is an arrangement that changes in place.
type arrangement struct {
	// endpoints and hashes are in the order of the slots. set has the same endpoints, sorted.
	endpoints, set []netip.AddrPort
	hashes         []uint64
	// undo has the endpoints that the last change replaced, in the order of the slots. before is the number of slots before this change.
	undo   []replaced
	before int
	// removed and added are the endpoints that the last change removed and added.
	removed, added []netip.AddrPort
	// final is true if no caller needs undo.
	final bool
}

// replaced is the earlier endpoint of a slot. turn is its position in the order of replacements.
type replaced struct {
	slot, turn int
	endpoint   netip.AddrPort
}

// newArrangement returns an arrangement with a copy of list, with memory for n endpoints.
func newArrangement(list []netip.AddrPort, n int) *arrangement {
	n = max(n, len(list))
	return &arrangement{
		endpoints: append(make([]netip.AddrPort, 0, n), list...), hashes: appendHashes(make([]uint64, 0, n), list), before: len(list),
	}
}

// was returns the endpoint of a slot before the last change.
func (a *arrangement) was(slot int) netip.AddrPort {
	if i, ok := slices.BinarySearchFunc(a.undo, slot, func(r replaced, slot int) int { return cmp.Compare(r.slot, slot) }); ok {
		return a.undo[i].endpoint
	}
	return a.endpoints[:a.before][slot]
}

// undone returns the list of endpoints before the last change.
func (a *arrangement) undone() []netip.AddrPort {
	list := slices.Clone(a.endpoints[:a.before])
	for _, r := range a.undo {
		list[r.slot] = r.endpoint
	}
	return list
}

// sortUndo sorts undo by slot, and keeps only the first entry of each slot: its endpoint before the change.
func (a *arrangement) sortUndo() {
	slices.SortFunc(a.undo, func(x, y replaced) int { return cmp.Or(cmp.Compare(x.slot, y.slot), cmp.Compare(x.turn, y.turn)) })
	a.undo = slices.CompactFunc(a.undo, func(x, y replaced) bool { return x.slot == y.slot })
}

// change updates the arrangement after endpoints were removed from the set, and endpoints were added to it.
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

// insert adds an endpoint, and a last slot, which chooses first.
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

// remove removes an endpoint and the last slot. The endpoint of the last slot is then the new one for the slots below.
func (a *arrangement) remove(out rival) {
	slot := len(a.hashes) - 1
	last := a.at(slot)
	a.hashes, a.endpoints = a.hashes[:slot], a.endpoints[:slot]
	if last != out {
		a.exchange(last, out, slot-1)
	}
}

// exchange updates the slots from top downwards after the endpoint in has replaced the endpoint out.
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

// lowest compares the scores for a slot of the endpoints in the slots below it. It returns the slot of the lowest score, or -1 if the score of the
// newcomer is lower.
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
