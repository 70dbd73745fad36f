package plan

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

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

// Up to exactSlots, a table has one slot for each endpoint. Above exactSlots, its size is rounded up to one of four
// sizes in each octave. If a packet draws an empty slot, the next rule draws again. There are few sizes because each
// size in use adds a rule. The kernel checks the data of each element for each rule that looks up the map. A commit
// takes at least 20 ns for each element and rule. A table for a hash has one of even fewer sizes, and no empty slot.
const (
	exactSlots = 16
	perOctave  = 4
	exactBits  = 4 // exactSlots = 1 << exactBits
	// mostSlots is the size of the largest table.
	mostSlots = 1 << 16
)

// index numbers the tables from 1: first those for a random number, then those of each selector.
func (t table) index() uint32 {
	if t.by == (selector{}) {
		return sizeIndex(t.size)
	}
	size := slices.Index(balance.Sizes[:], t.size)
	return sizeIndex(mostSlots) + uint32(slices.Index(selectors[:], t.by)*len(balance.Sizes)+size) + 1
}

// tableAt is the table with an index; false if there is none.
func tableAt(index uint32) (table, bool) {
	last := sizeIndex(mostSlots)
	if index <= last {
		return table{size: sizeAt(index)}, index > 0
	}
	by, size := int(index-last-1)/len(balance.Sizes), int(index-last-1)%len(balance.Sizes)
	if by >= len(selectors) {
		return table{}, false
	}
	return table{balance.Sizes[size], selectors[by]}, true
}

// exists reports whether a family has chains for the table.
func (t table) exists(f inet.Family) bool {
	if t.by == (selector{}) {
		return t.size > 0 && t.size <= mostSlots && tableSize(t.size) == t.size
	}
	return slices.Contains(balance.Sizes[:], t.size) && int(t.by.prefix) <= f.AddrLen()*8
}

// sizeIndex returns the index of the smallest size with room for n endpoints, n from 1 to mostSlots. Indexes start at
// 1.
func sizeIndex(n uint32) uint32 {
	if n <= exactSlots {
		return n
	}
	octave := uint32(bits.Len32(n-1)) - 1 // n is above 1 << octave, and at most twice that
	step := uint32(1) << octave / perOctave
	return exactSlots + (octave-exactBits)*perOctave + (n-1<<octave+step-1)/step
}

// sizeAt returns the size with an index of [sizeIndex].
func sizeAt(index uint32) uint32 {
	if index <= exactSlots {
		return index
	}
	octave, part := (index-exactSlots-1)/perOctave+exactBits, (index-exactSlots-1)%perOctave+1
	return 1<<octave + part*(1<<octave/perOctave)
}

// tableSize returns the size of the table for n endpoints.
func tableSize(n uint32) uint32 { return sizeAt(sizeIndex(n)) }

// surelyFilled returns a number n: the first n slots of every table of a size are filled.
func surelyFilled(size uint32) uint32 {
	if size <= exactSlots {
		return size
	}
	return sizeAt(sizeIndex(size) - 1)
}
