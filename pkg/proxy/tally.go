package proxy

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Sizes has the sizes of the kernel's tables.
type Sizes interface {
	// EachCount calls a function with each set of a family and its number of elements. It returns the number of the family's chains
	// that belong to classes.
	EachCount(inet.Family, func(*nft.Set, int)) (classChains int)
}

// tally keeps the metrics of changes, syncs and tables.
type tally struct {
	quiet
	metrics  *metrics.Metrics
	sizes    Sizes
	planner  *plan.Planner
	families []inet.Family
	problems *problemBook
	// counted holds, for each set, the number of elements and the size that the metrics show.
	counted map[*nft.Set][2]int
}

func newTally(c *Config, problems *problemBook) *tally {
	return &tally{metrics: c.Metrics, sizes: c.Kernel, planner: c.Planner, families: c.Families, problems: problems, counted: map[*nft.Set][2]int{}}
}

func (t *tally) Queued(now time.Time) { t.metrics.Queued(now) }

func (t *tally) Taken(dirty *track.Dirty) {
	t.metrics.Changes(dirty.ServiceChanges, dirty.SliceChanges)
}

func (t *tally) Synced(s *Sync) {
	t.problems.show(t.metrics)
	r := &s.Result
	outcome := metrics.SyncResult{Full: r.Kind == apply.Full || r.Kind == apply.Adopted, Waiting: s.Waiting, Duration: s.End.Sub(s.Start), End: s.End}
	if s.Err != nil {
		t.metrics.SyncFailed(outcome)
		return
	}
	if s.Compared != "" {
		t.metrics.Checked(s.Compared, r.Kind == apply.Full)
	}
	t.metrics.Synced(outcome)
	switch {
	case r.Kind == apply.Adopted && s.First:
		t.metrics.Adopted()
	case r.Kind == apply.Full || r.Kind == apply.Partial:
		t.metrics.Sent(metrics.Batch{Full: r.Kind == apply.Full, Bytes: r.Bytes, Elements: r.Elements, Kernel: r.Commit})
	}
	if r.Kind != apply.Nothing {
		t.count()
	}
}

// count updates the metrics of the tables' sizes.
func (t *tally) count() {
	for _, f := range t.families {
		classChains := t.sizes.EachCount(f, func(s *nft.Set, n int) {
			now := [2]int{n, int(s.Size)}
			if counted, known := t.counted[s]; !known || counted != now {
				t.counted[s] = now
				t.metrics.Elements(f, s.Name, n, now[1])
			}
		})
		t.metrics.ClassChains(f, classChains)
		internal, external := t.planner.NoLocalEndpoints(f)
		t.metrics.NoLocalEndpoints(f, internal, external)
	}
	t.metrics.Conflicts(t.planner.Conflicts())
}

// elements returns the number of elements of each family's table after the last sync.
func (t *tally) elements() (n [2]int) {
	for s, counted := range t.counted {
		n[s.Family] += counted[0]
	}
	return n
}

// nodeHealth passes the state of the Node, and of the loop, to /healthz, /livez and /readyz.
type nodeHealth struct {
	quiet
	*health.Health
}

func (h nodeHealth) Queued(now time.Time) { h.Health.Queued(now) }

func (h nodeHealth) Node(n *Node) { h.Health.Node(n.Object) }

func (h nodeHealth) Synced(s *Sync) {
	if s.Err == nil {
		h.RecordSync(s.End)
	}
}

// mostUnprogrammed is the largest number of recorded changes that wait for a successful sync. If there are more, only the oldest are recorded.
const mostUnprogrammed = 10_000

// changeTimes measures the time from a change in the API to its commit.
type changeTimes struct {
	quiet
	programmed func(inet.Family, time.Duration)
	// triggers holds the times of changes that are not planned yet, at most [track.MostTriggers] for each Service. unprogrammed holds the times of
	// changes that are planned but not committed.
	triggers     map[types.NamespacedName][]track.Trigger
	unprogrammed []track.Trigger
}

func newChangeTimes(programmed func(inet.Family, time.Duration)) *changeTimes {
	return &changeTimes{programmed: programmed, triggers: map[types.NamespacedName][]track.Trigger{}}
}

func (c *changeTimes) Taken(dirty *track.Dirty) {
	for name, times := range dirty.Triggers {
		known := c.triggers[name]
		c.triggers[name] = append(known, times[:min(len(times), track.MostTriggers-len(known))]...)
	}
}

func (c *changeTimes) Service(name types.NamespacedName, _ *model.Service) {
	if times, known := c.triggers[name]; known {
		c.unprogrammed = append(c.unprogrammed, times[:min(len(times), mostUnprogrammed-len(c.unprogrammed))]...)
		delete(c.triggers, name)
	}
}

func (c *changeTimes) Synced(s *Sync) {
	if s.Err != nil {
		return
	}
	for _, t := range c.unprogrammed {
		family := inet.IPv4
		if t.IPv6 {
			family = inet.IPv6
		}
		// A time in the future is wrong. Its author may write any time, and the difference may exceed a Duration.
		if !t.At.After(s.End) {
			c.programmed(family, s.End.Sub(t.At))
		}
	}
	c.unprogrammed = nil
}
