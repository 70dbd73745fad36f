package proxy

import (
	"context"
	"time"

	"k8s.io/klog/v2"

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
