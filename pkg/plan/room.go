package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// Room has the limits of quantities that all Services of a node share. See docs/sizing.md for the part of each
// namespace.
type Room struct {
	// Elements is the number of frontends and slots of all Services, in both families, for each list of endpoints. An
	// endpoint has one slot, unless there is an algorithm or there are weights. It counts once more with session
	// affinity, a connection limit or port ranges. An endpoint without a slot that keeps its count of connections
	// counts twice. A service port with timeouts in connection tracking has up to six more elements. The elements that
	// direct server return adds have their own room of this size.
	Elements int
	// SourceRanges is the number of source ranges, counted as the fewest prefixes. The kernel's work for the change of
	// a range grows with this number.
	SourceRanges int
	// PortRanges is the number of ranges of ports times addresses. The kernel's work for the change of a range grows
	// with this number.
	PortRanges int
}

// DefaultRoom returns the default limits.
func DefaultRoom() Room { return Room{Elements: 8_000_000, SourceRanges: 16_000, PortRanges: 4_000} }

func (r Room) orDefault() Room {
	d := DefaultRoom()
	return Room{
		cmp.Or(r.Elements, d.Elements), cmp.Or(r.SourceRanges, d.SourceRanges), cmp.Or(r.PortRanges, d.PortRanges),
	}
}

// rooms have the room of each quantity. units is the plural of a unit in the reason of a refusal.
type rooms [quantities]struct {
	*room.Room
	units string
}

func newRooms(r Room) (out rooms) {
	set := func(q quantity, limit int, units string) { out[q].Room, out[q].units = room.New(limit), units }
	set(ofElements, r.Elements, "elements (limit node-elements)")
	set(ofDirect, r.Elements, "elements of direct server return (limit node-elements)")
	set(ofSourceRanges, r.SourceRanges, "source ranges (limit node-source-ranges)")
	set(ofPortRanges, r.PortRanges, "port ranges times addresses (limit node-port-ranges)")
	for _, f := range inet.Families {
		set(ofNumbers.in(f), endOthers-firstNumber, f.String()+" service ports")
		set(ofAffine.in(f), endAffine-firstAffine,
			f.String()+" service ports with session affinity, a connection limit or port ranges")
		set(ofHolders.in(f), mostHolders, f.String()+" service ports that hold packets")
	}
	return out
}

// Excess is a part of a Service that is not planned, because the node or the namespace has no room for it.
type Excess struct {
	// Field is the path of the part. Reason names the limit that is exceeded.
	Field, Reason string
}

// Excess returns the parts of the Service that are left out: the first mostExcess parts, and one more with the number
// of the rest. While the planner recalls numbers, it returns none, because the Service is planned again.
func (s PlannedService) Excess() []Excess {
	if s.lacks == nil || s.planner.recalled != nil {
		return nil
	}
	if n := s.lacks.parts; n > mostExcess {
		rest := fmt.Sprintf("and %d more parts exceed the limits of the node or the namespace", n-mostExcess)
		return append(slices.Clip(s.lacks.list), Excess{"spec", rest})
	}
	return s.lacks.list
}

// NAT returns the first mostExcess service ports that use NAT instead of direct server return, because the node or the
// namespace has no room for it, or the node does not support it.
func (s PlannedService) NAT() []NAT {
	if s.lacks == nil {
		return nil
	}
	return s.lacks.nat
}

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

// Begin plans all Services of a start, in the order of their age. set plans the named Services, in the given order. The
// planner first grants the room that an earlier process had granted, see [Planner.Recall]. Then all other room goes to
// the oldest Services. So Services that were created later take nothing from Services that were served before, and new
// nodes decide alike. If Services have grown while no process ran, age decides also about the first part.
func (p *Planner) Begin(names []types.NamespacedName, age func(types.NamespacedName) model.Age,
	set func([]types.NamespacedName)) {
	names = byAge(names, age)
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
	p.begun, p.orphans = true, [2]orphans{}
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
