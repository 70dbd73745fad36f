package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Facts are what the tables depend on besides Services. They are immutable: the loop makes new ones when any of them changes.
type Facts struct {
	Node          model.Node
	NodeAddresses [2][]netip.Addr
	ServiceCIDRs  [2][]netip.Prefix
	PodCIDRs      [2]netip.Prefix
}

// Facts returns those of the last sync; the zero Facts before the first one. Any goroutine may call it.
func (p *Proxy) Facts() Facts {
	if f := p.facts.Load(); f != nil {
		return *f
	}
	return Facts{}
}

// publish makes what the loop goes by visible to others.
func (p *Proxy) publish() {
	p.facts.Store(&Facts{Node: p.node, NodeAddresses: p.nodeAddrs, ServiceCIDRs: p.serviceCIDRs, PodCIDRs: p.podCIDRs})
}

// account is what the loop remembers of its syncs, for those who ask. Noting it costs no memory but at a repair or a failure.
type account struct {
	// waits says what the loop waits for before its first sync.
	waits string
	// other is the instance that serves instead of this one, "" if there is none.
	other          string
	last, lastSent past
	// recent are the last ones in a ring; the next place is syncs modulo its length.
	recent   [mostRecent]past
	syncs    uint64
	failure  *view.Failure
	repairs  []view.Repair
	repaired int
	// names are the first of the Services of the sync that is under way, more counts the others.
	names []types.NamespacedName
	more  int
	// changes are what is to be told to the observer once it is committed.
	changes  []view.Change
	unlisted int
}

// past is a sync that has succeeded.
type past struct {
	start, absorbed, end time.Time
	result               apply.Result
	names                []types.NamespacedName
	more                 int
}

const (
	// mostRecent is how many syncs are remembered.
	mostRecent = 200
	// mostNamed is how many Services of a sync are remembered, mostRepairs how many repairs.
	mostNamed, mostRepairs = 4, 8
	// mostChanges is how many Services of one batch an observer is told of, one by one.
	mostChanges = 64
)

// noteNames remembers which Services a sync is about. The list is kept if it is short; otherwise it would keep all names there are.
func (a *account) noteNames(sorted []types.NamespacedName) {
	a.names, a.more = sorted, 0
	if n := len(sorted); n > mostNamed {
		a.names, a.more = slices.Clone(sorted[:mostNamed]), n-mostNamed
	}
}

// noteSynced remembers a sync that has succeeded.
func (a *account) noteSynced(start, absorbed, end time.Time, r apply.Result) {
	a.waits, a.failure = "", nil
	a.last = past{start, absorbed, end, r, a.names, a.more}
	a.recent[a.syncs%mostRecent] = a.last
	a.syncs++
	if r.Kind == apply.Partial || r.Kind == apply.Full {
		a.lastSent = a.last
	}
}

// noteFailed remembers a sync that has failed.
func (a *account) noteFailed(at time.Time, err error) {
	if a.failure == nil {
		a.failure = &view.Failure{Since: at}
	}
	f := *a.failure // others may have it
	f.Error = err.Error()
	f.Times++
	a.failure = &f
}

// noteRepair remembers that all was written again, and why.
func (a *account) noteRepair(r view.Repair) {
	a.repaired++
	if len(a.repairs) == mostRepairs {
		a.repairs = slices.Delete(a.repairs, 0, 1)
	}
	a.repairs = append(a.repairs, r)
}

// ask has the loop answer a question between two syncs. It fails if the loop doesn't get to it before the context ends.
func ask[T any](ctx context.Context, p *Proxy, question func() T) (answer T, err error) {
	answers := make(chan T, 1)
	select {
	case p.questions <- func() { answers <- question() }:
	case <-ctx.Done():
		return answer, fmt.Errorf("query the loop: it is busy: %w", ctx.Err())
	}
	select {
	case answer = <-answers:
		return answer, nil
	case <-ctx.Done():
		return answer, fmt.Errorf("query the loop: %w", ctx.Err())
	}
}

// Status tells what the loop has done and what it waits for.
func (p *Proxy) Status(ctx context.Context) (*view.Loop, error) {
	return ask(ctx, p, func() *view.Loop {
		a := &p.account
		l := &view.Loop{
			Waits: a.waits, Last: a.last.view(), LastSent: a.lastSent.view(), Failure: a.failure, Syncs: a.syncs,
			Repairs: slices.Clone(a.repairs), RepairsTotal: a.repaired,
		}
		l.Other, l.Pending = a.other, p.queue.waiting()
		if renewed := p.Kernel.Leased(); !renewed.IsZero() {
			ends := renewed.Add(plan.Lease)
			l.LeaseRenewed, l.LeaseEnds = &renewed, &ends
		}
		return l
	})
}

// Syncs returns the last ones that have succeeded, the oldest first. The loop only copies them; the rest is done here.
func (p *Proxy) Syncs(ctx context.Context) ([]view.Sync, error) {
	recent, err := ask(ctx, p, func() []past {
		a := &p.account
		if a.syncs < mostRecent {
			return slices.Clone(a.recent[:a.syncs])
		}
		oldest := a.syncs % mostRecent
		return append(slices.Clone(a.recent[oldest:]), a.recent[:oldest]...)
	})
	list := make([]view.Sync, len(recent))
	for i := range recent {
		list[i] = *recent[i].view()
	}
	return list, err
}

// Elements counts the elements of each family's table, as of the last sync that has changed any.
func (p *Proxy) Elements(ctx context.Context) ([2]int, error) {
	return ask(ctx, p, func() (n [2]int) {
		for _, f := range p.Families {
			for s, counted := range p.counted {
				if s.Family == plan.NFT(f) {
					n[f] += counted[0]
				}
			}
		}
		return n
	})
}

// Conflicts returns the addresses and ports that more than one Service claims, of the named Services.
func (p *Proxy) Conflicts(ctx context.Context, names []types.NamespacedName) ([]plan.Conflict, error) {
	return ask(ctx, p, func() (list []plan.Conflict) {
		if p.Planner.Conflicts() == 0 {
			return nil
		}
		for _, n := range names {
			conflicts, _ := p.Planner.ConflictsOf(n)
			list = append(list, conflicts...)
		}
		return list
	})
}

// Numbers returns the numbers that have been assigned to Services.
func (p *Proxy) Numbers(ctx context.Context) (*plan.Numbers, error) {
	return ask(ctx, p, p.Planner.Numbers)
}

func (s *past) view() *view.Sync {
	if s.end.IsZero() {
		return nil
	}
	v := &view.Sync{
		Time: s.end, Kind: string(s.result.Kind), Why: s.result.Why, More: s.more, Elements: s.result.Elements, Bytes: s.result.Bytes,
		PlanMicros: s.absorbed.Sub(s.start).Microseconds(), CommitMicros: s.result.Commit.Microseconds(),
		TotalMicros: s.end.Sub(s.start).Microseconds(),
	}
	for _, n := range s.names {
		v.Services = append(v.Services, n.String())
	}
	return v
}
