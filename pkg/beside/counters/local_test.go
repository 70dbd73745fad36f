package counters

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestOutcomesOfPolicyLocal: the outcomes of a service port are those of its frontends, whichever is read first.
// Their sums are exact, also if one reading finds several frontends with several outcomes.
func TestOutcomesOfPolicyLocal(t *testing.T) {
	type counts map[outcome.Code]uint64
	const forwarded, dropped = outcome.Forwarded, outcome.NoLocalEndpoints
	for _, c := range []struct {
		name     string
		arrivals [][2]uint64 // at two frontends, in each reading
		outcomes []counts    // in each reading
		want     [2]counts   // of each frontend
	}{
		{"dropped at both", [][2]uint64{{4, 8}}, []counts{{dropped: 12}}, [2]counts{{dropped: 4}, {dropped: 8}}},
		{"all outcomes at one", [][2]uint64{{7, 0}}, []counts{{forwarded: 5, dropped: 2}}, [2]counts{{forwarded: 5, dropped: 2}, {}}},
		{"one after the other", [][2]uint64{{3, 0}, {0, 4}}, []counts{{dropped: 3}, {forwarded: 4}}, [2]counts{{dropped: 3}, {forwarded: 4}}},
		{"the outcome first", [][2]uint64{{0, 0}, {2, 0}, {0, 2}}, []counts{{dropped: 2}, nil, {forwarded: 2}}, [2]counts{{dropped: 2}, {forwarded: 2}}},
		{"the outcome later", [][2]uint64{{2, 0}, {0, 0}}, []counts{nil, {dropped: 2}}, [2]counts{{dropped: 2}, {}}},
		{"a mixture", [][2]uint64{{6, 3}}, []counts{{forwarded: 6, dropped: 3}}, [2]counts{{forwarded: 4, dropped: 2}, {forwarded: 2, dropped: 1}}},
	} {
		port, frontends := &entry{}, [2]*entry{{}, {}}
		for i, at := range c.arrivals {
			for j, n := range at {
				if n > 0 {
					port.arrive(inet.IPv4, frontends[j], n)
				}
			}
			for m, n := range c.outcomes[i] {
				port.outcome(inet.IPv4, m, n)
			}
			port.local[inet.IPv4].split()
		}
		for i, f := range frontends {
			got := counts{}
			for m, n := range f.by {
				if n > 0 {
					got[outcome.Code(m)] = n
				}
			}
			lab.Same(t, c.want[i], got, "%s: frontend %d", c.name, i)
		}
		if l := port.local[inet.IPv4]; len(l.arrivals) > 0 || l.outcomes != ([plan.Meanings]uint64{}) {
			t.Errorf("%s: left: %+v", c.name, l)
		}
	}
}
