package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// TestAStartAdoptsNothingButThePlan changes Services between two processes. A start adopts the tables of the first one where the states are
// equal, and the numbers of elements that kernels since 6.16 report. All that a start adopts must be the plan. With hashes cut to 2 bits,
// the digests of two plans are equal by chance. So one kind of change is missed then, the only one of which just the digest tells: of equally
// many elements in each set, one is different. With 64 bits and a secret key, no tenant can make that happen.
func TestAStartAdoptsNothingButThePlan(t *testing.T) {
	const services = 3
	options := testOptions()
	options.Families = model.Families[:1]
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
			s.Ports[0].Frontends[0].Addr = netip.MustParseAddr("10.96.99.99")
			return s
		}},
	} {
		missed, tries := 0, 5
		if c.onlyDigest {
			tries = 60
		}
		for try := range tries {
			first, second := New(options), New(options)
			for i := range services {
				s := benchService(i, 3, 0)
				first.Set(s.Name, s)
			}
			kernel := newFakeKernel(t, first)
			second.TakeNumbers(first.Numbers())
			for i := range services {
				s := benchService(i, 3, 0)
				if i == try%services {
					second.Set(s.Name, c.change(s))
				} else {
					second.Set(s.Name, s)
				}
			}
			second.Resumed()
			diff := cmp.Diff(kernel.canonical(first), newFakeKernel(t, second).canonical(second))
			switch adopts := looksLike(second, first); {
			case adopts && diff != "":
				missed++
			case !adopts && diff == "":
				t.Errorf("%s: a start writes all again", name)
			}
		}
		if cut := hashMask != ^uint64(0); missed > 0 && (!cut || !c.onlyDigest) {
			t.Errorf("%s: %d of %d starts adopt tables that are not the plan", name, missed, tries)
		} else if cut && c.onlyDigest && missed == 0 {
			t.Errorf("%s: no digest was equal by chance: are hashes cut short?", name)
		}
	}
}

// looksLike compares two planners as pkg/apply compares tables with a planner.
func looksLike(p, o *Planner) bool {
	numbers := func(p *Planner) string {
		text := ""
		p.EachCount(model.IPv4, func(s *nft.Set, n int) { text += fmt.Sprintf("%s %d\n", s.Name, n) })
		return text + p.State(nft.IPv4).Comment
	}
	return numbers(p) == numbers(o)
}
