package report

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

const (
	// window is the period for which the numbers of reported problems, and of Events about demand, are limited.
	window = 10 * time.Minute
	// perNode is the number of problems that are reported in a window, and of Events that wait for the rate.
	perNode = 500
	// mostRemembered is the number of suppressed problems that are remembered.
	mostRemembered = 2_000
	// longestText is the longest reported reason, in bytes: an Event has room for 1,024.
	longestText = 800
)

type object struct{ kind, namespace, name string }

func objectOf(p model.Problem) object { return object{p.Kind, p.Name.Namespace, p.Name.Name} }

// owner returns the name under which an object takes room: its namespace, or kind and name of an object without a
// namespace.
func (o object) owner() string {
	if o.namespace == "" {
		return o.kind + "/" + o.name
	}
	return o.namespace
}

// rooms share a quantity among namespaces. Objects without a namespace, such as the Node, have a room of their own, in
// which each object has the part of a namespace.
type rooms struct{ namespaced, others *room.Room }

func newRooms(limit int) rooms { return rooms{room.New(limit), room.New(limit)} }

func (r rooms) of(o object) *room.Room {
	if o.namespace == "" {
		return r.others
	}
	return r.namespaced
}

// take takes a unit for an object, or returns the reason why there is none. give gives it back.
func (r rooms) take(o object) room.Shortage { return r.of(o).Change(o.owner(), 0, 1) }
func (r rooms) give(o object)               { r.of(o).Change(o.owner(), 1, 0) }

// allowance is a quantity that is shared again in each window.
type allowance struct {
	limit int
	ends  time.Time
	rooms
}

// renew begins a new window if the last one has ended, and reports whether it did.
func (a *allowance) renew(now time.Time) bool {
	if now.Before(a.ends) {
		return false
	}
	a.ends, a.rooms = now.Add(window), newRooms(a.limit)
	return true
}

// budget limits the number of reported problems. A flood of invalid objects must fill neither the log nor the API
// server, and must not silence problems of other namespaces. The budget remembers suppressed problems, and reports them
// when there is room.
type budget struct {
	mu      sync.Mutex
	granted allowance
	// memory shares the room for remembered problems. remembered has the sequence number of each.
	memory     rooms
	remembered map[model.Problem]uint64
	sequence   uint64
	// foreign are the problems of this window that Services of other namespaces cause, see [budget.repeats].
	foreign map[model.Problem]struct{}
	suppressed
	// waits is true if a timer will renew the budget at the end of this window.
	waits bool
}

// suppressed has the numbers of problems that were suppressed in a window: because of the share of a namespace, by
// owner, or because the limit of the node was reached.
type suppressed struct {
	ofNamespaces map[string]int
	ofNode       int
}

func newBudget() budget {
	return budget{
		granted: allowance{limit: perNode}, memory: newRooms(mostRemembered), remembered: map[model.Problem]uint64{},
		foreign:    map[model.Problem]struct{}{},
		suppressed: suppressed{ofNamespaces: map[string]int{}},
	}
}

// repeats reports whether a problem that a Service of another namespace causes was reported in this window, perhaps
// with another cause. Otherwise, Services that take an address and release it, by turns, would use up the share of the
// namespace that had the address. The caller holds mu.
func (b *budget) repeats(p model.Problem) bool {
	if p.EventReason == "" {
		return false
	}
	p.Reason = ""
	_, again := b.foreign[p]
	if !again && len(b.foreign) < perNode {
		b.foreign[p] = struct{}{}
	}
	return again
}

// take returns whether a problem may be reported, or whose limit does not permit it. first is true for the first
// problem of a window that this limit suppresses. Call renew before.
func (b *budget) take(p model.Problem) (lacks room.Shortage, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := objectOf(p)
	if lacks = room.OfNamespace; !b.repeats(p) {
		lacks = b.granted.take(o)
	}
	switch lacks {
	case room.None:
		return lacks, false
	case room.OfNamespace:
		b.ofNamespaces[o.owner()]++
		first = b.ofNamespaces[o.owner()] == 1
	case room.OfNode:
		b.ofNode++
		first = b.ofNode == 1
	}
	if _, known := b.remembered[p]; !known && b.memory.take(o) == room.None {
		b.sequence++
		b.remembered[p] = b.sequence
	}
	return lacks, first
}

// withdraw forgets a suppressed problem.
func (b *budget) withdraw(p model.Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(p)
}

func (b *budget) forget(p model.Problem) {
	if _, known := b.remembered[p]; known {
		delete(b.remembered, p)
		b.memory.give(objectOf(p))
	}
}

// renew begins a new window if the last one has ended. It returns the numbers of the last window, and the remembered
// problems that may be reported now.
func (b *budget) renew(now time.Time) (before suppressed, list []model.Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.granted.renew(now) {
		return before, nil
	}
	before, b.suppressed, b.waits = b.suppressed, suppressed{ofNamespaces: map[string]int{}}, false
	clear(b.foreign)
	for _, p := range b.inTurns() {
		if b.granted.take(objectOf(p)) == room.None {
			b.forget(p)
			list = append(list, p)
		}
	}
	return before, list
}

// inTurns returns the remembered problems: the oldest one of each owner, then the second one of each, and so on.
func (b *budget) inTurns() []model.Problem {
	list := slices.SortedFunc(maps.Keys(b.remembered), func(p, q model.Problem) int {
		return cmp.Compare(b.remembered[p], b.remembered[q])
	})
	turns, of := make(map[model.Problem]int, len(list)), map[string]int{}
	for _, p := range list {
		owner := objectOf(p).owner()
		turns[p] = of[owner]
		of[owner]++
	}
	slices.SortStableFunc(list, func(p, q model.Problem) int { return cmp.Compare(turns[p], turns[q]) })
	return list
}

// due returns the time until the budget must be renewed, if no timer waits for it yet, because of a suppressed or a
// remembered problem.
func (b *budget) due(now time.Time) (after time.Duration, start bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits || len(b.remembered)+len(b.ofNamespaces)+b.ofNode == 0 {
		return 0, false
	}
	b.waits = true
	return b.granted.ends.Sub(now), true
}

// short returns the beginning of a reason.
func short(text string) string {
	if len(text) > longestText {
		return text[:longestText] + "…"
	}
	return text
}
