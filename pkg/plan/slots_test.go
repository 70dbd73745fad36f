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
	return sorted(list)
}

func someEndpoint(r *rand.Rand) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), 8080)
}

// sorted returns a sorted copy of a list.
func sorted(list []netip.AddrPort) []netip.AddrPort {
	return slices.SortedFunc(slices.Values(list), netip.AddrPort.Compare)
}

// TestSlotsHaveAllEndpoints: the slots have each endpoint once, also if a tenant has selected endpoints whose hashes
// are near each other, or are equal.
func TestSlotsHaveAllEndpoints(t *testing.T) {
	defer func(mask uint64) { hashMask = mask }(hashMask)
	for _, hashMask = range []uint64{hashMask, 1 << 32, 3 << 32} {
		r := rand.New(rand.NewPCG(1, 2))
		for _, n := range []int{0, 1, 2, 3, 50, 1000, 1024, 1025, 10_000} {
			if in := endpoints(r, n); !slices.Equal(sorted(inSlots(in)), in) {
				t.Errorf("%d endpoints, hashes of %b: not a permutation", n, hashMask)
			}
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

// TestSlotsAreStable: if one endpoint is replaced or added, the number of changed slots grows with the square root of
// the number of slots.
func TestSlotsAreStable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{2, 10, 100, 250, 1000, 5000, 16384} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const rounds = 20
			replaced, added := 0, 0
			for range rounds {
				in := endpoints(r, n)
				before := inSlots(in)
				in[r.IntN(n)] = someEndpoint(r)
				in = sorted(in)
				after := inSlots(in)
				replaced += changed(before, after)
				added += changed(after, inSlots(sorted(append(in, someEndpoint(r)))))
			}
			bound := math.Sqrt(float64(n)) + 3
			t.Logf("slots changed: %.1f by a replacement, %.1f by an addition; at most %.1f",
				float64(replaced)/rounds, float64(added)/rounds, bound)
			if got := float64(replaced) / rounds; got > bound {
				t.Errorf("a replacement changed %.1f slots, want at most %.1f", got, bound)
			}
			if got := float64(added) / rounds; got > bound {
				t.Errorf("an addition changed %.1f slots, want at most %.1f", got, bound)
			}
		})
	}
}

// TestEqualHashes: the order of endpoints with equal hashes depends on nothing but the set.
func TestEqualHashes(t *testing.T) {
	defer func(mask uint64) { hashMask = mask }(hashMask)
	hashMask = 3 << 32
	t.Run("plans", TestThePlanOfManyEndpointsDoesNotDependOnHistory)
}
