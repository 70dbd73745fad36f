package proxy

import (
	"cmp"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// queue holds the changed Services that wait to be planned. Each round has Services of one kind, in turns by namespace.
// The kinds also take turns. So large Services do not delay the commit of small ones, and small ones do not starve
// large ones. A namespace with little work does not wait for a turn of each namespace with much work, however many
// these are: its Services have rounds of their own, which are first after each other round. If all small Services that
// wait have room in such a round, it also has these.
//
// A Service that releases a frontend waits until all Services of its namespace that already wait are planned, because
// one of these may take over the frontend. If an earlier round removed the old owner, the kernel would reject packets
// until the round with the new owner. The queue does not wait for a new owner in another namespace: otherwise, a
// namespace with many changes could delay the changes of others. Of the Services that release frontends, the youngest
// one is first: if many Services claim the same frontends and all of them are deleted, the frontends would otherwise
// pass from each Service to the next oldest one.
//
// After a round with a large Service, all large Services rest for twice the time of this round. So large Services use
// at most a third of the loop's time, and most changes of small Services need not wait for a large one.
type queue struct {
	kinds [kinds]turns
	// last is the index in rotation of the kind of the last round.
	last     int
	services map[types.NamespacedName]*waiting
	arrivals uint64
	// spent has the costs of the little Services of each namespace since a time.
	spent map[string]int
	since time.Time
	// tired is true if the current round has a large Service. Then all large Services rest.
	tired bool
	rest  rest
}

// kind is a kind of Services in the queue.
type kind int

const (
	// little are Services of namespaces whose changes need at most littleElements together in a time of littleEvery.
	little kind = iota
	small
	large
	releasing
	kinds
)

// rotation is the order in which the kinds have turns. After a round of another kind, little Services are first, then
// small ones.
var rotation = [...]kind{little, small, little, releasing, little, small, little, large}

const (
	littleElements = turnElements / 4
	littleEvery    = time.Second
)

// mostOf has the greatest cost of a Service of each kind.
var mostOf = [kinds]int{littleElements, turnElements, math.MaxInt, math.MaxInt}

// restOfLarge is the time for which large Services rest, as a multiple of the time of their last round.
const restOfLarge = 2

func newQueue() queue {
	q := queue{services: map[types.NamespacedName]*waiting{}, spent: map[string]int{}}
	q.kinds[releasing].byAge = true
	return q
}

// push adds a Service with its estimated cost. A Service that already waits keeps its position.
func (q *queue) push(name types.NamespacedName, cost int) {
	if w := q.services[name]; w != nil {
		q.kinds[w.kind].cost += q.grow(w, cost)
		return
	}
	if len(q.services) == 0 {
		q.last = len(rotation) - 1
	}
	q.arrivals++
	w := &waiting{name: name, cost: cost, arrived: q.arrivals, kind: small}
	if spent := q.spent[name.Namespace] + cost; spent <= littleElements {
		w.kind, q.spent[name.Namespace] = little, spent
	}
	q.enlarge(w)
}

// begin begins a round: it ends rests and times that are over.
func (q *queue) begin(now time.Time) {
	if q.rest.end(now); now.Sub(q.since) >= littleEvery {
		clear(q.spent)
		q.since = now
	}
}

// waits reports whether a Service of a namespace waits.
func (q *queue) waits(namespace string) bool {
	return slices.ContainsFunc(q.kinds[:], func(t turns) bool { return t.lines[namespace] != nil })
}

// postpone puts a Service that releases frontends behind all Services of its namespace that wait.
func (q *queue) postpone(w *waiting, age model.Age) {
	w.arrived, w.age, w.kind = q.arrivals, age, releasing
	q.services[w.name] = w
	q.kinds[releasing].add(w)
}

// grow raises the cost of a Service, also to the account of its namespace, and returns the difference.
func (q *queue) grow(w *waiting, cost int) (more int) {
	more = max(0, cost-w.cost)
	if w.cost += more; w.kind == little {
		q.spent[w.name.Namespace] += more
	}
	return more
}

// fits reports whether the cost of a Service allows its kind.
func (q *queue) fits(w *waiting) bool {
	return w.cost <= mostOf[w.kind] && (w.kind != little || q.spent[w.name.Namespace] <= littleElements)
}

// enlarge puts a Service among those of its kind, or of a later kind if it does not fit.
func (q *queue) enlarge(w *waiting) {
	for !q.fits(w) {
		w.kind++
	}
	q.services[w.name] = w
	q.kinds[w.kind].add(w)
}

// next removes and returns the next Service of a round, or nil if the round has no more. begun is false if the round
// has no Service yet: the kind is then the next one in the rotation.
func (q *queue) next(begun bool) *waiting {
	for range rotation {
		if !begun {
			q.kinds[rotation[q.last]].endTurn()
			q.last = (q.last + 1) % len(rotation)
		}
		of := rotation[q.last]
		w := q.take(of)
		if w == nil && begun && of == little && q.kinds[small].cost <= roundElements {
			w = q.take(small) // one round for all of them
		}
		if w != nil || begun {
			return w
		}
	}
	return nil
}

// take removes and returns the next Service of a kind, or nil.
func (q *queue) take(of kind) *waiting {
	w := q.kinds[of].next(q.isReady)
	for ; w != nil && !q.fits(w); w = q.kinds[of].next(q.isReady) {
		q.enlarge(w) // it has grown since its arrival
	}
	if w != nil {
		delete(q.services, w.name)
	}
	return w
}

// ready reports whether next would return a Service of a new round.
func (q *queue) ready() bool {
	return slices.ContainsFunc(q.kinds[:], func(t turns) bool { return t.find(q.isReady) >= 0 })
}

// isReady reports whether a Service may be planned now.
func (q *queue) isReady(w *waiting) bool {
	if w.kind >= large && w.cost > turnElements && !q.rest.until.IsZero() {
		return false
	}
	return w.kind != releasing || !slices.ContainsFunc(q.kinds[:releasing], func(t turns) bool {
		return !t.passed(w.name.Namespace, w.arrived)
	})
}

// committed ends the round, which took some time. If it has a large Service, large Services rest.
func (q *queue) committed(now time.Time, took time.Duration) {
	if q.tired {
		q.tired = false
		q.rest.after(now, took, restOfLarge)
	}
}

// rest limits the share of the loop's time that some expensive work takes: after each piece of this work, the work
// rests for a multiple of the time that the piece took. Meanwhile, the loop handles other changes.
type rest struct {
	// until is the end of the rest; zero if the work does not rest.
	until time.Time
}

// after starts the rest after a piece of work that has just ended.
func (r *rest) after(now time.Time, took time.Duration, multiple int) {
	r.until = now.Add(time.Duration(multiple) * took)
}

// end ends the rest if its time is over, and reports whether it did.
func (r *rest) end(now time.Time) bool {
	over := !r.until.IsZero() && !now.Before(r.until)
	if over {
		r.until = time.Time{}
	}
	return over
}

// turns hands out Services in turns by namespace: a namespace with many or large Services delays the Services of
// another namespace by one turn of its own, not by all of its Services.
type turns struct {
	// byAge is true if the youngest Service of a namespace is next. Otherwise, the latest and the first arrival
	// alternate: a new change need not wait for a storm, and the storm makes progress.
	byAge bool
	lines map[string]*line
	// order lists the namespaces with waiting Services. The first one has the next turn.
	order []string
	// cost is the sum of the costs of the waiting Services.
	cost int
}

// line has the waiting Services of a namespace, in the order of their arrival or age.
type line struct {
	list []*waiting
	// first is true if the first Service of the list is next, otherwise the last one.
	first bool
	// spent is the sum of the costs of the current turn.
	spent int
}

// waiting is a Service that waits for its turn.
type waiting struct {
	name types.NamespacedName
	// cost estimates the work in elements.
	cost int
	// arrived is the number of the arrival. Later arrivals have greater numbers.
	arrived uint64
	// age is that of the planned Service. It is set for a Service that releases frontends.
	age model.Age
	// kind is the kind of the Service in the queue.
	kind kind
}

// turnElements is the number of elements after which a turn ends. A Service with more elements is large.
const turnElements = 1_000

// add puts a Service into the line of its namespace.
func (t *turns) add(w *waiting) {
	l := t.lines[w.name.Namespace]
	if l == nil {
		if t.lines == nil {
			t.lines = map[string]*line{}
		}
		l = &line{}
		t.lines[w.name.Namespace] = l
		t.order = append(t.order, w.name.Namespace)
	}
	at, _ := slices.BinarySearchFunc(l.list, w, func(a, b *waiting) int {
		if t.byAge {
			return cmp.Or(a.age.Compare(b.age), model.CompareNames(a.name, b.name))
		}
		return cmp.Compare(a.arrived, b.arrived)
	})
	l.list = slices.Insert(l.list, at, w)
	t.cost += w.cost
}

// find returns the first namespace whose next Service is ready, as an index of order; -1 if there is none.
func (t *turns) find(ready func(*waiting) bool) int {
	return slices.IndexFunc(t.order, func(namespace string) bool {
		l := t.lines[namespace]
		if l.first {
			return ready(l.list[0])
		}
		return ready(l.list[len(l.list)-1])
	})
}

// next removes and returns the next Service for which ready returns true, or nil. After its turn, a namespace waits
// behind all others.
func (t *turns) next(ready func(*waiting) bool) (w *waiting) {
	first := t.find(ready)
	if first < 0 {
		return nil
	}
	namespace := t.order[first]
	l := t.lines[namespace]
	if last := len(l.list) - 1; l.first {
		w, l.list = l.list[0], l.list[1:]
	} else {
		w, l.list = l.list[last], l.list[:last]
	}
	l.first = !t.byAge && !l.first
	l.spent += w.cost
	t.cost -= w.cost
	if len(l.list) > 0 && l.spent < turnElements {
		return w
	}
	// Only the namespaces before this one move, which are not ready: there may be thousands behind it.
	copy(t.order[1:first+1], t.order[:first])
	t.order = t.order[1:]
	if l.spent = 0; len(l.list) > 0 {
		t.order = append(t.order, namespace)
	} else {
		delete(t.lines, namespace)
	}
	return w
}

// endTurn ends the turn of a namespace at the end of a round.
func (t *turns) endTurn() {
	if len(t.order) > 0 && t.lines[t.order[0]].spent > 0 {
		t.lines[t.order[0]].spent = 0
		t.order = append(t.order[1:], t.order[0])
	}
}

// passed reports whether no Service of a namespace has arrived up to a number.
func (t *turns) passed(namespace string, number uint64) bool {
	l := t.lines[namespace]
	return l == nil || l.list[0].arrived > number
}
