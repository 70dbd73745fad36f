package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Facts are the inputs of the plan besides Services. A published copy is immutable. The loop owns and changes its own
// facts; the builder reads their Node.
type Facts struct {
	Node          model.Node
	NodeAddresses [2][]netip.Addr
	ServiceCIDRs  [2][]netip.Prefix
	PodCIDRs      [2]netip.Prefix
}

// Facts returns the facts of the latest plan, or the zero Facts before the first one. Any goroutine may call it.
func (p *Proxy) Facts() Facts {
	if f := p.published.Load(); f != nil {
		return *f
	}
	return Facts{}
}

// publish publishes the loop's current facts for other goroutines.
func (p *Proxy) publish() {
	facts := p.facts
	p.published.Store(&facts)
}

// account records syncs, for answers to questions. It allocates memory only for a sync of more than mostNamed
// Services, a repair, or a failure.
type account struct {
	// waits describes the condition for which the loop waits before its first sync.
	waits          string
	last, lastSent past
	// recent is a ring of the last syncs. The index of the next sync is syncs modulo the length of the ring.
	recent   [mostRecent]past
	syncs    uint64
	failure  *view.Failure
	repairs  []view.Repair
	repaired int
}

// past is a successful sync.
type past struct {
	start, begun, end time.Time
	result            apply.Result
	names             []types.NamespacedName
	more              int
}

const (
	// mostRecent is the number of recorded syncs.
	mostRecent = 200
	// mostNamed is the number of recorded Services of each sync. mostRepairs is the number of recorded repairs.
	mostNamed, mostRepairs = 4, 8
)

// note records the outcome of a sync.
func (a *account) note(s *beside.Sync) {
	if s.Err != nil {
		a.noteFailed(s.End, s.Err)
		return
	}
	if s.Compared != "" && s.Result.Kind == apply.Full {
		a.noteRepair(view.Repair{
			Time: s.End, Reason: string(s.Compared), Why: s.Result.Why, By: s.By(), Program: s.Author.Program,
		})
	}
	a.waits, a.failure = "", nil
	a.last = past{start: s.Start, begun: s.Begun, end: s.End, result: s.Result, names: s.Services}
	if n := len(s.Services); n > mostNamed {
		a.last.names, a.last.more = slices.Clone(s.Services[:mostNamed]), n-mostNamed // releases the long list
	}
	a.recent[a.syncs%mostRecent] = a.last
	a.syncs++
	if s.Result.Kind == apply.Partial || s.Result.Kind == apply.Full {
		a.lastSent = a.last
	}
}

// noteFailed records a failed sync.
func (a *account) noteFailed(at time.Time, err error) {
	if a.failure == nil {
		a.failure = &view.Failure{Since: at}
	}
	f := *a.failure // a copy: other goroutines may read the old value
	f.Error = err.Error()
	f.Fix, f.Affects = remedy(err)
	f.Times++
	a.failure = &f
}

// remedy returns the smallest change after which syncs may succeed, and everything else that it affects.
func remedy(err error) (fix, affects string) {
	switch {
	case errors.Is(err, unix.EPERM):
		return "add the capability NET_ADMIN to the container of this program", "the pods with the same spec"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
		return "free memory on this node, or raise the memory limit of the pod: it includes memory of the kernel",
			"only this node, or the pods with the same limit"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return "load the kernel module for the expression in the error, for example with modprobe nft_masq on this " +
				"node",
			"the kernel of this node, until the next boot"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "raise the limit of open files of this program (ulimit -n) or of this node (fs.file-max)",
			"only this program, or all programs of this node"
	}
	return "read the log of this program, and run \"kube-nftproxy bundle\" for a bug report", "nothing"
}

// noteRepair records a repair.
func (a *account) noteRepair(r view.Repair) {
	a.repaired++
	if len(a.repairs) == mostRepairs {
		a.repairs = slices.Delete(a.repairs, 0, 1)
	}
	a.repairs = append(a.repairs, r)
}

// ask makes the loop answer a question between two syncs. It fails if the context ends before the loop has answered.
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

// Status returns the state of the loop, and the condition for which it waits.
func (p *Proxy) Status(ctx context.Context) (*view.Loop, error) {
	return ask(ctx, p, func() *view.Loop {
		a := &p.account
		l := &view.Loop{
			Waits: a.waits, Last: a.last.view(), LastSent: a.lastSent.view(), Failure: a.failure, Syncs: a.syncs,
			Repairs: slices.Clone(a.repairs), RepairsTotal: a.repaired,
		}
		l.Other, l.Pending = p.standby.other, len(p.queue.services)+p.unplanned
		if renewed := p.Kernel.Leased(); !renewed.IsZero() {
			ends := renewed.Add(plan.Lease)
			l.LeaseRenewed, l.LeaseEnds = &renewed, &ends
		}
		return l
	})
}

// Syncs returns the last successful syncs, the oldest first. The loop only copies them. The caller's goroutine
// converts them.
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

// Elements returns the number of elements of each family's table after the last sync.
func (p *Proxy) Elements(ctx context.Context) ([2]int, error) {
	return ask(ctx, p, p.Metrics.Total)
}

// Conflicts returns the frontends that one of the named Services claims and another Service has. For each Service, it
// returns the first ones only (see [plan.Conflicts.Of]).
func (p *Proxy) Conflicts(ctx context.Context, names []types.NamespacedName) ([]plan.Conflict, error) {
	return ask(ctx, p, func() (list []plan.Conflict) {
		if p.Planner.Totals().Conflicts == 0 {
			return nil
		}
		for _, n := range names {
			conflicts, _ := p.Planner.Conflicts().Of(n)
			list = append(list, conflicts...)
		}
		return list
	})
}

// Behaviours are the addresses of a Service that refuse connections to unused ports, apart from cluster IPs, the
// addresses that answer echo requests, and the service ports that use NAT instead of direct server return.
type Behaviours struct {
	Refused, Pinged []netip.Addr
	NAT             []plan.NAT
}

// Behaviours returns the behaviours of the addresses of the named Services.
func (p *Proxy) Behaviours(
	ctx context.Context, names []types.NamespacedName,
) (map[types.NamespacedName]Behaviours, error) {
	return ask(ctx, p, func() map[types.NamespacedName]Behaviours {
		out := map[types.NamespacedName]Behaviours{}
		for _, n := range names {
			var b Behaviours
			b.Refused, b.Pinged = p.Planner.Service(n).Behaviours()
			b.NAT = p.Planner.Service(n).NAT()
			out[n] = b
		}
		return out
	})
}

// Numbers returns the room and the numbers of Services. Before the first sync, it fails, because there is no plan to
// compare with.
func (p *Proxy) Numbers(ctx context.Context) (numbers *plan.Numbers, err error) {
	var waits string
	numbers, err = ask(ctx, p, func() *plan.Numbers {
		if !p.started {
			waits = p.account.waits
			return nil
		}
		return p.Planner.Numbers()
	})
	if err == nil && numbers == nil {
		err = fmt.Errorf("there is no plan yet: the program waits %s; ask again after its first sync", waits)
	}
	return numbers, err
}

func (s *past) view() *view.Sync {
	if s.end.IsZero() {
		return nil
	}
	v := &view.Sync{
		Time: s.end, Kind: string(s.result.Kind), Why: s.result.Why, More: s.more,
		Elements: s.result.Elements, Bytes: s.result.Bytes,
		PlanMicros: s.begun.Sub(s.start).Microseconds(), CommitMicros: s.result.Commit.Microseconds(),
		TotalMicros: s.end.Sub(s.start).Microseconds(),
	}
	for _, n := range s.names {
		v.Services = append(v.Services, n.String())
	}
	return v
}

// Crowd sets the service ports of a family whose new clients are not remembered, see [plan.Planner.SetCrowded]. The
// next sync commits them.
func (p *Proxy) Crowd(ctx context.Context, f inet.Family, ports []plan.Number) error {
	_, err := ask(ctx, p, func() bool {
		p.Change(func() { p.Planner.SetCrowded(f, ports) })
		p.Schedule.Urgent()
		return true
	})
	return err
}

// Forget makes the loop delete remembered clients between two syncs, and returns the number of deleted ones: 0 while
// another instance serves.
func (p *Proxy) Forget(ctx context.Context, clients []nft.Element) (int, error) {
	type outcome struct {
		n   int
		err error
	}
	o, err := ask(ctx, p, func() (o outcome) {
		if p.started && p.granted.Load() {
			o.n, o.err = p.Kernel.Forget(clients)
		}
		return o
	})
	if err == nil {
		err = o.err
	}
	return o.n, err
}
