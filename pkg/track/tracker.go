package track

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// MostTriggers limits the memory for one Service's triggers. A rolling update of many slices between two calls of
// [Tracker.Take] exceeds it. The oldest triggers are kept, because they have the greatest latency.
const MostTriggers = 100

// Trigger is the time of a change of endpoints in the cluster, from the annotation of an EndpointSlice.
type Trigger struct {
	// At is zero if the time is unknown.
	At time.Time
	// IPv6 is true for IPv6 endpoints.
	IPv6 bool
}

// Dirty is the set of changes between two calls of [Tracker.Take]. The zero value is empty and ready for use.
type Dirty struct {
	// Services are the Services with a changed object or changed EndpointSlices. Nil and empty mean the same.
	Services map[types.NamespacedName]struct{}
	// Node is true if this Node changed.
	Node bool
	// ServiceCIDRs is true if the cluster's service address ranges changed.
	ServiceCIDRs bool
	// Triggers are the times of changes of a Service's endpoints in the cluster (kube-proxy:
	// network_programming_duration_seconds). They are in the order of the events, at most MostTriggers for each
	// Service.
	Triggers map[types.NamespacedName][]Trigger
	// ServiceChanges is the number of Service events, SliceChanges the number of EndpointSlice events.
	ServiceChanges, SliceChanges int
	// Since is the time of the first mark; zero if there is none.
	Since time.Time
}

func (d *Dirty) addTrigger(name types.NamespacedName, t Trigger) {
	if d.Triggers == nil {
		d.Triggers = map[types.NamespacedName][]Trigger{}
	}
	if len(d.Triggers[name]) < MostTriggers {
		d.Triggers[name] = append(d.Triggers[name], t)
	}
}

// Pending describes the marks that wait for [Tracker.Take].
type Pending struct {
	// Services is the number of dirty Services.
	Services int
	// Others is true if one of them belongs to a namespace without a Service in the last taken set.
	Others bool
	// Since is the time of the first mark; zero if there is none.
	Since time.Time
	// Latest is the time of the first mark of an object that waits. If none waits, it is this time of the marks that
	// were taken last; zero before the first one. A change of the host's addresses is not a change of an object.
	Latest time.Time
}

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
	// received is true if the set has the mark of an object. latest is the time of the first one in this set, or in the
	// last taken set that had one. namespaces are those of the Services of the last taken set with Services. others is
	// true if a Service of another namespace is dirty.
	received   bool
	latest     time.Time
	namespaces map[string]struct{}
	others     bool
}

// New returns an empty tracker. It drops triggers older than since, usually the start of the process: they measure the
// downtime of the proxy, not the latency of programming. It reads the clock now only for the times of [Pending].
func New(since time.Time, now func() time.Time) *Tracker {
	return &Tracker{now: now, since: since, ready: make(chan struct{}, 1)}
}

// MarkService marks a Service after its object was added, changed or removed.
func (t *Tracker) MarkService(name types.NamespacedName) {
	t.mark(true, func(d *Dirty) {
		t.addService(name)
		d.ServiceChanges++
	})
}

// MarkSlice marks a Service after one of its EndpointSlices was added, changed or removed. The trigger is the time of
// that change in the cluster; zero means unknown.
func (t *Tracker) MarkSlice(service types.NamespacedName, trigger Trigger) {
	t.mark(true, func(d *Dirty) {
		t.addService(service)
		d.SliceChanges++
		if !trigger.At.IsZero() && !trigger.At.Before(t.since) {
			d.addTrigger(service, trigger)
		}
	})
}

// MarkNode marks the proxy's own Node after its object was added, changed or removed.
func (t *Tracker) MarkNode() {
	t.mark(true, func(d *Dirty) { d.Node = true })
}

// MarkHost marks the proxy's own Node without a change of its object, for example after a change of the host's
// addresses.
func (t *Tracker) MarkHost() {
	t.mark(false, func(d *Dirty) { d.Node = true })
}

// MarkServiceCIDRs marks the set of all ServiceCIDR objects.
func (t *Tracker) MarkServiceCIDRs() {
	t.mark(true, func(d *Dirty) { d.ServiceCIDRs = true })
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

// Pending describes the current marks without taking them.
func (t *Tracker) Pending() Pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Pending{Services: len(t.dirty.Services), Others: t.others, Since: t.dirty.Since, Latest: t.latest}
}

// Take returns all marks and empties the set. It waits for a running [Tracker.Together]. The caller owns the result.
func (t *Tracker) Take() Dirty {
	t.together.Lock()
	defer t.together.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.dirty
	t.dirty, t.others, t.received = Dirty{}, false, false
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

// mark makes a change. object is true if it follows from a change of an object.
func (t *Tracker) mark(object bool, change func(*Dirty)) {
	t.mu.Lock()
	first, newest := t.dirty.Since.IsZero(), object && !t.received
	if first || newest {
		now := t.now()
		if first {
			t.dirty.Since = now
		}
		if newest {
			t.received, t.latest = true, now
		}
	}
	change(&t.dirty)
	t.mu.Unlock()

	select {
	case t.ready <- struct{}{}:
	default: // a signal is pending already
	}
}
