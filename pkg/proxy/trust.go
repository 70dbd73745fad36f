package proxy

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
)

// checkEvery is the time between two checks for foreign changes of the ruleset. A check takes some microseconds.
const checkEvery = 500 * time.Millisecond

// trust decides when the loop checks for foreign changes, and whether the next sync compares the tables with the plan before it
// writes.
type trust struct {
	// checkAt is the time of the next check, lastForeign the time of the last foreign change.
	checkAt, lastForeign time.Time
	// reason is the reason why the next sync compares. It is empty if the next sync need not compare, and before the first sync.
	reason metrics.Reason
}

// checkSoon schedules a check for foreign changes: immediately, but at most twice a second.
func (t *trust) checkSoon(now time.Time) {
	at := now
	if next := t.lastForeign.Add(checkEvery); next.After(now) {
		at = next
	}
	t.checkAt = earlier(t.checkAt, at)
}

// receiveForeignChanges schedules a check if the kernel has announced a foreign change. The check precedes all other work, because
// the change may have deleted all tables.
func (p *Proxy) receiveForeignChanges(now time.Time) {
	select {
	case <-p.Kernel.Heard():
		p.trust.checkSoon(now)
	default:
	}
}

// checkForeignChanges checks for foreign changes of the ruleset. If there are any, it requests a sync that compares the tables
// with the plan.
func (p *Proxy) checkForeignChanges(ctx context.Context, now time.Time) {
	p.trust.checkAt = now.Add(checkEvery)
	changed, err := p.Kernel.Meddled()
	if err != nil {
		// If the sync fails too, the loop counts and retries it, and /healthz reports it.
		klog.FromContext(ctx).Error(err, "Cannot tell whether the ruleset has changed")
		p.compareBecause(metrics.FailedSync)
		p.Schedule.Requested()
	}
	if changed {
		p.distrust(now)
		p.Schedule.Urgent()
	}
}

// checkTables makes the next sync compare the tables if the kernel has announced a foreign change of them, and reports whether it
// did. If another program changes the tables continuously, it does so at most twice a second.
func (p *Proxy) checkTables() (changed bool) {
	now := p.Now()
	if !p.Kernel.Known() || !p.Kernel.Touched() || now.Sub(p.trust.lastForeign) < checkEvery {
		return false
	}
	p.distrust(now)
	return true
}

// distrust makes the next sync compare because of a foreign change.
func (p *Proxy) distrust(now time.Time) {
	p.trust.lastForeign, p.trust.checkAt = now, now.Add(checkEvery)
	p.compareBecause(metrics.ForeignChange)
}

// compareBecause makes the next sync compare the tables with the plan. Until a sync succeeds, the first reason is kept.
func (p *Proxy) compareBecause(reason metrics.Reason) {
	p.Kernel.Doubt()
	p.noteReason(reason)
}

// noteReason records the reason why the next sync compares.
func (p *Proxy) noteReason(reason metrics.Reason) {
	p.Metrics.Doubted()
	if p.trust.reason == "" {
		p.trust.reason = reason
	}
}

// authorOf returns the program that made the last foreign change, with and without its process. If the reason is not a foreign
// change, both are empty.
func (p *Proxy) authorOf(reason metrics.Reason) (author, program string) {
	if reason != metrics.ForeignChange {
		return "", ""
	}
	a := p.Kernel.Author()
	return a.String(), a.Program
}
