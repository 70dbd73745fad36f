package proxy

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// longestSlice is the longest time for which the loop builds Services before it commits the plan and handles repairs,
// questions and newer changes. The loop may take the same time again to plan the built Services. The limit does not
// apply to the first batch.
const longestSlice = 50 * time.Millisecond

// mostSettled is the number of frontends about which the planner decides again in one batch, see [plan.Conflicts.Settle].
// mostAgain is the largest number of Services that the loop plans again after room became free.
const mostSettled, mostAgain = 2_000, 64

// timeSlice plans Services of the queue for one batch.
type timeSlice struct {
	*Proxy
	begun time.Time
	// planned lists the planned Services, and elements is the number of their elements.
	planned  []types.NamespacedName
	elements int
}

// planFirst plans all Services before the first sync, and answers questions meanwhile. A partial batch would remove the
// Services of an earlier process.
func (p *Proxy) planFirst(names []types.NamespacedName) []types.NamespacedName {
	const answerEvery = 8 // Services
	handled := 0
	p.rebuilder.build(names, nil, func(name types.NamespacedName, service *model.Service) bool {
		if handled++; handled%answerEvery == 0 {
			p.unplanned = len(names) - handled
			p.answer()
		}
		p.planService(name, service)
		return true
	})
	p.unplanned = 0
	p.Planner.Conflicts().Settle(math.MaxInt)
	p.reportConflicts(p.Planner.Conflicts())
	return names
}

// planNext plans the next batch of the queue within the time for one batch. It returns the planned Services.
func (p *Proxy) planNext() []types.NamespacedName {
	s := timeSlice{Proxy: p, begun: p.Now()}
	p.queue.rest.end(s.begun)
	for len(s.planned) == 0 && !s.late() { // again, if all Services were put back
		batch, of := p.queue.next()
		if len(batch) == 0 {
			break
		}
		if of == givers {
			s.planGivers(batch)
		} else {
			s.plan(batch, of)
		}
	}
	p.unsettled = p.Planner.Conflicts().Settle(mostSettled)
	p.reportConflicts(p.Planner.Conflicts())
	p.planWaiting()
	return s.planned
}

// restOfWaiting is the time between two looks at the Services that wait for room, as a multiple of the time of a look.
const restOfWaiting = 20

// planWaiting enqueues Services that lacked room on this node until now. It looks at each Service that waits: a crowd
// of them must not delay other changes.
func (p *Proxy) planWaiting() {
	start := p.Now()
	if p.waitingRest.end(start); !p.waitingRest.active() && p.Planner.Totals().Freed {
		p.enqueue(p.Planner.TakeWaiting(mostAgain))
		now := p.Now()
		p.waitingRest.after(now, now.Sub(start), restOfWaiting)
	}
}

// enqueue puts changed Services into the queue.
func (p *Proxy) enqueue(names []types.NamespacedName) { p.queue.push(names, p.cost) }

// cost estimates the number of elements of a Service, without building it: building a large Service delays all other
// changes.
func (p *Proxy) cost(name types.NamespacedName) int {
	n := p.Planner.Service(name).Elements()
	if n > turnElements/8 {
		return n // a Service of this size grows one EndpointSlice at a time, so its planned size is a good estimate
	}
	return max(1, n, p.Source.Get(name).Size())
}

// late reports whether the loop must stop building.
func (s *timeSlice) late() bool { return s.Now().Sub(s.begun) >= longestSlice }

// over reports whether the loop must stop planning: the batch is large enough, the tables need a repair, or the time is
// up.
func (s *timeSlice) over() bool {
	return s.elements >= batchElements || len(s.planned)%blockSize == 0 && len(s.planned) > 0 && s.guard.touched() || s.Now().Sub(s.begun) >= 2*longestSlice
}

// plan plans Services, or puts them back into the queue: givers, and Services that are larger than expected. It leaves
// Services for which there is no time in the queue. It always handles the first one.
func (s *timeSlice) plan(batch []*waiting, of kind) {
	q := &s.queue
	names := make([]types.NamespacedName, len(batch))
	for i, w := range batch {
		names[i] = w.name
	}
	handled := 0
	s.rebuilder.build(names, s.late, func(_ types.NamespacedName, service *model.Service) bool {
		w := batch[handled]
		handled++
		q.remove(w)
		w.cost = max(1, plan.ElementsIn(service), s.Planner.Service(w.name).Elements())
		switch {
		case of == small && w.cost > turnElements && (len(s.planned)+q.waiting() > 0 || q.rest.active()):
			q.put(&waiting{name: w.name, cost: w.cost, arrived: w.arrived, giver: w.giver})
		case q.waiting() > 0 && s.postpone(w, service):
		default:
			s.planBuilt(w, service)
		}
		return !s.over()
	})
	q.kinds[of].done(batch[:handled])
}

// postpone puts a Service that releases frontends back as a giver, and returns true.
func (s *timeSlice) postpone(w *waiting, service *model.Service) bool {
	planned := s.Planner.Service(w.name)
	given, taken := planned.Moves(service)
	if len(given) > 0 {
		s.queue.putGiver(w, planned.Age(), given, taken)
	}
	return len(given) > 0
}

// planGivers plans givers, each with the givers that exchange frontends with it.
func (s *timeSlice) planGivers(batch []*waiting) {
	handled := 0
	for handled < len(batch) && (handled == 0 || !s.over() && !s.late()) {
		w := batch[handled]
		if handled++; w.in == nil {
			continue // planned with another one
		}
		chain := s.queue.chain(w)
		names := make([]types.NamespacedName, len(chain))
		for i, w := range chain {
			names[i] = w.name
		}
		i := 0
		s.rebuilder.build(names, nil, func(_ types.NamespacedName, service *model.Service) bool {
			s.planBuilt(chain[i], service)
			i++
			return true
		})
	}
	s.queue.kinds[givers].done(batch[:handled])
}

func (s *timeSlice) planBuilt(w *waiting, service *model.Service) {
	s.planService(w.name, service)
	s.planned = append(s.planned, w.name)
	s.elements += w.cost
	s.queue.tired = s.queue.tired || w.cost > turnElements
}
