package track

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Tracker is a set of dirty names. All methods may be called from any goroutine. The cost of marking does not depend on
// the size of the set.
type Tracker struct {
	now func() time.Time
	// since is the time from which triggers count.
	since time.Time
	ready chan struct{}

	// together is held during [Tracker.Together] and briefly during [Tracker.Take].
	together sync.Mutex

	mu    sync.Mutex
	dirty Dirty
	// latest is [Dirty.Since] of the last taken set that was not empty. namespaces are those of the Services of the
	// last taken set with Services. others is true if a Service of another namespace is dirty.
	latest     time.Time
	namespaces map[string]struct{}
	others     bool
}

// New returns an empty tracker. It drops triggers older than since, usually the start of the process: they measure the
// downtime of the proxy, not the latency of programming. It reads the clock now only for [Dirty.Since].
func New(since time.Time, now func() time.Time) *Tracker {
	return &Tracker{now: now, since: since, ready: make(chan struct{}, 1)}
}

// MarkService marks a Service after its object was added, changed or removed.
func (t *Tracker) MarkService(name types.NamespacedName) {
	t.mark(func(d *Dirty) {
		t.addService(name)
		d.ServiceChanges++
	})
}

// MarkSlice marks a Service after one of its EndpointSlices was added, changed or removed. The trigger is the time of
// that change in the cluster; zero means unknown.
func (t *Tracker) MarkSlice(service types.NamespacedName, trigger Trigger) {
	t.mark(func(d *Dirty) {
		t.addService(service)
		d.SliceChanges++
		if !trigger.At.IsZero() && !trigger.At.Before(t.since) {
			d.addTrigger(service, trigger)
		}
	})
}

// MarkNode marks the proxy's own Node.
func (t *Tracker) MarkNode() {
	t.mark(func(d *Dirty) { d.Node = true })
}

// MarkServiceCIDRs marks the set of all ServiceCIDR objects.
func (t *Tracker) MarkServiceCIDRs() {
	t.mark(func(d *Dirty) { d.ServiceCIDRs = true })
}

// Together runs f. [Tracker.Take] takes all marks of f or none. Other goroutines may mark meanwhile. f must not call
// Take.
func (t *Tracker) Together(f func()) {
	t.together.Lock()
	defer t.together.Unlock()
	f()
}

// Ready returns a channel of capacity one. It has a value after a mark. The value stays after a [Tracker.Take], so the
// set may be empty when the value is received.
func (t *Tracker) Ready() <-chan struct{} {
	return t.ready
}

// Take returns all marks and empties the set. It waits for a running [Tracker.Together]. The caller owns the result.
func (t *Tracker) Take() Dirty {
	t.together.Lock()
	defer t.together.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.dirty
	if !taken.Since.IsZero() {
		t.latest = taken.Since
	}
	t.dirty, t.others = Dirty{}, false
	if len(taken.Services) > 0 {
		t.namespaces = map[string]struct{}{}
	}
	for name := range taken.Services {
		t.namespaces[name.Namespace] = struct{}{}
	}
	return taken
}

func (t *Tracker) addService(name types.NamespacedName) {
	if t.dirty.Services == nil {
		t.dirty.Services = map[types.NamespacedName]struct{}{}
	}
	t.dirty.Services[name] = struct{}{}
	if _, again := t.namespaces[name.Namespace]; !again {
		t.others = true
	}
}

func (t *Tracker) mark(change func(*Dirty)) {
	t.mu.Lock()
	if t.dirty.Since.IsZero() {
		t.dirty.Since = t.now()
	}
	change(&t.dirty)
	t.mu.Unlock()

	select {
	case t.ready <- struct{}{}:
	default: // a signal is pending already
	}
}
