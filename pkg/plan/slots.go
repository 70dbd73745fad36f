package plan

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
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
	// The upper bits are the position of an endpoint, the lower bits its index. So endpoints with equal positions,
	// which a tenant can find, are also in a definite order.
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

// hashMask is all ones except in tests, which shorten hashes to make them collide.
var hashMask = ^uint64(0)

// table is the form of the slots of a list of endpoints.
type table struct {
	// size is the number of slots.
	size uint32
	by   selector
}

// selector is the part of a packet that selects a slot. The zero value stands for a random number.
type selector struct {
	key balance.Key
	// prefix is the length of a prefix of the client's address.
	prefix uint8
}

// selectors are the selectors of hashes, with each of balance.Lengths.
var selectors = [...]selector{
	{key: balance.Flow},
	{balance.Source, 8}, {balance.Source, 12}, {balance.Source, 16}, {balance.Source, 20},
	{balance.Source, 24}, {balance.Source, 28}, {balance.Source, 32},
	{balance.Source, 40}, {balance.Source, 48}, {balance.Source, 56}, {balance.Source, 64}, {balance.Source, 128},
}

func (s selector) name() string {
	switch s.key {
	case balance.Flow:
		return "maglev"
	case balance.Source:
		return fmt.Sprintf("source-%d", s.prefix)
	}
	return ""
}

// words describe the selection of a slot.
func (s selector) words() string {
	if s.key == balance.Flow {
		return "a hash of the client's address and port"
	}
	return fmt.Sprintf("a hash of the first %d bits of the client's address", s.prefix)
}

// sizes are the sizes of tables for a random number. Up to exactSlots, a table has one slot for each endpoint. Above
// exactSlots, its size is rounded up to one of four sizes in each octave. If a packet draws an empty slot, the next
// rule draws again. There are few sizes because each size in use adds a rule. The kernel checks the data of each
// element for each rule that looks up the map. A commit takes at least 20 ns for each element and rule. A table for a
// hash has one of even fewer sizes, and no empty slot.
var sizes = [...]uint32{
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, exactSlots, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160,
	192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144,
	7168, 8192, 10240, 12288, 14336, 16384, 20480, 24576, 28672, 32768, 40960, 49152, 57344, mostSlots,
}

const (
	exactSlots = 16
	// mostSlots is the size of the largest table.
	mostSlots = 1 << 16
)

// index numbers the tables from 1: first those for a random number, then those of each selector.
func (t table) index() uint32 {
	if t.by == (selector{}) {
		at, _ := slices.BinarySearch(sizes[:], t.size)
		return uint32(at) + 1
	}
	size := slices.Index(balance.Sizes[:], t.size)
	return uint32(len(sizes) + slices.Index(selectors[:], t.by)*len(balance.Sizes) + size + 1)
}

// tableAt is the table with an index; false if there is none.
func tableAt(index uint32) (table, bool) {
	at := int(index) - 1
	if at < len(sizes) {
		return table{size: sizes[max(at, 0)]}, at >= 0
	}
	by, size := (at-len(sizes))/len(balance.Sizes), (at-len(sizes))%len(balance.Sizes)
	if by >= len(selectors) {
		return table{}, false
	}
	return table{balance.Sizes[size], selectors[by]}, true
}

// exists reports whether a family has chains for the table.
func (t table) exists(f inet.Family) bool {
	if t.by == (selector{}) {
		return slices.Contains(sizes[:], t.size)
	}
	return slices.Contains(balance.Sizes[:], t.size) && int(t.by.prefix) <= f.AddrLen()*8
}

// tableSize returns the size of the table for n endpoints.
func tableSize(n uint32) uint32 {
	at, _ := slices.BinarySearch(sizes[:], n)
	return sizes[at]
}

// surelyFilled returns a number n: the first n slots of every table of a size are filled.
func surelyFilled(size uint32) uint32 {
	if size <= exactSlots {
		return size
	}
	at, _ := slices.BinarySearch(sizes[:], size)
	return sizes[at-1]
}
