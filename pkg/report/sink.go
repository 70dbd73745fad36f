package report

import (
	"context"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// Sink passes Events on to the API server, and can be asked whether one has reached it: a program that is about to end would
// otherwise take its last Events with it, as kube-proxy does.
type Sink struct {
	events.EventSink
	// reached has room for one reason; others are dropped.
	reached chan string
}

// NewSink returns a sink in front of another one.
func NewSink(to events.EventSink) *Sink { return &Sink{to, make(chan string, 1)} }

// Create implements events.EventSink.
func (s *Sink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	created, err := s.EventSink.Create(ctx, e)
	if err == nil {
		select {
		case s.reached <- e.Reason:
		default:
		}
	}
	return created, err
}

// Await waits until an Event with this reason has reached the API server, or the time is up, and reports which.
func (s *Sink) Await(reason string, within time.Duration) bool {
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		select {
		case got := <-s.reached:
			if got == reason {
				return true
			}
		case <-late.C:
			return false
		}
	}
}
