package watch

import (
	"context"
	"fmt"
	"math"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fleetNode is a starting program with an API server that has a number of Nodes, and a clock of a test.
type fleetNode struct {
	*Informers
	mu     sync.Mutex
	lists  map[string][]time.Duration // times since the start
	counts int
}

// startInFleet starts a program. failed returns the error of the n-th attempt to count the Nodes.
func startInFleet(t *testing.T, nodes int64, adopts bool, failed func(n int) error) *fleetNode {
	t.Helper()
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u"}}
	client := fake.NewClientset(service("shop", "web"), slice("shop", "web-1", "web"), own)
	f := &fleetNode{lists: map[string][]time.Duration{}}
	start := time.Now()
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		name := action.GetResource().Resource
		options := action.(clienttesting.ListActionImpl).ListOptions
		if name == nodesResource && options.Limit == 1 {
			f.counts++
			if err := failed(f.counts); err != nil {
				return true, nil, err
			}
			rest := nodes - 1
			return true, &corev1.NodeList{
				ListMeta: metav1.ListMeta{ResourceVersion: "1", RemainingItemCount: &rest}, Items: []corev1.Node{*own},
			}, nil
		}
		f.lists[name] = append(f.lists[name], time.Since(start))
		return false, nil, nil
	})
	var err error
	f.Informers, err = NewInformers(Config{Client: fakeClient(client), NodeName: "node-1", Tracker: newTracker(),
		Adopts: func() bool { return adopts }})
	lab.Must(t, err)
	return f
}

func always(int) error { return nil }

// listed runs the program until it has all objects, and returns the time of its list of Services and the length of the
// wait that it reported.
func (f *fleetNode) listed(t *testing.T) (at, longest time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx) // it always returns nil
	}()
	synctest.Wait()
	longest = f.Turn()
	<-f.Loaded()
	lab.Same(t, 0, f.Turn(), "the wait is reported after its end")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lists["services"]) != 1 || len(f.lists["endpointslices"]) != 1 || len(f.lists[nodesResource]) != 1 ||
		f.lists[nodesResource][0] != 0 {
		t.Errorf("lists: %v, want one of each kind, and one of this Node at once", f.lists)
	}
	at = f.lists["services"][0]
	cancel()
	<-done
	return at, longest
}

// TestTurnOfANode: if rules serve, the first lists of all nodes are spread over a time in proportion to their number,
// up to a limit. If no rules serve, no node waits or counts the Nodes.
func TestTurnOfANode(t *testing.T) {
	for _, c := range []struct {
		nodes   int64
		adopts  bool
		longest time.Duration
	}{
		{1, true, 5 * time.Millisecond},
		{200, true, time.Second},
		{5000, true, 25 * time.Second},
		{10_000, true, longestTurn},
		{math.MaxInt64, true, longestTurn},
		{10_000, false, 0},
	} {
		t.Run(fmt.Sprint(c.nodes, c.adopts), func(t *testing.T) {
			const programs = 40
			early, late := 0, 0
			for range programs {
				synctest.Test(t, func(t *testing.T) {
					f := startInFleet(t, c.nodes, c.adopts, always)
					at, longest := f.listed(t)
					if slices := f.lists["endpointslices"][0]; slices != at {
						t.Errorf("Services were listed after %v, EndpointSlices after %v", at, slices)
					}
					if longest != c.longest || at > c.longest {
						t.Errorf("listed after %v, reported up to %v, want up to %v", at, longest, c.longest)
					}
					if want := map[bool]int{true: 1}[c.adopts]; f.counts != want {
						t.Errorf("the Nodes were counted %d times, want %d", f.counts, want)
					}
					if at < c.longest/2 {
						early++
					} else {
						late++
					}
				})
			}
			if c.adopts && min(early, late) < programs/8 {
				t.Errorf("%d of %d programs list in the first half of the time", early, programs)
			}
		})
	}
}

// TestTurnWithoutACount: without the permission to count the Nodes, a program assumes a number. While the API server
// fails, the time does not begin, because otherwise all nodes would list at once after an outage.
func TestTurnWithoutACount(t *testing.T) {
	nodes := schema.GroupResource{Resource: nodesResource}
	synctest.Test(t, func(t *testing.T) {
		f := startInFleet(t, 7, true, func(int) error { return apierrors.NewForbidden(nodes, "", nil) })
		if at, longest := f.listed(t); longest != 5*time.Second || at > longest {
			t.Errorf("listed after %v, reported up to %v", at, longest)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var up time.Duration
		start := time.Now()
		f := startInFleet(t, 5000, true, func(int) error {
			if up = time.Since(start); up < time.Hour {
				return syscall.ECONNREFUSED
			}
			return nil
		})
		at, _ := f.listed(t)
		if at < up || at > up+25*time.Second || f.Turn() != 0 {
			t.Errorf("listed after %v, the API server answered after %v", at, up)
		}
	})
}
