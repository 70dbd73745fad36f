package report

import (
	"context"

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
