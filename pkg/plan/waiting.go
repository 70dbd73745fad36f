package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// lacking is the room that there was not for parts of a Service: for a number of elements; in a family for a number of source ranges, for
// the number of a service port or of source ranges, and for that of a service port with a timeout of session affinity.
type lacking struct {
	// parts is the number of these parts.
	parts    int
	elements int
	ranges   [2]int
	number   [2]bool
	affine   [2]uint32
}

// mostLeft is how many parts of one Service that are left out are listed; one more tells the number of the others.
const mostLeft = 20

// leave notes that a part of a Service is left out.
func (s *service) leave(field, reason string) {
	if s.lacks.parts++; s.lacks.parts <= mostLeft {
		s.left = append(s.left, Excess{field, reason})
	}
}

// fits reports whether there is room by now for a part of a Service that is left out.
func (p *Planner) fits(s *service) bool {
	namespace, l := s.name.Namespace, &s.lacks
	for f := range l.ranges {
		number := func(timeout uint32) bool {
			_, more := p.used(sourcesID(s.name, inet.Family(f)), timeout)
			return more && p.numbers[f].any(timeout)
		}
		if l.ranges[f] > 0 && p.lacksRanges(namespace, l.ranges[f]) == "" || l.number[f] && number(0) || l.affine[f] > 0 && number(l.affine[f]) {
			return true
		}
	}
	return l.elements > 0 && p.lacksElements(namespace, l.elements, nil) == ""
}

// noteRoom notes whether a Service waits for room, and whether another one may have some now: because this one takes less than before, or
// because it had to wait and has found some.
func (p *Planner) noteRoom(name types.NamespacedName, before taken, old, now *service) {
	list, waits, waited := p.waiting[name.Namespace], now != nil && now.lacks.parts > 0, old != nil && old.lacks.parts > 0
	switch {
	case waits && list == nil:
		p.waiting[name.Namespace] = map[types.NamespacedName]struct{}{name: {}}
	case waits:
		list[name] = struct{}{}
	case waited && len(list) == 1:
		delete(p.waiting, name.Namespace)
	case waited:
		delete(list, name)
	}
	if len(p.waiting) > 0 && (waited && (!waits || now.lacks.parts < old.lacks.parts) || p.takenBy(name.Namespace).less(&before)) {
		p.freed[name.Namespace] = struct{}{}
	}
}

// mostLooked is the number of Services of a namespace that are looked at when room becomes free, and of namespaces; mostAgain the number of
// Services of a namespace that are planned again.
const mostLooked, mostAgain = 16, 4

// TakeWaiting returns Services of which a part was left out and that have room by now, a few at a time. Each is to be planned again; then
// the next call may return more. It returns nil, and looks at none, if no room has become free since the last call.
func (p *Planner) TakeWaiting() (names []types.NamespacedName) {
	if len(p.freed) == 0 {
		return nil
	}
	n := 0
	for namespace := range p.waiting { // any: they begin at another one each time
		if n++; n > mostLooked {
			break
		}
		p.freed[namespace] = struct{}{}
	}
	for namespace := range p.freed {
		looked, again := 0, 0
		for name := range p.waiting[namespace] {
			if looked++; looked > mostLooked || again == mostAgain {
				break
			}
			if p.fits(p.services[name]) {
				names = append(names, name)
				again++
			}
		}
	}
	clear(p.freed)
	slices.SortFunc(names, model.CompareNames)
	return names
}
