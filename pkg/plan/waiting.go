package plan

import (
	"cmp"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// lacking has the parts of a Service that are left out, and the room that they need.
type lacking struct {
	// parts is the number of these parts. list has the first ones.
	parts int
	list  []Excess
	// least has the smallest request of each quantity that was refused.
	least map[*quantity]int
	// forOthers is true if a part waits only because the planner recalls numbers.
	forOthers bool
}

// mostExcess is the number of parts that [PlannedService.Excess] lists for one Service.
const mostExcess = 20

// lacking returns the parts that are left out, for changes.
func (s *service) lacking() *lacking {
	if s.lacks == nil {
		s.lacks = &lacking{least: map[*quantity]int{}}
	}
	return s.lacks
}

// leaveOut records that a part of a Service is left out.
func (s *service) leaveOut(field, reason string) *lacking {
	l := s.lacking()
	if l.parts++; l.parts <= mostExcess {
		l.list = append(l.list, Excess{field, reason})
	}
	return l
}

// needs records a request of more units that was refused.
func (l *lacking) needs(q *quantity, more int) {
	if least, known := l.least[q]; !known || more < least {
		l.least[q] = more
	}
}

// leftOut returns the number of parts that are left out. The Service may be nil.
func (s *service) leftOut() int {
	if s == nil || s.lacks == nil {
		return 0
	}
	return s.lacks.parts
}

// fits reports whether there may be room now for at least one part of a Service that is left out.
func (p *Planner) fits(s *service) bool {
	if s.lacks.forOthers {
		return true
	}
	for q, more := range s.lacks.least {
		if q.Lacks(s.name.Namespace, 0, more) == room.None {
			return true
		}
	}
	return false
}

// noteWaiting records whether a changed Service waits for room.
func (p *Planner) noteWaiting(name types.NamespacedName, now *service) {
	if now.leftOut() > 0 {
		p.waiting[name] = struct{}{}
	} else {
		delete(p.waiting, name)
	}
}

// TakeWaiting returns up to most Services that wait for room and may have room now, the oldest first. Plan them again
// in this order; then the next call may return more. If no room became free since the last call, it checks no Service
// and returns nil.
func (p *Planner) TakeWaiting(most int) (names []types.NamespacedName) {
	if !p.freed {
		return nil
	}
	p.freed = false
	var list []*service
	for name := range p.waiting {
		if s := p.services[name]; p.fits(s) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, (*service).compareAge)
	for _, s := range list[:min(most, len(list))] {
		names = append(names, s.name)
	}
	p.freed = len(list) > most
	return names
}

// compareAge orders Services by age. The names only make the order of manifests without times and UIDs definite.
func (s *service) compareAge(o *service) int {
	return cmp.Or(s.age.Compare(o.age), model.CompareNames(s.name, o.name))
}

// Begin plans all Services of a start. set plans the named Services, in the given order. The planner first grants the
// room that an earlier process had granted, see [Planner.Recall]. All other room goes to the oldest Services. So
// Services that were created later take nothing from Services that were served before, and new nodes decide alike.
func (p *Planner) Begin(names []types.NamespacedName, age func(types.NamespacedName) model.Age,
	set func([]types.NamespacedName)) {
	if p.recalled == nil {
		names = byAge(names, age)
	}
	if len(p.services) == 0 { // the growth of Go maps takes as long as the planning
		p.services = make(map[types.NamespacedName]*service, len(names))
		p.claims.byKey = make(map[model.Key]contenders, len(names))
	}
	set(names)
	p.endRecall()
	for again := p.TakeWaiting(len(names)); len(again) > 0; again = p.TakeWaiting(len(names)) {
		set(again)
	}
	p.Conflicts().Settle(math.MaxInt)
	p.begun = true
}

// byAge returns names in the order of age.
func byAge(names []types.NamespacedName, age func(types.NamespacedName) model.Age) []types.NamespacedName {
	type aged struct {
		types.NamespacedName
		model.Age
	}
	list, sorted := make([]aged, len(names)), make([]types.NamespacedName, len(names))
	for i, n := range names {
		list[i] = aged{n, age(n)}
	}
	slices.SortStableFunc(list, func(a, b aged) int { return a.Age.Compare(b.Age) })
	for i := range list {
		sorted[i] = list[i].NamespacedName
	}
	return sorted
}
