package proxy

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Run keeps the kernel's tables as planned until the context ends. It changes nothing before it has read the source, and keeps the
// tables when it returns. It fails if [Config.NodeCIDR] is set and the Node has no pod prefixes within a time limit.
func (p *Proxy) Run(ctx context.Context) error {
	now := p.Now()
	p.timer = time.NewTimer(0)
	defer p.timer.Stop()
	p.Health.Updated(now)
	p.Metrics.Queued(now)
	p.readEarlier(ctx)
	if !p.awaitSource(ctx) {
		return nil
	}
	if err := p.awaitPodCIDRs(ctx); err != nil {
		return err
	}
	p.awaitAddresses(ctx)
	defer p.Checks.Close()
	p.Tracker.Node()
	p.Tracker.ServiceCIDRs()
	if p.Turn != nil {
		p.Turn.Ready()
	}
	for ctx.Err() == nil {
		if p.maySend() {
			p.step(ctx)
		} else {
			p.standBy(ctx)
		}
	}
	return nil
}

// step does one task that is due, in this order of preference: delete unused chains, do periodic work, sync. If no task is due, it
// waits for an event.
func (p *Proxy) step(ctx context.Context) {
	p.answer()
	now := p.Now()
	if p.againDue(now) {
		p.sync(ctx)
		return
	}
	p.receiveForeignChanges(now)
	if p.Kernel.Known() && !now.Before(p.trust.checkAt) {
		p.periodic(ctx, now)
		return
	}
	if at, due := p.Schedule.Next(now); due {
		p.sync(ctx)
	} else {
		p.wait(ctx, p.nextWork(at), now)
	}
}

// againDue reports whether it is time for a sync that deletes chains.
func (p *Proxy) againDue(now time.Time) bool {
	return !p.againAt.IsZero() && !now.Before(p.againAt) && p.Kernel.Known()
}

// nextWork returns the time of the next task. sync is the time of the next sync.
func (p *Proxy) nextWork(sync time.Time) time.Time {
	if !p.Kernel.Known() {
		return sync
	}
	at := earlier(sync, p.trust.checkAt)
	if !p.againAt.IsZero() {
		at = earlier(at, p.againAt)
	}
	return at
}

// wait returns at a given time or at an event: a question, a change in the API, a foreign change of the ruleset, another
// instance.
func (p *Proxy) wait(ctx context.Context, until, now time.Time) {
	p.wakeAt(until, now)
	select {
	case <-ctx.Done():
	case question := <-p.questions:
		question()
	case <-p.Tracker.Ready():
		p.Schedule.Requested()
		now := p.Now()
		p.Health.Queued(now)
		p.Metrics.Queued(now)
	case <-p.Kernel.Heard():
		p.trust.checkSoon(p.Now())
	case <-p.turn():
	case <-p.timer.C:
		p.timerAt = time.Time{}
	}
}

// periodic does the work of twice a second: it retries failed reads of addresses and failed health check ports, and checks for
// foreign changes.
func (p *Proxy) periodic(ctx context.Context, now time.Time) {
	if !p.addressesAt.IsZero() && !now.Before(p.addressesAt) {
		p.addressesAt = time.Time{}
		p.Tracker.Node()
	}
	p.syncChecks()
	p.checkForeignChanges(ctx, now)
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

// wakeAt sets the timer if its time has changed. Setting it for each change would wake a thread of the Go runtime each time.
func (p *Proxy) wakeAt(at, now time.Time) {
	if at != p.timerAt {
		p.timer.Reset(at.Sub(now))
		p.timerAt = at
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// sync plans changes and commits them. If the tables may be damaged, it commits the present plan first: if there are very many
// changes, planning them takes far longer than a full sync. New changes precede changes that wait in the queue.
func (p *Proxy) sync(ctx context.Context) {
	start := p.Now()
	p.Health.Queued(start)
	if p.started && !p.rejected && (p.checkTables() || !p.Kernel.Known()) {
		if !p.commit(ctx, start, nil) || p.idle() {
			return
		}
		start = p.Now()
	}
	waiting := p.queue.waiting() > 0
	if p.started || !waiting {
		if !p.syncFresh(ctx, start, waiting) {
			return
		}
	}
	if waiting {
		start = p.Now()
		if planned := p.planWaiting(); p.complete() {
			p.commit(ctx, start, planned)
		}
	}
	if p.queue.waiting() > 0 || p.problems.more {
		p.Schedule.Urgent()
	}
}

// syncFresh plans and commits new changes. It returns false after a failed commit. If there are no new changes and older changes
// wait in the queue, it does nothing.
func (p *Proxy) syncFresh(ctx context.Context, start time.Time, waiting bool) bool {
	dirty := p.Tracker.Take()
	p.Metrics.Changes(dirty.ServiceChanges, dirty.SliceChanges)
	if waiting && dirty.Empty() {
		return true
	}
	if dirty.Empty() && p.Kernel.Known() && !p.againDue(start) && start.Sub(p.lastCommit) > checkEvery {
		p.compareBecause(metrics.Period) // no changes for the sync period
	}
	planned := p.absorb(ctx, dirty)
	return !p.complete() || p.commit(ctx, start, planned)
}

// complete reports whether the plan may be committed. The first plan must have all Services: a partial plan would remove the
// other Services of an earlier process.
func (p *Proxy) complete() bool { return p.started || p.queue.waiting() == 0 }

// idle reports whether all known changes are planned.
func (p *Proxy) idle() bool { return p.Tracker.Pending().Since.IsZero() && p.queue.waiting() == 0 }

// commit commits the plan. planned are the Services that were planned since start. It returns false if the kernel rejects it.
func (p *Proxy) commit(ctx context.Context, start time.Time, planned []types.NamespacedName) bool {
	p.account.noteNames(planned)
	p.countProblems()
	p.checkTables()
	if !p.maySend() {
		return false
	}
	if p.Planner.Recalling() {
		p.Planner.Resumed()
	}
	for attempt := 1; ; attempt++ {
		begun := p.Now()
		result, err := p.Kernel.Sync(p.Planner)
		t := times{start, begun, p.Now(), len(planned)}
		if err == nil {
			p.onCommitted(ctx, t, result)
			return true
		}
		again := p.interfered(err) && attempt < attempts
		p.onRejected(t, result, err)
		var pause time.Duration
		if !again {
			pause = p.Schedule.Failed(t.end).Sub(t.end)
		}
		klog.FromContext(ctx).Error(err, "Sync failed", "retryingTime", pause, "elapsed", t.end.Sub(t.start))
		if !again {
			return false
		}
		start = p.Now()
	}
}

// attempts is the largest number of attempts without a pause, if foreign changes cause a sync to fail.
const attempts = 3

// interfered reports whether the ruleset has foreign changes since the last check. These may have caused the sync to fail. If so,
// the next attempt compares the tables with the plan.
func (p *Proxy) interfered(failure error) bool {
	if errors.Is(failure, nft.ErrUnknown) {
		return false // this sync may have made the change
	}
	if changed, err := p.Kernel.Meddled(); err != nil || !changed {
		return false
	}
	p.distrust(p.Now())
	return true
}
