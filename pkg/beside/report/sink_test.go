package report

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
)

// slowSink is slow, and rejects some Events.
type slowSink struct {
	EventSink
	refuses string
}

func (s slowSink) Create(_ context.Context, e *eventsv1.Event) error {
	time.Sleep(time.Second)
	if e.Reason == s.refuses {
		return errors.New("no")
	}
	return nil
}

func TestAwaitAnEvent(t *testing.T) {
	for _, tc := range []struct {
		refuses string
		took    time.Duration
		reached bool
	}{{"", 2 * time.Second, true}, {"First", 2 * time.Second, true}, {"Second", 3 * time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			r := NewRecorder(slowSink{refuses: tc.refuses}, "kube-nftproxy", func(string) {})
			start := time.Now()
			go func() {
				for _, reason := range []string{"First", "Second"} {
					e := pendingEvent{Event: &eventsv1.Event{Reason: reason}}
					r.lines[slow].take(e.object())
					r.send(t.Context(), e)
				}
			}()
			if reached := r.Await("Second", 3*time.Second); reached != tc.reached || time.Since(start) != tc.took {
				t.Errorf("refusing %q: reached %t after %v, want %t after %v", tc.refuses, reached, time.Since(start), tc.reached, tc.took)
			}
		})
	}
}
