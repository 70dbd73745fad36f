package report

import (
	"context"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// Sink passes Events to the API server, and can wait until one has arrived. Without this, a program that exits would lose its
// last Events, as kube-proxy does.
type Sink struct {
	events.EventSink
	// reached has capacity for one reason; others are dropped.
	reached chan string
}

// NewSink returns a sink that passes Events to another one.
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

// Await waits until an Event with this reason has arrived at the API server, and returns whether it did within the time.
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
