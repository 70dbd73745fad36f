package proxy

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// longestSlice is the longest time for which the loop builds Services before it commits the plan and handles repairs, questions and newer changes.
// The loop may take the same time again to plan the built Services. The limit does not apply to the first batch.
const longestSlice = 100 * time.Millisecond

// queue holds the changed Services that wait to be planned. Newer changes precede them.
//
// A Service that releases a frontend (a giver) usually waits until all Services that already wait are planned. One of these may
// take over the frontend (see claimableEarly). If an earlier batch removed the old owner, the kernel would reject packets until
// the batch with the new owner. Services that exchange frontends are in one batch, up to mostChained of them.
type queue struct {
	names []types.NamespacedName
	// head counts the Services that were removed from the front of names. queued has the Services of names that still wait: remove deletes a
	// Service from queued, and leaves it in names.
	head   uint64
	queued map[types.NamespacedName]struct{}
	// givers lists the Services that release frontends, in the order of planning.
	givers []types.NamespacedName
	giving map[types.NamespacedName]*giver
	// takers maps a frontend to the giver that takes it over.
	takers map[model.Key]types.NamespacedName
}

// giver is a Service that releases frontends.
type giver struct {
	// after is the value of queue.head from which the giver may be planned.
	after uint64
	// given and taken are the frontends that the Service releases and claims.
	given, taken []model.Frontend
}

// mostChained is the largest number of Services that exchange frontends in one batch. They are planned together even if the time
// for the batch is up.
const mostChained = 64

func newQueue() queue {
	return queue{
		queued: map[types.NamespacedName]struct{}{}, giving: map[types.NamespacedName]*giver{}, takers: map[model.Key]types.NamespacedName{},
	}
}

// waiting returns the number of Services that wait.
func (q *queue) waiting() int { return len(q.queued) + len(q.giving) }

// tail returns the value that head has after all Services that wait now are planned.
func (q *queue) tail() uint64 { return q.head + uint64(len(q.names)) }

// push appends Services. A Service that already waits keeps its position.
func (q *queue) push(names []types.NamespacedName) {
	if len(q.queued) == 0 && len(names) > 0 {
		q.queued = make(map[types.NamespacedName]struct{}, len(names))
	}
	for _, n := range names {
		if _, waits := q.queued[n]; !waits {
			q.queued[n] = struct{}{}
			q.names = append(q.names, n)
		}
	}
}

// next returns the first n Services that wait, in order. Do not change the list.
func (q *queue) next(n int) (list []types.NamespacedName) {
	first := q.names[:min(n, len(q.names)):min(n, len(q.names))]
	if len(q.queued) == len(q.names) { // none was removed
		return first
	}
	list = make([]types.NamespacedName, 0, len(first))
	for _, name := range q.names {
		if len(list) == n {
			break
		}
		if _, waits := q.queued[name]; waits {
			list = append(list, name)
		}
	}
	return list
}

// pop removes the given Services, which must be the first ones that wait.
func (q *queue) pop(names []types.NamespacedName) {
	for _, name := range names {
		delete(q.queued, name)
	}
	n := 0
	for n < len(q.names) {
		if _, waits := q.queued[q.names[n]]; waits {
			break
		}
		n++
	}
	q.head += uint64(n)
	if q.names = q.names[n:]; len(q.names) == 0 {
		q.names, q.queued = nil, map[types.NamespacedName]struct{}{} // releases the memory
	}
}

// remove removes a Service from the queue. If the Service is a giver, it returns the giver, else nil.
func (q *queue) remove(name types.NamespacedName) (old *giver) {
	delete(q.queued, name)
	if old = q.giving[name]; old != nil {
		delete(q.giving, name)
		for i := range old.taken {
			if key := old.taken[i].Key; q.takers[key] == name {
				delete(q.takers, key)
			}
		}
	}
	return old
}

// putGiver adds a giver.
func (q *queue) putGiver(name types.NamespacedName, g *giver) {
	q.givers = append(q.givers, name)
	q.giving[name] = g
	for i := range g.taken {
		q.takers[g.taken[i].Key] = name
	}
}

// popGivers removes and returns the next giver and the givers that exchange frontends with it. It returns nil if there is no giver, or if
// the next giver must wait.
func (q *queue) popGivers() (names []types.NamespacedName) {
	for i, name := range q.givers {
		g := q.giving[name]
		if g == nil {
			continue // the Service has changed since, or was planned with another giver
		}
		if g.after > q.head {
			q.givers = slices.Delete(q.givers, 0, i)
			return nil
		}
		q.givers = q.givers[i+1:]
		return q.chain(name)
	}
	q.givers = nil
	return nil
}

// chain removes and returns a giver, each giver that takes over one of its frontends, and so on.
func (q *queue) chain(first types.NamespacedName) []types.NamespacedName {
	names := []types.NamespacedName{first}
	for i := 0; i < len(names); i++ {
		g := q.giving[names[i]]
		if g == nil {
			continue
		}
		for j := range g.given {
			if taker, waits := q.takers[g.given[j].Key]; waits && !slices.Contains(names, taker) && len(names) < mostChained {
				names = append(names, taker)
			}
		}
	}
	for _, n := range names {
		q.remove(n)
	}
	return names
}

// timeSlice plans Services within the time for one batch.
type timeSlice struct {
	*Proxy
	begun time.Time
	// planned lists the planned Services.
	planned []types.NamespacedName
	// fresh is true if the Services have just changed. Older changes may still wait in the queue.
	fresh bool
	// hasLarge is true after a large Service was planned: no other Service is planned for the same batch.
	hasLarge bool
}

// largeElements is the number of elements above which a changed Service waits in the queue and is the last Service of its batch.
// Planning and committing this number of elements takes some ten milliseconds.
const largeElements = 10_000

// late reports whether the loop must stop building. Before the first sync, it need not. The loop then plans the built Services, for at most the same time again.
func (s *timeSlice) late() bool { return s.started && s.Now().Sub(s.begun) >= longestSlice }

// over reports whether the loop must stop planning, after the first sync: the time is up, a large Service was planned, or the tables need a repair.
func (s *timeSlice) over() bool {
	if !s.started {
		return false
	}
	if s.hasLarge || len(s.planned)%blockSize == 0 && len(s.planned) > 0 && s.guard.touched() {
		return true
	}
	return s.Now().Sub(s.begun) >= 2*longestSlice
}

// plan plans Services, or puts them into the queue. It returns the Services for which there was no time. It always handles the
// first one. Before the first sync, it plans all Services, and answers questions meanwhile: a partial batch would remove the Services of an earlier
// process.
func (s *timeSlice) plan(names []types.NamespacedName) (rest []types.NamespacedName) {
	const answerEvery = 8 // Services
	handled := 0
	s.rebuilder.build(names, s.late, func(name types.NamespacedName, service *model.Service) bool {
		if handled++; !s.started && handled%answerEvery == 0 {
			s.unplanned = len(names) - handled
			s.answer()
		}
		if !s.postpone(name, service, handled < len(names)) {
			s.hasLarge = s.hasLarge || s.started && plan.ElementsIn(service) > largeElements
			s.planService(name, service)
			s.planned = append(s.planned, name)
		}
		return !s.over()
	})
	s.unplanned = 0
	return names[handled:]
}

// postpone removes a Service from the queue. If the Service releases frontends, postpone puts it back as a giver, and returns true. more is true if
// the caller has further Services to plan. If it has none, and no other Service waits, postpone does not put the Service back. Before the first
// sync, it never does.
func (s *timeSlice) postpone(name types.NamespacedName, service *model.Service, more bool) bool {
	q := &s.queue
	old := q.remove(name)
	if !s.started || !more && q.waiting() == 0 { // the first batch has all Services
		return false
	}
	given, taken := s.Planner.Moves(name, service)
	if len(given) == 0 {
		return false
	}
	g := &giver{given: given, taken: taken}
	if !s.fresh || slices.ContainsFunc(given, claimableEarly) {
		g.after = q.tail()
	}
	if old != nil {
		g.after = min(g.after, old.after)
	}
	q.putGiver(name, g)
	return true
}

// claimableEarly reports whether another Service may claim a frontend before its release. For a cluster IP or a node port, the change of the new owner
// is later: the API server assigns it to another Service only after its release.
func claimableEarly(f model.Frontend) bool {
	return f.Kind != model.ClusterIP && f.Kind != model.NodePort
}

// planGivers plans the givers that may be planned now.
func (s *timeSlice) planGivers() {
	for first := true; first || !s.late(); first = false {
		names := s.queue.popGivers()
		if names == nil {
			return
		}
		s.rebuilder.build(names, nil, func(name types.NamespacedName, service *model.Service) bool {
			s.planService(name, service)
			s.planned = append(s.planned, name)
			return true
		})
	}
}

// planFresh plans Services that have just changed. It puts the Services for which there is no time into the queue.
func (p *Proxy) planFresh(names []types.NamespacedName) []types.NamespacedName {
	s := timeSlice{Proxy: p, begun: p.Now(), fresh: true}
	if p.started {
		names = slices.DeleteFunc(names, func(name types.NamespacedName) bool {
			large := p.isLarge(name)
			if large {
				p.queue.push([]types.NamespacedName{name})
			}
			return large
		})
	}
	return s.planAll(names, p.queue.push)
}

// planAll plans Services. If none is left, it then plans givers. It calls leave with the Services for which there was no time. It returns the planned
// Services.
func (s *timeSlice) planAll(names []types.NamespacedName, leave func(rest []types.NamespacedName)) []types.NamespacedName {
	s.Planner.Expect(len(names))
	s.planned = make([]types.NamespacedName, 0, len(names))
	rest := s.plan(names)
	leave(rest)
	if len(rest) == 0 {
		s.planGivers()
	}
	s.afterPlanning()
	return s.planned
}

// isLarge reports whether a Service is large in the plan or in the API. It does not build the Service, because building a large Service delays all
// other changes.
func (p *Proxy) isLarge(name types.NamespacedName) bool {
	n := p.Planner.ElementsFor(name)
	if n > largeElements/8 {
		return n > largeElements // a Service of this size grows one EndpointSlice at a time, so its planned size is a good estimate
	}
	n = 0
	for _, s := range p.Source.StoredSlices(name) {
		n += s.Pairs()
	}
	return n > largeElements
}

// planWaiting plans Services from the queue.
func (p *Proxy) planWaiting() []types.NamespacedName {
	s := timeSlice{Proxy: p, begun: p.Now()}
	const atMost = 1 << 13 // more than the loop plans for one batch
	names := p.queue.next(atMost)
	return s.planAll(names, func(rest []types.NamespacedName) { p.queue.pop(names[:len(names)-len(rest)]) })
}

// mostAgain is the largest number of Services that the loop plans again after room became free.
const mostAgain = 64

// mostSettled is the number of frontends about which the planner decides again in one batch, see [plan.Planner.Settle].
const mostSettled = 2_000

// afterPlanning runs after Services were planned. It decides about conflicts that they have caused or solved, reports conflicts, and queues Services for
// which there is room now. Before the first sync, it decides about all conflicts.
func (p *Proxy) afterPlanning() {
	for p.unsettled = p.Planner.Settle(mostSettled); p.unsettled && !p.started; {
		p.unsettled = p.Planner.Settle(mostSettled)
	}
	p.reportConflicts(p.Planner)
	if p.started {
		p.queue.push(p.Planner.TakeWaiting(mostAgain)) // Services that lacked room on this node until now
	}
}
