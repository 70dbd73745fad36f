package metrics

import (
	"slices"
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

// Taken records the changes that the loop is about to plan. They are pending until the next successful sync.
func (l *Loop) Taken(dirty *track.Dirty) {
	services, endpoints := float64(dirty.ServiceChanges), float64(dirty.SliceChanges)
	l.servicesTotal.Add(services)
	l.servicesPending.Add(services)
	l.endpointsTotal.Add(endpoints)
	l.endpointsPending.Add(endpoints)
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

// Synced records the outcome of a sync for each family, as kube-proxy does, and the time from each change to its
// commit. After a failed sync, changes stay pending, and also while Services still wait.
func (l *Loop) Synced(s *beside.Sync) {
	took := s.End.Sub(s.Start).Seconds()
	kind := l.partialSyncDuration
	if s.Result.Kind == apply.Full || s.Result.Kind == apply.Adopted {
		kind = l.fullSyncDuration
	}
	for _, f := range l.families {
		l.syncDuration.WithLabelValues(f.String()).Observe(took)
		kind.WithLabelValues(f.String()).Observe(took)
		if s.Err != nil {
			l.syncFailures.WithLabelValues(f.String()).Inc()
		} else {
			l.lastSync.WithLabelValues(f.String()).Set(float64(s.End.UnixNano()) / float64(time.Second))
		}
	}
	if s.Err != nil {
		return
	}
	if !s.Waiting {
		l.endpointsPending.Set(0)
		l.servicesPending.Set(0)
	}
	if s.Compared != "" {
		l.Checked(s.Compared, s.Result.Kind == apply.Full)
	}
	switch s.Result.Kind {
	case apply.Full, apply.Partial:
		l.batches.WithLabelValues(string(s.Result.Kind)).Inc()
		l.batchBytes.Observe(float64(s.Result.Bytes))
		l.batchElements.Observe(float64(s.Result.Elements))
		l.batchDuration.Observe(s.Result.Commit.Seconds())
	case apply.Adopted:
		if s.First {
			l.adopted.Inc()
		}
	}
	if s.Result.Kind != apply.Nothing {
		l.count()
	}
	for _, t := range l.unprogrammed {
		family := inet.IPv4
		if t.IPv6 {
			family = inet.IPv6
		}
		// A time in the future is wrong. Its author may write any time, and the difference may exceed a Duration.
		if !t.At.After(s.End) {
			l.Programmed(family, s.End.Sub(t.At))
		}
	}
	l.unprogrammed = nil
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
		// These are gauges, despite the metric's name.
		l.noLocalEndpoints.WithLabelValues("internal", f.String()).Set(float64(totals.NoLocal[f].Internal))
		l.noLocalEndpoints.WithLabelValues("external", f.String()).Set(float64(totals.NoLocal[f].External))
	}
	l.conflicts.Set(float64(totals.Conflicts))
}

// Total returns the number of elements of each family's table after the last sync.
func (l *Loop) Total() (n [2]int) {
	for s, counted := range l.counted {
		n[s.Family] += counted[0]
	}
	return n
}

// Queued records the time of a request for a sync. The age of the rules is the difference between this and the time
// of the last successful sync, if positive.
func (m *Metrics) Queued(at time.Time) {
	for _, f := range m.families {
		m.lastQueued.WithLabelValues(f.String()).Set(float64(at.UnixNano()) / float64(time.Second))
	}
}

// Programmed observes the time from the change of an EndpointSlice, according to its annotation, to its commit. It
// ignores a family that is not served.
func (m *Metrics) Programmed(f inet.Family, d time.Duration) {
	if slices.Contains(m.families, f) {
		m.programmingDuration.WithLabelValues(f.String()).Observe(d.Seconds())
	}
}

// Doubted records that the kernel's tables may differ from the plan.
func (m *Metrics) Doubted() { m.drift.Set(1) }

// StandingBy sets whether another instance serves.
func (m *Metrics) StandingBy(waits bool) {
	m.standby.Set(number(waits))
}

// TookOver counts a takeover from an instance that did not work.
func (m *Metrics) TookOver() { m.takeovers.Inc() }

// Checked records a comparison of the kernel's tables with the plan, after which they agree. repaired is true if it
// rewrote them.
func (m *Metrics) Checked(why beside.Reason, repaired bool) {
	m.drift.Set(0)
	m.checks.WithLabelValues(string(why)).Inc()
	if repaired {
		m.repairs.WithLabelValues(string(why)).Inc()
	}
}

// Elements sets the number of elements of a family's set or map, and its capacity; 0 means no limit.
func (m *Metrics) Elements(f inet.Family, set string, n, capacity int) {
	m.elements.WithLabelValues(f.String(), set).Set(float64(n))
	if capacity > 0 {
		m.capacity.WithLabelValues(f.String(), set).Set(float64(capacity))
	}
}

// Rejected sets the number of API objects of a kind, such as "Service", with parts that are not programmed.
func (m *Metrics) Rejected(kind string, n int) {
	m.rejected.WithLabelValues(kind).Set(float64(n))
}
