package plan

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// In the tables, a number stands for a service port, or for the source ranges of a Service. With session affinity, a maximum of connections or port
// ranges, an id stands for an endpoint. A service port with ids is called affine. The planner assigns numbers, and never computes them from data of a
// tenant. [Planner.Recall] reads the numbers of an earlier process back from the kernel.
//
// The planner assigns numbers cyclically, so that it does not soon reuse a freed number. A packet may have read the freed number just before the
// batch that deleted it.

// portID identifies a service port, regardless of its addresses.
type portID struct {
	name     model.PortName
	protocol inet.Protocol
	family   inet.Family
}

// ring assigns the numbers from first to end-1. The search for a free number starts at next. used is a bitmap of the assigned numbers, and free is
// the count of the other numbers.
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

// Numbers are in the upper bits of the register. The numbers of affine service ports use only the upper half of the register, and are greater than
// all other numbers. They are in blocks of 256. All numbers of a block have the same timeout, so the upper byte of the register selects the timeout.
const (
	perBlock    = 1 << 8
	firstBlock  = 0xa0
	endBlock    = 0x100
	endOthers   = (firstBlock << blockShift &^ topBit) >> portShift
	firstNumber = 1
)

// numbers assigns the numbers of one family.
type numbers struct {
	others *ring
	blocks [endBlock - firstBlock]block
}

// block is a block of numbers of affine service ports.
type block struct {
	*ring
	// timeout is the timeout of all service ports with a number of the block, in seconds.
	timeout uint32
	// recalled is true if an earlier process or planner used the block, and the planner may still recall the block's numbers.
	recalled bool
	// avoided are numbers that a Service of an earlier process may have had a short time ago. They are assigned last.
	avoided map[uint32]struct{}
}

// assign assigns a number. At least one must be free.
func (b *block) assign() uint32 {
	n := b.take()
	var skipped []uint32
	for _, avoided := b.avoided[n]; avoided; _, avoided = b.avoided[n] {
		skipped = append(skipped, n)
		n = b.take()
	}
	for _, s := range skipped {
		b.giveBack(s)
	}
	if n == 0 {
		n = b.take()
	}
	return n
}

func newNumbers() *numbers { return &numbers{others: newRing(firstNumber, endOthers)} }

// other assigns a number for a service port that is not affine, or for source ranges. It returns 0 if no such number is free.
func (t *numbers) other() uint32 {
	if n := t.others.take(); n != 0 {
		return topBit | n<<portShift
	}
	return 0
}

// affine assigns a number for an affine service port with a timeout. It prefers a block of this timeout, then an empty block, and then a block of
// this timeout whose numbers the planner may still recall. It returns 0 if no such number is free.
func (t *numbers) affine(timeout uint32) uint32 {
	empty, recalled := -1, -1
	for i := range t.blocks {
		b := &t.blocks[i]
		switch {
		case b.ring == nil || b.free == perBlock && !b.recalled:
			if empty < 0 {
				empty = i
			}
		case b.timeout == timeout && b.free > 0 && !b.recalled:
			return b.assign() << affineShift
		case b.timeout == timeout && b.free > 0:
			recalled = i
		}
	}
	switch {
	case empty >= 0:
		t.open(empty, timeout, false)
		return t.blocks[empty].assign() << affineShift
	case recalled >= 0:
		return t.blocks[recalled].assign() << affineShift
	}
	return 0
}

// hasFree reports whether a number is free. A timeout other than 0 stands for an affine service port.
func (t *numbers) hasFree(timeout uint32) bool {
	if timeout == 0 {
		return t.others.free > 0
	}
	return slices.ContainsFunc(t.blocks[:], func(b block) bool {
		return b.ring == nil || b.free == perBlock || b.timeout == timeout && b.free > 0
	})
}

// open gives an empty block a timeout.
func (t *numbers) open(i int, timeout uint32, recalled bool) {
	b := &t.blocks[i]
	if b.ring == nil {
		first := uint32(firstBlock+i) * perBlock
		b.ring = newRing(first, first+perBlock)
	}
	b.timeout, b.recalled = timeout, recalled
}

// avoid makes the planner assign the number of an affine service port last. It is not necessary for other numbers: a process continues after the last
// number of the earlier process.
func (t *numbers) avoid(number uint32) {
	if !isAffine(number) {
		return
	}
	b := &t.blocks[blockOf(number)-firstBlock]
	if b.avoided == nil {
		b.avoided = map[uint32]struct{}{}
	}
	b.avoided[number>>affineShift] = struct{}{}
}

// blockOf returns the block of an affine service port's number.
func blockOf(number uint32) uint8 { return uint8(number >> blockShift) }

func isAffine(number uint32) bool { return number >= firstBlock<<blockShift }

// recall assigns a number that an earlier process had assigned. A timeout other than 0 stands for an affine service port. recall reports false if the
// number is invalid for this timeout, or not free.
func (t *numbers) recall(number, timeout uint32) bool {
	switch {
	case number&topBit == 0 || isAffine(number) != (timeout > 0):
		return false
	case timeout == 0:
		return number&^portBits == 0 && t.others.takeThis(number&^topBit>>portShift)
	}
	b := &t.blocks[blockOf(number)-firstBlock]
	return number&^affineBits == 0 && b.ring != nil && b.timeout == timeout && b.takeThis(number>>affineShift)
}

func (t *numbers) giveBack(number uint32) {
	switch {
	case number == 0:
	case isAffine(number):
		t.blocks[blockOf(number)-firstBlock].giveBack(number >> affineShift)
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

// keepOnly frees the ids of endpoints that are in none of the given lists.
func (p *affinePort) keepOnly(lists ...[]netip.AddrPort) {
	gone := make(map[netip.AddrPort]struct{}, len(p.endpoints))
	for e := range p.endpoints {
		gone[e] = struct{}{}
	}
	for _, l := range lists {
		for _, e := range l {
			delete(gone, e)
		}
	}
	for e := range gone {
		p.remove(e)
	}
}

// endpointRegister returns the word in the scratch register that stands for an endpoint.
func (p *affinePort) endpointRegister(e netip.AddrPort) uint32 {
	return p.number | uint32(p.endpoints[e])
}
