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

// link is the way to the API server. It says once that nobody answers there, and when somebody does again: client-go is silent about
// connections that are refused.
type link struct {
	mu   sync.Mutex
	lost time.Time // zero while the API server answers
}

// noted takes note of how a request ended.
func (l *link) noted(ctx context.Context, err error) {
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

// unheard tells whether a watch failed in a way that client-go keeps to itself, to try again.
func unheard(err error) bool {
	return utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
}

// pauses are those between two attempts while the API server fails. Those of client-go's informers grow to a minute: so long would
// the changes of an outage go unseen after its end. A kubelet tries as often.
func pauses() wait.Backoff {
	return wait.Backoff{Duration: 800 * time.Millisecond, Cap: 5 * time.Second, Steps: 8, Factor: 2, Jitter: 1}
}

// endingClock lets nobody wait beyond the end: some of a reflector's pauses don't heed the context.
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
