package proxy

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
)

// Run keeps the kernel's tables as planned until the context ends. Before it has read the source, it changes nothing
// but the lease. It keeps the tables when it returns, with a shorter lease. It fails if [Config.NodeCIDR] is set and
// the Node has no pod prefixes within a time limit.
func (p *Proxy) Run(ctx context.Context) error {
	p.alarm = time.NewTimer(0)
	defer p.alarm.Stop()
	p.Health.Updated(p.Now())
	p.Metrics.Queued(p.Now())
	p.lease.seen = p.Now()
	keeping, end := context.WithCancel(ctx)
	defer end()
	go p.keepLease(keeping)
	defer p.shortenLease(ctx)
	if !p.awaitSource(ctx) {
		return nil
	}
	p.connect()
	if err := p.awaitPodCIDRs(ctx); err != nil {
		return err
	}
	p.awaitAddresses(ctx)
	p.Tracker.MarkHost()
	p.Tracker.MarkServiceCIDRs()
	if p.Turn != nil {
		p.Turn.Ready()
	}
	for ctx.Err() == nil {
		if p.granted.Load() {
			p.step(ctx)
		} else {
			p.standBy(ctx)
		}
	}
	return nil
}

// step answers questions, then does one task that is due. The order is: a sync that makes a set larger or deletes
// unused chains, periodic work, a sync for changes. If no task is due, step waits for an event. A sync takes the
// changes, builds and plans their Services, commits the plan, and reports the outcome to the listeners.
func (p *Proxy) step(ctx context.Context) {
	p.answer()
	now := p.Now()
	if p.againDue(now) {
		p.sync(ctx)
		return
	}
	if p.Kernel.Known() && !now.Before(p.guard.checkAt) {
		p.periodic(ctx, now)
		return
	}
	if at := p.builder.steps.at; !at.IsZero() && !now.Before(at) {
		p.enqueue(p.builder.steps.due(now))
		p.Schedule.Requested()
	}
	if p.queue.rest.end(now) && len(p.queue.services) > 0 || p.waitingRest.end(now) && p.Planner.Totals().Freed {
		p.Schedule.Urgent()
	}
	if at, due := p.Schedule.Next(now); due {
		p.sync(ctx)
	} else {
		p.wait(ctx, at, now)
	}
}

// wait returns at the time of the next task, or after it has handled one event. Events are questions, changes in the
// API, foreign changes of the ruleset, and changes of the instance that serves. until is the time of the next sync for
// changes.
func (p *Proxy) wait(ctx context.Context, until, now time.Time) {
	if p.Kernel.Known() {
		times := []time.Time{
			p.guard.checkAt, p.againAt, p.builder.steps.at, p.queue.rest.until, p.waitingRest.until,
		}
		for _, at := range times {
			if !at.IsZero() && at.Before(until) {
				until = at
			}
		}
	}
	p.alarm.Reset(until.Sub(now))
	select {
	case <-ctx.Done():
	case question := <-p.questions:
		question()
	case <-p.Tracker.Ready():
		p.Schedule.Requested()
		if p.Tracker.Pending().Others { // the minimum interval collects changes of a namespace, and delays no others
			p.Schedule.Early()
		}
		now = p.Now()
		p.Health.Queued(now)
		p.Metrics.Queued(now)
	case <-p.heard:
		p.guard.checkSoon()
	case <-p.turned:
	case <-p.alarm.C:
	}
}

// sync plans a round of changes and commits it. If it does not trust the tables, or a set must grow, it commits the
// current plan first: planning a round may take longer than a repair.
func (p *Proxy) sync(ctx context.Context) {
	start := p.Now()
	p.Health.Queued(start) // even without a change, so that /healthz reports this sync as overdue if it keeps failing
	if p.started && !p.failed {
		if p.guard.doubtIfTouched(); !p.Kernel.Known() || p.againDue(start) {
			if !p.commit(ctx, start, nil) || p.idle() {
				return
			}
			start = p.Now()
		}
	}
	dirty, changes := p.Tracker.Take(), p.changes
	p.changes = nil
	for _, change := range changes {
		change()
	}
	p.Metrics.Taken(&dirty)
	unchanged := dirty.Since.IsZero() && len(changes)+len(p.queue.services) == 0
	if unchanged && p.Kernel.Known() && start.Sub(p.lastCommit) > checkEvery {
		p.guard.doubt(beside.Period) // the sync period has passed without a change
	}
	done := p.commit(ctx, start, p.absorb(ctx, dirty))
	now := p.Now()
	p.queue.committed(now, now.Sub(start))
	conflicts := len(p.problems.losing) > 0 && !p.problems.moving
	if done && (conflicts || p.unsettled || len(p.queue.services) > 0 && p.queue.ready()) {
		p.Schedule.Urgent()
	}
}

// attempts is the largest number of attempts without a pause if foreign changes cause a sync to fail.
const attempts = 3

// commit commits the plan. planned are the Services that were planned since start. It returns false if another
// instance serves, or if the sync fails.
func (p *Proxy) commit(ctx context.Context, start time.Time, planned []types.NamespacedName) bool {
	p.guard.doubtIfTouched()
	if !p.granted.Load() {
		return false
	}
	for attempt := 1; ; attempt++ {
		s := &beside.Sync{
			Start: start, Services: planned, First: !p.started, Waiting: len(p.queue.services) > 0, Begun: p.Now(),
		}
		s.Result, s.Err = p.Kernel.Sync(p.Planner)
		s.End = p.Now()
		if s.Err == nil {
			p.announce(s)
			p.recordCommit(ctx, s)
			return true
		}
		again := p.guard.checkAfter(s.Err) && attempt < attempts
		p.announce(s)
		p.failed = true
		var pause time.Duration
		if !again {
			pause = p.Schedule.Failed(s.End).Sub(s.End)
		}
		klog.FromContext(ctx).Error(s.Err, "Sync failed", "retryingTime", pause, "elapsed", s.End.Sub(s.Start))
		if !again {
			return false
		}
		start = p.Now()
	}
}

// announce reports the outcome of a sync: first to the loop's own parts, so that health and metrics are current, then
// to the listeners. After a success, it also starts the work of listeners to some kinds of Services.
func (p *Proxy) announce(s *beside.Sync) {
	p.guard.complete(s)
	p.account.note(s)
	if s.Err == nil {
		p.Health.RecordSync(s.End)
	}
	p.Metrics.Synced(s)
	p.concerned(p.changed, func(l *beside.Listener) {
		if l.Synced != nil {
			l.Synced(s)
		}
	})
	if s.Err == nil && p.changed != 0 {
		p.serve(p.changed, true)
		p.changed = 0
	}
	if s.Err == nil && p.Settled != nil && p.Settled() {
		p.Settled = nil
	}
}

// recordCommit records and logs a successful sync.
func (p *Proxy) recordCommit(ctx context.Context, s *beside.Sync) {
	r := &s.Result
	p.Schedule.Succeeded(s.End)
	p.started, p.failed, p.lastCommit, p.againAt = true, false, s.End, r.Again
	level := 2
	if r.Kind == apply.Full || s.First {
		level = 0
	}
	logger := klog.FromContext(ctx)
	if r.Why != "" {
		logger = logger.WithValues("why", r.Why)
		if author := s.By(); author != "" {
			logger = logger.WithValues("lastChangedBy", author)
		}
	}
	logger.V(level).Info("Synced", "kind", r.Kind, "services", len(s.Services),
		"elements", r.Elements, "bytes", r.Bytes, "planning", s.Begun.Sub(s.Start), "commit", r.Commit,
		"elapsed", s.End.Sub(s.Start))
}

// idle reports whether no change waits to be planned, and no conflict to be reported.
func (p *Proxy) idle() bool {
	waiting := len(p.queue.services) + len(p.changes)
	return p.Tracker.Pending().Since.IsZero() && waiting == 0 && len(p.problems.losing) == 0 && !p.unsettled
}

// againDue reports whether it is time for a sync that makes a set larger or deletes unused chains. Such a sync waits
// until the tables are trusted.
func (p *Proxy) againDue(now time.Time) bool {
	return !p.againAt.IsZero() && !now.Before(p.againAt) && p.Kernel.Known()
}

// periodic runs twice a second. It retries failed reads of addresses, drops listeners that have left, lets the others
// retry failed work, and checks for foreign changes.
func (p *Proxy) periodic(ctx context.Context, now time.Time) {
	if !p.addressesAt.IsZero() && !now.Before(p.addressesAt) {
		p.addressesAt = time.Time{}
		p.Tracker.MarkHost()
	}
	p.Listeners = slices.DeleteFunc(p.Listeners, func(l beside.Listener) bool { return l.Left() })
	p.serve(beside.AllKinds, true)
	p.ageCounts(now)
	changed, err := p.guard.check()
	if err != nil {
		// If the sync fails too, the loop counts and retries it, and /healthz reports it.
		klog.FromContext(ctx).Error(err, "Cannot check the ruleset for foreign changes")
		p.Schedule.Requested()
	}
	if changed {
		p.Schedule.Urgent()
	}
}

// countsAge is the time between two calls of [plan.Planner.Age].
const countsAge = 5 * time.Minute

// ageCounts queues the Services with endpoints that lose their counts of connections, because they left long ago.
func (p *Proxy) ageCounts(now time.Time) {
	if now.Sub(p.agedAt) < countsAge {
		return
	}
	p.agedAt = now
	if names := p.Planner.Age(); len(names) > 0 {
		p.enqueue(names)
		p.Schedule.Requested()
	}
}

// answer answers waiting questions. wait answers them, too, but a busy loop does not call wait.
func (p *Proxy) answer() {
	const most = 8
	for range most {
		select {
		case question := <-p.questions:
			question()
		default:
			return
		}
	}
}

// Change makes the loop sync soon. The sync first calls a function that changes the plan. Only functions of listeners
// and questions to the loop may call Change. They must not change the plan themselves, because a foreign change may
// lead to a comparison of the tables before the next sync. The comparison drops changes of sets that are not
// [plan.Planned], and repairs other changes by a full sync.
func (p *Proxy) Change(change func()) {
	p.changes = append(p.changes, change)
	p.Schedule.Requested()
}

// Follow adds a listener until the context ends. It fails if the context ends before.
func (p *Proxy) Follow(ctx context.Context, l beside.Listener) error {
	l.Done = ctx.Done()
	_, err := ask(ctx, p, func() struct{} {
		p.Listeners = append(p.Listeners, l)
		return struct{}{}
	})
	return err
}

// concerned calls f with the listeners that a change of Services of some kinds concerns.
func (p *Proxy) concerned(by beside.Kinds, f func(*beside.Listener)) {
	for i := range p.Listeners {
		if l := &p.Listeners[i]; l.Of == 0 || l.Of&by != 0 {
			f(l)
		}
	}
}

// serve starts or stops the work of the listeners that a change of Services of some kinds concerns.
func (p *Proxy) serve(by beside.Kinds, on bool) {
	p.concerned(by, func(l *beside.Listener) {
		if l.Serve != nil {
			l.Serve(on)
		}
	})
}
