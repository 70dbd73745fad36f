package apply

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// reload makes nft load its own listing of the ruleset. It fails if nft then lists something else.
func reload(t testing.TB) {
	t.Helper()
	first := run(t, "nft", "-s", "list", "ruleset")
	file := t.TempDir() + "/ruleset"
	lab.Must(t, os.WriteFile(file, []byte(first), 0o600))
	run(t, "nft", "flush", "ruleset")
	run(t, "nft", "-f", file)
	lab.Same(t, first, run(t, "nft", "-s", "list", "ruleset"), "listing, loaded and listed again (-first +second)")
}

// TestNftLoadsItsListing: after nft has loaded its own listing, the sets are the same, byte for byte. With algorithms, so are the rules, and packets have the
// same endpoints. With maximums, so are the elements, and endpoints reach their connection limit.
func TestNftLoadsItsListing(t *testing.T) {
	every, counted := plan.New(options()), stickyOptions
	cluster(every)
	counted.CountEndpoints = true // an element then has two expressions
	maglev := withMethod(0, "maglev", 0, 10, nil)
	algorithms := newStickyPlanner(maglev, withMethod(1, "maglev", time.Hour, 10, nil), withMethod(2, "source-hash", 0, 10, nil),
		withMethod(3, "source-hash/24,56", time.Hour, 10, nil), withMethod(4, "source-hash/8,8", 0, 10, nil))
	maximums := func(o plan.Options) *plan.Planner {
		return setSticky(plan.New(o), []*model.Service{limited(0, "random", 5, 0, 1, 2), limited(1, "maglev", 1000, 10, 11),
			limited(2, "source-hash/24,56", 7, numbers(20, 60)...)})
	}
	sameRules := func(w *wire, k *Kernel, p *plan.Planner) {
		for _, table := range p.Tables() {
			// In other chains, nft 1.0.6 uses other registers for affinity.
			table.Chains = slices.DeleteFunc(table.Chains, func(c *nft.Chain) bool { return !strings.Contains(c.Name, "-of-") })
			have, err := k.conn.ReadTable(table.Family, table.Name)
			lab.Must(w, err)
			if differ, err := have.OtherRules(table); len(differ) > 0 || err != nil {
				w.Errorf("the rules of chains %v differ (%v)", differ, err)
			}
		}
		for _, f := range inet.Families {
			got := w.ask(f, 100, destinations(f, 0)[0])
			if n := moved(w.predicted(maglev.Ports[f], 100), got); n > 0 {
				w.Errorf("%s: %d of 100 clients are at another endpoint", f, n)
			}
		}
	}
	sameElements := func(w *wire, k *Kernel, p *plan.Planner) {
		checkKernel(w, k, p)
		for _, f := range inet.Families {
			for e, n := range perEndpoint(w.occupy(f, 15, destinations(f, 0))) {
				if n != 5 {
					w.Errorf("%s has %d connections, want 5", e, n)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		planner *plan.Planner
		then    func(*wire, *Kernel, *plan.Planner)
	}{
		"all kinds of frontends": {every, func(*wire, *Kernel, *plan.Planner) {}},
		"algorithms":             {algorithms, sameRules},
		"maximums":               {maximums(stickyOptions), sameElements},
		"counted maximums":       {maximums(counted), sameElements},
	} {
		t.Run(name, func(t *testing.T) {
			w, k := newWire(t), open(t)
			mustSync(t, k, c.planner, Full)
			reload(t)
			for _, table := range c.planner.Tables() {
				found, err := k.conn.ReadTable(table.Family, table.Name)
				w.must(err)
				for _, s := range table.Sets {
					if info := found.Sets[s.Name]; !info.Is(s) {
						t.Errorf("%s %s: nft makes it of another form:\n%+v", s.Family.Keyword(), s.Name, info)
					}
				}
			}
			c.then(w, k, c.planner)
		})
	}
}
