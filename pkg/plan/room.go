package plan

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Room limits all Services of a node together. The Services of one namespace may take a quarter of each limit, and half of the numbers. So no
// tenant can use up the room.
type Room struct {
	// Elements is the number of frontends and slots of all Services, in both families, for each list of endpoints. An endpoint has one slot, unless
	// there is an algorithm or there are weights. It counts once more with session affinity, a maximum of connections or port ranges.
	Elements int
	// SourceRanges is the number of source ranges, counted as the fewest prefixes. The kernel's work for the change of a range grows with this
	// number.
	SourceRanges int
	// PortRanges is the number of ranges of ports times addresses. The kernel's work for the change of a range grows with this number.
	PortRanges int
}

// perNamespace divides the room of a node to get the share of one namespace. numbersPerNamespace divides the numbers.
const perNamespace, numbersPerNamespace = 4, 2

// DefaultRoom returns the default limits.
func DefaultRoom() Room { return Room{Elements: 4_000_000, SourceRanges: 10_000, PortRanges: 1_000} }

// RoomOf returns the default room, with the given numbers instead of the defaults, by name. It fails for an unknown name or a number below 1.
func RoomOf(given map[string]int) (Room, error) {
	r := DefaultRoom()
	err := model.SetLimits(given, map[string]*int{"node-elements": &r.Elements, "node-source-ranges": &r.SourceRanges, "node-port-ranges": &r.PortRanges})
	return r, err
}

func (r Room) orDefault() Room {
	d := DefaultRoom()
	return Room{cmp.Or(r.Elements, d.Elements), cmp.Or(r.SourceRanges, d.SourceRanges), cmp.Or(r.PortRanges, d.PortRanges)}
}

// Excess is a part of a Service that is not planned, because the node or the namespace has no room for it.
type Excess struct {
	// Field is the path of the part. Reason names the limit that is exceeded.
	Field, Reason string
}

// Excess returns the parts of the named Service that are left out: the first mostExcess parts, and one more with the number of the rest.
func (p *Planner) Excess(name types.NamespacedName) []Excess {
	s := p.services[name]
	switch n := s.leftOut(); {
	case n == 0:
		return nil
	case n > mostExcess:
		return append(slices.Clip(s.lacks.list), Excess{"spec", fmt.Sprintf("and %d more parts exceed the limits of the node or the namespace", n-mostExcess)})
	}
	return s.lacks.list
}

// takenRoom is the room that Services have taken.
type takenRoom struct {
	elements, sourceRanges, portRanges int
	// numbers counts the numbers of each family for source ranges, and for service ports that are not affine. affine counts the numbers for affine
	// service ports.
	numbers, affine [2]int
	// holders counts the service ports of each family that hold packets.
	holders [2]int
}

// account returns the room that a namespace has taken, for changes.
func (p *Planner) account(namespace string) *takenRoom {
	t := p.namespaces[namespace]
	if t == nil {
		t = &takenRoom{}
		p.namespaces[namespace] = t
	}
	return t
}

// takenBy returns a copy of the room that a namespace has taken.
func (p *Planner) takenBy(namespace string) takenRoom {
	if t := p.namespaces[namespace]; t != nil {
		return *t
	}
	return takenRoom{}
}

// less reports whether at least one count of t is less than the same count of o.
func (t takenRoom) less(o *takenRoom) bool {
	less := t.elements < o.elements || t.sourceRanges < o.sourceRanges || t.portRanges < o.portRanges
	for f := range t.numbers {
		less = less || t.numbers[f] < o.numbers[f] || t.affine[f] < o.affine[f] || t.holders[f] < o.holders[f]
	}
	return less
}

// ElementsFor returns the number of elements that the named Service takes of [Room].
func (p *Planner) ElementsFor(name types.NamespacedName) int {
	if s := p.services[name]; s != nil {
		return s.elements
	}
	return 0
}

// ElementsIn returns the number of elements that a Service would take of [Room]; 0 for nil.
func ElementsIn(s *model.Service) (n int) {
	if s == nil {
		return 0
	}
	for _, port := range s.Ports {
		if n += len(port.Frontends) + port.Slots(); port.Affinity > 0 || port.MaxConnections > 0 || port.Ranged() {
			n += len(port.Cluster) + len(port.Local)
		}
	}
	return n
}

// quantity is a count of [takenRoom] that has a limit.
type quantity struct {
	// needs and unit are the words before and after a number in the reason of a shortage.
	needs, unit string
	of          func(takenRoom) int
	most        func(*Room) int
}

var (
	elementRoom = quantity{"the Service is not served: it needs", "elements", func(t takenRoom) int { return t.elements },
		func(r *Room) int { return r.Elements }}
	sourceRangeRoom = quantity{"no source is allowed: the Service has", "source ranges", func(t takenRoom) int { return t.sourceRanges },
		func(r *Room) int { return r.SourceRanges }}
	portRangeRoom = quantity{"the Service has no port ranges: it has", "port ranges times addresses", func(t takenRoom) int { return t.portRanges },
		func(r *Room) int { return r.PortRanges }}
)

// holderRoom is the quantity of service ports of a family that hold packets.
func holderRoom(f int) quantity {
	return quantity{"the Service refuses connections while it has no endpoint: it needs", inet.Family(f).String() + " ports that hold packets",
		func(t takenRoom) int { return t.holders[f] }, func(*Room) int { return mostHolders }}
}

// shortage returns the reason why a Service of a namespace cannot take n units of a quantity instead of the room that it takes now; "" if it can.
func (p *Planner) shortage(q quantity, namespace string, n int, now takenRoom) string {
	if n == 0 {
		return ""
	}
	taken := p.takenBy(namespace)
	own, all, most := q.of(taken)-q.of(now), q.of(p.taken)-q.of(now), q.most(&p.options.Room)
	switch {
	case own+n > most/perNamespace:
		return fmt.Sprintf("%s %d %s, the other Services of its namespace have %d, and the limit of a namespace is %d", q.needs, n, q.unit, own, most/perNamespace)
	case all+n > most:
		return fmt.Sprintf("%s %d %s, all other Services have %d, and the limit of the node is %d", q.needs, n, q.unit, all, most)
	}
	return ""
}

// room returns the room that a Service takes, except numbers and source ranges. The Service may be nil.
func (s *service) room() (t takenRoom) {
	if s == nil {
		return t
	}
	t.elements, t.portRanges = s.elements, s.portRanges
	for _, port := range s.ports {
		if port.holds {
			t.holders[port.family]++
		}
	}
	return t
}

// add adds n times the room of a Service.
func (t *takenRoom) add(room *takenRoom, n int) {
	t.elements += n * room.elements
	t.portRanges += n * room.portRanges
	for f := range t.holders {
		t.holders[f] += n * room.holders[f]
	}
}

// countRoom counts the room that a Service takes, except numbers and source ranges. n is 1 for a Service that is added, -1 for a Service that is removed.
func (p *Planner) countRoom(s *service, n int) {
	if s == nil {
		return
	}
	room, t := s.room(), p.account(s.name.Namespace)
	p.taken.add(&room, n)
	if t.add(&room, n); *t == (takenRoom{}) {
		delete(p.namespaces, s.name.Namespace)
	}
	p.noteHolders(s, n > 0)
}

// used returns the count of numbers of a namespace, and reports whether the namespace may have another one. A timeout other than 0 stands for
// the numbers of affine service ports.
func (p *Planner) used(id portID, timeout uint32) (used *int, more bool) {
	t := p.account(id.name.Namespace)
	used, most := &t.numbers[id.family], int(endOthers)
	if timeout > 0 {
		used, most = &t.affine[id.family], (endBlock-firstBlock)*perBlock
	}
	return used, *used < most/numbersPerNamespace
}

// number assigns a number to a service port or to source ranges, if possible the number that an earlier process assigned. A timeout other than 0
// stands for an affine service port. It returns 0 if no number is free, or if the namespace has used its share.
func (p *Planner) number(id portID, timeout uint32) (n uint32) {
	numbers := p.numbers[id.family]
	used, more := p.used(id, timeout)
	if !more {
		return 0
	}
	if n = p.recallNumber(id, timeout); n == 0 {
		if timeout > 0 {
			n = numbers.affine(timeout)
		} else {
			n = numbers.other()
		}
	}
	if n != 0 {
		*used++
	}
	return n
}

// giveNumberBack frees a number of a namespace. It ignores 0.
func (p *Planner) giveNumberBack(f inet.Family, namespace string, n uint32) {
	if n == 0 {
		return
	}
	p.numbers[f].giveBack(n)
	if t := p.account(namespace); isAffine(n) {
		t.affine[f]--
	} else {
		t.numbers[f]--
	}
}
