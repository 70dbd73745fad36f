package balance

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/dchest/siphash"
)

// Sizes are the sizes of tables whose slots a hash selects. They are prime numbers, as Maglev needs them.
var Sizes = [...]uint32{251, 1021, 4093, 16381}

// perEndpoint is the least number of slots for each endpoint in a table of [Size], up to 1,365 endpoints.
const perEndpoint = 12

// MostHashed is the greatest number of endpoints among which a hash selects.
const MostHashed = 4096

// Size returns the size of a table for a number of endpoints.
func Size(endpoints int) uint32 {
	for _, size := range Sizes {
		if endpoints*perEndpoint <= int(size) {
			return size
		}
	}
	return Sizes[len(Sizes)-1]
}

// Most is the greatest number of slots of a table. It is a prime number.
const Most = 65521

// Slots returns the number of slots for endpoints with weights: nil for equal ones, or reduced ones, see [Reduce]. Above [Most] slots there is
// no table.
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
	return int(Size(endpoints))
}

// Reduce divides weights by their greatest common divisor. It returns nil if all are equal.
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

// Fill returns the endpoint of each slot. It is a function of the endpoints with their weights, which are sorted by endpoint, without
// duplicates and above 0; nil weights are equal. Each endpoint has a share of the slots by its weight: exactly that with [Chance], and with a
// hash up to one slot more or less, but at least one slot.
//
// This is the algorithm of Maglev (Eisenbud et al., NSDI 2016, section 3.4) with weights. Each endpoint has an order of preference of the
// slots. In each round, each endpoint takes its next free slot, unless it has a smaller share and sits out. So a change of one endpoint moves
// few other slots.
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
	rounds := 0
	for _, s := range shares {
		rounds = max(rounds, s)
	}
	for left := size; left > 0; {
		for i := range orders {
			o := &orders[i]
			if o.due += shares[i]; o.due < rounds {
				continue
			}
			o.due -= rounds
			for int(o.at) >= size || slots[o.at].IsValid() {
				o.at = (o.at + o.step) % prime
			}
			slots[o.at] = endpoints[i]
			left--
		}
	}
	return slots
}

// order is an endpoint's order of preference: the next slot, and the distance to the one after it. The endpoint takes a slot when as much as the
// greatest share is due to it.
type order struct {
	at, step uint32
	due      int
}

// quotas divides a number of slots among endpoints by weight: rounded by the largest remainder, and at least one slot for each.
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
		remainder := func(i int) int { return size * weight(i) % sum }
		slices.SortStableFunc(byRemainder, func(a, b int) int { return cmp.Compare(remainder(b), remainder(a)) })
		for _, i := range byRemainder[:left] {
			list[i]++
		}
	}
	for left < 0 { // the least shares were rounded up to one: at the cost of the others
		for i := range list {
			if list[i] > 1 && left < 0 {
				list[i]--
				left++
			}
		}
	}
	return list
}

// key is constant, so that all nodes agree. Although it is public, a tenant cannot find many endpoints with the same hash, as would be possible
// with a simpler hash.
const key = 0x9e3779b97f4a7c15

// Hash returns a hash of an endpoint (SipHash) that is equal on all nodes.
func Hash(e netip.AddrPort) uint64 {
	var b [18]byte
	a := e.Addr().As16()
	copy(b[:], a[:])
	binary.LittleEndian.PutUint16(b[16:], e.Port())
	return siphash.Hash(key, key, b[:])
}
