package model

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// AddrRange holds the addresses from First to Last, inclusive. Both are of one family.
type AddrRange struct {
	First, Last netip.Addr
}

// RangeOf returns the range of a valid prefix.
func RangeOf(p netip.Prefix) AddrRange {
	first := p.Masked().Addr()
	b := first.AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return AddrRange{first, last}
}

// Contains reports whether an address is in the range.
func (r AddrRange) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// String returns the range as a prefix if it is one, otherwise as "first-last".
func (r AddrRange) String() string {
	a, b := r.First.AsSlice(), r.Last.AsSlice()
	bits := 0
	for bits < len(a)*8 && (a[bits/8]^b[bits/8])&(0x80>>(bits%8)) == 0 {
		bits++
	}
	if p := netip.PrefixFrom(r.First, bits); RangeOf(p) == r {
		return p.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// asPrefixes splits ranges into the fewest prefixes. The kernel stores a range as its prefixes.
func asPrefixes(ranges []AddrRange) (out []AddrRange) {
	for _, r := range ranges {
		for first := r.First; ; {
			p := RangeOf(netip.PrefixFrom(first, first.BitLen()-freeBits(first, r.Last)))
			out = append(out, p)
			if p.Last == r.Last {
				break
			}
			first = p.Last.Next()
		}
	}
	return out
}

// freeBits returns the number of bits after the longest prefix that begins at an address and does not contain an
// address after last.
func freeBits(first, last netip.Addr) int {
	const word = 64
	high, low := words(first)
	zeros := word + bits.TrailingZeros64(high)
	if low != 0 {
		zeros = bits.TrailingZeros64(low)
	}
	lastHigh, lastLow := words(last)
	low, borrow := bits.Sub64(lastLow, low, 0)
	high, _ = bits.Sub64(lastHigh, high, borrow)
	low, carry := bits.Add64(low, 1, 0) // the number of addresses
	high, carry = bits.Add64(high, 0, carry)
	fit := 2 * word
	switch {
	case carry > 0:
	case high > 0:
		fit = word + bits.Len64(high) - 1
	default:
		fit = bits.Len64(low) - 1
	}
	return min(zeros, fit, first.BitLen())
}

// words returns an address as a number of 128 bits.
func words(a netip.Addr) (high, low uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// mergeRanges sorts ranges of one family in place, and merges overlapping and adjacent ones.
func mergeRanges(ranges []AddrRange) []AddrRange {
	slices.SortFunc(ranges, func(a, b AddrRange) int { return a.First.Compare(b.First) })
	kept := ranges[:0]
	for _, r := range ranges {
		if n := len(kept); n > 0 && touches(kept[n-1], r) {
			if kept[n-1].Last.Compare(r.Last) < 0 {
				kept[n-1].Last = r.Last
			}
			continue
		}
		kept = append(kept, r)
	}
	return slices.Clip(kept)
}

// touches reports whether b overlaps a or follows it without a gap. b must not start before a.
func touches(a, b AddrRange) bool {
	return b.First.Compare(a.Last) <= 0 || b.First == a.Last.Next()
}
