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

// round hands out the Services of a round, and returns the second parts of their names.
func (q *queue) round() (names []string) {
	sum := 0
	for w := q.next(false); w != nil; w = q.next(true) {
		names, sum = append(names, w.name.Name), sum+w.cost
		if q.tired = q.tired || w.cost > turnElements; q.tired || sum >= roundElements {
			break
		}
	}
	return names
}

func TestOrderOfTurns(t *testing.T) {
	for _, c := range []struct{ title, arrive, want string }{
		{"one namespace: newest and oldest in turn", "a/1:1 a/2:1 a/3:1 a/4:1", "4 1 3 2"},
		{"one turn of each namespace", "a/1:1000 a/2:1000 a/3:1000 b/4:1000 b/5:1000", "3 5 1 4 2"},
		{"a turn has several small Services", "a/1:400 a/2:400 a/3:400 a/4:400 b/5:300", "4 1 3 5 2"},
		{"little work is first", "a/1:900 a/2:900 a/3:900 a/4:900 a/5:900 a/6:900 b/7:1", "7 | 6 1 5 2 4 3"},
		{"one round if all have room", "a/1:100 a/2:100 a/3:100 b/4:1", "2 1 4 3"},
		{"a Service that has grown is not little any more", "a/1:1 b/2:300 a/1:300 c/3:2 c/3:2000", "2 1 | 3"},
		{"a namespace whose Services grow has not little work", "a/1:1 a/2:1 a/1:200 a/2:200 b/3:300", "3 2 1"},
		{"small Services before large ones, in rounds of their own", "a/1:2000 b/2:10 a/3:10", "2 3 | 1"},
		{"large Services have turns and rounds of their own", "a/1:1200 a/2:1200 b/3:1300", "2 | 3 | 1"},
		{"a round ends at its size", "a/1:900 b/2:900 c/3:900 d/4:900 e/5:900 f/6:900 g/7:900", "1 2 3 4 5 6 | 7"},
	} {
		t.Run(c.title, func(t *testing.T) {
			q := newQueue()
			for text := range strings.FieldsSeq(c.arrive) {
				q.push(waitingFor(t, text))
			}
			var rounds []string
			for len(q.services) > 0 {
				rounds = append(rounds, strings.Join(q.round(), " "))
			}
			lab.Same(t, c.want, strings.Join(rounds, " | "), "order")
		})
	}
}

// Large Services rest after a round with one of them, for twice its time. Small Services do not, whether they release
// frontends or not.
func TestLargeServicesRest(t *testing.T) {
	q, start := newQueue(), time.Unix(1_000_000, 0)
	arrive := func(texts ...string) {
		for _, text := range texts {
			q.push(waitingFor(t, text))
		}
	}
	arrive("a/1:20000", "a/2:20000", "b/3:5000")
	lab.Same(t, []string{"2"}, q.round(), "first round")
	q.committed(start, 100*time.Millisecond)
	lab.Same(t, []string(nil), q.round(), "round while large Services rest")
	lab.Same(t, false, q.ready(), "ready")
	q.postpone(&waiting{name: types.NamespacedName{Namespace: "d", Name: "5"}, cost: 20_000}, model.Age{})
	lab.Same(t, false, q.ready(), "ready with a large Service that releases frontends")
	arrive("c/4:10")
	lab.Same(t, true, q.ready(), "ready with a small Service")
	lab.Same(t, []string{"4"}, q.round(), "small Service")
	arrive("c/6:10", "c/6:2000", "c/7:10")
	lab.Same(t, []string{"7"}, q.round(), "a small Service, and one that has grown")
	q.committed(start, time.Hour) // a round without a large Service
	lab.Same(t, false, q.rest.end(start.Add(199*time.Millisecond)), "end after 199 ms")
	lab.Same(t, true, q.rest.end(start.Add(200*time.Millisecond)), "end after 200 ms")
	var rest []string
	for q.ready() {
		rest = append(rest, q.round()...)
		q.tired = false
	}
	slices.Sort(rest)
	lab.Same(t, []string{"1", "3", "5", "6"}, rest, "after the rest")
}

// A Service that releases frontends waits for all Services of its namespace that wait, and for no later ones.
func TestServicesThatReleaseAreLast(t *testing.T) {
	q := newQueue()
	arrive := func(texts ...string) {
		for _, text := range texts {
			q.push(waitingFor(t, text))
		}
	}
	arrive("a/1:900", "a/2:900", "a/3:900", "a/4:2000", "b/5:900")
	first := q.next(false)
	lab.Same(t, "3", first.name.Name, "first Service")
	q.postpone(first, model.Age{})
	q.rest.until = time.Unix(1, 0)
	var order []string
	for q.ready() {
		order = append(order, q.next(false).name.Name)
	}
	lab.Same(t, []string{"5", "1", "2"}, order, "before the large Service")
	q.rest = rest{}
	lab.Same(t, "4", q.next(false).name.Name, "large Service")
	arrive("a/6:900")
	q.last = slices.Index(rotation[:], releasing) - 1
	lab.Same(t, "3", q.next(false).name.Name, "Service that releases frontends")
}

// Of the Services that release frontends, the youngest one of a namespace is always first: of several that claim the
// same frontends, it has none of them, so no frontend passes from one to the next.
func TestYoungestServiceThatReleasesIsFirst(t *testing.T) {
	q := newQueue()
	for i, created := range []int64{3, 1, 5, 2, 5, 4} {
		name := types.NamespacedName{Namespace: "a", Name: fmt.Sprint(i)}
		q.postpone(&waiting{name: name, cost: turnElements}, model.Age{Created: created})
	}
	var order []string
	for len(q.services) > 0 {
		order = append(order, q.next(false).name.Name)
	}
	lab.Same(t, []string{"4", "2", "5", "0", "3", "1"}, order, "order")
}

// A namespace with little work waits for the current round and a round of little work, regardless of the number of
// namespaces that change as much as they can. These make progress.
func TestManyNamespacesDelayLikeOne(t *testing.T) {
	for _, busy := range []int{1, roundElements / littleElements} {
		q, now, handed := newQueue(), time.Unix(1_000_000, 0), 0
		for round := range 100 {
			for i := range busy * 20 {
				q.push(waitingFor(t, fmt.Sprintf("busy-%d/%d:100", i%busy, i)))
			}
			q.push(waitingFor(t, "quiet/web:12"))
			q.begin(now.Add(time.Duration(round) * roundTime))
			names := q.round()
			handed += len(names)
			if round%2 == 0 && !slices.Contains(names, "web") && !slices.Contains(q.round(), "web") {
				t.Fatalf("beside %d namespaces, a Service waits after round %d", busy, round)
			}
		}
		lab.Same(t, true, handed > 1_000, "progress")
	}
}

// Namespaces with random changes share the queue. For each Service, the work of each other namespace between its
// arrival and its turn has a bound: it does not depend on the other namespace's waiting Services.
func TestNoNamespaceDelaysAnother(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 0))
		q := newQueue()
		const greatest = 30_000
		alone := map[types.NamespacedName]string{}
		// served holds the work for each namespace. At the arrival of a Service that is alone in its namespace, before
		// has a copy.
		served, before := map[string]int{}, map[types.NamespacedName]map[string]int{}
		pushed, handed := 0, 0
		push := func(namespace string, cost int) types.NamespacedName {
			pushed++
			name := types.NamespacedName{Namespace: namespace, Name: fmt.Sprint(pushed)}
			q.push(name, cost)
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
			sum, end := 0, random.IntN(roundElements) // the time for the round may be up
			for w := q.next(false); w != nil; w = q.next(true) {
				if strings.HasPrefix(w.name.Namespace, "quiet") {
					for _, other := range busy {
						// A large Service may wait for one batch of small Services, for a turn of each namespace before
						// it, and for a turn of large ones.
						if work := served[other] - before[w.name][other]; work > 2*roundElements+2*greatest {
							t.Fatalf("seed %d: %v of cost %d waited for %d elements of %s", seed, w.name, w.cost, work, other)
						}
					}
				}
				served[w.name.Namespace] += w.cost
				delete(before, w.name)
				delete(alone, w.name)
				handed++
				if sum += w.cost; w.cost > turnElements || sum >= end {
					break
				}
			}
		}
		for len(q.services) > 0 { // everything is planned in the end
			q.next(false)
			handed++
		}
		if handed != pushed {
			t.Fatalf("seed %d: %d of %d Services were handed out", seed, handed, pushed)
		}
	}
}
