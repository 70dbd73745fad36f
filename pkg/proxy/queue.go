package proxy

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// queue holds the changed Services that wait to be planned. Each batch has Services of one kind, in turns by namespace.
// The kinds also take turns. So large Services do not delay the commit of small ones, and small ones do not starve
// large ones.
//
// A Service that releases a frontend (a giver) waits until all Services of its namespace that already wait are planned.
// One of these may take over the frontend. If an earlier batch removed the old owner, the kernel would reject packets
// until the batch with the new owner. A new owner in another namespace precedes the giver only if it has its turn in
// time: otherwise, a namespace with many changes could delay the changes of others. Services that exchange frontends
// are in one batch, up to mostChained of them. The youngest giver of a namespace is first. If many Services claim the
// same frontends and all of them are deleted, a frontend would otherwise pass from the oldest Service to the next
// oldest one, and so on: the cost would be the product of the numbers of Services and frontends.
//
// After a batch with a large Service, all large Services rest for twice the time of this batch. So large Services use
// at most a third of the loop's time, and most changes of small Services need not wait for a large one.
type queue struct {
	kinds [kinds]turns
	// last is the index in rotation of the kind of the last batch.
	last     int
	services map[types.NamespacedName]*waiting
	arrivals uint64
	// takers maps a frontend to the giver that takes it over.
	takers map[model.Key]*waiting
	// tired is true if the current batch has a large Service. Then all large Services rest.
	tired bool
	rest  rest
}

// kind is a kind of Services in the queue.
type kind int

const (
	small kind = iota
	givers
	large
	kinds
)

// rotation is the order in which the kinds have turns. After a batch of another kind, small Services are first.
var rotation = [...]kind{small, givers, small, large}

// giver has the frontends that a Service releases and claims. It is empty for a Service that has not been built yet.
type giver struct {
	age          model.Age
	given, taken []model.Frontend
	// after is the number of the last arrival for which the giver waits.
	after uint64
}

// restOfLarge is the time for which large Services rest, as a multiple of the time of their last batch.
const restOfLarge = 2

// mostChained is the largest number of Services that exchange frontends in one batch.
const mostChained = 64

func newQueue() queue {
	q := queue{services: map[types.NamespacedName]*waiting{}, takers: map[model.Key]*waiting{}}
	q.kinds[givers].byAge = true
	return q
}

// waiting returns the number of Services that wait.
func (q *queue) waiting() int { return len(q.services) }

// push adds Services with their estimated costs. A Service that already waits keeps its position. A giver that has
// changed again is no giver until it is built, but it keeps the number of the arrival for which it waits.
func (q *queue) push(names []types.NamespacedName, cost func(types.NamespacedName) int) {
	if len(q.services) == 0 {
		q.last = len(rotation) - 1
	}
	for _, name := range names {
		old := q.services[name]
		if old != nil && old.in != &q.kinds[givers] {
			continue
		}
		q.arrivals++
		w := &waiting{name: name, cost: cost(name), arrived: q.arrivals}
		if old != nil {
			q.remove(old)
			w.after = old.after
		}
		q.put(w)
	}
}

// put adds a Service that is no giver.
func (q *queue) put(w *waiting) {
	q.services[w.name] = w
	if w.cost > turnElements {
		q.kinds[large].add(w)
	} else {
		q.kinds[small].add(w)
	}
}

// putGiver adds a giver that was removed from the queue.
func (q *queue) putGiver(w *waiting, age model.Age, given, taken []model.Frontend) {
	w = &waiting{name: w.name, cost: w.cost, arrived: w.arrived, giver: giver{age, given, taken, w.after}}
	if w.after == 0 {
		w.after = q.arrivals
	}
	q.services[w.name] = w
	q.kinds[givers].add(w)
	for i := range taken {
		q.takers[taken[i].Key] = w
	}
}

// remove removes a Service.
func (q *queue) remove(w *waiting) {
	delete(q.services, w.name)
	w.in.remove(w)
	for i := range w.taken {
		if key := w.taken[i].Key; q.takers[key] == w {
			delete(q.takers, key)
		}
	}
}

// next returns the Services of the next batch, and their kind. The batch is empty if no Service is ready. Call done with
// the Services of the batch that were planned or put back.
func (q *queue) next() (batch []*waiting, of kind) {
	for range rotation {
		q.last = (q.last + 1) % len(rotation)
		of = rotation[q.last]
		if batch = q.kinds[of].next(batchElements, q.isReady); len(batch) > 0 {
			break
		}
	}
	return batch, of
}

// ready reports whether next would return a Service.
func (q *queue) ready() bool {
	return slices.ContainsFunc(q.kinds[:], func(t turns) bool { return len(t.next(0, q.isReady)) > 0 })
}

// isReady reports whether a Service may be planned now.
func (q *queue) isReady(w *waiting) bool {
	switch {
	case q.rest.active() && w.cost > turnElements:
		return false
	case w.in == &q.kinds[givers]:
		return q.kinds[small].since(w.name.Namespace, w.after) && q.kinds[large].since(w.name.Namespace, w.after)
	}
	return true
}

// committed ends the batch, which took some time. If it has a large Service, large Services rest.
func (q *queue) committed(now time.Time, took time.Duration) {
	if q.tired {
		q.tired = false
		q.rest.after(now, took, restOfLarge)
	}
}

// chain removes and returns a giver, each giver that takes over one of its frontends, and so on.
func (q *queue) chain(first *waiting) (chain []*waiting) {
	chain = []*waiting{first}
	cost := first.cost
	for i := 0; i < len(chain); i++ {
		for j := range chain[i].given {
			taker := q.takers[chain[i].given[j].Key]
			if taker == nil || slices.Contains(chain, taker) || len(chain) == mostChained || cost+taker.cost > batchElements && len(chain) > 1 {
				continue
			}
			chain = append(chain, taker)
			cost += taker.cost
		}
	}
	for _, w := range chain {
		q.remove(w)
	}
	return chain
}
