package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// server stores Events by name, as the API server does.
type server struct {
	EventSink
	mu      sync.Mutex
	stored  map[string]*eventsv1.Event
	series  map[string]string // the last patch
	creates map[time.Time]int // by second
	writes  int
	err     error
}

func newServer() *server {
	return &server{stored: map[string]*eventsv1.Event{}, series: map[string]string{}, creates: map[time.Time]int{}}
}

func (s *server) Create(_ context.Context, e *eventsv1.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.creates[time.Now().Truncate(time.Second)]++
	if s.err != nil {
		return s.err
	}
	if s.stored[e.Name] != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, e.Name)
	}
	s.stored[e.Name] = e
	s.writes++
	return nil
}

// Patch writes nothing if the patch changes nothing.
func (s *server) Patch(_ context.Context, e *eventsv1.Event, patch []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.series[e.Name] != string(patch) {
		s.series[e.Name] = string(patch)
		s.writes++
	}
	return nil
}

// pass lets time pass, and the recorders do their work.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// number returns the number of Events, written that of the writes.
func (s *server) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.stored)
}

// has reports whether there is an Event with a text.
func (s *server) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.stored {
		if strings.Contains(e.Note, text) {
			return true
		}
	}
	return false
}

func (s *server) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// nodes starts reporters of many nodes.
func (s *server) nodes(t *testing.T, n int) (list []*Reporter, dropped *atomic.Int32) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	dropped = new(atomic.Int32)
	count := func(string) { dropped.Add(1) }
	for range n {
		r := NewRecorder(s, "kube-nftproxy", count)
		go r.Run(ctx)
		list = append(list, New(klog.NewKlogr().V(99), r, Count{Problem: func(string) {}, Suppressed: func(string) {}}))
	}
	return list, dropped
}

// TestAFaultOfAllNodesIsOneEvent: however many nodes see a problem, there is one Event about it, and few writes.
func TestAFaultOfAllNodesIsOneEvent(t *testing.T) {
	for name, c := range map[string]struct {
		problem func(node int) model.Problem
		want    int
	}{
		"a conflict between Services": {func(int) model.Problem {
			return model.Problem{Kind: "Service", Name: types.NamespacedName{Namespace: "shop", Name: "web"}, Field: "spec.externalIPs", Reason: "taken"}
		}, 1},
		"a port in use on all nodes": {func(node int) model.Problem {
			return model.Problem{Kind: "Service", Name: types.NamespacedName{Namespace: "shop", Name: "web"}, Event: "NodePortCollision",
				Reason: fmt.Sprintf("on node %d a process listens", node)}
		}, 1},
		"a problem of each node": {func(node int) model.Problem {
			return model.Problem{Kind: "Node", Name: types.NamespacedName{Name: fmt.Sprint("node-", node)}, Event: "KubeProxyRunning", Reason: "much"}
		}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const nodes, rounds = 100, 3
				s := newServer()
				list, dropped := s.nodes(t, nodes)
				pass(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
				for i, r := range list {
					r.Problem(c.problem(i))
				}
				pass(spread + time.Second)
				if s.number() != c.want || s.written() > c.want+1 || dropped.Load() != 0 {
					t.Errorf("%d Events, %d writes, %d dropped, want %d Events", s.number(), s.written(), dropped.Load(), c.want)
				}
				most := 0
				for _, n := range s.creates {
					most = max(most, n)
				}
				if c.want == 1 && most > nodes*6/10 {
					t.Errorf("%d of %d requests come in one second", most, nodes)
				}
				// An hour later some nodes find it again, in another minute each.
				for i := range rounds {
					pass(time.Hour)
					list[i].Problem(c.problem(i))
				}
				pass(spread + time.Second)
				if c.want == 1 && (s.number() != 1 || s.written() > 2+rounds) {
					t.Errorf("%d Events after %d writes", s.number(), s.written())
				}
			})
		})
	}
}

// Different problems of an object have Events of their own, and long names of objects make valid names of Events.
func TestNamesOfEvents(t *testing.T) {
	names := map[string]bool{}
	long := strings.Repeat("a", 235) + "-b." + strings.Repeat("c", 14)
	for _, e := range []eventsv1.Event{
		{Reason: defaultReason, Note: "one", Regarding: corev1.ObjectReference{Kind: "Service", Name: "web"}},
		{Reason: defaultReason, Note: "two", Regarding: corev1.ObjectReference{Kind: "Service", Name: "web"}},
		{Reason: defaultReason, Note: "two", Regarding: corev1.ObjectReference{Kind: "EndpointSlice", Name: "web"}},
		{Reason: "NodePortCollision", Note: "two", Regarding: corev1.ObjectReference{Kind: "Service", Name: "web"}},
		{Reason: defaultReason, Note: "two", Regarding: corev1.ObjectReference{Kind: "EndpointSlice", Name: long}},
		{Reason: defaultReason, Note: "two", Regarding: corev1.ObjectReference{Kind: "EndpointSlice", Name: long + "c"}},
	} {
		name := nameOf(&e, time.Now())
		if names[name] {
			t.Errorf("%s is the name of two Events", name)
		}
		names[name] = true
		if why := validation.NameIsDNSSubdomain(name, false); len(why) > 0 {
			t.Errorf("%s: %v", name, why)
		}
	}
}

// A node sends few Events per minute, and drops those that it cannot send. Namespaces take turns, and share the room
// for waiting Events. Events about the Node do not wait.
func TestEventsAreLimitedPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		list, dropped := s.nodes(t, 1)
		r := list[0]
		write := func(namespace, name string) {
			r.recorder.Eventf(&corev1.ObjectReference{Kind: "Service", Namespace: namespace, Name: name}, nil, "Warning", defaultReason, "Sync", "%s in %s.", name, namespace)
		}
		queue := room.New(mostPending)
		const flood, turn = 1000, time.Duration(float64(time.Second) / eventRate)
		for i := range flood {
			write("evil", fmt.Sprint("s", i))
		}
		pass(spread + time.Second)
		if s.number() != eventBurst || int(dropped.Load()) != flood-queue.Most() {
			t.Errorf("%d Events at once, want %d; %d dropped, want %d", s.number(), eventBurst, dropped.Load(), flood-queue.Most())
		}
		r.Started("node-1")
		synctest.Wait()
		if s.number() != eventBurst+1 {
			t.Error("the Event of the start waits")
		}
		for _, name := range []string{"web", "api"} {
			for i := range 5 {
				write(fmt.Sprint("n", i), name)
			}
			pass(spread + 6*turn) // one turn of each namespace
			for i := range 5 {
				if !s.has(fmt.Sprintf("%s in n%d.", name, i)) {
					t.Errorf("the Event about %s of the namespace n%d waits for others", name, i)
				}
			}
		}
		for i := range 20 * flood {
			write(fmt.Sprint("m", i), "web")
		}
		recorder := r.recorder.(*Recorder)
		recorder.mu.Lock()
		pending := len(recorder.pending)
		recorder.mu.Unlock()
		if pending != mostPending {
			t.Errorf("%d Events wait, want %d", pending, mostPending)
		}
		before := s.number()
		pass(10 * time.Minute)
		if n := s.number() - before; n < 98 || n > 102 {
			t.Errorf("%d Events in ten minutes, want about 100", n)
		}
		pass(2 * time.Hour)
		if recorder.lines[slow].namespaced.Total() != 0 {
			t.Error("Events that were sent take room")
		}
	})
}

// A node tries again if the API server is away, and gives up if it refuses an Event.
func TestEventsAreSentAgain(t *testing.T) {
	problem := model.Problem{Kind: "Service", Name: types.NamespacedName{Namespace: "shop", Name: "web"}, Reason: "taken"}
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"away":       {errors.New("no route to host"), 1},
		"overloaded": {apierrors.NewTooManyRequests("later", 1), 1},
		"not found":  {apierrors.NewNotFound(schema.GroupResource{}, "shop"), 1},
		"forbidden":  {apierrors.NewForbidden(schema.GroupResource{}, "web", errors.New("no")), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.err = c.err
				list, dropped := s.nodes(t, 1)
				list[0].Problem(problem)
				pass(30 * time.Second)
				s.mu.Lock()
				s.err = nil
				s.mu.Unlock()
				pass(time.Minute)
				if s.number() != c.want || int(dropped.Load()) != 1-c.want {
					t.Errorf("%d Events, %d dropped, want %d Events", s.number(), dropped.Load(), c.want)
				}
				lab.Same(t, 0, list[0].recorder.(*Recorder).lines[slow].namespaced.Total(), "Events that take room")
			})
		})
	}
}
