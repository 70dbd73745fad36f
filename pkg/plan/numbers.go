package plan

import (
	"math/bits"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// In the tables, a number stands for a service port, or for the source ranges of a Service. With session affinity, a
// connection limit or port ranges, an id stands for an endpoint. A service port with ids is called affine. The
// planner assigns numbers, and never computes them from data of a tenant. [Planner.Recall] reads the numbers of an
// earlier process back from the kernel.
//
// The planner assigns numbers cyclically, so that it does not soon reuse a freed number. A packet may have read the
// freed number just before the batch that deleted it.

// portID identifies a service port, regardless of its addresses.
type portID struct {
	name     model.PortName
	protocol inet.Protocol
	family   inet.Family
}

// ring assigns the numbers from first to end-1. The search for a free number starts at next. used is a bitmap of the
// assigned numbers, and free is the count of the other numbers.
type ring struct {
	first, end, next uint32
	used             []uint64
	free             int
}

func newRing(first, end uint32) *ring {
	return &ring{first: first, end: end, next: first, free: int(end - first)}
}

// take assigns the next free number. It returns 0 if none is free.
func (r *ring) take() uint32 {
	if r.free == 0 {
		return 0
	}
	for n := r.next; ; {
		at := n - r.first
		word := r.word(at / 64)
		if free := ^*word >> (at % 64); free != 0 {
			n += uint32(bits.TrailingZeros64(free))
			if n < r.end {
				r.mark(n)
				r.next = r.after(n)
				return n
			}
		}
		if n = (at/64+1)*64 + r.first; n >= r.end {
			n = r.first
		}
	}
}

func (r *ring) after(n uint32) uint32 {
	if n++; n == r.end {
		return r.first
	}
	return n
}

// takeThis assigns a number. It reports false if the number is out of range or not free.
func (r *ring) takeThis(n uint32) bool {
	if n < r.first || n >= r.end || *r.word((n - r.first) / 64)>>((n-r.first)%64)&1 == 1 {
		return false
	}
	r.mark(n)
	return true
}

// giveBack frees a number. It ignores 0.
func (r *ring) giveBack(n uint32) {
	if n != 0 {
		*r.word((n - r.first) / 64) &^= 1 << ((n - r.first) % 64)
		r.free++
	}
}

func (r *ring) mark(n uint32) {
	*r.word((n - r.first) / 64) |= 1 << ((n - r.first) % 64)
	r.free--
}

// word returns a word of the bitmap, and extends the bitmap up to it.
func (r *ring) word(i uint32) *uint64 {
	for int(i) >= len(r.used) {
		r.used = append(r.used, 0)
	}
	return &r.used[i]
}

// Numbers are in the upper bits of the register. The numbers of affine service ports use only the upper half of the
// register, and are greater than all other numbers.
const (
	firstAffine = 0xc000
	endAffine   = 1 << 16
	firstNumber = 1
	endOthers   = (firstAffine << affineShift &^ topBit) >> portShift
)

// numbers assigns the numbers of one family.
type numbers struct{ affine, others *ring }

func newNumbers() *numbers {
	return &numbers{affine: newRing(firstAffine, endAffine), others: newRing(firstNumber, endOthers)}
}

// assign assigns a number. It returns 0 if no number is free.
func (t *numbers) assign(affine bool) uint32 {
	if affine {
		return t.affine.take() << affineShift
	}
	if n := t.others.take(); n != 0 {
		return topBit | n<<portShift
	}
	return 0
}

func isAffine(number uint32) bool { return number >= firstAffine<<affineShift }

// recall assigns a number that an earlier process had assigned. It reports false if the number is invalid or not free.
func (t *numbers) recall(number uint32, affine bool) bool {
	switch {
	case number&topBit == 0 || isAffine(number) != affine:
		return false
	case affine:
		return number&^affineBits == 0 && t.affine.takeThis(number>>affineShift)
	}
	return number&^portBits == 0 && t.others.takeThis(number&^topBit>>portShift)
}

func (t *numbers) giveBack(number uint32) {
	switch {
	case number == 0:
	case isAffine(number):
		t.affine.giveBack(number >> affineShift)
	default:
		t.others.giveBack(number &^ topBit >> portShift)
	}
}

// affinePort has the number of an affine service port, and the ids of its endpoints.
type affinePort struct {
	number    uint32
	endpoints map[netip.AddrPort]uint16
	ids       *ring
}

// mostIDs is the greatest id of an endpoint. 0 stands for no endpoint.
const mostIDs = endpointBits

func newAffinePort(number uint32) *affinePort {
	return &affinePort{number: number, endpoints: map[netip.AddrPort]uint16{}, ids: newRing(1, mostIDs+1)}
}

// add assigns an id to an endpoint that has none: the recalled id, if it is free.
func (p *affinePort) add(e netip.AddrPort, recalled map[netip.AddrPort]uint16) {
	if _, ok := p.endpoints[e]; ok {
		return
	}
	id := uint32(recalled[e])
	if id == 0 || !p.ids.takeThis(id) {
		id = p.ids.take()
	}
	p.endpoints[e] = uint16(id)
}

func (p *affinePort) remove(e netip.AddrPort) {
	if id, ok := p.endpoints[e]; ok {
		p.ids.giveBack(uint32(id))
		delete(p.endpoints, e)
	}
}

// endpointRegister returns the word in the scratch register that stands for an endpoint.
func (p *affinePort) endpointRegister(e netip.AddrPort) uint32 {
	return p.number | uint32(p.endpoints[e])
}
