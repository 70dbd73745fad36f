package room

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestSharesOfLimits has the parts of namespaces for some limits. The columns are the limit, a namespace's own part,
// and the most that one namespace can take.
func TestSharesOfLimits(t *testing.T) {
	for _, c := range [][3]int{
		{0, 0, 0}, {1, 1, 1}, {2, 1, 2}, {10, 2, 3}, {100, 4, 8}, {500, 8, 24}, {1024, 12, 44}, {4096, 23, 151}, {16_384, 46, 558},
		{524_287, 256, 16_640}, {8_000_000, 1_000, 251_000},
	} {
		if r := New(c[0]); r.Own() != c[1] || r.Most() != c[2] {
			t.Errorf("limit %d: own %d, most %d, want %d, %d", c[0], r.Own(), r.Most(), c[1], c[2])
		}
	}
}

// TestRandomHistories makes random requests of many namespaces, some of which always ask for as much as possible. After
// each request, the properties of [Room] must hold.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := New(rnd.IntN(5_000))
		grants := map[string]int{}
		namespaces := 1 + rnd.IntN(60)
		for step := range 2_000 {
			name := fmt.Sprint("n", rnd.IntN(namespaces))
			was := grants[name]
			now := rnd.IntN(1 + r.Limit()/8)
			if rnd.IntN(3) == 0 {
				now = rnd.IntN(1 + r.Own())
			}
			greedy := 0 // namespaces that have all that they own
			for _, n := range grants {
				if n > 0 {
					greedy++
				}
			}
			lacks := r.Change(name, was, now)
			if lacks == None {
				grants[name] = now
			}
			switch {
			case lacks != None && now <= was:
				t.Fatalf("seed %d, step %d: a smaller grant is refused", seed, step)
			case lacks != None && now <= r.Own() && (greedy+1)*r.Own() <= r.Limit()-r.shared():
				t.Fatalf("seed %d, step %d: %s does not get %d of its own %d, %d of %d are taken", seed, step, name, now, r.Own(), r.Total(), r.Limit())
			}
			check(t, r, grants)
		}
	}
}

func check(t *testing.T, r *Room, grants map[string]int) {
	t.Helper()
	total, extra := 0, 0
	for name, n := range grants {
		total, extra = total+n, extra+max(0, n-r.Own())
		if r.Taken(name) != n || n > r.Most() {
			t.Fatalf("%s has %d, want %d, at most %d", name, r.Taken(name), n, r.Most())
		}
	}
	if total != r.Total() || total > r.Limit() || extra > r.shared() {
		t.Fatalf("total %d, want %d, at most %d; above the own parts: %d, at most %d", r.Total(), total, r.Limit(), extra, r.shared())
	}
}

// TestReasons has the reason for which a request is refused.
func TestReasons(t *testing.T) {
	r := New(1024)
	request := func(namespace string, n int, want Shortage) {
		t.Helper()
		if got := r.Change(namespace, 0, n); got != want {
			t.Errorf("%s asks for %d: %d, want %d", namespace, n, got, want)
		}
	}
	request("a", r.Most()+1, OfNamespace)
	for i := range 16 {
		request(fmt.Sprint("greedy", i), r.Most(), None)
	}
	request("b", r.Own()+1, OfNode)
	request("b", r.Own(), None)
	for i := range r.Limit() {
		r.Change(fmt.Sprint("small", i), 0, 1)
	}
	request("c", 1, OfNode)
	if r.Total() != r.Limit() {
		t.Errorf("%d units are taken, want %d", r.Total(), r.Limit())
	}
}
