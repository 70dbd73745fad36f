package proxy

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// turns hands out Services in turns by namespace: a namespace with many or large Services delays the Services of
// another namespace by one turn of its own, not by all of its Services.
type turns struct {
	// byAge is true if the youngest Service of a namespace is next. Otherwise, the latest and the first arrival
	// alternate: a new change need not wait for a storm, and the storm makes progress.
	byAge bool
	lines map[string]*line
	// order lists the namespaces with waiting Services. The first one has the next turn.
	order []string
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
	switch {
	case len(l.list) == 0:
		delete(t.lines, namespace)
		t.order = slices.Delete(t.order, first, first+1)
	case l.spent >= turnElements:
		l.spent = 0
		t.order = append(slices.Delete(t.order, first, first+1), namespace)
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
