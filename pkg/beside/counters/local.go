package counters

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// local has connections to the frontends of one service port and IP family with the external policy Local. The
// elements of these frontends count arrivals, and elements of the service port count the outcomes. If connections
// with different outcomes arrived at several frontends between two readings, the outcomes of each frontend are an
// estimate: each outcome is split in proportion to the arrivals. Their sums are exact.
type local struct {
	// arrivals are the connections whose outcome is unknown, by frontend.
	arrivals []arrival
	// outcomes are the connections whose frontend is unknown: their arrival is read later.
	outcomes [plan.Meanings]uint64
}

type arrival struct {
	at *entry
	n  uint64
}

// arrive records connections that arrived at a frontend of the service port.
func (e *entry) arrive(f inet.Family, at *entry, n uint64) {
	l := e.localOf(f)
	i := slices.IndexFunc(l.arrivals, func(a arrival) bool { return a.at == at })
	if i < 0 {
		i, l.arrivals = len(l.arrivals), append(l.arrivals, arrival{at: at})
	}
	l.arrivals[i].n += n
}

// outcome records the outcome of connections to any frontend of the service port. Connections at the maximum also
// have another outcome.
func (e *entry) outcome(f inet.Family, m outcome.Code, n uint64) {
	if m != outcome.AtMaximum {
		e.localOf(f).outcomes[m] += n
	}
}

func (e *entry) localOf(f inet.Family) *local {
	if e.local[f] == nil {
		e.local[f] = &local{}
	}
	return e.local[f]
}

// split adds the known outcomes to the frontends at which the connections arrived.
func (l *local) split() {
	if l == nil {
		return
	}
	for m, known := range l.outcomes {
		var all uint64
		for _, a := range l.arrivals {
			all += a.n
		}
		n := min(known, all)
		l.outcomes[m] -= n
		for i := range l.arrivals {
			a := &l.arrivals[i]
			if a.n == 0 {
				continue
			}
			share := n * a.n / all // at most a.n, because n is at most all
			n, all = n-share, all-a.n
			a.n -= share
			a.at.add(outcome.Code(m), share)
		}
	}
	l.arrivals = slices.DeleteFunc(l.arrivals, func(a arrival) bool { return a.n == 0 })
}
