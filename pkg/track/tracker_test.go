package track

import (
	"fmt"
	"maps"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	web   = types.NamespacedName{Namespace: "shop", Name: "web"}
	db    = types.NamespacedName{Namespace: "shop", Name: "db"}
)

// newTracker returns a tracker whose clock starts one minute after start and advances a second at each reading.
func newTracker() *Tracker {
	at := start.Add(time.Minute)
	return New(start, func() time.Time {
		defer func() { at = at.Add(time.Second) }()
		return at
	})
}

func names(list ...types.NamespacedName) map[types.NamespacedName]struct{} {
	set := map[types.NamespacedName]struct{}{}
	for _, name := range list {
		set[name] = struct{}{}
	}
	return set
}

func TestTake(t *testing.T) {
	first := start.Add(time.Minute)
	for _, tc := range []struct {
		name string
		mark func(*Tracker)
		want Dirty
	}{
		{
			name: "nothing",
			mark: func(*Tracker) {},
			want: Dirty{},
		},
		{
			name: "a service twice is one name and two events",
			mark: func(tr *Tracker) { tr.MarkService(web); tr.MarkService(web) },
			want: Dirty{Services: names(web), ServiceChanges: 2, Since: first},
		},
		{
			name: "service and slice of different services",
			mark: func(tr *Tracker) { tr.MarkService(web); tr.MarkSlice(db, Trigger{}) },
			want: Dirty{Services: names(web, db), ServiceChanges: 1, SliceChanges: 1, Since: first},
		},
		{
			name: "triggers from before the start are dropped",
			mark: func(tr *Tracker) {
				tr.MarkSlice(web, Trigger{At: start.Add(-time.Second)})
				tr.MarkSlice(web, Trigger{At: start.Add(time.Second)})
			},
			want: Dirty{
				Services: names(web), SliceChanges: 2, Since: first,
				Triggers: map[types.NamespacedName][]Trigger{web: {{At: start.Add(time.Second)}}},
			},
		},
		{
			name: "a removed slice drops no trigger",
			mark: func(tr *Tracker) {
				tr.MarkSlice(web, Trigger{At: start.Add(time.Second)})
				tr.MarkSlice(web, Trigger{})
			},
			want: Dirty{
				Services: names(web), SliceChanges: 2, Since: first,
				Triggers: map[types.NamespacedName][]Trigger{web: {{At: start.Add(time.Second)}}},
			},
		},
		{
			name: "node",
			mark: func(tr *Tracker) { tr.MarkNode() },
			want: Dirty{Node: true, Since: first},
		},
		{
			name: "service CIDRs",
			mark: func(tr *Tracker) { tr.MarkServiceCIDRs() },
			want: Dirty{ServiceCIDRs: true, Since: first},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTracker()
			tc.mark(tr)
			got := tr.Take()
			lab.Same(t, tc.want, got, "Take")
			if again := tr.Take(); !again.Since.IsZero() {
				t.Errorf("second Take = %+v, want nothing", again)
			}
		})
	}
}

func TestReady(t *testing.T) {
	tr := newTracker()
	signalled := func() bool {
		select {
		case <-tr.Ready():
			return true
		default:
			return false
		}
	}
	if signalled() {
		t.Fatal("a new tracker is ready")
	}
	tr.MarkNode()
	tr.MarkService(web)
	if !signalled() {
		t.Fatal("not ready after two marks")
	}
	if signalled() {
		t.Fatal("two marks signalled twice")
	}
	tr.MarkServiceCIDRs()
	if !signalled() {
		t.Fatal("not ready after a mark without a Take in between")
	}
}

func TestTriggersAreBounded(t *testing.T) {
	tr := newTracker()
	for i := range 3 * MostTriggers {
		tr.MarkSlice(web, Trigger{At: start.Add(time.Duration(i) * time.Second)})
	}
	old := tr.Take()
	if got := len(old.Triggers[web]); got != MostTriggers {
		t.Errorf("kept %d triggers, want %d", got, MostTriggers)
	}
	if got := old.Triggers[web][0].At; !got.Equal(start) {
		t.Errorf("first trigger is %v, want the oldest, %v", got, start)
	}
}

// Each mark is taken exactly once, even if other goroutines mark and take concurrently.
func TestConcurrentMarksAreNotLost(t *testing.T) {
	tr := New(start, func() time.Time { return start })
	const markers, marks = 8, 500
	var wg sync.WaitGroup
	for m := range markers {
		wg.Go(func() {
			for i := range marks {
				tr.MarkSlice(types.NamespacedName{Namespace: fmt.Sprint(m), Name: fmt.Sprint(i)}, Trigger{})
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()

	all := map[types.NamespacedName]struct{}{}
	taken, events := 0, 0
	take := func() {
		d := tr.Take()
		taken += len(d.Services)
		events += d.SliceChanges
		maps.Copy(all, d.Services)
	}
	for done := false; !done; {
		select {
		case <-tr.Ready():
		case <-finished:
			done = true
		}
		take()
	}
	if want := markers * marks; taken != want || len(all) != want || events != want {
		t.Errorf("took %d names, %d distinct, %d events; want %d of each", taken, len(all), events, want)
	}
}

// Take returns marks of one call of Together all at once.
func TestTogether(t *testing.T) {
	const rounds = 1000
	tr := newTracker()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range rounds {
			tr.Together(func() {
				tr.MarkService(web)
				runtime.Gosched()
				tr.MarkService(db)
			})
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-tr.Ready():
		}
		if d := tr.Take(); len(d.Services) == 1 {
			t.Fatalf("taken: %v, want both or none", d.Services)
		}
	}
}

func TestPending(t *testing.T) {
	tr := newTracker()
	if got := tr.Pending(); got != (Pending{}) {
		t.Errorf("of nothing: %+v", got)
	}
	first := start.Add(time.Minute)
	tr.MarkService(web)
	tr.MarkService(db)
	want := Pending{Services: 2, Others: true, Since: first, Latest: first}
	for range 2 { // Pending takes no marks
		if got := tr.Pending(); got != want {
			t.Errorf("of two Services: %+v, want %+v", got, want)
		}
	}
	tr.Take()
	tr.Take()
	if got, want := tr.Pending(), (Pending{Latest: first}); got != want {
		t.Errorf("after they were taken: %+v, want %+v", got, want)
	}
	tr.MarkHost()
	if got := tr.Pending(); got.Since.IsZero() || got.Latest != first {
		t.Errorf("after a change of the host: %+v, want the last change of an object at %v", got, first)
	}
	tr.Take()
	if got, want := tr.Pending(), (Pending{Latest: first}); got != want {
		t.Errorf("after it was taken: %+v, want %+v", got, want)
	}
	tr.MarkService(web)
	if got := tr.Pending(); got.Others {
		t.Errorf("%+v: the set has no Service of another namespace than before", got)
	}
	tr.MarkSlice(types.NamespacedName{Namespace: "another"}, Trigger{})
	if got := tr.Pending(); !got.Others {
		t.Errorf("%+v: the set has a Service of another namespace than before", got)
	}
}
