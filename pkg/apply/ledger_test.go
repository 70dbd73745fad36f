package apply

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fakeTables hold elements and chains like a kernel, and refuse the same batches.
type fakeTables struct {
	*testing.T
	elements map[nft.ID]nft.Element
	chains   map[chainName]bool
}

// write returns tables with all elements and chains of a ledger, and makes the ledger track changes from then on.
func write(t *testing.T, l *ledger) *fakeTables {
	f := &fakeTables{t, map[nft.ID]nft.Element{}, map[chainName]bool{}}
	f.hold(l.tables(), func(add func(*nft.Element)) { l.each(add) })
	l.track()
	return f
}

func (f *fakeTables) hold(tables []*nft.Table, each func(func(*nft.Element))) {
	for _, table := range tables {
		for _, c := range table.Chains {
			f.chains[chainName{table.Family, c.Name}] = true
		}
	}
	each(f.add)
}

func (f *fakeTables) add(e *nft.Element) {
	f.Helper()
	if old, ok := f.elements[e.ID()]; ok {
		f.Fatalf("add %v: %v exists", e, old.String())
	}
	if e.Set.Verdict && !f.chains[chainName{e.Set.Family, e.Chain}] {
		f.Fatalf("add %v: no such chain", e)
	}
	f.elements[e.ID()] = *e
}

func (f *fakeTables) apply(l *ledger, c *change) {
	f.Helper()
	for _, name := range c.chains {
		f.chains[name] = true
	}
	for _, set := range c.remade {
		maps.DeleteFunc(f.elements, func(id nft.ID, _ nft.Element) bool { return id.Set == set })
		l.each(func(e *nft.Element) {
			if e.Set == set {
				f.add(e)
			}
		}, set)
	}
	for _, e := range c.elements {
		if _, ok := f.elements[e.was.ID()]; !ok && e.was.Set != nil {
			f.Fatalf("delete %v: it does not exist", &e.was)
		}
		delete(f.elements, e.was.ID())
	}
	for _, e := range c.elements {
		if e.is.Set != nil {
			f.add(&e.is)
		}
	}
	for _, name := range c.unused {
		for _, e := range f.elements {
			if e.Chain == name.name && e.Set.Family == name.family {
				f.Fatalf("delete chain %v: %v leads to it", name, e.String())
			}
		}
		if !f.chains[name] {
			f.Fatalf("delete chain %v: it does not exist", name)
		}
		delete(f.chains, name)
	}
}

// check compares the tables with a ledger and, after the deletion of retained elements and chains, with the plan.
func (f *fakeTables) check(l *ledger) {
	f.Helper()
	for !l.scheduleRetirement(time.Unix(1, 0)).IsZero() {
		l.retireAt = time.Unix(1, 0)
		f.apply(l, l.take(time.Unix(2, 0)))
	}
	fresh := &fakeTables{f.T, map[nft.ID]nft.Element{}, map[chainName]bool{}}
	fresh.hold(l.planner.Tables(), func(add func(*nft.Element)) { l.planner.Elements(add) })
	if diff := cmp.Diff(fresh.lines(), f.lines()); diff != "" {
		f.Fatalf("tables (-from scratch +by increments):\n%s", diff)
	}
}

func (f *fakeTables) lines() (list []string) {
	for _, e := range f.elements {
		list = append(list, e.String())
	}
	for c := range f.chains {
		list = append(list, fmt.Sprint("chain ", c))
	}
	slices.Sort(list)
	return list
}

// account compares the counts and digests of a ledger with the tables. Take and apply all changes before.
func (f *fakeTables) account(l *ledger) {
	f.Helper()
	counts, sums := map[*nft.Set]int{}, [2]uint64{}
	for _, e := range f.elements {
		counts[e.Set]++
		sums[e.Set.Family] += l.digests[e.Set.Family].key.hash(&e)
	}
	for _, s := range l.sets {
		if l.counts[s] != counts[s] {
			f.Errorf("%s %s: counted are %d elements, want %d", s.Family.Keyword(), s.Name, l.counts[s], counts[s])
		}
	}
	for family, d := range l.digests {
		if d.sum != sums[family] {
			f.Errorf("%v: the digest is %x, that of the elements %x", inet.Family(family), d.sum, sums[family])
		}
	}
}

// TestAnyHistoryOfBatchesLeadsToThePlan: after random changes of Services and random times of retirement, the kernel refuses no batch, and the tables
// equal a new plan.
func TestAnyHistoryOfBatchesLeadsToThePlan(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := plan.New(options())
		l := newLedger(p)
		tables := write(t, l)
		now := time.Unix(0, 0)
		for step := range 400 {
			s := everything(r.IntN(12), r.IntN(8)*r.IntN(8), time.Duration(r.IntN(3))*time.Hour, r.IntN(2) == 0)
			if r.IntN(4) == 0 {
				p.Set(s.Name, nil)
			} else {
				p.Set(s.Name, s)
			}
			now = now.Add(time.Duration(r.IntN(10)) * time.Second)
			if r.IntN(3) > 0 {
				tables.apply(l, l.take(now))
				tables.account(l)
				l.scheduleRetirement(now)
			}
			if step%50 == 49 {
				tables.apply(l, l.take(now))
				tables.check(l)
				tables.account(l)
			}
		}
	}
}

// TestRetainedChainsComeBackWithoutTraffic: if a Service needs a retained chain again, no batch is necessary for the chain.
func TestRetainedChainsComeBackWithoutTraffic(t *testing.T) {
	p := plan.New(options())
	l := newLedger(p)
	three, four := everything(1, 3, 0, true), everything(1, 4, 0, true)
	p.Set(three.Name, three)
	p.Set(four.Name, four)
	tables := write(t, l)
	for _, s := range []*model.Service{three, four, three} {
		p.Set(s.Name, s)
		c := l.take(time.Unix(0, 0))
		leads := func(e *nft.Element) bool { return e.Set != nil && e.Set.Verdict }
		if len(c.chains)+len(c.unused) > 0 ||
			slices.ContainsFunc(c.elements, func(e transition) bool { return leads(&e.was) || leads(&e.is) }) {
			t.Errorf("chains %v, unused %v, elements %v", c.chains, c.unused, c.elements)
		}
		tables.apply(l, c)
		tables.account(l)
	}
	tables.check(l)
}

// TestAStartAdoptsNothingButThePlan changes Services between two processes. A start adopts the tables of the first
// process if the states are equal, and the numbers of elements, too, which kernels report since 6.16. Adopted tables
// must equal the plan. With digests of 2 bits, two plans may have the same digest. The start then misses only changes
// that keep the number of elements of each set. With 64 bits and a secret key, no tenant can cause this.
func TestAStartAdoptsNothingButThePlan(t *testing.T) {
	t.Run("digests of 64 bits", func(t *testing.T) { startsAdoptThePlan(t, ^uint64(0)) })
	t.Run("digests of 2 bits", func(t *testing.T) { startsAdoptThePlan(t, 3) })
}

func startsAdoptThePlan(t *testing.T, mask uint64) {
	const services = 3
	for name, c := range map[string]struct {
		change     func(*model.Service) *model.Service
		onlyDigest bool
	}{
		"nothing": {change: func(s *model.Service) *model.Service { return s }},
		"deleted": {change: func(*model.Service) *model.Service { return nil }},
		"an endpoint fewer": {change: func(s *model.Service) *model.Service {
			s.Ports[0].Cluster = s.Ports[0].Cluster[1:]
			return s
		}},
		"another endpoint": {onlyDigest: true, change: func(s *model.Service) *model.Service {
			s.Ports[0].Cluster[2] = netip.MustParseAddrPort("99.0.0.1:8080")
			return s
		}},
		"another cluster IP": {onlyDigest: true, change: func(s *model.Service) *model.Service {
			s.Ports[0].Frontends[0].Addr = netip.MustParseAddr("10.96.0.99")
			return s
		}},
	} {
		cut := mask != ^uint64(0)
		missed, tries := 0, 5
		if cut && c.onlyDigest {
			tries = 60
		}
		for try := range tries {
			first := plan.New(options())
			for i := range services {
				s := plain(i, 3, 0)
				first.Set(s.Name, s)
			}
			left := newLedger(first)
			second := plan.Continue(options(), first.Numbers())
			for i := range services {
				s := plain(i, 3, 0)
				name := s.Name
				if i == try%services {
					s = c.change(s)
				}
				second.Set(name, s)
			}
			second.Begin(nil, nil, func([]types.NamespacedName) {}) // ends the recall
			found := newLedger(second)
			found.resume(inet.IPv4, left.digests[inet.IPv4].key)
			diff := cmp.Diff(write(t, left).lines(), write(t, found).lines())
			switch adopts := looksLike(t, found, left, mask); {
			case adopts && diff != "":
				missed++
			case !adopts && diff == "":
				t.Errorf("%s: a start does not adopt equal tables", name)
			}
		}
		if missed > 0 && (!cut || !c.onlyDigest) {
			t.Errorf("%s: %d of %d starts adopt tables that are not the plan", name, missed, tries)
		} else if cut && c.onlyDigest && missed == 0 {
			t.Errorf("%s: no two plans had the same digest", name)
		}
	}
}

// looksLike compares two ledgers as a start compares the kernel's tables with its ledger. mask shortens the digests.
func looksLike(t *testing.T, l, o *ledger, mask uint64) bool {
	t.Helper()
	numbers := func(l *ledger) string {
		var text strings.Builder
		for _, s := range l.sets {
			fmt.Fprintf(&text, "%s %s %d\n", s.Family.Keyword(), s.Name, l.counts[s])
		}
		s, err := readState(l.state(inet.IPv4))
		lab.Must(t, err)
		s.sum &= mask
		return text.String() + fmt.Sprint(s)
	}
	return numbers(l) == numbers(o)
}

// BenchmarkChangeOne replaces an endpoint of one Service among many, and takes the changes.
func BenchmarkChangeOne(b *testing.B) {
	for _, size := range sizes[:3] {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			p := plan.New(options())
			l := newLedger(p)
			var rounds [2][]*model.Service
			for i := range size.services {
				for round := range rounds {
					rounds[round] = append(rounds[round], plain(i, size.endpoints, round))
				}
				p.Set(rounds[0][i].Name, rounds[0][i])
			}
			fit(l.sets, l.counts)
			l.track()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s := rounds[(1+i/size.services)%2][i%size.services]
				p.Set(s.Name, s)
				if c := l.take(time.Time{}); len(c.elements) == 0 {
					b.Fatal("nothing to add")
				}
				i++
			}
		})
	}
}

// TestRangesAreDeletedOrAddedAgain: a batch deletes two ranges of a set. To delete three of 10,000 may take 150 ms, so it
// adds the others again.
func TestRangesAreDeletedOrAddedAgain(t *testing.T) {
	for _, deleted := range []int{1, 2, 3, 4} {
		p := plan.New(options())
		l := newLedger(p)
		for _, n := range []int{10, 10 - deleted} {
			s := everything(500, 3, 0, false)
			allowSources(s, n)
			p.Set(s.Name, s)
			if l.change == nil {
				l.track()
			}
		}
		sets := 0
		for _, s := range l.take(time.Now()).remade {
			if hasRanges(s) {
				sets++
			}
		}
		if (sets > 0) != (deleted > 2) {
			t.Errorf("%d deleted ranges: %d sets are added again", deleted, sets)
		}
	}
}
