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
	// byAge is true if the youngest Service of a namespace is next. Otherwise, the order is that of the arrival, from
	// both ends.
	byAge bool
	lines map[string]*line
	// order lists the namespaces. The first one has the next turn. Namespaces without Services stay until the next call
	// of done.
	order []string
}

// line has the waiting Services of a namespace, in the order of their arrival. They are handed out alternately from
// both ends: a new change need not wait for a storm, and the storm makes progress. With byAge, they are in the order of
// their age, and are handed out from the end.
type line struct {
	byAge bool
	list  []*waiting
	// first is true if the first Service of the list is next; otherwise the last one is.
	first bool
}

func (l *line) next() *waiting {
	if l.first {
		return l.list[0]
	}
	return l.list[len(l.list)-1]
}

func (l *line) skip() {
	if l.first {
		l.list = l.list[1:]
	} else {
		l.list = l.list[:len(l.list)-1]
	}
	l.turn()
}

// turn changes the end from which the next Service comes.
func (l *line) turn() { l.first = !l.first && !l.byAge }

// search returns the position of a Service in the list.
func (l *line) search(w *waiting) int {
	at, _ := slices.BinarySearchFunc(l.list, w, func(a, b *waiting) int {
		if l.byAge {
			return cmp.Or(a.age.Compare(b.age), model.CompareNames(a.name, b.name))
		}
		return cmp.Compare(a.arrived, b.arrived)
	})
	return at
}

// waiting is a Service that waits for its turn.
type waiting struct {
	name types.NamespacedName
	// cost estimates the work in elements.
	cost int
	// arrived is the number of the arrival. Later arrivals have greater numbers.
	arrived uint64
	// in has the Service; nil after its removal.
	in *turns
	giver
}

const (
	// turnElements is the number of elements of one turn. A Service with more elements is large: it has a turn of its
	// own.
	turnElements = 1_000
	// batchElements is the number of elements of a batch. To plan and commit them takes some ten milliseconds.
	batchElements = 5_000
)

// add puts a Service into the line of its namespace.
func (t *turns) add(w *waiting) {
	if t.lines == nil {
		t.lines = map[string]*line{}
	}
	l := t.lines[w.name.Namespace]
	if l == nil {
		l = &line{byAge: t.byAge}
		t.lines[w.name.Namespace] = l
		t.order = append(t.order, w.name.Namespace)
	}
	l.list = slices.Insert(l.list, l.search(w), w)
	w.in = t
}

// remove removes a Service.
func (t *turns) remove(w *waiting) {
	l := t.lines[w.name.Namespace]
	if at := l.search(w); at == 0 {
		l.list = l.list[1:] // without a move of the others
	} else {
		l.list = slices.Delete(l.list, at, at+1)
	}
	w.in = nil
}

// next returns the Services of the next turns, up to a sum of costs, but at least one Service. It omits Services for
// which ready, if not nil, returns false. It changes nothing.
func (t *turns) next(most int, ready func(*waiting) bool) (batch []*waiting) {
	order, rests, sum := slices.Clone(t.order), map[string]line{}, 0
	for len(order) > 0 {
		namespace := order[0]
		order = order[1:]
		l, again := rests[namespace]
		if !again {
			l = *t.lines[namespace]
		}
		for turn := 0; len(l.list) > 0; l.skip() {
			w := l.next()
			if ready != nil && !ready(w) {
				continue
			}
			if turn > 0 && turn+w.cost > turnElements {
				break
			}
			if len(batch) > 0 && sum+w.cost > most {
				return batch
			}
			batch = append(batch, w)
			turn, sum = turn+w.cost, sum+w.cost
		}
		if rests[namespace] = l; len(l.list) > 0 {
			order = append(order, namespace)
		}
	}
	return batch
}

// done ends the turns of the namespaces of some Services. These namespaces wait for their next turn behind all others.
func (t *turns) done(served []*waiting) {
	var last []string
	had := map[string]struct{}{}
	for _, w := range served {
		if _, again := had[w.name.Namespace]; !again {
			had[w.name.Namespace] = struct{}{}
			last = append(last, w.name.Namespace)
			t.lines[w.name.Namespace].turn()
		}
	}
	t.order = slices.DeleteFunc(t.order, func(namespace string) bool { _, served := had[namespace]; return served })
	t.order = slices.DeleteFunc(append(t.order, last...), func(namespace string) bool {
		empty := len(t.lines[namespace].list) == 0
		if empty {
			delete(t.lines, namespace)
		}
		return empty
	})
}

// since reports whether all Services of a namespace have arrived after a number. The Services must be in the order of
// their arrival.
func (t *turns) since(namespace string, number uint64) bool {
	l := t.lines[namespace]
	return l == nil || len(l.list) == 0 || l.list[0].arrived > number
}
