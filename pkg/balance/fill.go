package balance

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"sort"

	"github.com/dchest/siphash"
)

// Sizes are the sizes of tables for hashes. Maglev requires prime numbers.
var Sizes = [...]uint32{251, 1021, 4093, 16381}

// perEndpoint is the minimum number of slots for each endpoint in a table of [sizeFor]. Above 1,365 endpoints, each has
// fewer.
const perEndpoint = 12

// MostHashed is the greatest number of endpoints among which a hash selects.
const MostHashed = 4096

// sizeFor returns the size of a table for a number of endpoints.
func sizeFor(endpoints int) uint32 {
	for _, size := range Sizes {
		if endpoints*perEndpoint <= int(size) {
			return size
		}
	}
	return Sizes[len(Sizes)-1]
}

// Most is the greatest number of slots of a table. It is a prime number.
const Most = 65521

// Slots returns the number of slots of a table for a number of endpoints. weights are the result of [Reduce]; nil means
// equal weights. If the result is above [Most], there is no table.
func (m Method) Slots(endpoints int, weights []uint16) (n int) {
	switch {
	case endpoints == 0:
		return 0
	case m.Key == Chance && weights == nil:
		return endpoints
	case m.Key == Chance:
		for _, w := range weights {
			n += int(w)
		}
		return n
	case endpoints > MostHashed:
		return Most + 1
	case endpoints <= int(m.Size):
		return int(m.Size)
	}
	return int(sizeFor(endpoints))
}

// Reduce divides weights by their greatest common divisor. It returns nil if all weights are equal.
func Reduce(weights []uint16) []uint16 {
	divisor, equal := uint16(0), true
	for _, w := range weights {
		equal = equal && w == weights[0]
		for a := w; a != 0; {
			divisor, a = a, divisor%a
		}
	}
	if equal {
		return nil
	}
	out := make([]uint16, len(weights))
	for i, w := range weights {
		out[i] = w / divisor
	}
	return out
}

// Fill returns the endpoint of each slot. The endpoints must be sorted, without duplicates. weights[i] is the weight of
// endpoints[i] and above 0; nil means equal weights. The result depends only on these arguments.
//
// The share of an endpoint in the slots is proportional to its weight. With [Chance], it is exact. With a hash, it is
// rounded to a slot, and each endpoint has at least one slot, at the expense of larger shares.
//
// This is the algorithm of Maglev (Eisenbud et al., NSDI 2016, section 3.4) with weights. Each endpoint has its own
// order of all slots. In each round, each endpoint takes the first free slot in its order; an endpoint with a smaller
// share skips some rounds. So a change of one endpoint moves few other slots. The time grows with the number of slots,
// for any weights and endpoints.
func (m Method) Fill(endpoints []netip.AddrPort, weights []uint16) []netip.AddrPort {
	size := m.Slots(len(endpoints), weights)
	shares := quotas(size, len(endpoints), weights)
	prime := uint32(Most)
	for _, p := range slices.Backward(Sizes[:]) {
		if int(p) >= size {
			prime = p
		}
	}
	slots := make([]netip.AddrPort, size)
	orders := make([]order, len(endpoints))
	for i, e := range endpoints {
		hash := Hash(e)
		orders[i] = order{at: uint32(hash>>32) % prime, step: 1 + uint32(hash)%(prime-1)}
	}
	lowest := uint32(0)
	for _, i := range turns(size, shares) {
		o := &orders[i]
		probes := 0
		for ; (int(o.at) >= size || slots[o.at].IsValid()) && probes < mostProbes; probes++ {
			o.at = (o.at + o.step) % prime
		}
		at := o.at
		if probes == mostProbes {
			for slots[lowest].IsValid() {
				lowest++
			}
			at = lowest
		}
		slots[at] = endpoints[i]
	}
	return slots
}

// order is an endpoint's order of all slots: the next slot, and the distance to the slot after it.
type order struct{ at, step uint32 }

// mostProbes is the number of taken slots after which an endpoint takes the lowest free slot. A tenant can compute
// endpoints with the same order. Without this limit, each of them would try all slots of the others.
const mostProbes = 256

// turns returns the order in which endpoints take slots, by index. There are as many rounds as the greatest share. In
// each round, as much as its share is due to each endpoint, which takes a slot once the number of rounds is due to it.
func turns(size int, shares []int) []int32 {
	rounds := 0
	for _, s := range shares {
		rounds = max(rounds, s)
	}
	roundOf := func(turn, share int) int { return (turn*rounds + share - 1) / share } // from 1
	first := make([]int32, rounds+2)                                                  // the first turn of each round
	for _, share := range shares {
		for turn := 1; turn <= share; turn++ {
			first[roundOf(turn, share)+1]++
		}
	}
	for r := 1; r < len(first); r++ {
		first[r] += first[r-1]
	}
	list := make([]int32, size)
	for i, share := range shares {
		for turn := 1; turn <= share; turn++ {
			r := roundOf(turn, share)
			list[first[r]] = int32(i)
			first[r]++
		}
	}
	return list
}

// quotas divides a number of slots among endpoints by weight. It rounds by the largest remainder, and each endpoint
// gets at least one slot.
func quotas(size, endpoints int, weights []uint16) []int {
	sum, list := endpoints, make([]int, endpoints)
	weight := func(i int) int {
		if weights == nil {
			return 1
		}
		return int(weights[i])
	}
	if weights != nil {
		sum = 0
		for _, w := range weights {
			sum += int(w)
		}
	}
	left, byRemainder := size, make([]int, endpoints)
	for i := range list {
		list[i] = max(1, size*weight(i)/sum)
		left -= list[i]
		byRemainder[i] = i
	}
	if left > 0 {
		remainder := func(i int) int {
			if size*weight(i) < sum {
				return 0 // its share was rounded up to one
			}
			return size * weight(i) % sum
		}
		slices.SortStableFunc(byRemainder, func(a, b int) int { return cmp.Compare(remainder(b), remainder(a)) })
		for _, i := range byRemainder[:left] {
			list[i]++
		}
		return list
	}
	if left == 0 {
		return list
	}
	// Shares below one slot were rounded up: larger shares lose these slots, one each in turn. All turns but the last
	// one are made at once.
	cost := func(turns int) (n int) {
		for _, share := range list {
			n += min(share-1, turns)
		}
		return n
	}
	whole := sort.Search(size, func(turns int) bool { return cost(turns) > -left }) - 1
	left += cost(whole)
	for i := range list {
		if list[i] = max(1, list[i]-whole); list[i] > 1 && left < 0 {
			list[i]--
			left++
		}
	}
	return list
}

// key is constant, so that all nodes agree. Although it is public, a tenant cannot find many endpoints with the same
// hash, as would be possible with a simpler hash.
const key = 0x9e3779b97f4a7c15

// Hash returns a hash of an endpoint (SipHash) that is equal on all nodes.
func Hash(e netip.AddrPort) uint64 {
	var b [18]byte
	a := e.Addr().As16()
	copy(b[:], a[:])
	binary.LittleEndian.PutUint16(b[16:], e.Port())
	return siphash.Hash(key, key, b[:])
}
