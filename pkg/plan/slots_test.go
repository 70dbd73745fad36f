package plan

import (
	"fmt"
	"math"
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
	return list
}

func someEndpoint(r *rand.Rand) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), 8080)
}

func TestRearrangeDependsOnTheSetAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 40 {
		in := endpoints(r, n)
		want := rearrange(nil, in)
		shuffled := slices.Clone(in)
		r.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if got := rearrange(endpoints(r, r.IntN(5)), shuffled); !slices.Equal(got, want) {
			t.Fatalf("%d endpoints in another order: %v, want %v", n, got, want)
		}
		slices.SortFunc(in, netip.AddrPort.Compare)
		sorted := slices.Clone(want)
		slices.SortFunc(sorted, netip.AddrPort.Compare)
		if !slices.Equal(sorted, in) {
			t.Fatalf("rearrange(%v) = %v: not a permutation", in, want)
		}
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
				before := rearrange(nil, in)
				in[r.IntN(n)] = someEndpoint(r)
				after := rearrange(before, in)
				replaced += changed(before, after)
				added += changed(after, rearrange(after, append(in, someEndpoint(r))))
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

// Any sequence of changes ends in the arrangement of the final set.
func TestRearrangeForgetsHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var list, have []netip.AddrPort
	for step := range 2000 {
		switch op := r.IntN(3); {
		case op == 0 || len(list) == 0:
			list = append(list, someEndpoint(r))
		case op == 1 && len(list) > 1:
			i := r.IntN(len(list))
			list = slices.Delete(slices.Clone(list), i, i+1)
		default:
			list = slices.Clone(list)
			for range 1 + r.IntN(4) {
				list[r.IntN(len(list))] = someEndpoint(r)
			}
		}
		have = rearrange(have, list)
		if want := rearrange(nil, list); !slices.Equal(have, want) {
			t.Fatalf("step %d, %d endpoints: %v, from scratch %v", step, len(list), have, want)
		}
	}
}

func BenchmarkRearrange(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{1, 10, 100, 5000} {
		in := endpoints(r, n)
		b.Run(fmt.Sprintf("scratch/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rearrange(nil, in)
			}
		})
		b.Run(fmt.Sprintf("replace/%d", n), func(b *testing.B) {
			before := rearrange(nil, in)
			other := slices.Clone(in)
			other[n/2] = someEndpoint(r)
			slices.SortFunc(other, netip.AddrPort.Compare)
			b.ReportAllocs()
			for b.Loop() {
				rearrange(before, other)
			}
		})
	}
}
