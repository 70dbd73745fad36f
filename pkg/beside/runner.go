package beside

import (
	"context"
	"math"
	"time"

	"k8s.io/klog/v2"
)

// Runner calls the work of a part in a goroutine of its own: after the pause that the last call has returned, or
// earlier after a wake. Make it with [NewRunner].
type Runner struct {
	// Work works once. Run logs its error with the message Failed, once until the error changes.
	Work   func(context.Context) (Pause, error)
	Failed string
	// First is the pause before the first call. Settle is the delay of a call after a wake, to collect more changes.
	First  Pause
	Settle time.Duration

	wake    chan struct{}
	failure string
}

// Pause is the time between two calls of [Runner.Work]: at most Most, and at least Least, if a wake ends it.
type Pause struct{ Least, Most time.Duration }

// UntilWake is the pause that only a wake ends.
var UntilWake = Pause{Most: math.MaxInt64}

// Exactly is the pause that no wake ends.
func Exactly(d time.Duration) Pause { return Pause{d, d} }

// NewRunner returns a runner with the exported fields of r.
func NewRunner(r Runner) *Runner {
	r.wake = make(chan struct{}, 1)
	return &r
}

// Wake ends the pause. During a call of Work, it ends the next pause. It does not block.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // an earlier wake is pending
	}
}

// Run works until the context ends.
func (r *Runner) Run(ctx context.Context) {
	for pause := r.First; r.rest(ctx, pause); {
		select {
		case <-r.wake: // Work sees all changes so far
		default:
		}
		var err error
		pause, err = r.Work(ctx)
		r.log(ctx, pause, err)
	}
}

// rest waits for the end of a pause. It returns false if the context ends first.
func (r *Runner) rest(ctx context.Context, p Pause) bool {
	begun := time.Now()
	var end <-chan time.Time
	if p.Most < UntilWake.Most {
		timer := time.NewTimer(p.Most)
		defer timer.Stop()
		end = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-end:
		return ctx.Err() == nil
	case <-r.wake:
		return Sleep(ctx, max(r.Settle, p.Least-time.Since(begun)))
	}
}

// Sleep returns false if the context ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

func (r *Runner) log(ctx context.Context, retry Pause, err error) {
	logger := klog.FromContext(ctx)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if r.failure != "" {
			logger.Info("Succeeded again", "lastErr", r.failure)
		}
		r.failure = ""
	case err.Error() != r.failure:
		r.failure = err.Error()
		logger.Error(err, r.Failed, "retryingTime", retry.Most.Round(time.Millisecond))
	}
}
