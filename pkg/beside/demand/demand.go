// Package demand watches Services that scale to zero: while such a Service has no endpoint, the rules hold the
// packets of its clients, and add its service ports to a set. The package reads this set twenty times a second, and
// only while a Service has no endpoint. So the cost of a flood is that of a single packet.
//
// In: service ports that hold packets; the kernel's sets.
// Out: a Service that clients want, once for each outage; the Services with demand at a time.
// Never: changes a table, or delays the loop.
package demand

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// every is the time between two readings. share bounds the time that readings take: the pause is at least share times
// the last one's duration.
const (
	every = 50 * time.Millisecond
	share = 20
)

// Reader lists the elements of a set.
type Reader interface {
	Each(*nft.Set, func(*nft.Found) (more bool)) (whole bool, err error)
}

// Config has the parts of a Watcher.
type Config struct {
	// Reader reads Sets, the sets of service ports with demand ([plan.HeldSet]).
	Reader Reader
	Sets   []*nft.Set
	// Changed returns the service ports that began or stopped to hold packets since the last call, with their Services
	// ([plan.Planner.TakeOwners]).
	Changed func() map[plan.Number]types.NamespacedName
	// Wanted receives each Service that clients want, once for each outage.
	Wanted func(types.NamespacedName)
	Now    func() time.Time
}

// Watcher is a listener that follows the demand for Services without endpoints. Its other methods are safe for
// concurrent use.
type Watcher struct {
	Config
	runner *beside.Runner

	mu    sync.Mutex
	ports map[plan.Number]port
	// asleep are the Services with service ports that hold packets.
	asleep map[types.NamespacedName]*sleep
	// last is the time of the last held packet of each Service with demand.
	last map[types.NamespacedName]time.Time
}

// sleep is the time since which a Service has no endpoint. ports is the number of its service ports that hold packets.
type sleep struct {
	ports int
	since time.Time
}

// port is a service port that holds packets, since a time.
type port struct {
	service types.NamespacedName
	since   time.Time
}

// New returns a watcher. [Watcher.Run] reads the sets.
func New(c Config) *Watcher {
	w := &Watcher{
		Config: c, ports: map[plan.Number]port{}, asleep: map[types.NamespacedName]*sleep{},
		last: map[types.NamespacedName]time.Time{},
	}
	w.runner = beside.NewRunner(beside.Runner{
		Work: w.read, Failed: "Cannot read the demand for Services without endpoints",
	})
	return w
}

// Listener returns the functions that the loop calls.
func (w *Watcher) Listener() beside.Listener {
	return beside.Listener{Of: beside.Holding, Synced: w.Synced}
}

// Synced reads the service ports that hold packets since a successful sync. After a start, packets that the rules of an
// earlier process have held also count as demand.
func (w *Watcher) Synced(s *beside.Sync) {
	if s.Err != nil {
		return
	}
	since := s.Begun
	if s.First {
		since = time.Time{}
	}
	for port, service := range w.Changed() {
		w.holds(port, service, since)
	}
}

// holds records that a service port holds packets for a Service since a time, or does not hold packets if the name is
// the zero name. Earlier packets are those of an earlier Service with the same number.
func (w *Watcher) holds(h plan.Number, service types.NamespacedName, since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p, held := w.ports[h]; held {
		if p.service == service {
			return
		}
		delete(w.ports, h)
		s := w.asleep[p.service]
		if s.ports--; s.ports == 0 {
			delete(w.asleep, p.service)
		}
	}
	if service == (types.NamespacedName{}) {
		return
	}
	const tick = 20 * time.Millisecond // the kernel rounds the time that an element has left
	p := port{service, since.Add(-tick)}
	w.ports[h] = p
	if w.asleep[service] == nil {
		w.asleep[service] = &sleep{since: p.since}
	}
	w.asleep[service].ports++
	w.runner.Wake()
}

// Run reads the sets until the context ends.
func (w *Watcher) Run(ctx context.Context) { w.runner.Run(ctx) }

// read reads all sets, if a service port holds packets.
func (w *Watcher) read(context.Context) (beside.Pause, error) {
	w.mu.Lock()
	ports := len(w.ports)
	w.mu.Unlock()
	if ports == 0 {
		return beside.UntilWake, nil
	}
	start := time.Now()
	for _, s := range w.Sets {
		var wanted []types.NamespacedName
		_, err := w.Reader.Each(s, func(f *nft.Found) bool {
			number := plan.Number{Family: s.Family, Number: f.Key.AsUint32()}
			if name, isNew := w.note(number, plan.DemandTime-f.Expires); isNew {
				wanted = append(wanted, name)
			}
			return true
		})
		for _, name := range wanted {
			w.Wanted(name)
		}
		if err != nil {
			return beside.Exactly(time.Second), fmt.Errorf("read demand: %w", err)
		}
	}
	return beside.Exactly(max(every, share*time.Since(start))), nil
}

// note records the age of a service port's last held packet. It reports whether an outage of its Service begins:
// no packet was held for DemandTime, or an endpoint has served in between.
func (w *Watcher) note(h plan.Number, age time.Duration) (service types.NamespacedName, isNew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, holds := w.ports[h]
	at := w.Now().Add(-age)
	if !holds || at.Before(p.since) { // an earlier Service had the number
		return service, false
	}
	last, known := w.last[p.service]
	if known && !at.After(last) {
		return service, false
	}
	w.last[p.service] = at
	return p.service, !known || at.Sub(last) > plan.DemandTime || last.Before(w.asleep[p.service].since)
}

// Each calls a function for each Service that has no endpoint and holds packets, and for each with a held packet
// within [plan.DemandTime], in no order. wanted is true for the latter.
func (w *Watcher) Each(f func(service types.NamespacedName, wanted bool)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	for service, at := range w.last {
		if now.Sub(at) > plan.DemandTime {
			if w.asleep[service] == nil {
				delete(w.last, service)
			}
			continue
		}
		f(service, true)
	}
	for service := range w.asleep {
		if at, known := w.last[service]; !known || now.Sub(at) > plan.DemandTime {
			f(service, false)
		}
	}
}
