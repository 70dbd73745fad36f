// Package affinity keeps the remembered clients of session affinity fair: if their map is more than half full, no
// namespace keeps more clients than its part and its share of the map (pkg/room). So clients of all other namespaces
// find places.
//
// In: the service ports with session affinity; the kernel's maps.
// Out: clients to forget; for each map, its number of clients, and the namespace whose clients are forgotten.
// Never: changes a map itself: the loop sends the batches; delays the loop for more than a small batch.
package affinity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

const (
	// every is the time between two counts, if the kernel counts the clients (6.16), and after a reading that has found
	// clients to forget. idle is the time after any other reading.
	every = 500 * time.Millisecond
	idle  = 10 * time.Second
	// A reading of a large map takes seconds. It pauses after each atOnce clients, so that it takes one of share parts
	// of a processor, or one of hurried parts while the map is more than three quarters full.
	atOnce  = 1024
	share   = 40
	hurried = 10
	// A reading ends after far times as many clients as it has read before the first one to forget, or as a namespace
	// keeps. From there on, clients cost more than in a new reading.
	far = 3
	// mostForgotten is the number of clients that one batch deletes. The kernel takes about a millisecond for it.
	mostForgotten = 2000
	// A client with a remaining time below soon is not forgotten, because it may expire before the batch. A batch waits
	// at most patience for further clients.
	soon     = 5 * time.Second
	patience = time.Second
)

// Reader reads a map.
type Reader interface {
	// Count returns the number of elements, or -1 if the kernel does not report it.
	Count(*nft.Set) (int, error)
	// Each calls a function for elements until it returns false. The function may sleep.
	Each(*nft.Set, func(*nft.Found) (more bool)) (whole bool, err error)
}

// Map is a family's map of remembered clients ([plan.AffinitySet]), with its reader.
type Map struct {
	Set    *nft.Set
	Reader Reader
}

// Config has the parts of a Watcher.
type Config struct {
	Maps []Map
	// Changed returns the service ports whose Service has changed since the last call ([plan.Planner.TakeOwners]).
	Changed func() map[plan.Number]types.NamespacedName
	// Forget deletes clients, and returns the number of deleted ones.
	Forget func(context.Context, []nft.Element) (int, error)
	// Crowd sets the service ports of a family whose new clients are not remembered, because their namespaces have too
	// many. So these namespaces cannot refill the map.
	Crowd func(context.Context, inet.Family, []plan.Number) error
	// Report receives a problem of the Service with the most clients, once while a map has too many.
	Report func(model.Problem)
}

// State describes a map of remembered clients.
type State struct {
	Family inet.Family
	// Clients is the number of remembered clients at the last count or reading, -1 before the first. Limit is their
	// limit, and Most the part of it that one namespace keeps if the map is more than half full.
	Clients, Limit, Most int
	// Forgotten is the number of clients that were forgotten since the start.
	Forgotten uint64
	// Crowded is true while the map has too many clients. Namespace has the most of them, and Service the most of
	// these. Fair is true if no namespace has more than Most: then the map is full, and no client is forgotten.
	Crowded, Fair bool
	Namespace     string
	Service       types.NamespacedName
}

// Watcher is a listener that follows the maps of remembered clients. Its other methods are safe for concurrent use.
type Watcher struct {
	Config
	maps []*watched

	mu     sync.Mutex
	owners map[plan.Number]types.NamespacedName
}

// watched is a map with its runner.
type watched struct {
	Map
	runner *beside.Runner
	// state is that of the map. The watcher's lock protects it.
	state State
	// crowded are the namespaces whose new clients are not remembered.
	crowded map[string]bool
}

// New returns a watcher. [Watcher.Run] reads the maps.
func New(c Config) *Watcher {
	w := &Watcher{Config: c, owners: map[plan.Number]types.NamespacedName{}}
	for _, given := range c.Maps {
		set := *given.Set // a copy, because syncs change the planner's sets
		limit := int(set.Size)
		m := &watched{Map: Map{&set, given.Reader}, state: State{
			Family: set.Family, Clients: -1, Limit: limit, Most: room.New(limit).Most(),
		}}
		m.runner = beside.NewRunner(beside.Runner{
			Work:   func(ctx context.Context) (beside.Pause, error) { return w.work(ctx, m) },
			Failed: "Cannot limit the remembered clients of session affinity",
		})
		w.maps = append(w.maps, m)
	}
	return w
}

// Listener returns the functions that the loop calls.
func (w *Watcher) Listener() beside.Listener {
	return beside.Listener{Of: beside.Remembering, Synced: w.Synced}
}

// Synced reads the service ports with session affinity after a successful sync. The first call must have all service
// ports: clients without a Service may be forgotten.
func (w *Watcher) Synced(s *beside.Sync) {
	if s.Err != nil {
		return
	}
	if changed := w.Changed(); len(changed) > 0 {
		w.own(changed)
	}
}

// own records that the clients of service ports belong to the named Services, or that a service port has none any more
// if the name is the zero name.
func (w *Watcher) own(changed map[plan.Number]types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := len(w.owners)
	for port, service := range changed {
		if service == (types.NamespacedName{}) {
			delete(w.owners, port)
		} else {
			w.owners[port] = service
		}
	}
	switch now := len(w.owners); {
	case before == 0 && now > 0:
		for _, m := range w.maps {
			m.runner.Wake()
		}
	case now == 0:
		for _, m := range w.maps {
			m.state.Clients, m.state.Crowded = -1, false
		}
	}
}

// States returns the states of all maps.
func (w *Watcher) States() (list []State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.maps {
		list = append(list, m.state)
	}
	return list
}

// Run follows the maps until the context ends.
func (w *Watcher) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, m := range w.maps {
		wg.Go(func() {
			runtime.LockOSThread() // for spent
			defer runtime.UnlockOSThread()
			logger := klog.FromContext(ctx).WithValues("ipFamily", m.Set.Family)
			m.runner.Run(klog.NewContext(ctx, logger))
		})
	}
	wg.Wait()
}

// work looks at one map, if a service port has session affinity.
func (w *Watcher) work(ctx context.Context, m *watched) (beside.Pause, error) {
	w.mu.Lock()
	owners := len(w.owners)
	w.mu.Unlock()
	if owners == 0 {
		return beside.UntilWake, nil
	}
	pause, err := w.look(ctx, m)
	switch {
	case errors.Is(err, unix.ENOENT): // another program has deleted the table; the loop repairs it
		pause, err = every, nil
	case err != nil:
		pause = idle
	}
	return beside.Exactly(pause), err
}

// look counts the clients of a map, and forgets some if there are too many. It returns the pause before the next call.
func (w *Watcher) look(ctx context.Context, m *watched) (pause time.Duration, err error) {
	limit := int(m.Set.Size)
	n, err := m.Reader.Count(m.Set)
	if err != nil {
		return 0, err
	}
	counts := n >= 0
	if last := w.last(m); !counts && reaches(last, limit, half) {
		n = last
	}
	if n >= 0 && !reaches(n, limit, half) {
		w.counted(m, n)
		return every, w.relieve(ctx, m, n)
	}
	t := newTrim(limit, n)
	forgotten, err := w.read(ctx, m, t)
	if err != nil {
		return 0, err
	}
	if t.whole && !counts {
		t.total = t.read
	}
	w.finished(m, t, forgotten)
	if forgotten == 0 {
		return idle, w.relieve(ctx, m, t.total) // nothing to do, or another instance serves
	}
	return every, w.crowd(ctx, m, t.surplus)
}

// read reads a map, and forgets the clients that t selects. It returns their number.
func (w *Watcher) read(ctx context.Context, m *watched, t *trim) (forgotten int, err error) {
	var list []nft.Element
	var since time.Time // the first client of the list was read
	forget := func() bool {
		n, failed := w.Forget(ctx, list)
		forgotten, err, list = forgotten+n, failed, list[:0]
		return failed == nil && n > 0
	}
	start, listed, first, more := spent(), 0, 0, true
	_, failed := m.Reader.Each(m.Set, func(f *nft.Found) bool {
		switch {
		case t.repeats(f.Key.Bytes()):
		case f.Expires > 0 && f.Expires < soon:
			t.count()
		case t.forgets(w.owner(&f.Element)):
			if len(list) == 0 {
				since = time.Now()
			}
			list = append(list, f.Element)
		}
		if listed++; t.forgotten == 0 {
			first = listed
		}
		pauses := listed%atOnce == 0
		if len(list) == mostForgotten || pauses && len(list) > 0 && time.Since(since) > patience {
			more = forget()
		}
		if pauses {
			parts := share
			if reaches(t.total-t.forgotten, t.limit, (half+sixteenths)/2) { //nolint:mnd // three quarters
				parts = hurried
			}
			beside.Sleep(ctx, (spent()-start)*time.Duration(parts-1))
			start = spent()
		}
		more = more && ctx.Err() == nil && (!t.known || t.above && listed <= far*max(first, t.most))
		return more
	})
	t.whole = more
	if len(list) > 0 && err == nil && ctx.Err() == nil {
		forget()
	}
	if err == nil {
		err = failed
	}
	return forgotten, err
}

// relieve makes the node remember new clients of all namespaces again, if a map has few clients.
func (w *Watcher) relieve(ctx context.Context, m *watched, clients int) error {
	if reaches(clients, m.state.Limit, calm) {
		return nil
	}
	return w.crowd(ctx, m, nil)
}

// crowd adds the namespaces that have lost clients to those whose new clients are not remembered. With nil, no
// namespace is left.
func (w *Watcher) crowd(ctx context.Context, m *watched, surplus map[string]int) error {
	crowded := map[string]bool{}
	for n := range surplus {
		crowded[n] = n != ""
	}
	if surplus != nil {
		maps.Copy(crowded, m.crowded)
	}
	if len(crowded)+len(m.crowded) == 0 {
		return nil
	}
	f := m.Set.Family
	var ports []plan.Number
	w.mu.Lock()
	for port, service := range w.owners {
		if port.Family == f && crowded[service.Namespace] {
			ports = append(ports, port)
		}
	}
	w.mu.Unlock()
	m.crowded = crowded
	return w.Crowd(ctx, f, ports)
}

// last returns the number of clients at the last count or reading of a map.
func (w *Watcher) last(m *watched) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.state.Clients
}

func (w *Watcher) owner(client *nft.Element) types.NamespacedName {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owners[plan.NumberOfClient(client)]
}

// counted records the number of clients of a map.
func (w *Watcher) counted(m *watched, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &m.state
	if s.Clients = n; !reaches(n, s.Limit, calm) {
		s.Crowded = false
	}
}

// finished records a reading. It reports the Service with the most clients if the map has too many for the first time
// since it had few.
func (w *Watcher) finished(m *watched, t *trim, forgotten int) {
	namespace, service := t.largest()
	w.counted(m, t.total-forgotten)
	w.mu.Lock()
	s := &m.state
	s.Forgotten += uint64(forgotten)
	begins := false
	loses := namespace != "" && t.surplus[namespace] > 0
	isFull := namespace != "" && t.forgotten == 0 && reaches(s.Clients, s.Limit, full)
	if loses && forgotten > 0 || isFull {
		begins = !s.Crowded
		s.Crowded, s.Fair, s.Namespace, s.Service = true, !loses, namespace, service
	}
	state := *s
	w.mu.Unlock()
	if begins {
		w.Report(state.problem())
	}
}

// Fix is the fix for a map with too many clients.
const Fix = "shorten spec.sessionAffinityConfig.clientIP.timeoutSeconds, or reject unwanted clients before they " +
	"reach the Service"

// problem returns the problem of the Service with the most clients.
func (s *State) problem() model.Problem {
	return model.Problem{
		Kind: "Service", Name: s.Service, Field: "spec.sessionAffinity", Event: "AffinityFull", Action: "Forget",
		Reason: s.What(), Impact: s.Impact(), Fix: Fix,
	}
}

// What states the fact, and Impact its effect, for a map with too many clients.
func (s *State) What() string {
	if s.Fair {
		return fmt.Sprintf("the node remembers %d %s clients of session affinity, and its limit is %d; namespace %s "+
			"has the most", s.Clients, s.Family, s.Limit, s.Namespace)
	}
	return fmt.Sprintf("namespace %s has the most remembered %s clients of session affinity, more than the limit of a "+
		"namespace, %d, while the node remembers more than half of its limit of %d",
		s.Namespace, s.Family, s.Most, s.Limit)
}

// Impact returns the effect of the fact.
func (s *State) Impact() string {
	if s.Fair {
		return "new clients of all namespaces may get another endpoint with each connection"
	}
	return "clients of this namespace above the limit may get another endpoint with their next connection; " +
		"clients of other namespaces are remembered"
}

// spent returns the processor time of this thread. During an attack, the processors are busy: pauses in proportion to
// elapsed time would be too long.
func spent() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // always succeeds on Linux
	return time.Duration(t.Nano())
}
