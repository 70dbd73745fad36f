package conntrack

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

const (
	// defaultInterval is the minimum time between the end of one pass and the start of the next pass for the same
	// namespace.
	defaultInterval = time.Second
	// maxShare limits the passes for one namespace to 1/maxShare of the time: reading a million entries takes seconds.
	// maxShareOfAll limits all passes. So a namespace with many requests pays with its own delay, and delays the
	// request of another namespace by little more than one pass.
	maxShare, maxShareOfAll = 5, 2
	// settle is the delay before each pass. A packet that met the old rules may not have an entry yet. Without the
	// delay, the pass could miss this entry, and the entry would stay.
	settle = 20 * time.Millisecond
	// patience is the delay of a pass that is made only for flows without replies of protocols other than UDP, in
	// intervals between passes. A client repeats its first segment after 1, 2, 4 and more seconds, so a new Service
	// need not wait for many passes. With the delay, frequent changes of endpoints cause few passes.
	patience = 5
	// retryAfter is the longest time until a failed pass is retried. A new request causes an earlier retry.
	retryAfter = 30 * time.Second
	// maxGone is the largest number of deleted frontends in the requests of failed passes. If they have more, the
	// reconciler drops all deleted frontends.
	maxGone = 1 << 16
)

// Table is the kernel's conntrack table.
type Table interface {
	// Delete deletes the flows of a family for which stale returns true. It may skip flows that are not selected.
	// stale must not keep the pointer to the flow. If Delete returns an error, it may have deleted some flows.
	Delete(ctx context.Context, f inet.Family, s Selection, stale func(*Flow) bool) (Outcome, error)
	Close() error
}

// Outcome is the result of one pass over the table.
type Outcome struct {
	// Seen is the number of flows that were read, and Deleted the number of flows that were deleted.
	Seen, Deleted int
	// Partial is true if each attempt to read the table was interrupted, so that the pass may have missed flows.
	Partial bool
}

// add adds the outcome of another part of the pass.
func (o *Outcome) add(part Outcome) {
	o.Seen, o.Deleted, o.Partial = o.Seen+part.Seen, o.Deleted+part.Deleted, o.Partial || part.Partial
}

// Metrics counts passes.
type Metrics interface {
	FlowsDeleted(f inet.Family, took time.Duration, deleted int)
	// FlowsSearched is called after each pass over the flows of a family.
	FlowsSearched(f inet.Family, err error)
}

// Config holds the parts and settings of a reconciler.
type Config struct {
	// Open opens the table for one pass.
	Open    func() (Table, error)
	Metrics Metrics
	// Interval is the minimum time between two passes for the same namespace; 0 stands for one second.
	Interval time.Duration
	// PerSecond is the largest number of deleted entries per second during a pass; 0 for no limit.
	PerSecond int
	// Last is the longest time of a last pass, after the context of Run has ended; 0 for no such pass.
	Last time.Duration
}

// Reconciler deletes stale flows beside the goroutine that syncs. One pass handles all requests since the start of the
// previous pass. Between passes, the reconciler keeps only these merged requests. Their size is limited by the number
// of changed frontends. A pass is due as soon as one of the requesting namespaces has not had a pass lately.
type Reconciler struct {
	Config
	runner *beside.Runner

	mu      sync.Mutex
	pending *Desired
	// requested is the time of the first request since the last pass, or zero. After a failed pass, it is the time of
	// the retry. latest is the time of the last request.
	requested, latest time.Time
	// number is the number of requests, and handled the number of the last request that is not pending any more.
	number, handled uint64
	// earliest is the earliest time of the next pass. owing has a later time for each namespace of recent passes: no
	// pass is made only for namespaces that owe.
	earliest time.Time
	owing    map[string]time.Time

	// paused is the time that the current pass has waited because of PerSecond. Only Run uses it.
	paused time.Duration
}

// New returns a reconciler. [Reconciler.Run] starts it.
func New(c Config) *Reconciler {
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	r := &Reconciler{Config: c, owing: map[string]time.Time{}}
	r.runner = beside.NewRunner(beside.Runner{Work: r.work, Failed: "Failed to clear all conntrack entries, will " +
		"retry"})
	return r
}

// Request requests a pass. Call it after the kernel has committed the state in d. It does not block. The reconciler
// takes ownership of d, but not of the lists of endpoints and addresses in it: do not change these. If several
// requests contain the same frontend, the last one applies. Request returns the number of the request: 1 for the
// first one.
func (r *Reconciler) Request(d *Desired) (number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(d.namespaces) == 0 {
		d.For("")
	}
	before := r.due()
	if r.pending == nil {
		r.pending = d
	} else {
		r.pending.merge(d)
	}
	r.number++
	r.latest = time.Now()
	if r.requested.IsZero() || r.requested.After(r.latest) {
		r.requested = r.latest
	}
	if r.due() != before {
		r.runner.Wake()
	}
	return r.number
}

// Handled returns the number of the last request for which the stale flows to deleted frontends are deleted, or were
// too many for a retry.
func (r *Reconciler) Handled() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handled
}

// Run makes passes until the context ends, and then a last pass if there is a request. It logs errors, and keeps the
// requests of a failed pass for the next one.
func (r *Reconciler) Run(ctx context.Context) {
	r.runner.Run(ctx)
	if r.Last > 0 && !r.next().IsZero() {
		ctx, end := context.WithTimeout(context.WithoutCancel(ctx), r.Last)
		defer end()
		if beside.Sleep(ctx, settle-r.sinceLatest()) {
			if err := r.pass(ctx); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to clear all conntrack entries at the exit")
			}
		}
	}
}

// work makes a pass if one is due.
func (r *Reconciler) work(ctx context.Context) (beside.Pause, error) {
	at := r.next()
	if at.IsZero() {
		return beside.UntilWake, nil
	}
	if wait := time.Until(at); wait > 0 {
		return beside.Pause{Most: wait}, nil // a further request may be due earlier
	}
	if !beside.Sleep(ctx, settle-r.sinceLatest()) {
		return beside.Pause{}, nil
	}
	if err := r.pass(ctx); err != nil {
		return beside.Pause{Most: retryAfter}, err
	}
	return beside.Pause{}, nil
}

// next returns the time of the next pass; zero if there is no request.
func (r *Reconciler) next() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.due()
}

// due does the same. The caller holds mu.
func (r *Reconciler) due() (at time.Time) {
	if r.requested.IsZero() {
		return at
	}
	var paid time.Time
	for namespace := range r.pending.namespaces {
		until, owes := r.owing[namespace]
		if !owes {
			paid = time.Time{}
			break
		}
		if paid.IsZero() || until.Before(paid) {
			paid = until
		}
	}
	at = r.requested.Add(settle)
	if !r.pending.Urgent {
		at = r.requested.Add(patience * r.Interval)
	}
	for _, other := range []time.Time{r.earliest, paid} {
		if other.After(at) {
			at = other
		}
	}
	return at
}

// sinceLatest returns the time since the last request.
func (r *Reconciler) sinceLatest() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.latest)
}

// charge records the costs of a pass.
func (r *Reconciler) charge(payers map[string]struct{}, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := time.Now()
	r.earliest = end.Add((maxShareOfAll - 1) * took)
	for namespace, until := range r.owing {
		if !until.After(end) {
			delete(r.owing, namespace)
		}
	}
	for namespace := range payers {
		r.owing[namespace] = end.Add(max(r.Interval, (maxShare-1)*took))
	}
}

// pass handles the pending requests.
func (r *Reconciler) pass(ctx context.Context) error {
	d, number := r.take()
	start := time.Now()
	r.paused = 0
	err := r.reconcile(ctx, d)
	r.charge(d.namespaces, time.Since(start)-r.paused)
	if err != nil {
		r.restore(d, number)
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handled = number
	return nil
}

// take returns the merged pending requests with the number of the last one, and clears them.
func (r *Reconciler) take() (d *Desired, number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d = r.pending
	r.pending, r.requested = nil, time.Time{}
	return d, r.number
}

// restore makes the requests of a failed pass pending again. Newer requests override them. number is the number of
// the last request of the pass.
func (r *Reconciler) restore(d *Desired, number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		d.merge(r.pending)
	}
	if d.gone > maxGone {
		d.forgetGone()
		r.handled = number
	}
	if r.pending = d; r.requested.IsZero() {
		r.requested = time.Now().Add(retryAfter)
	}
}

// reconcile deletes the stale flows of a request.
func (r *Reconciler) reconcile(ctx context.Context, d *Desired) error {
	table, err := r.Open()
	if err != nil {
		for _, f := range d.families() {
			r.Metrics.FlowsSearched(f, err)
		}
		return err
	}
	defer func() { _ = table.Close() }() // each deletion has been acknowledged
	each, found := klog.FromContext(ctx).V(6), 0
	_, err = sweep(ctx, table, r.Metrics, d, d.selections(), func(flow *Flow) bool {
		yes := d.Stale(flow) && !r.welcome(flow)
		if yes && each.Enabled() {
			each.Info("Deleting conntrack entry", "protocol", flow.Protocol, "source", flow.Source,
				"destination", flow.Destination, "server", flow.Server)
		}
		if yes && r.PerSecond > 0 {
			if found++; found%maxDeletes == 0 {
				r.pause(ctx)
			}
		}
		return yes
	})
	return err
}

// sweep deletes stale flows in parts of the table, of each family that has frontends in d. An error in one family does
// not affect the other.
func sweep(
	ctx context.Context, table Table, m Metrics, d *Desired, parts []Selection, stale func(*Flow) bool,
) (all Outcome, failed error) {
	logger := klog.FromContext(ctx)
	for _, f := range d.families() {
		start := time.Now()
		var out Outcome
		var err error
		for _, s := range parts {
			var part Outcome
			part, err = table.Delete(ctx, f, s, stale)
			if out.add(part); err != nil {
				break
			}
		}
		took := time.Since(start)
		if err == nil || out.Seen > 0 {
			m.FlowsDeleted(f, took, out.Deleted)
		}
		if m.FlowsSearched(f, err); err != nil && failed == nil {
			failed = fmt.Errorf("delete stale %s flows: %w", f, err)
		}
		if out.Partial {
			logger.Info("Received a partial result, continuing to clean with partial result", "ipFamily", f)
		}
		logger.V(4).Info("Finished reconciling conntrack entries", "ipFamily", f, "entriesDeleted", out.Deleted,
			"entriesRead", out.Seen, "frontends", d.count[f], "took", took)
		all.add(out)
	}
	return all, failed
}

// pause waits before the next maxDeletes entries are deleted, for the time that PerSecond requires.
func (r *Reconciler) pause(ctx context.Context) {
	d := maxDeletes * time.Second / time.Duration(r.PerSecond)
	beside.Sleep(ctx, d)
	r.paused += d
}

// welcome reports whether a pending request permits a flow. Such a flow may be newer than the request of the current
// pass, and its deletion would lose packets.
func (r *Reconciler) welcome(f *Flow) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending != nil && r.pending.welcomes(f)
}
