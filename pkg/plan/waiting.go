package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// lacking has the parts of a Service that are left out, and the room that they need.
type lacking struct {
	// parts is the number of these parts. list has the first ones.
	parts int
	list  []Excess
	// elements is the number of elements, sourceRanges the number of source ranges in each family, portRanges the number of port ranges.
	elements     int
	sourceRanges [2]int
	portRanges   int
	// number is true for each family in which a number is missing for source ranges, or for a service port that is not affine. affine is the timeout of an
	// affine service port without a number, or 0.
	number [2]bool
	affine [2]uint32
	// holders is the number of service ports in each family that should hold packets.
	holders [2]int
}

// mostExcess is the number of parts that [Planner.Excess] lists for one Service.
const mostExcess = 20

// leaveOut records that a part of a Service is left out. The caller adds the room that the part needs to the result.
func (s *service) leaveOut(field, reason string) *lacking {
	if s.lacks == nil {
		s.lacks = &lacking{}
	}
	if s.lacks.parts++; s.lacks.parts <= mostExcess {
		s.lacks.list = append(s.lacks.list, Excess{field, reason})
	}
	return s.lacks
}

// leftOut returns the number of parts that are left out. The Service may be nil.
func (s *service) leftOut() int {
	if s == nil || s.lacks == nil {
		return 0
	}
	return s.lacks.parts
}

// fits reports whether there is room now for at least one part of a Service that is left out.
func (p *Planner) fits(s *service) bool {
	namespace, l := s.name.Namespace, s.lacks
	for f := range l.sourceRanges {
		number := func(timeout uint32) bool {
			_, more := p.used(sourcesID(s.name, inet.Family(f)), timeout)
			return more && p.numbers[f].hasFree(timeout)
		}
		if l.sourceRanges[f] > 0 && p.shortage(sourceRangeRoom, namespace, l.sourceRanges[f], takenRoom{}) == "" || l.number[f] && number(0) || l.affine[f] > 0 && number(l.affine[f]) {
			return true
		}
	}
	has := func(q quantity, n int) bool { return p.shortage(q, namespace, n, takenRoom{}) == "" }
	return l.holders != [2]int{} && has(holderRoom(0), l.holders[0]) && has(holderRoom(1), l.holders[1]) ||
		l.portRanges > 0 && has(portRangeRoom, l.portRanges) || l.elements > 0 && has(elementRoom, l.elements)
}

// noteRoom records whether a changed Service waits for room. If its namespace takes less room than before, or fewer parts of the Service wait,
// another Service may have room now. noteRoom then records the namespace as freed.
func (p *Planner) noteRoom(name types.NamespacedName, before takenRoom, old, now *service) {
	list, waits, waited := p.waiting[name.Namespace], now.leftOut() > 0, old.leftOut() > 0
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
	if len(p.waiting) > 0 && (waited && now.leftOut() < old.leftOut() || p.takenBy(name.Namespace).less(&before)) {
		p.freed[name.Namespace] = struct{}{}
	}
}

// mostLooked limits one call of [Planner.TakeWaiting]: the number of namespaces beside the freed ones, and the number of Services that it checks
// in each namespace. mostAgain is the number of Services of a namespace that it returns.
const mostLooked, mostAgain = 16, 4

// TakeWaiting returns some of the Services that wait for room and have room now. Plan each of them again; then the next call may return more. If
// no room became free since the last call, it checks no Service and returns nil.
func (p *Planner) TakeWaiting() (names []types.NamespacedName) {
	if len(p.freed) == 0 {
		return nil
	}
	n := 0
	for namespace := range p.waiting { // Go iterates over a map from a random start, so every namespace has its turn
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
