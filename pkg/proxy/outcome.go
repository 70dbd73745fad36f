package proxy

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// times holds the start of a sync's planning, the start and end of its commit, and the number of Services in it.
type times struct {
	start, begun, end time.Time
	services          int
}

// result returns the sync as metrics count it.
func (t *times) result(r apply.Result) metrics.SyncResult {
	return metrics.SyncResult{Full: r.Kind == apply.Full || r.Kind == apply.Adopted, Duration: t.end.Sub(t.start), End: t.end}
}

// onRejected records a failed sync and notifies the listeners.
func (p *Proxy) onRejected(t times, r apply.Result, err error) {
	p.rejected = true
	p.Metrics.SyncFailed(t.result(r))
	p.noteReason(metrics.FailedSync)
	p.account.noteFailed(t.end, err)
	p.notifyObserver(t.end, t.begun.Sub(t.start), r, err)
}

// onCommitted records a successful sync and notifies the listeners.
func (p *Proxy) onCommitted(ctx context.Context, t times, result apply.Result) {
	p.Schedule.Succeeded(t.end)
	p.lastCommit, p.rejected = t.end, false
	author := p.onCompared(t.end, result)
	p.account.noteSynced(t.start, t.begun, t.end, result)
	p.notifyObserver(t.end, t.begun.Sub(t.start), result, nil)
	p.notifyListeners(result, t.result(result))
	level := 2
	if result.Kind == apply.Full || !p.started {
		level = 0
	}
	p.started = true
	if result.Commit > 0 {
		// A foreign change directly after this batch may not have been announced.
		p.trust.checkSoon(t.end)
	}
	logger := klog.FromContext(ctx)
	if result.Why != "" {
		logger = logger.WithValues("why", result.Why)
		if author != "" {
			logger = logger.WithValues("lastChangedBy", author)
		}
	}
	logger.V(level).Info("Synced", "kind", result.Kind, "services", t.services,
		"elements", result.Elements, "bytes", result.Bytes, "planning", t.begun.Sub(t.start), "commit", result.Commit,
		"elapsed", t.end.Sub(t.start))
}

// onCompared records the result if the sync compared the tables with the plan, and clears the reason for comparing. If the reason
// was a foreign change, it returns the author of the last one.
func (p *Proxy) onCompared(at time.Time, r apply.Result) (author string) {
	reason := p.trust.reason
	if reason == "" {
		return ""
	}
	author, program := p.authorOf(reason)
	p.Metrics.Checked(reason, r.Kind == apply.Full)
	if r.Kind == apply.Full {
		p.account.noteRepair(view.Repair{Time: at, Reason: string(reason), Why: r.Why, By: author, Program: program})
	}
	p.trust.reason = ""
	return author
}

// notifyListeners notifies all parts that depend on a successful sync: health, metrics, the search for stale flows, health check
// node ports.
func (p *Proxy) notifyListeners(r apply.Result, outcome metrics.SyncResult) {
	p.Health.Updated(outcome.End)
	p.Metrics.Synced(outcome)
	if p.Synced != nil {
		p.Synced()
	}
	for _, t := range p.unprogrammed {
		family := inet.IPv4
		if t.IPv6 {
			family = inet.IPv6
		}
		p.Metrics.Programmed(family, outcome.End.Sub(t.At))
	}
	p.unprogrammed = nil
	p.syncFlows(r.Kind)
	p.syncChecks()
	if p.Loopback != nil {
		p.Loopback.Serve(true)
	}
	switch r.Kind {
	case apply.Adopted:
		if !p.started {
			p.Metrics.Adopted()
		}
	case apply.Full, apply.Partial:
		p.Metrics.Sent(metrics.Batch{Full: r.Kind == apply.Full, Bytes: r.Bytes, Elements: r.Elements, Kernel: r.Commit})
	}
	if r.Kind != apply.Nothing {
		p.countElements()
	}
	p.againAt = time.Time{}
	if r.Again > 0 {
		p.againAt = outcome.End.Add(r.Again)
	}
}

func (p *Proxy) countElements() {
	for _, f := range p.Families {
		classChains := p.Kernel.EachCount(f, func(s *nft.Set, n int) {
			now := [2]int{n, int(s.Size)}
			if counted, known := p.counted[s]; !known || counted != now {
				p.counted[s] = now
				p.Metrics.Elements(f, s.Name, n, now[1])
			}
		})
		p.Metrics.ClassChains(f, classChains)
		internal, external := p.Planner.NoLocalEndpoints(f)
		p.Metrics.NoLocalEndpoints(f, internal, external)
	}
	p.Metrics.Conflicts(p.Planner.Conflicts())
}
