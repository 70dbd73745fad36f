package plan

import (
	"fmt"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// form is the form in which a service port is planned. If there is no room for the form that a Service asks for, the
// planner takes the next lower one. So a Service first loses what it adds to a plain service port, and a cluster IP is
// always served.
type form uint8

const (
	// formSingle has no number. Each frontend has one endpoint. Node ports, and frontends with the external policy
	// Local, drop packets. If a service port has only cluster IPs, and one endpoint, it asks for no other form.
	formSingle form = iota
	// formEqual chooses endpoints at random, with equal shares.
	formEqual
	// formWeighted has the weights and the algorithm of the Service.
	formWeighted
	// formDirect also has direct server return, and the algorithm that it needs.
	formDirect
	// formAffine has session affinity, a connection limit or port ranges in addition to formWeighted.
	formAffine
)

// Forms in which the kinds of service ports are planned, the one that a port asks for first.
var (
	formsOfRanges   = []form{formAffine}
	formsOfDirect   = []form{formDirect, formWeighted, formEqual, formSingle}
	formsOfWeighted = []form{formAffine, formWeighted, formEqual, formSingle}
	formsOfAffine   = []form{formAffine, formEqual, formSingle}
)

// formsOf returns the forms in which a service port may be planned, the one that it asks for first. To count the
// connections of endpoints, and to set timeouts, all forms need a number.
func (p *Planner) formsOf(sp *model.ServicePort) []form {
	affine := sp.Affinity > 0 || sp.MaxConnections > 0
	weighted := sp.Method.Key != balance.Chance || sp.ClusterWeights != nil || sp.LocalWeights != nil
	numbered := p.rules.options.CountEndpoints || sp.Timeouts != model.Timeouts{}
	switch {
	case sp.Ranged():
		return formsOfRanges
	case sp.Direct != nil:
		return formsOfDirect
	case affine && weighted:
		return formsOfWeighted
	case affine:
		return formsOfAffine
	case weighted:
		return formsOfWeighted[1:]
	case len(sp.Cluster)+len(sp.Local) == 1 && !slices.ContainsFunc(sp.Frontends, isOutside) &&
		!numbered:
		return formsOfAffine[2:]
	}
	return formsOfAffine[1:]
}

func isOutside(f model.Frontend) bool { return f.Kind != model.ClusterIP }

// reduce returns a service port without the properties that the form lacks.
func (f form) reduce(sp *model.ServicePort) *model.ServicePort {
	out := *sp
	if f < formDirect && sp.Direct != nil {
		out = *sp.WithoutDirect()
	}
	if f < formWeighted {
		out.Method, out.ClusterWeights, out.LocalWeights = balance.Method{}, nil, nil
	}
	if f < formAffine {
		out.Affinity, out.MaxConnections = 0, 0
	}
	return &out
}

// elements returns the number of elements that a service port takes of [Room], and those that it takes in addition for
// direct server return. The latter have their own room, so that they take nothing from Services with NAT. The elements
// of formSingle are not counted: there are at most two for each frontend.
func (f form) elements(sp *model.ServicePort) (n, direct int) {
	endpoints, frontends := len(sp.Cluster)+len(sp.Local), len(sp.Frontends)
	if (sp.Timeouts != model.Timeouts{}) {
		frontends += mostTimeoutsElements
	}
	switch f {
	case formSingle:
		return 0, 0
	case formEqual:
		return frontends + endpoints, 0
	case formAffine:
		n = frontends + sp.Slots() + endpoints
		if sp.MaxConnections > 0 && !sp.Limited() {
			n += endpoints // an element that counts, and one that session affinity uses
		}
		return n, 0
	}
	if sp.Direct == nil {
		return frontends + sp.Slots(), 0
	}
	n = frontends + sp.WithoutDirect().Slots()
	if f == formDirect {
		direct = 3*len(sp.Frontends) + 4*sp.Slots() - n
	}
	return n, direct
}

// quantity is a quantity of the node that Services share, an index of [rooms].
type quantity uint8

const (
	ofElements quantity = iota
	ofDirect            // the elements that direct server return adds
	ofSourceRanges
	ofPortRanges
	// ofNumbers are the numbers of service ports and source ranges that are not affine, ofAffine those of affine
	// service ports, and ofHolders the service ports that hold packets. Each is for IPv4, and the next one for IPv6.
	ofNumbers
	_
	ofAffine
	_
	ofHolders
	_
	quantities
)

// in returns the quantity of a family.
func (q quantity) in(f inet.Family) quantity { return q + quantity(f) }

// takes are the units of each quantity that a Service takes.
type takes [quantities]int

// supported returns a service port without the properties that the kernel lacks, and records these as left out.
func (p *Planner) supported(s *service, sp *model.ServicePort) *model.ServicePort {
	lacks := &p.rules.options.Lacks
	limited := lacks.Connlimit != "" && sp.MaxConnections > 0
	if sp.Direct != nil {
		if prevents := p.preventsDirect(sp); prevents != "" {
			s.useNAT(sp, prevents)
			sp = sp.WithoutDirect()
		}
	}
	hashed := lacks.Hash != "" && sp.Method.Key != balance.Chance
	timed := lacks.Timeouts != "" && sp.Timeouts != model.Timeouts{}
	if !limited && !hashed && !timed {
		return sp
	}
	out := *sp
	if timed {
		out.Timeouts = model.Timeouts{}
		s.leaveOut(model.TimeoutsField, fmt.Sprintf(
			"%s port %q has the timeouts of the node: %s", sp.Family, sp.Name.Port, lacks.Timeouts))
	}
	if limited {
		out.MaxConnections = 0
	}
	if limited && sp.Limited() {
		s.leaveOut(model.MaximumField, fmt.Sprintf(
			"%s port %q has no connection limit: %s", sp.Family, sp.Name.Port, lacks.Connlimit))
	}
	if hashed {
		out.Method = balance.Method{}
		s.leaveOut(model.AlgorithmField, fmt.Sprintf(
			"%s port %q has the algorithm random: %s", sp.Family, sp.Name.Port, lacks.Hash))
	}
	return &out
}

// preventsDirect returns the property of this node that prevents direct server return, or "".
func (p *Planner) preventsDirect(sp *model.ServicePort) string {
	switch {
	case p.rules.options.Lacks.Hash != "":
		return p.rules.options.Lacks.Hash
	case p.rules.options.Lacks.Dup != "":
		return p.rules.options.Lacks.Dup
	case !p.rules.options.LocalPods[sp.Family].known():
		return "the program does not recognise local pods (--cluster-cidr)"
	case !p.rules.options.LocalPods[sp.Family].Prefix.IsValid() && slices.ContainsFunc(sp.Frontends, mayBeAPod):
		return "an external IP may be the address of a pod, and the program does not know these (--cluster-cidr)"
	}
	return ""
}

// mayBeAPod reports whether a packet to a frontend with direct server return may be a reply to a pod.
func mayBeAPod(f model.Frontend) bool { return f.Kind == model.ExternalIP && f.MayBeDirect() }

// admit decides the form of a service port, takes the room for it, and assigns a number. It keeps the number of the
// earlier version of the port if it can. It reports false if a port has ranges and there is no room for them: the
// Service is then served without them.
func (p *Planner) admit(s *service, n, before *port) bool {
	reason := ""
	for i, f := range p.formsOf(n.ServicePort) {
		refused := p.tryForm(s, n, before, f)
		if refused == "" {
			if i > 0 {
				p.lack(s, n, reason)
				n.ServicePort = f.reduce(n.ServicePort)
			}
			return true
		}
		reason = refused
	}
	p.lack(s, n, reason)
	return false
}

// tryForm takes the room and the number for a form of a service port. It returns the reason of a refusal, and then
// takes nothing.
func (p *Planner) tryForm(s *service, n, before *port, f form) (reason string) {
	needed, direct := f.elements(n.ServicePort)
	affine := f == formAffine
	if p.recalled != nil && f > p.recalled.had(n.id(), n.ServicePort) {
		return waitsForOthers
	}
	var count *counted
	if n.MaxConnections > 0 && affine {
		count = p.count(before, n)
		idle := perIdle * len(count.idle)
		if p.rooms[ofElements].Lacks(s.name.Namespace, before.elements, needed+idle) == room.None {
			needed += idle
		} else {
			count = count.withoutIdle()
		}
	}
	if needed > before.elements {
		if reason = p.refusal(s, ofElements, before.elements, needed); reason != "" {
			return reason
		}
	}
	if direct > before.direct {
		if reason = p.refusal(s, ofDirect, before.direct, direct); reason != "" {
			return reason
		}
	}
	n.ids, n.number = nil, 0
	switch {
	case f == formSingle:
	case before.number != 0 && affine == (before.ids != nil):
		n.ids, n.number = before.ids, before.number
	default:
		recall := func() uint32 { return p.recallNumber(n.id(), affine) }
		if n.number, reason = p.number(s, n.Family, affine, recall); reason != "" {
			return reason
		}
		if affine {
			n.ids = newAffinePort(n.number)
		}
	}
	if needed != before.elements {
		p.request(s, ofElements, before.elements, needed)
	}
	if direct != before.direct {
		p.request(s, ofDirect, before.direct, direct)
	}
	n.form, n.elements, n.direct, n.counted = f, needed, direct, count
	return ""
}

// waitsForOthers is the reason of a refusal while the planner recalls numbers: what an earlier process granted comes
// first.
const waitsForOthers = "other Services have been served before"

// lacking has the parts of a Service that are left out, and the room that they need.
type lacking struct {
	// parts is the number of these parts. list has the first ones.
	parts int
	list  []Excess
	// least has the smallest request of each quantity that was refused.
	least map[quantity]int
	// forOthers is true if a part waits only because the planner recalls numbers.
	forOthers bool
	// nat has service ports that use NAT instead of direct server return.
	nat []NAT
}

// NAT is a service port that uses NAT instead of direct server return.
type NAT struct {
	Port     model.PortName
	Protocol inet.Protocol
	Family   inet.Family
	Reason   string
}

// mostExcess is the number of parts that [PlannedService.Excess] lists for one Service.
const mostExcess = 20

// lacking returns the parts that are left out, for changes.
func (s *service) lacking() *lacking {
	if s.lacks == nil {
		s.lacks = &lacking{least: map[quantity]int{}}
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

// useNAT records that a service port uses NAT instead of direct server return. The Service lacks something only if its
// annotation asks for direct server return.
func (s *service) useNAT(sp *model.ServicePort, reason string) {
	if sp.Direct.Asked {
		s.leaveOut(model.ForwardingField, fmt.Sprintf("%s port %q uses NAT: %s", sp.Family, sp.Name.Port, reason))
	}
	if l := s.lacking(); len(l.nat) < mostExcess {
		l.nat = append(l.nat, NAT{sp.Name, sp.Protocol, sp.Family, reason})
	}
}

// needs records a request of more units that was refused.
func (l *lacking) needs(q quantity, more int) {
	if least, known := l.least[q]; !known || more < least {
		l.least[q] = more
	}
}

// lack records that a service port is planned in a lower form than its Service asks for, or not at all. The Service
// then waits for the elements that the port would need in addition.
func (p *Planner) lack(s *service, n *port, reason string) {
	sp := n.ServicePort
	l := s.lacking()
	for _, f := range p.formsOf(sp) {
		needed, direct := f.elements(sp)
		for q, now := range map[quantity][2]int{ofElements: {n.elements, needed}, ofDirect: {n.direct, direct}} {
			if p.rooms[q].Lacks(s.name.Namespace, now[0], now[1]) != room.None {
				l.needs(q, now[1]-now[0])
			}
		}
	}
	l.forOthers = l.forOthers || reason == waitsForOthers
	if sp.Direct != nil {
		s.useNAT(sp, reason)
		if n.form == formWeighted {
			return
		}
	}
	field := "spec.ports"
	what := "is served by one endpoint only, and not at node ports or with the external policy Local"
	switch {
	case sp.Ranged():
		field, what = model.PortRangesField, "is not served"
	case n.form == formSingle:
	case sp.Affinity > 0:
		field, what = "spec.sessionAffinity", "has no session affinity"
	case sp.MaxConnections > 0:
		field, what = model.MaximumField, "has no connection limit"
	default:
		field, what = model.AlgorithmField, "has endpoints with equal shares, chosen at random"
	}
	if l.parts < mostExcess { // else it is only counted
		reason = fmt.Sprintf("%s port %q %s: %s", n.Family, n.Name.Port, what, reason)
	}
	s.leaveOut(field, reason)
}

// number assigns a number to a service port or to source ranges, if possible the one that recall assigns. It returns
// the reason of a refusal.
func (p *Planner) number(s *service, f inet.Family, affine bool, recall func() uint32) (n uint32, reason string) {
	q := numbersOf(f, affine)
	if reason = p.request(s, q, 0, 1); reason != "" {
		s.lacking().needs(q, 1)
		return 0, reason
	}
	if n = recall(); n == 0 {
		n = p.numbers[f].assign(affine)
	}
	if n == 0 { // the batch also frees numbers; until then, they are in use
		p.request(s, q, 1, 0)
		s.lacking().needs(q, 1)
		return 0, fmt.Sprintf("all %d %s are in use", p.rooms[q].Limit(), p.rooms[q].units)
	}
	return n, ""
}

func numbersOf(f inet.Family, affine bool) quantity {
	if affine {
		return ofAffine.in(f)
	}
	return ofNumbers.in(f)
}

// request grants now units of a quantity to a part of a Service instead of was units. It returns the reason of a
// refusal, otherwise "".
func (p *Planner) request(s *service, q quantity, was, now int) (reason string) {
	if reason = p.refusal(s, q, was, now); reason == "" {
		p.rooms[q].Change(s.name.Namespace, was, now)
		s.takes[q] += now - was
		p.freed = p.freed || now < was
	}
	return reason
}

// take requests now units of a quantity for a Service instead of was units. If the request is refused, the Service
// keeps none. had is false if the Service has to wait, because the planner recalls numbers and the Service did not have
// this part.
func (p *Planner) take(s *service, q quantity, was, now int, had bool) (reason string) {
	if !had {
		reason, s.lacking().forOthers = waitsForOthers, true
	} else if reason = p.request(s, q, was, now); reason == "" {
		return ""
	}
	p.request(s, q, was, 0)
	s.lacking().needs(q, now)
	return reason
}

// refusal returns the reason why a Service cannot have now units instead of was units; "" if it can. The reason depends
// on nothing that other Services change, so that it is reported once.
func (p *Planner) refusal(s *service, q quantity, was, now int) string {
	switch r := p.rooms[q]; r.Lacks(s.name.Namespace, was, now) {
	case room.OfNamespace:
		return fmt.Sprintf("it needs %d %s, and one namespace may have %d in all", now, r.units, r.Most())
	case room.OfNode:
		return fmt.Sprintf(
			"it needs %d %s, the %d of the node are in use, and its namespace has more than the %d that it owns",
			now, r.units, r.Limit(), r.Own())
	}
	return ""
}

// assignHolders decides whether the ports of a Service hold packets. If the limit is reached, it records this part as
// left out.
func (p *Planner) assignHolders(out *service, s *model.Service) bool {
	var n [2]int
	for _, port := range s.Ports {
		n[port.Family]++
	}
	granted := true
	for _, f := range inet.Families {
		q := ofHolders.in(f)
		if n[f] == 0 {
			continue
		}
		if reason := p.take(out, q, out.takes[q], n[f], p.held(s, f)); reason != "" {
			out.leaveOut(model.ScaleToZeroField, "the Service refuses connections while it has no endpoint: "+reason)
			granted = false
		}
	}
	return granted
}

// held reports whether the ports of a Service in a family may hold packets now. While the planner recalls numbers, they
// must have held packets.
func (p *Planner) held(s *model.Service, f inet.Family) bool {
	return p.recalled == nil || !p.recalled.strict[f] || slices.ContainsFunc(s.Ports, func(sp *model.ServicePort) bool {
		return sp.Family == f && p.recalled.grants[portID{sp.Name, sp.Protocol, f}].holds
	})
}

// assignRanges gives the ranges of a Service their room: the number of ranges times addresses. It returns false if
// there is no room: the Service is then served without them.
func (p *Planner) assignRanges(out *service, s *model.Service) bool {
	n := 0
	for _, sp := range s.Ports {
		if sp.Ranged() && p.rules.layouts[sp.Family] != nil {
			n += len(sp.Frontends)
		}
	}
	if n == 0 {
		return false
	}
	had := p.recalled == nil || slices.ContainsFunc(s.Ports, func(sp *model.ServicePort) bool {
		return sp.Ranged() && p.recalled.had(portID{sp.Name, sp.Protocol, sp.Family}, sp) == formAffine
	})
	reason := p.take(out, ofPortRanges, out.takes[ofPortRanges], n, had)
	if reason != "" {
		out.leaveOut(model.PortRangesField, "the Service has no port ranges: "+reason)
	}
	return reason == ""
}

// assignSources gives the source ranges of a Service a number in each family. If the node or the namespace has no room
// for them, no source is allowed.
func (p *Planner) assignSources(s, old *service) {
	for _, port := range s.ports {
		s.sources.add(port.ServicePort)
		port.sources = s.sources[port.Family]
	}
	for f, out := range s.sources {
		if out != nil {
			p.admitSources(s, old.sources[f], out)
		}
	}
}

// admitSources gives source ranges a number, and takes their room. If one of these is missing, the lists have no
// number: no source is allowed.
func (p *Planner) admitSources(s *service, before, out *sources) {
	id, was, n := sourcesID(s.name, out.family), 0, out.count()
	if before != nil {
		out.number, was = before.number, before.count()
	}
	had := p.recalled == nil || !p.recalled.strict[out.family] || p.recalled.grants[id].number != 0
	reason := p.take(s, ofSourceRanges, was, n, had || n == 0)
	if reason == "" && out.number == 0 {
		recall := func() (n uint32) {
			if n = p.recallNumber(id, false); n == 0 {
				n = p.recallOrphan(out)
			}
			return n
		}
		if out.number, reason = p.number(s, out.family, false, recall); reason != "" {
			p.request(s, ofSourceRanges, n, 0)
		}
	}
	if reason != "" {
		first := slices.IndexFunc(out.lists[:], func(ranges []model.AddrRange) bool { return len(ranges) > 0 })
		out.lists, out.number = [sourceLists][]model.AddrRange{}, 0
		s.leaveOut(sourceTexts[max(first, 0)].path, "no source is allowed: "+reason)
	}
}

// uses returns the units that a Service needs. It does not count room that no port uses, because the port got no number
// or no elements: after a restart, nothing in the kernel would show that the Service had this room.
func (s *service) uses() (n takes) {
	for _, port := range s.ports {
		n[ofElements] += port.elements
		n[ofDirect] += port.direct
		if port.number != 0 {
			n[numbersOf(port.Family, port.ids != nil)]++
		}
		if q := ofHolders.in(port.Family); port.holds {
			n[q] = s.takes[q]
		}
		if port.Ranged() {
			n[ofPortRanges] = s.takes[ofPortRanges]
		}
	}
	for f, sources := range s.sources {
		if sources != nil {
			n[ofSourceRanges] += sources.count()
			if sources.number != 0 {
				n[ofNumbers.in(inet.Family(f))]++
			}
		}
	}
	return n
}

// giveBack frees the room, the numbers and the ids of endpoints that a Service does not need any more.
func (p *Planner) giveBack(old, now *service) {
	for q, n := range now.uses() {
		if now.takes[q] != n {
			p.request(now, quantity(q), now.takes[q], n)
		}
	}
	for _, o := range old.ports {
		n := now.port(o.id())
		if o.number != n.number {
			p.numbers[o.Family].giveBack(o.number)
		}
		if o.ids != nil && o.ids == n.ids {
			gone, _ := difference(o.identified(), n.identified())
			for _, e := range gone {
				n.ids.remove(e)
			}
		}
	}
	for f, sources := range old.sources {
		if sources == nil {
			continue
		}
		if n := now.sources[f]; n == nil || n.number != sources.number {
			p.numbers[f].giveBack(sources.number)
		}
	}
}
