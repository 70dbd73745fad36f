package report

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

const (
	// eventBurst Events may be sent at once, then eventRate per second.
	eventBurst = 10
	eventRate  = 1.0 / 6
	// spread is the longest delay of an Event on an object that all nodes see: they find the same problem within milliseconds.
	spread = 3 * time.Second
	// mostPending is the number of Events that wait for the rate or the API server. Further ones are dropped.
	mostPending = perNode
	// mostTries is the number of attempts to send an Event, with pauses of about retryPause.
	mostTries  = 12
	retryPause = 10 * time.Second
)

// Recorder writes Events. The Event of a problem of a Service, EndpointSlice or ServiceCIDR has the same name on all nodes, so however
// many nodes see the problem, the API server keeps one Event. Events on a Node have a new name each. [Recorder.Run]
// sends the Events.
type Recorder struct {
	sink                 EventSink
	controller, instance string
	dropped              func(kind string)

	mu      sync.Mutex
	pending []pendingEvent
	changed chan struct{}
	limiter flowcontrol.PassiveRateLimiter
}

type pendingEvent struct {
	*eventsv1.Event
	// at is the earliest time of the next attempt.
	at    time.Time
	tries int
}

// urgent reports whether the Event needs no spread and no rate: only this node sees it, or [demandBudget] limits it.
func (e *pendingEvent) urgent() bool { return e.Regarding.Kind == "Node" || e.Reason == demandReason }

// NewRecorder returns a recorder of a controller, the program's name. It calls dropped with the kind of the object for each Event that
// it cannot send.
func NewRecorder(sink EventSink, controller string, dropped func(kind string)) *Recorder {
	host, _ := os.Hostname()
	return &Recorder{
		sink: sink, controller: controller, instance: controller + "-" + host, dropped: dropped,
		changed: make(chan struct{}, 1), limiter: flowcontrol.NewTokenBucketPassiveRateLimiter(eventRate, eventBurst),
	}
}

// Eventf queues an Event, like the method of a client-go recorder. regarding is a [corev1.ObjectReference]. The second object is ignored.
func (r *Recorder) Eventf(regarding, _ runtime.Object, kind, reason, action, note string, args ...any) {
	about := regarding.(*corev1.ObjectReference)
	now := time.Now()
	e := pendingEvent{Event: &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault)},
		EventTime:  metav1.MicroTime{Time: now}, ReportingController: r.controller, ReportingInstance: r.instance,
		Type: kind, Reason: reason, Action: action, Note: fmt.Sprintf(note, args...), Regarding: *about,
	}, at: now}
	e.Name = nameOf(e.Event, now)
	if !e.urgent() {
		e.at = now.Add(time.Duration(rand.Float64() * float64(spread)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) >= mostPending {
		r.dropped(about.Kind)
		return
	}
	r.pending = append(r.pending, e)
	r.wake()
}

// nameOf returns the name of the object and a digest: of the problem, or for a Node of the time.
func nameOf(e *eventsv1.Event, now time.Time) string {
	const digits = 16
	note := e.Note
	switch {
	case e.Regarding.Kind == "Node":
		note = strconv.FormatInt(now.UnixNano(), 10)
	case e.Reason != defaultReason:
		note = "" // it names the node that found the problem
	}
	object := e.Regarding.Name
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%s\x00%s", e.Regarding.Kind, object, e.Type, e.Reason, e.Action, note))
	object = strings.TrimRight(object[:min(len(object), validation.DNS1123SubdomainMaxLength-digits-1)], "-.")
	return fmt.Sprintf("%s.%x", object, sum[:digits/2])
}

func (r *Recorder) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Run sends Events until the context ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		e, pause := r.next(time.Now())
		if e != nil {
			r.send(ctx, *e)
			continue
		}
		late := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			late.Stop()
			return
		case <-r.changed:
		case <-late.C:
		}
		late.Stop()
	}
}

// next takes an Event that may be sent now, or returns the time until it should be called again. If the rate does not permit all
// Events, it takes a random one: the nodes together then report all problems.
func (r *Recorder) next(now time.Time) (e *pendingEvent, pause time.Duration) {
	const longest = time.Second
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []int
	pause = time.Hour
	for i := range r.pending {
		wait := r.pending[i].at.Sub(now)
		switch {
		case wait > 0:
			pause = min(pause, wait)
		case r.pending[i].urgent():
			return r.take(i), 0
		default:
			due = append(due, i)
		}
	}
	if len(due) == 0 {
		return nil, pause
	}
	if !r.limiter.TryAccept() {
		return nil, longest
	}
	return r.take(due[rand.IntN(len(due))]), 0
}

func (r *Recorder) take(i int) *pendingEvent {
	e := r.pending[i]
	r.pending = slices.Delete(r.pending, i, i+1)
	return &e
}

// send creates an Event, or says of an existing one that it was seen again.
func (r *Recorder) send(ctx context.Context, e pendingEvent) {
	err := r.sink.Create(ctx, e.Event)
	if apierrors.IsAlreadyExists(err) {
		err = r.sink.Patch(ctx, e.Event, seenAgain(time.Now()))
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	if e.tries++; e.tries == mostTries || isRefused(err) {
		logger.Error(err, "Cannot write an Event", "kind", e.Regarding.Kind, "object", klog.KRef(e.Regarding.Namespace, e.Regarding.Name), "reason", e.Reason)
		r.dropped(e.Regarding.Kind)
		return
	}
	e.at = time.Now().Add(wait.Jitter(retryPause, 1))
	logger.V(2).Info("Cannot write an Event, will retry", "err", err, "reason", e.Reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, e)
}

// seenAgain returns a patch of an Event that exists. It is the same for all nodes that see the problem within a minute, so the API server
// writes it once. The number in it is the smallest that the API accepts.
func seenAgain(now time.Time) []byte {
	type event struct {
		Series eventsv1.EventSeries `json:"series"`
	}
	const least = 2
	patch, err := json.Marshal(event{eventsv1.EventSeries{Count: least, LastObservedTime: metav1.MicroTime{Time: now.Truncate(time.Minute)}}})
	if err != nil {
		panic(err) // these types have no values that JSON lacks
	}
	return patch
}

// isRefused reports whether another attempt would fail, too.
func isRefused(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && !apierrors.IsTooManyRequests(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTimeout(err) &&
		!apierrors.IsServiceUnavailable(err) && !apierrors.IsInternalError(err) && !apierrors.IsNotFound(err)
}
