package oracle

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"

	"github.com/dchest/siphash"
	corev1 "k8s.io/api/core/v1"
)

// seed is the seed of the hash of clients, and endpointKey the key of the hash of endpoints. Nodes agree, also with different versions of the
// program, only if neither changes.
const (
	seed        = 0x6b6e7078
	endpointKey = 0x9e3779b97f4a7c15
)

// Jhash follows the kernel's jhash in include/linux/jhash.h line by line, on a little-endian machine.
func Jhash(key []byte, initval uint32) uint32 {
	rol32 := bits.RotateLeft32
	a := 0xdeadbeef + uint32(len(key)) + initval
	b, c := a, a
	k := key
	for ; len(k) > 12; k = k[12:] {
		a += binary.LittleEndian.Uint32(k[0:])
		b += binary.LittleEndian.Uint32(k[4:])
		c += binary.LittleEndian.Uint32(k[8:])
		// __jhash_mix
		a -= c
		a ^= rol32(c, 4)
		c += b
		b -= a
		b ^= rol32(a, 6)
		a += c
		c -= b
		c ^= rol32(b, 8)
		b += a
		a -= c
		a ^= rol32(c, 16)
		c += b
		b -= a
		b ^= rol32(a, 19)
		a += c
		c -= b
		c ^= rol32(b, 4)
		b += a
	}
	if len(k) == 0 {
		return c
	}
	for i := len(k) - 1; i >= 0; i-- { // the cases of the switch, which fall through from 12 to 1
		part := uint32(k[i]) << (i % 4 * 8)
		switch i / 4 {
		case 2:
			c += part
		case 1:
			b += part
		default:
			a += part
		}
	}
	// __jhash_final
	c ^= b
	c -= rol32(b, 14)
	a ^= c
	a -= rol32(c, 11)
	b ^= a
	b -= rol32(a, 25)
	c ^= b
	c -= rol32(b, 16)
	a ^= c
	a -= rol32(c, 4)
	b ^= a
	b -= rol32(a, 14)
	c ^= b
	c -= rol32(b, 24)
	return c
}

// Algorithm selects endpoints by a hash of the client.
type Algorithm struct {
	// Ports is true if the client's port counts besides its address: maglev.
	Ports bool
	// Prefixes are the lengths for IPv4 and IPv6 of the prefix of the client's address that counts, for source-hash.
	Prefixes [2]int
	// Slots is the size of the table.
	Slots int
}

// algorithm returns the algorithm of a Service for a number of endpoints; false if the choice is random
// (docs/algorithms.md). The own annotation precedes those of Cilium and Calico. An invalid value means random, and
// maglev if the port may have direct server return.
func algorithm(s *corev1.Service, endpoints int, direct bool) (Algorithm, bool) {
	random := false
	a := Algorithm{Prefixes: [2]int{32, 128}, Slots: 16381}
	name, own := s.Annotations["kube-nftproxy.io/lb-algorithm"]
	cilium, ciliums := s.Annotations["service.cilium.io/lb-algorithm"]
	calico := s.Annotations["lb.projectcalico.org/external-traffic-strategy"]
	switch {
	case own && name == "source-hash":
	case own && name != "maglev":
		if n, _ := fmt.Sscanf(name, "source-hash/%d,%d", &a.Prefixes[0], &a.Prefixes[1]); n == 0 {
			random = true
		}
	case !own && ciliums && cilium != "maglev", !own && !ciliums && calico != "maglev":
		random = true
	default:
		a.Ports = true
	}
	if random && !direct {
		return a, false
	}
	a.Ports = a.Ports || random
	for _, t := range [][2]int{{341, 4093}, {85, 1021}, {20, 251}} {
		if endpoints <= t[0] {
			a.Slots = t[1]
		}
	}
	size, _ := strconv.Atoi(s.Annotations["kube-nftproxy.io/lb-table-size"])
	if slices.Contains([]int{251, 1021, 4093, 16381}, size) && size >= endpoints {
		a.Slots = size
	}
	return a, true
}

// Endpoint returns the index of the endpoint that a client gets. The endpoints are sorted, and weights are above 0.
func (a Algorithm) Endpoint(from netip.AddrPort, endpoints []netip.AddrPort, weights []int) int {
	return a.Table(endpoints, weights)[a.Slot(from)]
}

// Slot returns the slot of a client. The kernel hashes registers of 32 bits, so that zeros follow a port. It scales the hash with
// reciprocal_scale.
func (a Algorithm) Slot(from netip.AddrPort) int {
	key := from.Addr().AsSlice()
	if a.Ports {
		key = append(key, byte(from.Port()>>8), byte(from.Port()), 0, 0)
	} else {
		family := len(key) / 16
		for bit := a.Prefixes[family]; bit < len(key)*8; bit++ {
			key[bit/8] &^= 0x80 >> (bit % 8)
		}
	}
	return int(uint64(Jhash(key, seed)) * uint64(a.Slots) >> 32)
}

// Table returns the index of the endpoint of each slot, by the paper about Maglev (Eisenbud et al., NSDI 2016, section 3.4): "permutation" has each
// endpoint's order of preference, and "next" its position there. Endpoints with a smaller share than the greatest take turns less often, in proportion.
func (a Algorithm) Table(endpoints []netip.AddrPort, weights []int) []int {
	m, n := a.Slots, len(endpoints)
	permutation := make([][]int, n)
	for i, e := range endpoints {
		addr := e.Addr().As16()
		hash := siphash.Hash(endpointKey, endpointKey, binary.LittleEndian.AppendUint16(addr[:], e.Port()))
		offset, skip := int(hash>>32)%m, int(hash&0xffffffff)%(m-1)+1
		for j := range m {
			permutation[i] = append(permutation[i], (offset+j*skip)%m)
		}
	}
	entry, next, owed := make([]int, m), make([]int, n), make([]int, n)
	for j := range entry {
		entry[j] = -1
	}
	shares, greatest := divide(m, weights)
	for filled := 0; ; {
		for i := range n {
			if owed[i] += shares[i]; owed[i] < greatest {
				continue
			}
			owed[i] -= greatest
			c, last := permutation[i][next[i]%m], next[i]+256
			for entry[c] >= 0 && next[i] < last {
				next[i]++
				c = permutation[i][next[i]%m]
			}
			if next[i] == last { // not in the paper
				c = slices.Index(entry, -1)
			}
			entry[c] = i
			if filled++; filled == m {
				return entry
			}
		}
	}
}

// divide divides slots in proportion to weights, with whole numbers by the method of the largest remainder (Hamilton). Each weight has to be at
// least one slot. It also returns the greatest share.
func divide(slots int, weights []int) (shares []int, greatest int) {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	left, given := slots, make([]bool, len(weights))
	for i, w := range weights {
		given[i] = slots*w < sum
		shares = append(shares, max(1, slots*w/sum))
		left -= shares[i]
	}
	for ; left > 0; left-- {
		best := -1
		for i, w := range weights {
			if !given[i] && (best < 0 || slots*w%sum > slots*weights[best]%sum) {
				best = i
			}
		}
		given[best] = true
		shares[best]++
	}
	for i := 0; left < 0; i++ { // at the cost of the others, in turn
		if at := i % len(shares); shares[at] > 1 {
			shares[at]--
			left++
		}
	}
	for _, s := range shares {
		greatest = max(greatest, s)
	}
	return shares, greatest
}
