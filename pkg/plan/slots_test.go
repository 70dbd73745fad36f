package plan

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func endpoints(r *rand.Rand, n int) []netip.AddrPort {
	list := make([]netip.AddrPort, n)
	for i := range list {
		list[i] = someEndpoint(r)
	}
	return sorted(list)
}

func someEndpoint(r *rand.Rand) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), 8080)
}

// fresh is the arrangement of a set that nothing is known of.
func fresh(set []netip.AddrPort) []netip.AddrPort {
	list, _ := rearrange(nil, nil, set)
	return list
}

func TestRearrangeDependsOnTheSetAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		in := endpoints(r, n)
		want := fresh(in)
		other := sorted(append(endpoints(r, r.IntN(5)), in[:r.IntN(n+1)]...))
		have, known := rearrange(endpoints(r, r.IntN(5)), nil, other)
		if got, _ := rearrange(have, known, in); !slices.Equal(got, want) {
			t.Fatalf("%d endpoints after %d others: %v, want %v", n, len(other), got, want)
		}
		if got := sorted(want); !slices.Equal(got, in) {
			t.Fatalf("rearrange(%v) = %v: not a permutation", in, want)
		}
	}
}

// An arrangement of more endpoints than are scored is none to start from.
func TestRearrangeFromTooMany(t *testing.T) {
	in := endpoints(rand.New(rand.NewPCG(1, 3)), maxScored+1)
	before, known := rearrange(nil, nil, in)
	in = in[1:]
	got, _ := rearrange(before, known, in)
	if want := fresh(in); !slices.Equal(got, want) {
		t.Errorf("one endpoint less than %d: the order is another than from scratch", maxScored+1)
	}
}

func changed(a, b []netip.AddrPort) int {
	n := max(len(a), len(b)) - min(len(a), len(b))
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// One endpoint replaced, added or removed moves a number of slots that grows with the logarithm of their number.
func TestRearrangeIsStable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{2, 10, 100, 1000, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const rounds = 20
			replaced, added := 0, 0
			for range rounds {
				in := endpoints(r, n)
				before := fresh(in)
				in[r.IntN(n)] = someEndpoint(r)
				in = sorted(in)
				after, _ := rearrange(before, nil, in)
				replaced += changed(before, after)
				more, _ := rearrange(after, nil, sorted(append(in, someEndpoint(r))))
				added += changed(after, more)
			}
			bound := 2*math.Log(float64(n)) + 3
			t.Logf("slots changed: %.1f by a replacement, %.1f by an addition; 2 ln n = %.1f",
				float64(replaced)/rounds, float64(added)/rounds, 2*math.Log(float64(n)))
			if got := float64(replaced) / rounds; got > bound {
				t.Errorf("a replacement changed %.1f slots, want at most %.1f", got, bound)
			}
			if got := float64(added) / rounds; got > bound {
				t.Errorf("an addition changed %.1f slots, want at most %.1f", got, bound)
			}
		})
	}
}

// Any sequence of changes ends in the arrangement of the final set, whether few endpoints or many.
func TestRearrangeForgetsHistory(t *testing.T) { forgetsHistory(t, someEndpoint) }

func forgetsHistory(t *testing.T, draw func(*rand.Rand) netip.AddrPort) {
	t.Helper()
	for _, n := range []int{0, many} {
		r := rand.New(rand.NewPCG(7, 8))
		list := make([]netip.AddrPort, n)
		for i := range list {
			list[i] = draw(r)
		}
		list = sorted(list)
		have, known := rearrange(nil, nil, list)
		for step := range 1000 {
			switch op := r.IntN(3); {
			case op == 0 || len(list) == 0:
				list = append(list, draw(r))
			case op == 1 && len(list) > 1:
				i := r.IntN(len(list))
				list = slices.Delete(slices.Clone(list), i, i+1)
			default:
				list = slices.Clone(list)
				for range 1 + r.IntN(4) {
					list[r.IntN(len(list))] = draw(r)
				}
			}
			list = sorted(list)
			before, arranged := slices.Clone(have), known
			have, known = rearrange(have, known, list)
			if want := fresh(list); !slices.Equal(have, want) {
				t.Fatalf("step %d, %d endpoints: %v, from scratch %v", step, len(list), have, want)
			}
			if arranged != nil && !slices.Equal(arranged.undone(), before) {
				t.Fatalf("step %d: the list before was %v, not %v", step, before, arranged.undone())
			}
		}
	}
}

func BenchmarkRearrange(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{1, 10, 100, 1000, 5000, 10000} {
		in := endpoints(r, n)
		b.Run(fmt.Sprintf("scratch/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fresh(in)
			}
		})
		b.Run(fmt.Sprintf("replace/%d", n), func(b *testing.B) {
			other := slices.Clone(in)
			other[n/2] = someEndpoint(r)
			sets := [][]netip.AddrPort{in, sorted(other)}
			have, known := rearrange(fresh(in), nil, sets[1])
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				have, known = rearrange(have, known, sets[i%2])
			}
		})
	}
}

// Anybody can find endpoints with one hash. They must not be taken for each other.
func TestHashesThatCollide(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	first := hashEndpoint(colliding(r, 0))
	for range 10 {
		if got := hashEndpoint(colliding(r, 0)); got != first {
			t.Fatalf("two hashes are %x and %x: nothing collides", first, got)
		}
	}
	forgetsHistory(t, func(r *rand.Rand) netip.AddrPort { return colliding(r, r.Uint64N(4)) })
}

// colliding returns an endpoint whose hash (xxHash64 of 18 bytes) is that of all others with one state after 16 bytes: the second
// half of its address makes up for the first.
func colliding(r *rand.Rand, state uint64) netip.AddrPort {
	const p1, p2, p4, p5 = 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x85ebca77c2b2ae63, 0x27d4eb2f165667c5
	inverse := func(odd uint64) uint64 {
		x := odd
		for range 6 {
			x *= 2 - odd*x
		}
		return x
	}
	round := func(word uint64) uint64 { return bits.RotateLeft64(word*p2, 31) * p1 }
	undone := func(mixed uint64) uint64 { return bits.RotateLeft64(mixed*inverse(p1), -31) * inverse(p2) }
	high := r.Uint64()
	var length uint64 = p5
	length += 18
	h := bits.RotateLeft64(length^round(high), 27)*p1 + p4
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], high)
	binary.LittleEndian.PutUint64(b[8:], undone(h^state))
	return netip.AddrPortFrom(netip.AddrFrom16(b), 8080)
}
