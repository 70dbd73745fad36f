package conntrack

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

const (
	// defaultInterval is the least time from the end of one pass to the next.
	defaultInterval = time.Second
	// maxShare is the part of the time, as a divisor, that passes may take: reading a million entries takes seconds.
	maxShare = 5
	// settle is how long a pass waits for packets that met the rules before they changed and whose entries are not in
	// the table yet: one that comes after the pass would stay for ever.
	settle = 20 * time.Millisecond
	// retryAfter is when a pass that failed is tried again at the latest.
	retryAfter = 30 * time.Second
	// maxGone is the number of frontends that are gone that a reconciler remembers while passes fail.
	maxGone = 1 << 16
)

// Table is the kernel's conntrack table.
type Table interface {
	// Delete deletes the flows of a family for which stale returns true; where udp is set it need not be asked about any
	// other protocol. The flow is valid only until stale returns. An error doesn't mean that none has been deleted.
	Delete(ctx context.Context, f model.Family, udp bool, stale func(*Flow) bool) (Outcome, error)
	Close() error
}

// Outcome is what became of one reading of the table.
type Outcome struct {
	// Seen counts the flows that the kernel showed, Deleted those that were deleted.
	Seen, Deleted int
	// Partial says that the kernel was interrupted again and again, so that some flows may not have been seen.
	Partial bool
}

// Metrics counts passes.
type Metrics interface {
	FlowsDeleted(f model.Family, took time.Duration, deleted int)
	// FlowsSearched is called after each pass over a family's table.
	FlowsSearched(f model.Family, err error)
}

// Config is what a reconciler needs.
type Config struct {
	// Open opens the table; it is called before the first pass, and after one that failed.
	Open    func() (Table, error)
	Metrics Metrics
	// Interval is the least time between two passes; 0 stands for one second.
	Interval time.Duration
}

// Reconciler deletes stale flows beside the goroutine that syncs. All requests that come while it waits or works are one
// pass. What it remembers between passes is nothing; what it holds for the next one is bounded by the frontends that changed.
type Reconciler struct {
	Config
	wake chan struct{}

	mu      sync.Mutex
	pending *Desired

	// The rest belongs to Run.
	table Table
	// failure is the error that was logged last.
	failure string
}

// New returns a reconciler that does nothing before [Reconciler.Run].
func New(c Config) *Reconciler {
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	return &Reconciler{Config: c, wake: make(chan struct{}, 1)}
}

// Request asks for a pass, after the kernel has accepted what d says. It never waits for one. The reconciler owns d from
// then on; the lists of endpoints and addresses in it stay shared with whoever else reads them. For a frontend that is in
// several requests the last one counts.
func (r *Reconciler) Request(d *Desired) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == nil {
		r.pending = d
	} else {
		r.pending.merge(d)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run makes passes until the context ends. Errors are logged, and what the pass was for is kept for the next one: no
// failure stops anything.
func (r *Reconciler) Run(ctx context.Context) {
	defer r.close()
	var earliest time.Time
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-retry:
		}
		if !sleep(ctx, max(settle, time.Until(earliest))) {
			return
		}
		start := time.Now()
		retry = nil
		if !r.pass(ctx) {
			retry = time.After(retryAfter)
		}
		end := time.Now()
		earliest = end.Add(max(r.Interval, (maxShare-1)*end.Sub(start)))
	}
}

// sleep returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// pass does what is pending, and returns false if it has to be done again.
func (r *Reconciler) pass(ctx context.Context) bool {
	d := r.take()
	if d == nil {
		return true
	}
	err := r.reconcile(ctx, d)
	r.log(ctx, err)
	if err == nil {
		return true
	}
	r.close()
	r.giveBack(d)
	return false
}

func (r *Reconciler) take() *Desired {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.pending
	r.pending = nil
	select {
	case <-r.wake:
	default:
	}
	return d
}

// giveBack makes a pass that failed pending again, under what has been requested meanwhile.
func (r *Reconciler) giveBack(d *Desired) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending != nil {
		d.merge(r.pending)
	}
	if d.gone > maxGone {
		d.forgetGone()
	}
	r.pending = d
}

// reconcile reads the table of every family that the request is about; one that fails doesn't stop the other.
func (r *Reconciler) reconcile(ctx context.Context, d *Desired) (failed error) {
	if r.table == nil {
		table, err := r.Open()
		if err != nil {
			r.searched(d, err)
			return err
		}
		r.table = table
	}
	for _, f := range model.Families {
		if d.count[f] == 0 {
			continue
		}
		err := r.family(ctx, f, d)
		r.Metrics.FlowsSearched(f, err)
		if err != nil && failed == nil {
			failed = fmt.Errorf("delete stale %s flows: %w", f, err)
		}
	}
	return failed
}

// searched reports the end of a pass over all families that the request is about.
func (r *Reconciler) searched(d *Desired, err error) {
	for _, f := range model.Families {
		if d.count[f] > 0 {
			r.Metrics.FlowsSearched(f, err)
		}
	}
}

func (r *Reconciler) family(ctx context.Context, f model.Family, d *Desired) error {
	logger := klog.FromContext(ctx)
	start := time.Now()
	each := logger.V(6)
	stale := func(flow *Flow) bool {
		yes := d.Stale(flow) && !r.welcome(flow)
		if yes && each.Enabled() {
			each.Info("Deleting conntrack entry", "protocol", flow.Protocol, "source", flow.Source,
				"destination", flow.Destination, "server", flow.Server)
		}
		return yes
	}
	out, err := r.table.Delete(ctx, f, d.onlyUDP(), stale)
	if err != nil && out.Seen == 0 {
		return err
	}
	took := time.Since(start)
	r.Metrics.FlowsDeleted(f, took, out.Deleted)
	if out.Partial {
		logger.Info("Received a partial result, continuing to clean with partial result", "ipFamily", f)
	}
	logger.V(4).Info("Finished reconciling conntrack entries", "ipFamily", f, "entriesDeleted", out.Deleted,
		"entriesRead", out.Seen, "frontends", d.count[f], "took", took)
	return err
}

// welcome reports whether a flow is as a later request wants it, which waits for the next pass: it may have begun since the rules
// have changed again, and its packets are on their way.
func (r *Reconciler) welcome(f *Flow) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending != nil && r.pending.welcomes(f)
}

// log logs an error when it is not the one before, and the end of a row of them.
func (r *Reconciler) log(ctx context.Context, err error) {
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if r.failure != "" {
			logger.Info("Reconciling conntrack entries succeeds again")
		}
		r.failure = ""
	case err.Error() != r.failure:
		r.failure = err.Error()
		logger.Error(err, "Failed to clear all conntrack entries, will retry", "retryingTime", retryAfter)
	}
}

func (r *Reconciler) close() {
	if r.table != nil {
		_ = r.table.Close()
		r.table = nil
	}
}
