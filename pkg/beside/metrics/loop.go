package metrics

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Loop keeps the metrics of the loop: changes, syncs and tables. Only the loop calls its own methods.
type Loop struct {
	*Metrics
	planner *plan.Planner
	sizes   Sizes
	// counted holds, for each set, the number of elements and the size that the metrics show.
	counted map[*nft.Set][2]int
	// triggers holds the times of changes that are not planned yet, at most [track.MostTriggers] for each Service.
	// unprogrammed holds the times of changes that are planned but not committed.
	triggers     map[types.NamespacedName][]track.Trigger
	unprogrammed []track.Trigger
}

// Sizes calls a function with each set of a family and its number of elements. It returns the number of the family's
// chains that belong to classes.
type Sizes func(inet.Family, func(*nft.Set, int)) (classChains int)

// mostUnprogrammed is the largest number of recorded changes that wait for a successful sync. If there are more, only
// the oldest are recorded.
const mostUnprogrammed = 10_000

// NewLoop returns the metrics of a loop with a planner and tables.
func NewLoop(m *Metrics, planner *plan.Planner, sizes Sizes) *Loop {
	return &Loop{
		Metrics: m, planner: planner, sizes: sizes, counted: map[*nft.Set][2]int{},
		triggers: map[types.NamespacedName][]track.Trigger{},
	}
}

// Taken records the changes that the loop is about to plan.
func (l *Loop) Taken(dirty *track.Dirty) {
	l.Changes(dirty.ServiceChanges, dirty.SliceChanges)
	for name, times := range dirty.Triggers {
		known := l.triggers[name]
		l.triggers[name] = append(known, times[:min(len(times), track.MostTriggers-len(known))]...)
	}
}

// Planned records that a Service is planned. The next successful sync commits its changes.
func (l *Loop) Planned(name types.NamespacedName) {
	if times, known := l.triggers[name]; known {
		l.unprogrammed = append(l.unprogrammed, times[:min(len(times), mostUnprogrammed-len(l.unprogrammed))]...)
		delete(l.triggers, name)
	}
}

// Synced records the outcome of a sync.
func (l *Loop) Synced(s *beside.Sync) {
	l.Metrics.Synced(s)
	if s.Err != nil {
		return
	}
	if s.Result.Kind != apply.Nothing {
		l.count()
	}
	l.programmed(s.End)
}

// count updates the metrics of the tables' sizes.
func (l *Loop) count() {
	totals := l.planner.Totals()
	for _, f := range l.families {
		classChains := l.sizes(f, func(s *nft.Set, n int) {
			now := [2]int{n, int(s.Size)}
			if counted, known := l.counted[s]; !known || counted != now {
				l.counted[s] = now
				l.Elements(f, s.Name, n, now[1])
			}
		})
		l.classChains.WithLabelValues(f.String()).Set(float64(classChains))
		l.NoLocalEndpoints(f, totals.NoLocal[f].Internal, totals.NoLocal[f].External)
	}
	l.conflicts.Set(float64(totals.Conflicts))
}

// programmed measures the time from each change to its commit.
func (l *Loop) programmed(end time.Time) {
	for _, t := range l.unprogrammed {
		family := inet.IPv4
		if t.IPv6 {
			family = inet.IPv6
		}
		// A time in the future is wrong. Its author may write any time, and the difference may exceed a Duration.
		if !t.At.After(end) {
			l.Programmed(family, end.Sub(t.At))
		}
	}
	l.unprogrammed = nil
}

// Total returns the number of elements of each family's table after the last sync.
func (l *Loop) Total() (n [2]int) {
	for s, counted := range l.counted {
		n[s.Family] += counted[0]
	}
	return n
}
