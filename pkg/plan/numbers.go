package plan

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Service ports, Services with source ranges and, where there is session affinity, endpoints are known to the kernel by numbers. Numbers
// are assigned, never worked out from what a tenant writes. An earlier process's numbers are read back from the kernel, see [Planner.Recall].
//
// The next number is taken in a circle, so that one that was given back is not used again soon: a packet may have found it just before
// the batch that took it away.

// portID identifies a service port: clients are remembered by it, whatever address they came by.
type portID struct {
	name     model.PortName
	protocol inet.Protocol
	family   inet.Family
}

// ring assigns the numbers from first up to, but not including, end.
type ring struct {
	first, end, next uint32
	used             []uint64
	free             int
}

func newRing(first, end uint32) *ring {
	return &ring{first: first, end: end, next: first, free: int(end - first)}
}

// take assigns the next free number; 0 means that there is none.
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

// takeThis assigns a number, and reports false if it isn't free.
func (r *ring) takeThis(n uint32) bool {
	if n < r.first || n >= r.end || *r.word((n - r.first) / 64)>>((n-r.first)%64)&1 == 1 {
		return false
	}
	r.mark(n)
	return true
}

// giveBack makes a number free; 0 is none.
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

// word returns a word of the bitmap, which is as long as it has to be.
func (r *ring) word(i uint32) *uint64 {
	for int(i) >= len(r.used) {
		r.used = append(r.used, 0)
	}
	return &r.used[i]
}

// Numbers stand in the upper bits of the register. Those of service ports with session affinity fit into its upper half; they are
// greater than all others. All with one timeout are in blocks of their own, so that the upper byte tells the timeout.
const (
	perBlock    = 1 << 8
	firstBlock  = 0xa0
	endBlock    = 0x100
	endOthers   = (firstBlock << blockShift &^ ourBit) >> portShift
	firstNumber = 1
)

// numbers assigns those of one family.
type numbers struct {
	others *ring
	blocks [endBlock - firstBlock]block
}

// block is a block of numbers of service ports with session affinity.
type block struct {
	*ring
	// timeout is that of all of its service ports, in seconds.
	timeout uint32
	// recalled says that an earlier process has used the block, so that numbers in it may be about to be recalled.
	recalled bool
}

func newNumbers() *numbers { return &numbers{others: newRing(firstNumber, endOthers)} }

// other assigns a number to a service port without affinity, or to source ranges; 0 means that there is none.
func (t *numbers) other() uint32 {
	if n := t.others.take(); n != 0 {
		return ourBit | n<<portShift
	}
	return 0
}

// affine assigns a number to a service port with affinity; 0 means that there is none.
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
			return b.take() << affineShift
		case b.timeout == timeout && b.free > 0:
			recalled = i
		}
	}
	switch {
	case empty >= 0:
		t.open(empty, timeout, false)
		return t.blocks[empty].take() << affineShift
	case recalled >= 0:
		return t.blocks[recalled].take() << affineShift
	}
	return 0
}

// any reports whether there is a number to assign: with a timeout to a service port with affinity.
func (t *numbers) any(timeout uint32) bool {
	if timeout == 0 {
		return t.others.free > 0
	}
	return slices.ContainsFunc(t.blocks[:], func(b block) bool {
		return b.ring == nil || b.free == perBlock || b.timeout == timeout && b.free > 0
	})
}

// open makes a block that of a timeout.
func (t *numbers) open(i int, timeout uint32, recalled bool) {
	b := &t.blocks[i]
	if b.ring == nil {
		first := uint32(firstBlock+i) * perBlock
		b.ring = newRing(first, first+perBlock)
	}
	b.timeout, b.recalled = timeout, recalled
}

// blockOf is the block of a number.
func blockOf(number uint32) uint8 { return uint8(number >> blockShift) }

func isAffine(number uint32) bool { return number >= firstBlock<<blockShift }

// recall assigns a number that an earlier process had assigned to something of the same kind: with a timeout to a service port with
// affinity. It reports false where that can't be.
func (t *numbers) recall(number, timeout uint32) bool {
	switch {
	case number&ourBit == 0 || isAffine(number) != (timeout > 0):
		return false
	case timeout == 0:
		return number&^portBits == 0 && t.others.takeThis(number&^ourBit>>portShift)
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
		t.others.giveBack(number &^ ourBit >> portShift)
	}
}

// affinePort holds a service port's number in the register, and the ids of its endpoints.
type affinePort struct {
	number    uint32
	endpoints map[netip.AddrPort]uint16
	ids       *ring
}

// mostIDs is the greatest id of an endpoint; 0 stands for none.
const mostIDs = endpointBits

func newAffinePort(number uint32) *affinePort {
	return &affinePort{number: number, endpoints: map[netip.AddrPort]uint16{}, ids: newRing(1, mostIDs+1)}
}

// add gives an endpoint an id, if possible that which it is known to have had.
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

// keep takes the ids back from endpoints that are in none of the given lists.
func (p *affinePort) keep(lists ...[]netip.AddrPort) {
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

// endpointRegister is what the scratch register holds for one of the endpoints.
func (p *affinePort) endpointRegister(e netip.AddrPort) uint32 {
	return p.number | uint32(p.endpoints[e])
}
