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

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

const (
	// eventBurst Events may be sent at once, then eventRate per second.
	eventBurst = 10
	eventRate  = 1.0 / 6
	// spread is the longest delay of an Event on an object that all nodes see: they find the same problem within
	// milliseconds.
	spread = 3 * time.Second
	// mostPending and mostUrgent are the numbers of Events that wait for the rate, and of urgent ones that wait for the
	// API server. Namespaces share both. Further Events are dropped.
	mostPending, mostUrgent = perNode, demandPerNode
	// mostTries is the number of attempts to send an Event, with pauses of about retryPause.
	mostTries  = 12
	retryPause = 10 * time.Second
)

// Recorder writes Events. The Event of a problem of a Service, EndpointSlice or ServiceCIDR has the same name on all
// nodes, so however many nodes see the problem, the API server keeps one Event. Events on a Node have a new name
// each. [Recorder.Run] sends the Events.
type Recorder struct {
	sink                 EventSink
	controller, instance string
	dropped              func(kind string)
	runner               *beside.Runner
	// written has capacity for the reason of one written Event; others are dropped.
	written chan string

	mu      sync.Mutex
	pending []pendingEvent
	// lines have the rooms for Events that wait for the rate, and for urgent Events.
	lines   [2]line
	limiter flowcontrol.PassiveRateLimiter
}

// line is a kind of pending Events: their room, and the owners that had a turn in this round.
type line struct {
	rooms
	served map[string]struct{}
}

// The lines. slow has the Events that wait for the rate, urgent all other Events.
const (
	slow = iota
	urgent
)

type pendingEvent struct {
	*eventsv1.Event
	// at is the earliest time of the next attempt.
	at    time.Time
	tries int
}

// line returns the line of an Event. It is urgent, and needs no spread and no rate, if only this node sees it, or if
// [demandBudget] limits it.
func (e *pendingEvent) line() int {
	if e.Regarding.Kind == "Node" || e.Reason == demandReason {
		return urgent
	}
	return slow
}

func (e *pendingEvent) object() object {
	return object{e.Regarding.Kind, e.Regarding.Namespace, e.Regarding.Name}
}

// NewRecorder returns a recorder of a controller, the program's name. It calls dropped with the kind of the object
// for each Event that it cannot send.
func NewRecorder(sink EventSink, controller string, dropped func(kind string)) *Recorder {
	host, _ := os.Hostname()
	r := &Recorder{
		sink: sink, controller: controller, instance: controller + "-" + host, dropped: dropped,
		written: make(chan string, 1),
		lines:   [2]line{{newRooms(mostPending), map[string]struct{}{}}, {newRooms(mostUrgent), map[string]struct{}{}}},
		limiter: flowcontrol.NewTokenBucketPassiveRateLimiter(eventRate, eventBurst),
	}
	r.runner = beside.NewRunner(beside.Runner{Work: r.work})
	return r
}

// Eventf queues an Event, like the method of a client-go recorder. regarding is a [corev1.ObjectReference]. The
// second object is ignored.
func (r *Recorder) Eventf(regarding, _ runtime.Object, kind, reason, action, note string, args ...any) {
	about := regarding.(*corev1.ObjectReference)
	now := time.Now()
	e := pendingEvent{Event: &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault)},
		EventTime:  metav1.MicroTime{Time: now}, ReportingController: r.controller, ReportingInstance: r.instance,
		Type: kind, Reason: reason, Action: action, Note: fmt.Sprintf(note, args...), Regarding: *about,
	}, at: now}
	e.Name = nameOf(e.Event, now)
	if e.line() == slow {
		e.at = now.Add(time.Duration(rand.Float64() * float64(spread)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lines[e.line()].take(e.object()) != room.None {
		r.dropped(about.Kind)
		return
	}
	r.pending = append(r.pending, e)
	r.runner.Wake()
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
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%s\x00%s", e.Regarding.Kind, object, e.Type,
		e.Reason, e.Action, note))
	object = strings.TrimRight(object[:min(len(object), validation.DNS1123SubdomainMaxLength-digits-1)], "-.")
	return fmt.Sprintf("%s.%x", object, sum[:digits/2])
}

// Run sends Events until the context ends.
func (r *Recorder) Run(ctx context.Context) { r.runner.Run(ctx) }

// Await waits until an Event with this reason has arrived at the API server, and returns whether it did within the
// time. Without this, a program that exits would lose its last Events, as kube-proxy does.
func (r *Recorder) Await(reason string, within time.Duration) bool {
	late := time.After(within)
	for {
		select {
		case got := <-r.written:
			if got == reason {
				return true
			}
		case <-late:
			return false
		}
	}
}

// work sends the next Event, if it may be sent now.
func (r *Recorder) work(ctx context.Context) (beside.Pause, error) {
	e, pause := r.next(time.Now())
	if e != nil {
		r.send(ctx, *e)
	}
	return beside.Pause{Most: pause}, nil
}

// next takes an Event that may be sent now, or returns the time until it should be called again. Events that the rate
// permits precede urgent ones, which could otherwise delay them without a limit.
func (r *Recorder) next(now time.Time) (e *pendingEvent, pause time.Duration) {
	const longest = time.Second
	r.mu.Lock()
	defer r.mu.Unlock()
	var due [len(r.lines)][]int
	pause = time.Hour
	for i := range r.pending {
		if wait := r.pending[i].at.Sub(now); wait > 0 {
			pause = min(pause, wait)
		} else {
			due[r.pending[i].line()] = append(due[r.pending[i].line()], i)
		}
	}
	if len(due[slow]) > 0 {
		if r.limiter.TryAccept() {
			return r.take(r.turn(slow, due[slow])), 0
		}
		pause = min(pause, longest)
	}
	if len(due[urgent]) > 0 {
		return r.take(r.turn(urgent, due[urgent])), 0
	}
	return nil, pause
}

// turn selects one of the due Events of a line: a random one of the owners that had no turn in this round. So an owner
// waits for at most one Event of each other owner, and the nodes together soon report all problems.
func (r *Recorder) turn(number int, due []int) int {
	l := &r.lines[number]
	waiting := slices.DeleteFunc(slices.Clone(due), func(i int) bool {
		_, had := l.served[r.pending[i].object().owner()]
		return had
	})
	if len(waiting) == 0 {
		clear(l.served)
		waiting = due
	}
	i := waiting[rand.IntN(len(waiting))]
	l.served[r.pending[i].object().owner()] = struct{}{}
	return i
}

func (r *Recorder) take(i int) *pendingEvent {
	e := r.pending[i]
	r.pending = slices.Delete(r.pending, i, i+1)
	return &e
}

// leave gives back the room of an Event that does not wait any more.
func (r *Recorder) leave(e *pendingEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines[e.line()].give(e.object())
}

// send creates an Event, or says of an existing one that it was seen again.
func (r *Recorder) send(ctx context.Context, e pendingEvent) {
	err := r.sink.Create(ctx, e.Event)
	if apierrors.IsAlreadyExists(err) {
		err = r.sink.Patch(ctx, e.Event, seenAgain(time.Now()))
	}
	if err == nil {
		select {
		case r.written <- e.Reason:
		default:
		}
	}
	if err == nil || ctx.Err() != nil {
		r.leave(&e)
		return
	}
	logger := klog.FromContext(ctx)
	if e.tries++; e.tries == mostTries || isRefused(err) {
		logger.Error(err, "Cannot write an Event", "kind", e.Regarding.Kind, "object",
			klog.KRef(e.Regarding.Namespace, e.Regarding.Name), "reason", e.Reason)
		r.dropped(e.Regarding.Kind)
		r.leave(&e)
		return
	}
	e.at = time.Now().Add(wait.Jitter(retryPause, 1))
	logger.V(2).Info("Cannot write an Event, will retry", "err", err, "reason", e.Reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, e)
}

// seenAgain returns a patch of an Event that exists. It is the same for all nodes that see the problem within a
// minute, so the API server writes it once. The number in it is the smallest that the API accepts.
func seenAgain(now time.Time) []byte {
	type event struct {
		Series eventsv1.EventSeries `json:"series"`
	}
	const least = 2
	patch, err := json.Marshal(event{eventsv1.EventSeries{Count: least,
		LastObservedTime: metav1.MicroTime{Time: now.Truncate(time.Minute)}}})
	if err != nil {
		panic(err) // these types have no values that JSON lacks
	}
	return patch
}

// isRefused reports whether another attempt would fail, too.
func isRefused(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && !apierrors.IsTooManyRequests(err) && !apierrors.IsServerTimeout(err) &&
		!apierrors.IsTimeout(err) &&
		!apierrors.IsServiceUnavailable(err) && !apierrors.IsInternalError(err) && !apierrors.IsNotFound(err)
}
