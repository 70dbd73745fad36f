package proxy

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Turn decides which instance of the program serves. Its methods do not block.
type Turn interface {
	// Ready announces that this process can serve. Stopped confirms that this process commits nothing until Granted
	// returns true again.
	Ready()
	Stopped()
	Granted() bool
	// Alone reports whether no other process is known: this process is responsible for the tables of an earlier one.
	Alone() bool
	// Reclaim lets this process serve again, because the process that serves does not work. It returns false, and
	// changes nothing, if this process is not ready or serves already.
	Reclaim() bool
	// Changed returns a channel that has a value when the result of Granted may have changed.
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

// maySend reports whether this process serves.
func (p *Proxy) maySend() bool { return p.Turn == nil || p.Turn.Granted() }

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
	if p.maySend() {
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
