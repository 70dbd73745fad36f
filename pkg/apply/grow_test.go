package apply

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// setSizes returns the sizes of the kernel's sets that have a size, by family and name.
func setSizes(t testing.TB, k *Kernel) map[string]uint32 {
	t.Helper()
	sizes := map[string]uint32{}
	for _, f := range inet.Families {
		sets, err := k.conn.Sets(f, plan.TableName)
		lab.Must(t, err)
		for _, s := range sets {
			sizes[fmt.Sprintf("%s %s", f.Keyword(), s.Name)] = s.Size
		}
	}
	return sizes
}

// TestSetsOutgrowTheirSizes: no sync fails because a set is full. Kernels before 6.5 ignore a set's new size, and a batch that exceeds the old size
// fails with ENFILE.
func TestSetsOutgrowTheirSizes(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	mustSync(t, k, p, Full)
	const services, step = 2200, 100
	for i := 0; i < services; i += step {
		for j := range step {
			s := plain(i+j, 2, 0)
			p.Set(s.Name, s)
		}
		mustSync(t, k, p, Partial)
	}
	checkKernel(t, k, p)
	sizes := setSizes(t, k)
	k.EachCount(inet.IPv4, func(s *nft.Set, n int) {
		if got := sizes["ip "+s.Name]; got > 0 && got < uint32(n) {
			t.Errorf("%s has room for %d elements and holds %d", s.Name, got, n)
		}
	})
	mustSync(t, k, p, Nothing)
	k.Doubt()
	mustSync(t, k, p, Adopted)
}

// TestALargeSetIsNotReplaced: a batch adds elements to a large set, and does not delete the set.
func TestALargeSetIsNotReplaced(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	const each, services = 1000, 120
	var large map[string]uint32
	for i := range services {
		s := plain(i, each, 0)
		p.Set(s.Name, s)
		if i%10 != 9 {
			continue
		}
		lab.Must(t, lab.Err(k.Sync(p)))
		if sizes := setSizes(t, k); large == nil && sizes["ip endpoints"] > 4*each*services {
			large = sizes
		} else if diff := cmp.Diff(large, sizes); large != nil && diff != "" {
			t.Fatalf("sizes with %d Services (-before +now):\n%s", i+1, diff)
		}
	}
	if large == nil {
		t.Fatalf("no set has become large: %v", setSizes(t, k))
	}
	k.Doubt()
	mustSync(t, k, p, Adopted)
}

// TestACrowdedSetGrowsAlone: a set that becomes large gets its new size in its own batch, which follows immediately.
func TestACrowdedSetGrowsAlone(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	mustSync(t, k, p, Full)
	add := func(i, endpoints int) Result {
		s := plain(i, endpoints, 0)
		p.Set(s.Name, s)
		return mustSync(t, k, p, Partial)
	}
	immediate := func(r Result) bool { return !r.Again.IsZero() && !r.Again.After(time.Now()) }
	add(0, mediumSet+1)
	if r := add(1, largeSet-mediumSet); !immediate(r) || r.Elements > largeSet {
		t.Fatalf("the Service that makes the set large takes a batch of %d elements; next sync at %v", r.Elements, r.Again)
	}
	if r := add(2, 5); !immediate(r) || r.Elements > 100 {
		t.Errorf("a small Service before that sync takes a batch of %d elements; next sync at %v", r.Elements, r.Again)
	}
	if r := mustSync(t, k, p, Partial); r.Elements < largeSet || !r.Again.IsZero() {
		t.Errorf("the batch of the set has %d elements; next sync at %v", r.Elements, r.Again)
	}
	if size := setSizes(t, k)["ip endpoints"]; size != largeSize {
		t.Errorf("the set has room for %d elements", size)
	}
	checkKernel(t, k, p)
	mustSync(t, k, p, Nothing)
}

// TestASetGrowsAsAChainRetires: a set outgrows its size in the batch that deletes an unused chain, whose rules look up the set.
func TestASetGrowsAsAChainRetires(t *testing.T) {
	k, p := synced(t)
	s := everything(400, 20, 0, false)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	p.Set(s.Name, nil)
	mustSync(t, k, p, Partial)
	retireNow(k)
	mustSync(t, k, p, Partial) // the elements that lead to the chain
	before := setSizes(t, k)["ip endpoints"]
	for i := range 600 {
		s := plain(1000+i, 3, 0)
		p.Set(s.Name, s)
	}
	retireNow(k)
	mustSync(t, k, p, Partial)
	if after := setSizes(t, k)["ip endpoints"]; after <= before || retains(k) {
		t.Errorf("the size was %d and is %d; something is retained: %v", before, after, retains(k))
	}
	checkKernel(t, k, p)
	checkChains(t, k, p)
}

// TestOneBatchOutgrowsAllSizes: a single change adds more elements than the sizes of the sets.
func TestOneBatchOutgrowsAllSizes(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	mustSync(t, k, p, Full)
	for i := range 1500 {
		s := plain(i, 3, 0)
		p.Set(s.Name, s)
	}
	mustSync(t, k, p, Partial)
	checkKernel(t, k, p)
	for i := range 1500 {
		p.Set(types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}, nil)
	}
	mustSync(t, k, p, Partial)
	checkKernel(t, k, p)
}

// TestRestartWithMoreThanTheSetsHold: a start has more elements than the sizes of the earlier process's sets. Its batch replaces the sets.
func TestRestartWithMoreThanTheSetsHold(t *testing.T) {
	k, _ := synced(t)
	p := plan.New(options())
	cluster(p)
	for i := range 1500 {
		s := plain(i, 2, 0)
		s.Name.Namespace = "more"
		p.Set(s.Name, s)
	}
	other := open(t)
	mustSync(t, other, p, Full)
	checkKernel(t, k, p)
}
