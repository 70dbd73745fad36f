package proxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// The loop renews the lease of the tables, so the lease lasts while the loop works: also while the loop waits for the
// API server, for the tables that an earlier process left.
type lease struct {
	// seen is the time of the last known renewal by any process, or at which this process was last responsible for the
	// tables.
	seen time.Time
	// failing is true if the last renewal failed.
	failing bool
}

// abandonedAfter is the time without a renewal after which the process that serves is considered not to work.
// renewEvery is the time between two renewals. leaseEvery is the time between two looks at the lease, which renew it if
// this is due.
const (
	abandonedAfter = 30 * time.Second
	renewEvery     = abandonedAfter / 3
	leaseEvery     = 2 * time.Second
)

// keepLease asks the loop to look at the lease, immediately and then periodically, until the context ends. The loop
// answers wherever it waits, and between the Services of the first batch.
func (p *Proxy) keepLease(ctx context.Context) {
	for ctx.Err() == nil {
		_, _ = ask(ctx, p, func() struct{} { // fails only if the context ends
			p.lookAtLease(ctx)
			return struct{}{}
		})
		select {
		case <-ctx.Done():
		case <-time.After(leaseEvery):
		}
	}
}

// lookAtLease renews the lease if this is due, and reports the first of several failures. If another process is
// responsible for the tables, lookAtLease checks whether that process renews the lease.
func (p *Proxy) lookAtLease(ctx context.Context) {
	now := p.Now()
	if !p.responsible() {
		p.checkOther(ctx, now)
		return
	}
	if p.lease.seen = now; now.Sub(p.Kernel.Leased()) < renewEvery {
		return
	}
	err := p.Kernel.Renew(p.Planner, 0)
	if err != nil && !p.lease.failing {
		klog.FromContext(ctx).Error(err, "Cannot renew the lease of the tables")
	}
	p.lease.failing = err != nil
}

// checkOther serves instead of the process that serves, if no process has renewed the lease for a while.
func (p *Proxy) checkOther(ctx context.Context, now time.Time) {
	if at := p.Kernel.LeasedByAny(p.Planner); at.After(p.lease.seen) {
		p.lease.seen = at
	}
	if now.Sub(p.lease.seen) <= abandonedAfter {
		return
	}
	p.lease.seen = now
	if other := p.Turn.Other(); p.Turn.Reclaim() {
		p.Metrics.TookOver()
		const what = "The other instance has not renewed the lease of the tables for 30 s; this instance takes over"
		klog.FromContext(ctx).Error(nil, what, "other", other)
	}
}

// shortenLease shortens the lease before an orderly exit, so that another proxy need not wait for its end.
func (p *Proxy) shortenLease(ctx context.Context) {
	if !p.responsible() {
		return
	}
	if err := p.Kernel.Renew(p.Planner, plan.LeaseAtExit); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot shorten the lease of the tables")
	}
}

// responsible reports whether this process serves, or no process does.
func (p *Proxy) responsible() bool { return p.Turn == nil || p.Turn.Alone() }

// Turn decides which instance of the program serves. Its methods do not block.
type Turn interface {
	// Ready announces that this process can serve. Stopped confirms that this process commits nothing until Granted
	// is true again.
	Ready()
	Stopped()
	// Granted is true while this process serves.
	Granted() *atomic.Bool
	// Alone reports whether no other process is known: this process is responsible for the tables of an earlier one.
	Alone() bool
	// Reclaim lets this process serve again, because the process that serves does not work. It returns false, and
	// changes nothing, if this process is not ready or serves already.
	Reclaim() bool
	// Changed returns a channel that has a value when Granted may have changed.
	Changed() <-chan struct{}
	// Other names the process that serves instead of this one, or "" if none is known.
	Other() string
}

// standby describes the process that serves instead of this one.
type standby struct {
	// other names that process, or is "" if none is known. reported is true after the first Event about such a process.
	other    string
	reported bool
}

// standBy waits for a question, or until the process that serves may have changed. It plans no changes. If this
// process may serve then, it resumes.
func (p *Proxy) standBy(ctx context.Context) {
	p.Turn.Stopped()
	p.noteOther(ctx, p.Turn.Other())
	p.Health.Updated(p.Now()) // no change is overdue: the other process serves
	select {
	case <-ctx.Done():
	case question := <-p.questions:
		question()
	case <-p.Turn.Changed():
	}
	if p.granted.Load() {
		p.resume(ctx)
	}
}

// noteOther reports the process that serves instead of this one, once for each process.
func (p *Proxy) noteOther(ctx context.Context, other string) {
	if other == "" || other == p.standby.other {
		return
	}
	p.serve(beside.AllKinds, false) // the other process listens on the same ports
	p.changed = beside.AllKinds
	p.Metrics.StandingBy(true)
	if p.standby.other = other; p.standby.reported {
		klog.FromContext(ctx).Info("Another instance serves this node; this instance waits until it exits", "other",
			other)
		return
	}
	p.standby.reported = true
	p.Report(model.Problem{
		Kind: "Node", Name: types.NamespacedName{Name: p.NodeName}, Field: "kube-nftproxy",
		Event: "AnotherInstanceServes", Action: "Wait",
		Reason: fmt.Sprintf("another instance (%s) serves this node; this instance started earlier and waits until "+
			"the other one exits. Unless one replaces the other, remove one of them", other),
	})
}

// resume starts to serve. The next sync compares the tables with the plan.
func (p *Proxy) resume(ctx context.Context) {
	if p.standby.other != "" {
		klog.FromContext(ctx).Info("No other instance serves this node any more; this instance takes over", "other",
			p.standby.other)
		p.standby.other = ""
		p.Metrics.StandingBy(false)
	}
	if p.started {
		p.guard.doubt(beside.ForeignChange)
	}
	p.Schedule.Urgent()
}
