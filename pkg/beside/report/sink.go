package report

import (
	"context"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
)

// EventSink writes Events.
type EventSink interface {
	Create(context.Context, *eventsv1.Event) error
	// Patch applies a strategic merge patch to an Event that exists.
	Patch(ctx context.Context, e *eventsv1.Event, patch []byte) error
}

// API is the sink of an API server: it returns the client for the Events of a namespace.
type API func(namespace string) kubeapi.Writer[*eventsv1.Event]

// Create implements [EventSink].
func (a API) Create(ctx context.Context, e *eventsv1.Event) error {
	_, err := a(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}

// Patch implements [EventSink].
func (a API) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) error {
	_, err := a(e.Namespace).Patch(ctx, e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Sink passes Events to another sink, and can wait until one has arrived. Without this, a program that exits would
// lose its last Events, as kube-proxy does.
type Sink struct {
	EventSink
	// reached has capacity for one reason; others are dropped.
	reached chan string
}

// NewSink returns a sink that passes Events to another one.
func NewSink(to EventSink) *Sink { return &Sink{to, make(chan string, 1)} }

// Create implements [EventSink].
func (s *Sink) Create(ctx context.Context, e *eventsv1.Event) error {
	err := s.EventSink.Create(ctx, e)
	if err == nil {
		select {
		case s.reached <- e.Reason:
		default:
		}
	}
	return err
}

// Await waits until an Event with this reason has arrived at the API server, and returns whether it did within the
// time.
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
