package model

import (
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
			bits := first.BitLen()
			for bits > 0 {
				larger := netip.PrefixFrom(first, bits-1)
				if larger.Masked().Addr() != first || RangeOf(larger).Last.Compare(r.Last) > 0 {
					break
				}
				bits--
			}
			p := RangeOf(netip.PrefixFrom(first, bits))
			out = append(out, p)
			if p.Last == r.Last {
				break
			}
			first = p.Last.Next()
		}
	}
	return out
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
