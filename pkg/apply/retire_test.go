package apply

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// retireNow makes the next sync delete retained elements and chains.
func retireNow(k *Kernel) { k.ledger.retireAt = k.Now() }

func retains(k *Kernel) bool {
	return !k.ledger.scheduleRetirement(k.Now()).IsZero()
}

// chainNames returns the chains of a family's table in the kernel, and the chains in the plan, as sets.
func chainNames(t testing.TB, k *Kernel, p *plan.Planner, f inet.Family) (got, want map[string]bool) {
	t.Helper()
	got, want = map[string]bool{}, map[string]bool{}
	chains, err := k.conn.Chains(f, plan.TableName)
	lab.Must(t, err)
	for _, c := range chains {
		got[c.Name] = true
	}
	for _, table := range p.Tables() {
		if table.Family != f {
			continue
		}
		for _, c := range table.Chains {
			want[c.Name] = true
		}
	}
	return got, want
}

func checkChains(t testing.TB, k *Kernel, p *plan.Planner) {
	t.Helper()
	for _, f := range inet.Families {
		got, want := chainNames(t, k, p, f)
		lab.Same(t, want, got, "chains of %s (-planned +in the kernel)", f.Keyword())
	}
}

// TestChainsFollowTheSizeOfAService: each number of endpoints has its own chains. Syncs add and delete these chains while a Service is scaled. No
// sync may fail because a chain is still in use. Kernels before 6.2 hold a reference to a chain for a while after the deletion of the last element
// that led to it.
func TestChainsFollowTheSizeOfAService(t *testing.T) {
	k, p := synced(t)
	for round, endpoints := range []int{20, 21, 3, 0, 25, 20, 1, 30, 0} {
		s := everything(400, endpoints, time.Duration(round%2)*time.Hour, round%3 == 0)
		p.Set(s.Name, s)
		mustSync(t, k, p, Partial)
		retireNow(k)
		if _, err := k.Sync(p); err != nil {
			t.Fatalf("round %d, after the first step: %v", round, err)
		}
		if round%2 == 0 {
			continue // a Service may need a chain again after its elements were retired
		}
		retireNow(k)
		if _, err := k.Sync(p); err != nil {
			t.Fatalf("round %d, after the second step: %v", round, err)
		}
	}
	for retains(k) {
		retireNow(k)
		mustSync(t, k, p, Partial)
	}
	checkKernel(t, k, p)
	checkChains(t, k, p)
	k.Doubt()
	mustSync(t, k, p, Adopted)
}

// TestARewriteLeavesNoChainsBehind: a rewrite cannot delete a chain if the same batch deletes the elements that led to it. A later sync deletes the chain.
func TestARewriteLeavesNoChainsBehind(t *testing.T) {
	k, p := synced(t)
	s := everything(400, 40, time.Hour, true)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	fresh := plan.New(options())
	cluster(fresh)
	other := open(t)
	mustSync(t, other, fresh, Full)
	isEmpty := func(c classChain) bool { return c.empty }
	if !slices.ContainsFunc(slices.Collect(maps.Values(other.ledger.chains)), isEmpty) {
		t.Error("no chain is left behind after the deletion of the Service with 40 endpoints")
	}
	// A comparison before the deletion finds no difference.
	other.Doubt()
	mustSync(t, other, fresh, Adopted)
	// A comparison after a new Service needs the chains again finds no difference, either.
	fresh.Set(s.Name, s)
	mustSync(t, other, fresh, Partial)
	other.Doubt()
	mustSync(t, other, fresh, Adopted)
	fresh.Set(s.Name, nil)
	mustSync(t, other, fresh, Partial)
	for retains(other) {
		retireNow(other)
		mustSync(t, other, fresh, Partial)
	}
	checkKernel(t, other, fresh)
	checkChains(t, other, fresh)
}

// TestUnusedChainsStayForAWhile: elements that lead to an unused chain stay for 30 seconds, and the chain for another 30. An empty chain after a rewrite
// stays for two seconds.
func TestUnusedChainsStayForAWhile(t *testing.T) {
	k, p := synced(t)
	now := time.Now()
	k.Now = func() time.Time { return now }
	has := func(chain string) bool {
		got, _ := chainNames(t, k, p, inet.IPv4)
		return got[chain]
	}
	expect := func(after time.Duration, want Kind, again time.Duration, chain bool) {
		t.Helper()
		now = now.Add(after)
		r, due := mustSync(t, k, p, want), time.Time{}
		if again > 0 {
			due = now.Add(again)
		}
		if !r.Again.Equal(due) {
			t.Errorf("the next sync is due at %v, want %v", r.Again, due)
		}
		lab.Same(t, chain, has("endpoints-of-20"), "the chain exists")
	}
	s := everything(400, 20, 0, false)
	p.Set(s.Name, s)
	expect(time.Minute, Partial, 0, true)
	p.Set(s.Name, nil)
	expect(time.Minute, Partial, retireAfter, true)
	p.Set(s.Name, s)
	expect(time.Second, Partial, 0, true)
	p.Set(s.Name, nil)
	expect(time.Second, Partial, retireAfter, true)
	expect(retireAfter-1, Nothing, 1, true)
	expect(1, Partial, retireAfter, true) // the elements
	expect(retireAfter-1, Nothing, 1, true)
	expect(1, Partial, 0, false)

	p.Set(s.Name, s)
	expect(time.Minute, Partial, 0, true)
	k, p = open(t), plan.New(options())
	k.Now = func() time.Time { return now }
	cluster(p)
	expect(time.Minute, Full, retireEmptyAfter, true)
	expect(retireEmptyAfter-1, Nothing, 1, true)
	expect(1, Partial, 0, false)
}
