package proxy

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Turn tells whether this process or another instance of the program serves. Its methods do not wait.
type Turn interface {
	// Ready says that this process can serve from now on, Stopped that it has noticed that it may not and commits nothing more.
	Ready()
	Stopped()
	Granted() bool
	// Changed has a value when Granted may have changed.
	Changed() <-chan struct{}
	// Other names the process that serves instead of this one; "" where there is none, or it is not known.
	Other() string
}

// maySend reports whether this process is the one that serves.
func (p *Proxy) maySend() bool { return p.Turn == nil || p.Turn.Granted() }

// turn has a value when it may be another one's turn.
func (p *Proxy) turn() <-chan struct{} {
	if p.Turn == nil {
		return nil
	}
	return p.Turn.Changed()
}

// standBy waits for a reason to look again whether this process may serve. What changes meanwhile is planned afterwards.
func (p *Proxy) standBy(ctx context.Context) {
	p.Turn.Stopped()
	p.noteOther(ctx, p.Turn.Other())
	p.Health.Updated(p.Now()) // nothing is owed: the other process does it
	select {
	case <-ctx.Done():
	case question := <-p.questions:
		question()
	case <-p.Turn.Changed():
	}
	if p.maySend() {
		p.resume(ctx)
	}
}

// noteOther tells, once for each of them, that another process serves.
func (p *Proxy) noteOther(ctx context.Context, other string) {
	if other == "" || other == p.account.other {
		return
	}
	// The ports of health checks are the other one's, too.
	p.Checks.Sync(nil, nil)
	p.checksChanged = true
	p.Metrics.StandingBy(true)
	if p.account.other = other; p.otherReported {
		klog.FromContext(ctx).Info("Another instance serves this node; this instance waits until it exits", "other", other)
		return
	}
	p.otherReported = true
	p.Report(model.Problem{
		Kind: "Node", Name: types.NamespacedName{Name: p.NodeName}, Field: "kube-nftproxy", Event: "AnotherInstanceServes", Action: "Wait",
		Reason: fmt.Sprintf("another instance (%s) serves this node; the one that says this started earlier and waits until the other one has "+
			"gone. Unless one replaces the other, remove one of them", other),
	})
}

// resume takes up serving. The tables are compared with what is wanted.
func (p *Proxy) resume(ctx context.Context) {
	if p.account.other != "" {
		klog.FromContext(ctx).Info("No other instance serves this node any more; this instance takes over", "other", p.account.other)
		p.account.other = ""
		p.Metrics.StandingBy(false)
	}
	if p.started {
		p.compareBecause(metrics.ForeignChange)
	}
	p.Schedule.Urgent()
}
