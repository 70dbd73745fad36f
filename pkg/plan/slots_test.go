package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
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

// fresh returns the arrangement of a set from scratch.
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

// TestVeryManyEndpoints: an arrangement above the limit of competing endpoints has all endpoints, and a replacement changes few slots.
func TestVeryManyEndpoints(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	fresh := func(set []netip.AddrPort) []netip.AddrPort { return (*grouping)(nil).change(set).inTurn() }
	for _, n := range []int{mostScored + 1, 16384} {
		in := endpoints(r, n)
		before := fresh(in)
		var g *grouping
		g = g.change(in)
		if got := sorted(before); !slices.Equal(got, in) {
			t.Fatalf("%d endpoints: not a permutation", n)
		}
		total := 0
		const rounds = 10
		for range rounds {
			in = slices.Clone(in)
			in[r.IntN(n)] = someEndpoint(r)
			in = sorted(in)
			after := fresh(in)
			if g = g.change(in); !slices.Equal(g.inTurn(), after) {
				t.Fatalf("%d endpoints: the arrangement after a change differs from the one from scratch", n)
			}
			total += changed(before, after)
			before = after
		}
		if mean := total / rounds; mean > n/8 {
			t.Errorf("one of %d endpoints replaced changes %d slots", n, mean)
		}
	}
	if limit := scoredOf(1000); 1000*limit*limit > 2*4*mostScored*mostScored {
		t.Errorf("1,000 ports have %d endpoints that compete", limit)
	}
}

// TestGroupsForgetHistory: the arrangement of very many endpoints equals that from scratch after changes of their number, and with groups that are too
// large to compete.
func TestGroupsForgetHistory(t *testing.T) {
	defer func(mask uint64) { hashMask = mask }(hashMask)
	for _, hashMask = range []uint64{hashMask, 1 << 32} {
		r := rand.New(rand.NewPCG(5, 6))
		var g *grouping
		set := endpoints(r, mostScored)
		for step := range 12 {
			set = slices.DeleteFunc(slices.Clone(set), func(netip.AddrPort) bool { return r.IntN(100) == 0 })
			set = sorted(append(set, endpoints(r, []int{0, 100, 3000, 1}[step%4])...))
			if step == 8 {
				set = set[:1000]
			}
			g = g.change(set)
			if want := (*grouping)(nil).change(set).inTurn(); !slices.Equal(g.inTurn(), want) {
				t.Fatalf("step %d, %d endpoints: differs from the arrangement from scratch", step, len(set))
			}
			if got := sorted(g.inTurn()); !slices.Equal(got, set) {
				t.Fatalf("step %d: not a permutation", step)
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

// TestRearrangeIsStable: if one endpoint is replaced or added, the number of changed slots grows with the logarithm of the number of slots.
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

// TestRearrangeForgetsHistory: after any sequence of changes, the arrangement equals the arrangement from scratch, for few endpoints and for many.
func TestRearrangeForgetsHistory(t *testing.T) {
	for _, n := range []int{0, many} {
		r := rand.New(rand.NewPCG(7, 8))
		list := endpoints(r, n)
		have, known := rearrange(nil, nil, list)
		for step := range 1000 {
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

// TestHashesThatCollide: a tenant can find endpoints with equal hashes. The program still distinguishes them.
func TestHashesThatCollide(t *testing.T) {
	hashMask = 3
	defer func() { hashMask = ^uint64(0) }()
	t.Run("arrangements", TestRearrangeForgetsHistory)
	t.Run("plans", TestThePlanOfManyEndpointsDoesNotDependOnHistory)
}

// BenchmarkIDsOfManyEndpoints changes the endpoints of a port with affinity. The endpoints are in groups, and some of them are on this node. The
// time per endpoint must not grow with their number.
func BenchmarkIDsOfManyEndpoints(b *testing.B) {
	const ports = 80 // only one port has endpoints; the other ports lower its limit of competing endpoints
	for _, n := range []int{1500, 12000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := New(testOptions())
			for round := 0; b.Loop(); round++ {
				b.StopTimer()
				s := benchService(0, n, round)
				port := s.Ports[0]
				port.Affinity, port.Cluster = time.Hour, sorted(port.Cluster)
				port.Local = port.Cluster[:many+50+round%8]
				for i := 1; i < ports; i++ {
					s.Ports = append(s.Ports, &model.ServicePort{Name: model.PortName{Port: fmt.Sprint(i)}})
				}
				b.StartTimer()
				p.Set(s.Name, s)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/endpoint")
		})
	}
}
