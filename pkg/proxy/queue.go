package proxy

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// longestSlice is how long the loop prepares Services before it sends what it has planned, and looks for repairs, questions and newer
// changes. To plan what has been prepared it may take as long again.
const longestSlice = 100 * time.Millisecond

// queue are the Services that have changed and that the loop has had no time for. Newer changes come before them.
//
// A Service that gives up an address, port or node port comes after those that have waited when it was looked at: one of them may take it
// over, and between a batch without the old owner and a batch with the new one packets would be refused. Where two give up what the other
// one takes, both are in one batch, but not more than mostChained.
type queue struct {
	names []types.NamespacedName
	// head is how many have left the queue; queued are those that have not left by another way.
	head   uint64
	queued map[types.NamespacedName]struct{}
	// givers are those that give something up, in the order in which they are to be planned.
	givers []types.NamespacedName
	giving map[types.NamespacedName]*giver
	// takers are the givers that take a frontend.
	takers map[model.Key]types.NamespacedName
}

// giver is a Service that gives something up.
type giver struct {
	// after is the number of Services that have to have left the queue before.
	after        uint64
	given, taken []model.Frontend
}

// mostChained is how many Services that exchange frontends are planned for one batch although its time is over.
const mostChained = 64

func newQueue() queue {
	return queue{
		queued: map[types.NamespacedName]struct{}{}, giving: map[types.NamespacedName]*giver{}, takers: map[model.Key]types.NamespacedName{},
	}
}

// waiting counts the Services that wait.
func (q *queue) waiting() int { return len(q.queued) + len(q.giving) }

// tail is the number of Services that have left the queue when all that wait now have.
func (q *queue) tail() uint64 { return q.head + uint64(len(q.names)) }

// push adds Services at the end; where one waits already, it stays in its place.
func (q *queue) push(names []types.NamespacedName) {
	for _, n := range names {
		if _, waits := q.queued[n]; !waits {
			q.queued[n] = struct{}{}
			q.names = append(q.names, n)
		}
	}
}

// next returns the Services in the order in which they wait, at most n.
func (q *queue) next(n int) (list []types.NamespacedName) {
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

// pop takes Services away that are the next ones.
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
		q.names = nil // and its memory
	}
}

// remove takes a Service away, wherever it waits, and returns the place of one that gives something up.
func (q *queue) remove(name types.NamespacedName) (was *giver) {
	delete(q.queued, name)
	if was = q.giving[name]; was != nil {
		delete(q.giving, name)
		for i := range was.taken {
			if key := was.taken[i].Key; q.takers[key] == name {
				delete(q.takers, key)
			}
		}
	}
	return was
}

// put adds a Service that gives something up.
func (q *queue) put(name types.NamespacedName, g *giver) {
	q.givers = append(q.givers, name)
	q.giving[name] = g
	for i := range g.taken {
		q.takers[g.taken[i].Key] = name
	}
}

// give takes away the next Service that gives something up, if its time has come, and those that exchange frontends with it.
func (q *queue) give() (names []types.NamespacedName) {
	for i, name := range q.givers {
		g := q.giving[name]
		if g == nil {
			continue // it has changed since, or has come with another one
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

// slice is the planning of as many Services as there is time for.
type slice struct {
	*Proxy
	begun    time.Time
	absorbed []types.NamespacedName
	// fresh says that the Services have just changed, so that others wait for longer.
	fresh bool
	// large says that a large Service was planned: no other one has room in the same batch.
	large bool
}

// largeWeight is the number of elements above which a Service that changes waits for all smaller ones, and is alone in its batch. To plan and
// to commit so many takes some ten milliseconds.
const largeWeight = 10_000

// late reports whether it is time to send. What has been built by then is planned still, unless that takes as long again.
func (s *slice) late() bool { return s.Now().Sub(s.begun) >= longestSlice }

// over reports whether planning has to stop, because it takes too long or the tables need a repair.
func (s *slice) over() bool {
	if s.large || len(s.absorbed)%blockSize == 0 && len(s.absorbed) > 0 && s.checkTables() {
		return true
	}
	return s.Now().Sub(s.begun) >= 2*longestSlice
}

// plan plans Services, and returns those that there was no time for. It always plans the first one.
func (s *slice) plan(names []types.NamespacedName) (rest []types.NamespacedName) {
	taken := 0
	s.build(names, s.late, func(name types.NamespacedName, service *model.Service) bool {
		taken++
		if large := plan.Weight(service) > largeWeight; large && s.fresh && s.started {
			s.queue.push([]types.NamespacedName{name})
			return !s.over()
		} else if !s.postponed(name, service, taken < len(names)) {
			s.large = s.large || large && s.started
			s.absorbService(name, service)
			s.absorbed = append(s.absorbed, name)
		}
		return !s.over()
	})
	return names[taken:]
}

// postponed has a Service wait that gives something up, unless no other one waits.
func (s *slice) postponed(name types.NamespacedName, service *model.Service, more bool) bool {
	q := &s.queue
	was := q.remove(name)
	if !more && q.waiting() == 0 {
		return false
	}
	given, taken := s.Planner.Moves(name, service)
	if len(given) == 0 {
		return false
	}
	g := &giver{given: given, taken: taken}
	if !s.fresh || slices.ContainsFunc(given, anyoneMay) {
		g.after = q.tail()
	}
	if was != nil {
		g.after = min(g.after, was.after)
	}
	q.put(name, g)
	return true
}

// anyoneMay reports whether another Service may have claimed a frontend before it was given up. The API server gives a cluster IP and a node
// port to nobody else before: who has them next is seen to change later.
func anyoneMay(f model.Frontend) bool { return f.Kind != model.ClusterIP && f.Kind != model.NodePort }

// give plans Services that give something up and whose time has come.
func (s *slice) give() {
	for first := true; first || !s.late(); first = false {
		names := s.queue.give()
		if names == nil {
			return
		}
		s.build(names, nil, func(name types.NamespacedName, service *model.Service) bool {
			s.absorbService(name, service)
			s.absorbed = append(s.absorbed, name)
			return true
		})
	}
}

// planFresh plans Services that have just changed. What there is no time for has to wait.
func (p *Proxy) planFresh(names []types.NamespacedName) []types.NamespacedName {
	s := slice{Proxy: p, begun: p.Now(), fresh: true}
	if p.started {
		names = slices.DeleteFunc(names, func(name types.NamespacedName) bool {
			large := p.Planner.Weight(name) > largeWeight
			if large {
				p.queue.push([]types.NamespacedName{name})
			}
			return large
		})
	}
	p.Planner.Expect(len(names))
	rest := s.plan(names)
	p.queue.push(rest)
	if len(rest) == 0 {
		s.give()
	}
	p.planned(s.absorbed)
	return s.absorbed
}

// planWaiting plans Services that have waited.
func (p *Proxy) planWaiting() []types.NamespacedName {
	s := slice{Proxy: p, begun: p.Now()}
	const atMost = 1 << 13 // more than there is time for
	names := p.queue.next(atMost)
	p.Planner.Expect(len(names))
	rest := s.plan(names)
	p.queue.pop(names[:len(names)-len(rest)])
	if len(rest) == 0 {
		s.give()
	}
	p.planned(s.absorbed)
	return s.absorbed
}

// mostUnprogrammed bounds the times of changes that wait for a sync to succeed; the oldest ones are kept.
const mostUnprogrammed = 10_000

// mostTriggers bounds those of one Service that waits to be planned, see [track.Dirty].
const mostTriggers = 100

// noteTriggers takes up when Services have changed.
func (p *Proxy) noteTriggers(all map[types.NamespacedName][]track.Trigger) {
	for name, times := range all {
		known := p.triggers[name]
		p.triggers[name] = append(known, times[:min(len(times), mostTriggers-len(known))]...)
	}
}

// planned notes that what a sync sends has become of Services.
func (p *Proxy) planned(names []types.NamespacedName) {
	for _, name := range names {
		if times, known := p.triggers[name]; known {
			p.unprogrammed = append(p.unprogrammed, times[:min(len(times), mostUnprogrammed-len(p.unprogrammed))]...)
			delete(p.triggers, name)
		}
	}
	if p.started || p.queue.waiting() == 0 {
		p.reportConflicts(p.Planner)
	}
	if p.started {
		p.queue.push(p.Planner.TakeWaiting()) // for which there was no room on this node, and is now
	}
}
