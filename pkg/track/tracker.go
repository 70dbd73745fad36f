package track

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Tracker is a set of dirty names. All methods may be called from any goroutine, and marking costs the same however
// much is dirty already.
type Tracker struct {
	now   func() time.Time
	since time.Time
	ready chan struct{}

	// together is held by [Tracker.Together] and, for a moment, by [Tracker.Take].
	together sync.Mutex

	mu    sync.Mutex
	dirty Dirty
	// latest is [Dirty.Since] of what was taken last and wasn't empty.
	latest time.Time
}

// New returns a tracker of nothing. Triggers older than since, usually the start of the process, are dropped: they
// say how long the proxy was away, not how long programming took. The clock now is read for [Dirty.Since] only.
func New(since time.Time, now func() time.Time) *Tracker {
	return &Tracker{now: now, since: since, ready: make(chan struct{}, 1)}
}

// Service marks a Service whose object was added, changed or removed.
func (t *Tracker) Service(name types.NamespacedName) {
	t.mark(func(d *Dirty) {
		d.addService(name)
		d.ServiceChanges++
	})
}

// Slice marks a Service one of whose EndpointSlices was added, changed or removed. The trigger is when the change
// that led to it happened in the cluster; zero means that this isn't known.
func (t *Tracker) Slice(service types.NamespacedName, trigger Trigger) {
	t.mark(func(d *Dirty) {
		d.addService(service)
		d.SliceChanges++
		if !trigger.At.IsZero() && !trigger.At.Before(t.since) {
			d.addTriggers(service, trigger)
		}
	})
}

// Node marks the proxy's own Node.
func (t *Tracker) Node() {
	t.mark(func(d *Dirty) { d.Node = true })
}

// ServiceCIDRs marks the union of all ServiceCIDR objects.
func (t *Tracker) ServiceCIDRs() {
	t.mark(func(d *Dirty) { d.ServiceCIDRs = true })
}

// Together runs f; what f marks is taken as a whole, never a part of it. Others may mark meanwhile, but f must not take.
func (t *Tracker) Together(f func()) {
	t.together.Lock()
	defer t.together.Unlock()
	f()
}

// Ready returns a channel of capacity one that has a value whenever something became dirty since it was last
// received from. After a [Tracker.Take] that came first it can be signalled with nothing left to take.
func (t *Tracker) Ready() <-chan struct{} {
	return t.ready
}

// Take hands over all that is dirty, and starts anew. It waits for a [Tracker.Together] that is under way. The caller owns
// the result.
func (t *Tracker) Take() Dirty {
	t.together.Lock()
	defer t.together.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.dirty
	if !taken.Since.IsZero() {
		t.latest = taken.Since
	}
	t.dirty = Dirty{}
	return taken
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
	default: // a signal is waiting already
	}
}
