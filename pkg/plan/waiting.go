package plan

import (
	"cmp"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// fits reports whether there may be room now for at least one part of a Service that is left out.
func (p *Planner) fits(s *service) bool {
	if s.lacks.forOthers {
		return true
	}
	for q, more := range s.lacks.least {
		if p.rooms[q].Lacks(s.name.Namespace, 0, more) == room.None {
			return true
		}
	}
	return false
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
		p.claims.byKey = make(map[model.Key][]claim, len(names))
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
