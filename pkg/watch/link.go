package watch

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// link is the connection to the API server. It logs once when the API server does not answer, and once when it answers
// again: client-go does not log refused connections.
type link struct {
	mu   sync.Mutex
	lost time.Time // zero while the API server answers
}

// record logs a change from answered to unanswered requests, or back. err is the result of the last request.
func (l *link) record(ctx context.Context, err error) {
	var unanswered *url.Error
	var answer apierrors.APIStatus
	lost, found := errors.As(err, &unanswered), err == nil || errors.As(err, &answer)
	if ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case lost && l.lost.IsZero():
		l.lost = time.Now()
		logger.Info("Cannot reach the API server; the rules stay as they are until it answers", "err", err)
	case found && !l.lost.IsZero():
		logger.Info("Reached the API server again", "after", time.Since(l.lost).Round(time.Millisecond))
		l.lost = time.Time{}
	}
}

// confirmed returns the last time at which the API server may have answered: now, or the time of the loss.
func (l *link) confirmed() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost.IsZero() {
		return time.Now()
	}
	return l.lost
}

// isSilent reports whether client-go retries a watch after this error without calling an error handler.
func isSilent(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// pauses returns the pauses between retries while the API server fails. client-go's informers back off to one minute,
// so changes could stay unseen for a minute after an outage. The kubelet's intervals are similar to these.
func pauses() wait.Backoff {
	return wait.Backoff{Duration: 800 * time.Millisecond, Cap: 5 * time.Second, Steps: 8, Factor: 2, Jitter: 1}
}

// endingClock ends all waits when the source stops: a reflector ignores the context in some of its pauses.
type endingClock struct {
	clock.RealClock
	ended chan struct{}
}

// After implements clock.Clock.
func (c endingClock) After(d time.Duration) <-chan time.Time {
	after := make(chan time.Time, 1)
	go func() {
		select {
		case now := <-time.After(d):
			after <- now
		case <-c.ended:
			after <- time.Now()
		}
	}()
	return after
}
