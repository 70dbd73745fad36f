package plan

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
)

// The endpoints of a service port have numbered slots, so that a random number selects an endpoint. The order of the
// slots depends only on the set of endpoints, and not on earlier sets. So after a restart, the plan equals the tables
// of the earlier process. The order is also stable: the replacement of one of n endpoints changes about sqrt(n) slots.
// With an order by address, it would change a third of the slots. See docs/decisions/0002-slots.md.

// inSlots returns the endpoints of a sorted set in the order of their slots.
//
// The slots and the endpoints have positions on a ring. The positions of the slots 0, 1, 2, 3, 4 ... are 0, 1/2, 1/4,
// 3/4, 1/8 ... of the ring, so any number of slots is evenly spread. The position of an endpoint is its hash. Each slot
// takes the nearest endpoint before it that no slot in between takes, as each closing bracket belongs to the nearest
// open one. If an endpoint is missing, its slot takes the endpoint of the next enclosing pair, and so on up to the pair
// that encloses the new endpoint. All other pairs stay.
func inSlots(set []netip.AddrPort) []netip.AddrPort {
	if len(set) < 2 {
		return set
	}
	// The upper bits are the position of an endpoint, the lower bits its index. So endpoints with equal positions, which
	// a tenant can find, are also in a definite order.
	const indexBits = 1<<20 - 1
	ring := make([]uint64, len(set))
	for i, e := range set {
		ring[i] = balance.Hash(e)&hashMask&^indexBits | uint64(i)
	}
	slices.Sort(ring)
	list := make([]netip.AddrPort, len(set))
	// free are the endpoints that no slot has taken yet, and late the slots with no endpoint before them.
	free, late := make([]uint64, 0, len(set)), []int(nil)
	width := bits.Len(uint(len(set) - 1))
	for i := range 1 << width {
		position := uint64(i) << (64 - width)
		for len(ring) > 0 && ring[0] < position {
			free, ring = append(free, ring[0]&indexBits), ring[1:]
		}
		slot := int(bits.Reverse64(position))
		switch last := len(free) - 1; {
		case slot >= len(set):
		case last < 0:
			late = append(late, slot)
		default:
			list[slot], free = set[free[last]], free[:last]
		}
	}
	for _, e := range ring {
		free = append(free, e&indexBits)
	}
	slices.Reverse(free)
	for i, slot := range late {
		list[slot] = set[free[i]]
	}
	return list
}

// first returns the endpoint of a sorted set that serves alone: the one with the lowest hash.
func first(set []netip.AddrPort) netip.AddrPort {
	return slices.MinFunc(set, func(a, b netip.AddrPort) int { return cmp.Compare(balance.Hash(a), balance.Hash(b)) })
}

// difference returns the endpoints that only the sorted list old has, and the endpoints that only the sorted list now
// has.
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

// hashMask is all ones except in tests, which shorten hashes to make them collide.
var hashMask = ^uint64(0)
