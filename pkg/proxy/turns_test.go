package proxy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// waitingFor parses NAMESPACE/NAME:COST.
func waitingFor(t *testing.T, text string) (name types.NamespacedName, cost int) {
	t.Helper()
	namespace, rest, _ := strings.Cut(text, "/")
	id, _, _ := strings.Cut(rest, ":")
	_, err := fmt.Sscanf(text, namespace+"/"+id+":%d", &cost)
	lab.Must(t, err)
	return types.NamespacedName{Namespace: namespace, Name: id}, cost
}

func TestOrderOfTurns(t *testing.T) {
	for _, c := range []struct{ title, arrive, want string }{
		{"one namespace: newest and oldest in turn", "a/1:1 a/2:1 a/3:1 a/4:1", "4 1 3 2"},
		{"one turn of each namespace", "a/1:600 a/2:600 a/3:600 b/4:600 b/5:600", "3 5 1 4 2"},
		{"a turn has several small Services", "a/1:400 a/2:400 a/3:400 b/4:1", "3 1 4 2"},
		{"small Services before large ones, in batches of their own", "a/1:2000 b/2:10 a/3:10", "2 3 | 1"},
		{"large Services have turns, too", "a/1:1200 a/2:1200 b/3:1300", "2 3 1"},
		{"a batch ends at its size", "a/1:6000 a/2:6000 b/3:6000 c/4:30000", "2 | 3 | 4 | 1"},
	} {
		t.Run(c.title, func(t *testing.T) {
			q := newQueue()
			for text := range strings.FieldsSeq(c.arrive) {
				name, cost := waitingFor(t, text)
				q.push([]types.NamespacedName{name}, func(types.NamespacedName) int { return cost })
			}
			var batches []string
			for q.waiting() > 0 {
				batch, of := q.next()
				var names []string
				for _, w := range batch {
					names = append(names, w.name.Name)
					q.remove(w)
				}
				q.kinds[of].done(batch)
				batches = append(batches, strings.Join(names, " "))
			}
			lab.Same(t, c.want, strings.Join(batches, " | "), "order")
		})
	}
}

// Large Services rest after a batch with one of them, for twice its time. Small Services, and givers that are small, do
// not.
func TestLargeServicesRest(t *testing.T) {
	q, start := newQueue(), time.Unix(1_000_000, 0)
	handOut := func() (names []string) {
		batch, of := q.next()
		for _, w := range batch {
			names = append(names, w.name.Name)
			q.remove(w)
			q.tired = q.tired || w.cost > turnElements
		}
		q.kinds[of].done(batch)
		return names
	}
	arrive := func(texts ...string) {
		for _, text := range texts {
			name, cost := waitingFor(t, text)
			q.push([]types.NamespacedName{name}, func(types.NamespacedName) int { return cost })
		}
	}
	arrive("a/1:20000", "a/2:20000", "b/3:5000")
	lab.Same(t, []string{"2"}, handOut(), "first batch")
	q.committed(start, 100*time.Millisecond)
	lab.Same(t, []string(nil), handOut(), "batch while large Services rest")
	lab.Same(t, false, q.ready(), "ready")
	w := &waiting{name: types.NamespacedName{Namespace: "d", Name: "5"}, cost: 20_000, arrived: q.arrivals}
	q.putGiver(w, model.Age{}, nil, nil)
	lab.Same(t, false, q.ready(), "ready with a large giver")
	arrive("c/4:10")
	lab.Same(t, true, q.ready(), "ready with a small Service")
	lab.Same(t, []string{"4"}, handOut(), "small Service")
	q.committed(start, time.Hour) // a batch without a large Service
	lab.Same(t, false, q.rest.end(start.Add(199*time.Millisecond)), "end after 199 ms")
	lab.Same(t, true, q.rest.end(start.Add(200*time.Millisecond)), "end after 200 ms")
	var rest []string
	for q.ready() {
		rest = append(rest, handOut()...)
	}
	slices.Sort(rest)
	lab.Same(t, []string{"1", "3", "5"}, rest, "after the rest")
}

// Of the Services that release frontends, the youngest one of a namespace is always first: of several that claim the
// same frontends, it has none of them, so no frontend passes from one to the next.
func TestYoungestGiverIsFirst(t *testing.T) {
	q := newQueue()
	for i, created := range []int64{3, 1, 5, 2, 5, 4} {
		w := &waiting{name: types.NamespacedName{Namespace: "a", Name: fmt.Sprint(i)}, cost: turnElements, arrived: uint64(i)}
		q.putGiver(w, model.Age{Created: created}, nil, nil)
	}
	var order []string
	for q.waiting() > 0 {
		batch, of := q.next()
		for _, w := range batch {
			order = append(order, w.name.Name)
			q.remove(w)
		}
		q.kinds[of].done(batch)
	}
	lab.Same(t, []string{"4", "2", "5", "0", "3", "1"}, order, "order")
}

// Namespaces with random changes share the queue. For each Service, the work of each other namespace between its
// arrival and its turn has a bound: it does not depend on the other namespace's waiting Services.
func TestNoNamespaceDelaysAnother(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 0))
		q := newQueue()
		const greatest = 30_000
		alone := map[types.NamespacedName]string{}
		costs := map[types.NamespacedName]int{}
		// served holds the work for each namespace. At the arrival of a Service that is alone in its namespace, before
		// has a copy.
		served, before := map[string]int{}, map[types.NamespacedName]map[string]int{}
		pushed, handed := 0, 0
		push := func(namespace string, cost int) types.NamespacedName {
			pushed++
			name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(pushed)}
			costs[name] = cost
			q.push([]types.NamespacedName{name}, func(n types.NamespacedName) int { return costs[n] })
			before[name] = maps.Clone(served)
			return name
		}
		quiet := []string{"quiet-0", "quiet-1", "quiet-2"}
		busy := []string{"busy-0", "busy-1"}
		for range 300 {
			for _, namespace := range busy { // creates more work than one batch can do
				for range random.IntN(40) {
					push(namespace, 1+int(random.ExpFloat64()*300))
				}
				for range random.IntN(3) {
					push(namespace, 1+random.IntN(greatest))
				}
			}
			if namespace := quiet[random.IntN(len(quiet))]; !slices.Contains(slices.Collect(maps.Values(alone)), namespace) {
				alone[push(namespace, 1+random.IntN(2*turnElements))] = namespace
			}
			batch, of := q.next()
			batch = batch[:1+random.IntN(len(batch))] // the time for the batch may be up
			for _, w := range batch {
				q.remove(w)
				if strings.HasPrefix(w.name.Namespace, "quiet") {
					for _, other := range busy {
						// A large Service may wait for one batch of small Services, for a turn of each namespace before
						// it, and for a turn of large ones.
						if work := served[other] - before[w.name][other]; work > 2*batchElements+2*greatest {
							t.Fatalf("seed %d: %v of cost %d waited for %d elements of %s", seed, w.name, w.cost, work, other)
						}
					}
				}
				served[w.name.Namespace] += w.cost
				delete(before, w.name)
				delete(alone, w.name)
				handed++
			}
			q.kinds[of].done(batch)
		}
		for q.waiting() > 0 { // everything is planned in the end
			batch, of := q.next()
			for _, w := range batch {
				q.remove(w)
				handed++
			}
			q.kinds[of].done(batch)
		}
		if handed != pushed {
			t.Fatalf("seed %d: %d of %d Services were handed out", seed, handed, pushed)
		}
	}
}
