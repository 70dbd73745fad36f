package plan

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// service is a planned Service.
type service struct {
	name  types.NamespacedName
	age   model.Age
	ports []*port
	// index has the ports by id; nil if the Service has fewer than manyPorts.
	index   map[portID]*port
	sources sourcesOfService
	takes   takes
	// cost is the result of [PlannedService.CostOf].
	cost int
	// reserved is the cluster IP of each family without a frontend.
	reserved [2]netip.Addr
	// lacks are the parts without room, nil if there are none.
	lacks *lacking
}

// manyPorts is the smallest number of ports of a Service with an index.
const manyPorts = 8

// port returns the service port with an id, or an empty one if the Service does not have it.
func (s *service) port(id portID) *port {
	if s.index != nil {
		return cmp.Or(s.index[id], &noPort)
	}
	for _, p := range s.ports {
		if p.id() == id {
			return p
		}
	}
	return &noPort
}

// noPort is the port of Services that lack a port. Nothing changes it.
var noPort = port{ServicePort: &model.ServicePort{}}

// port is a planned service port. The elements of its frontends lead to its number, and the number leads to its
// endpoints.
type port struct {
	// ServicePort is the service port in the form that has room: without the properties that this form lacks.
	*model.ServicePort
	// form is this form, and elements and direct the room that it takes. number is 0 in the form formSingle.
	form             form
	elements, direct int
	number           uint32
	// comment is the name in the comments of elements.
	comment string
	// sources are the source ranges of the Service in the port's family; nil if no frontend of the Service is
	// restricted.
	sources *sources
	// slots are the endpoints for both policies, in the order of their slots.
	slots [lists][]netip.AddrPort
	// places are the places of the slots of listCluster; nil without direct server return.
	places []place
	// timeout is the timeout of session affinity in seconds, one of timeouts; 0 without session affinity.
	timeout uint32
	// ids are the ids of the endpoints; nil if the port is not affine, see numbers.go.
	ids *affinePort
	// counted are the endpoints whose connections count for a maximum; nil for none.
	counted *counted
	// localInternal and localExternal report whether frontends have the internal, and the external policy Local.
	localInternal, localExternal bool
	// restricted is true if a frontend has source ranges.
	restricted bool
	// holds is true if packets are held, because the Service scales to zero and has no endpoint.
	holds bool
	// timed is true if connections get timeouts of the Service.
	timed bool
}

func (p *port) id() portID { return portID{p.Name, p.Protocol, p.Family} }

// fill completes a port after its form, its number and its ids are known.
func (p *port) fill() {
	for i := range p.Frontends {
		f := &p.Frontends[i]
		p.localInternal = p.localInternal || f.Local && f.Kind == model.ClusterIP
		p.localExternal = p.localExternal || f.Local && f.Kind != model.ClusterIP
		p.restricted = p.restricted || f.Sources != nil
	}
	if p.Affinity > 0 {
		p.timeout = timeoutClass(uint32(p.Affinity / time.Second))
	}
	for ls, set := range [lists][]netip.AddrPort{p.Cluster, p.Local} {
		weights := [lists][]uint16{p.ClusterWeights, p.LocalWeights}[ls]
		switch {
		case p.form == formSingle:
			p.slots[ls] = set
		case p.Method.Key != balance.Chance || weights != nil:
			p.slots[ls] = p.Method.Fill(set, weights)
		default:
			p.slots[ls] = inSlots(set)
		}
	}
	p.timed = p.Timeouts != model.Timeouts{} && p.number != 0
	if p.Direct != nil {
		p.findPlaces()
	}
}

// identified returns the endpoints that have ids, each once and sorted.
func (p *port) identified() []netip.AddrPort {
	if p.counted != nil {
		return p.counted.endpoints
	}
	return union(p.Cluster, p.Local)
}

// union returns the endpoints of two sorted lists, sorted and each once.
func union(a, b []netip.AddrPort) []netip.AddrPort {
	_, added := difference(a, b)
	if len(added) == 0 {
		return a
	}
	all := append(slices.Clip(a), added...)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// difference returns the endpoints that only the sorted list old has, and the endpoints that only the sorted list now
// has.
func difference(old, now []netip.AddrPort) (removed, added []netip.AddrPort) {
	i, j := 0, 0
	for i < len(old) && j < len(now) {
		switch {
		case old[i] == now[j]: // almost always
			i++
			j++
		case old[i].Compare(now[j]) < 0:
			removed = append(removed, old[i])
			i++
		default:
			added = append(added, now[j])
			j++
		}
	}
	return append(removed, old[i:]...), append(added, now[j:]...)
}

// frontendKey returns the key of a frontend in the maps.
func frontendKey(k *model.Key) nft.Value {
	var v nft.Value
	if k.Addr.IsValid() {
		v = v.Addr(k.Addr)
	}
	return v.Proto(k.Protocol).Port(k.Port)
}

// networkKey returns the key of the network of an address in a set of networks.
func networkKey(a netip.Addr, bits int) nft.Value {
	if a.Is6() {
		b := a.As16()
		return nft.Value{}.BigEndian(binary.BigEndian.Uint32(b[networkFrom:networkEnd]))
	}
	return nft.Value{}.Addr(netip.PrefixFrom(a, bits).Masked().Addr())
}

// class returns the class of a frontend for packets whose source is allowed.
func (p *port) class(f *model.Frontend) class {
	switch {
	case p.holds:
		return class{kind: kindHold}
	case !p.HasEndpoints:
		return class{kind: kindReject}
	case p.number == 0 && (!f.Addr.IsValid() || f.Local && f.Kind != model.ClusterIP):
		return class{kind: kindDrop}
	case f.Kind == model.ClusterIP && f.Local:
		return p.routeClass(routeClusterLocal, p.timed)
	case f.Kind == model.ClusterIP:
		return p.routeClass(routeCluster, p.timed)
	case f.Kind == model.HostPort: // the pod sees the client's address
		return p.routeClass(routeShortCircuit, p.timed)
	case p.isDirect(f):
		return class{kind: kindReturn, table: p.table(listCluster)}
	case !f.Local:
		return p.routeClass(routeExternal, p.timed)
	}
	return class{kind: kindExternalLocal}
}

// FrontendOutcome returns the outcome of all connections from outside to a frontend of a service port, if the node has
// room for it; None if there is an endpoint for them. asleep is [model.Service.Asleep].
func FrontendOutcome(sp *model.ServicePort, f *model.Frontend, asleep bool) outcome.Code {
	p := port{ServicePort: sp, number: firstNumber, holds: asleep, slots: [lists][]netip.AddrPort{sp.Cluster, sp.Local}}
	c := p.class(f)
	if c.kind == kindExternalLocal {
		c = p.routeClass(routeLocal, false)
	}
	return kinds[c.kind].outcome
}

// routeClass returns the class of a route. If the route's list is empty, the class drops: other endpoints exist, but
// none for this traffic. With timed, the class sets timeouts first.
func (p *port) routeClass(r route, timed bool) class {
	switch {
	case len(p.slots[r.list()]) == 0:
		return class{kind: kindDrop}
	case timed:
		return class{kind: kindTimed, of: uint8(r)}
	case p.number == 0:
		return class{kind: kindSingle}
	case p.ids == nil:
		return class{kind: kindDirect, of: uint8(r), table: p.table(r.list())}
	case p.Limited():
		return class{kind: kindLimited, of: uint8(r)}
	case p.timeout > 0:
		return class{kind: kindAffinity, of: uint8(r), timeout: p.timeout}
	}
	return class{kind: kindRange, of: uint8(r)}
}

// table is the table of a list. The list must not be empty.
func (p *port) table(ls list) table {
	t := table{uint32(len(p.slots[ls])), selector{key: p.Method.Key}}
	switch p.Method.Key {
	case balance.Chance:
		t.size = tableSize(t.size)
	case balance.Source:
		t.by.prefix = p.Method.Prefixes[p.Family]
	}
	return t
}

// endpointsOf returns the endpoints for packets that come to a frontend from outside.
func (p *port) endpointsOf(f *model.Frontend) []netip.AddrPort {
	if f.Local {
		return p.slots[listLocal]
	}
	return p.slots[listCluster]
}

// mapsOf returns the map for a frontend, and the map for its allowed sources.
func (l *layout) mapsOf(f *model.Frontend) (all, restricted *nft.Set) {
	switch {
	case !f.Addr.IsValid():
		return l.nodePorts, l.restrictedNodePorts
	case f.Last != 0:
		return l.ranges, l.restrictedRanges
	}
	return l.services, l.restricted
}

// wants is what a Service or the node wants. No other owner can want an element of own. Other owners may also want the
// other elements, which have no data: pro and contra are votes for and against an element.
type wants struct {
	own         []nft.Element
	leads       []lead
	pro, contra []nft.ID
}

// lead stands for an element that leads to the chain of a class at a step.
type lead struct {
	*layout
	at    step
	class class
}

func (l lead) element() nft.Element { return l.dispatchElement(l.at, l.class) }

// empty returns w without its content. It keeps the memory, except that of a large Service.
func (w *wants) empty() *wants {
	const large = 1 << 10
	if cap(w.own) > large {
		w.own = nil
	}
	w.own, w.pro, w.contra, w.leads = w.own[:0], w.pro[:0], w.contra[:0], w.leads[:0]
	return w
}

// leadTo adds the element that leads to a class at a step, unless every plan has it.
func (w *wants) leadTo(l *layout, c class, st step) {
	if !c.isFixed(st) {
		w.leads = append(w.leads, lead{l, st, c})
	}
}

// vote adds a vote for the element with a key.
func (w *wants) vote(s *nft.Set, key nft.Value) { w.pro = append(w.pro, nft.ID{Set: s, Key: key}) }

// serviceElements adds what a Service wants apart from its frontends. It leaves out the slots that the other version of
// the Service has, too.
func (p *Planner) serviceElements(s, other *service, to *wants) {
	for _, port := range s.ports {
		p.rules.layouts[port.Family].portElements(port, other.port(port.id()), to)
	}
	for f, a := range s.reserved {
		if l := p.rules.layouts[f]; l != nil && a.IsValid() {
			to.vote(l.regions, networkKey(a, regionBits[l.family]))
			l.clusterIP(a, to)
		}
	}
	for f, sources := range s.sources {
		if sources != nil {
			p.rules.layouts[f].sourceElements(sources, to)
		}
	}
}

// frontendElements adds the elements of the frontend with which a Service has a key; none for the zero claim. Each has
// a class, which selects a chain at a step.
func (p *Planner) frontendElements(of claim, to *wants) {
	if of.service == nil {
		return
	}
	l, port, f := p.rules.layouts[of.port.Family], of.port, of.frontend
	set, restricted := l.mapsOf(f)
	e := nft.Element{Set: set, Key: frontendKey(&f.Key), Comment: port.comment}
	c, at := port.class(f), stepFirst
	if f.Last != 0 {
		e.KeyEnd, at = nft.Value{}.Addr(f.Addr).Proto(f.Protocol).Port(f.Last), stepRange
	}
	if port.sources != nil && f.Sources != nil {
		firewall := firewallOf(f)
		e.Data = nft.Value{}.Uint32(port.sources.number | firewall.number())
		to.own = append(to.own, e)
		to.leadTo(l, firewall, at)
		e.Set, at = restricted, stepAllowed
	}
	if c.kind == kindSingle {
		single := e
		single.Set, single.Data = l.externalSingles, nft.Endpoint(first(port.endpointsOf(f)))
		if f.Kind == model.ClusterIP {
			single.Set = l.singles
		}
		to.own = append(to.own, single)
	}
	if c.kind != kindSingle || f.Kind != model.ClusterIP {
		e.Data = nft.Value{}.Uint32(port.number | c.number())
		to.own = append(to.own, e)
		to.leadTo(l, c, at)
	}
	if c.kind == kindReturn {
		l.directElements(port, f, to)
	}
	if l.refused != nil || l.pinged != nil {
		l.behaviourElements(port, f, to)
	}
}

// portElements adds the elements of a service port that belong to no single frontend. It leaves out the slots that the
// other version of the port has, too.
func (l *layout) portElements(p, other *port, to *wants) {
	l.sharedElements(p, to)
	if p.ids != nil {
		l.affineElements(p, to)
	}
	if p.number == 0 || !p.HasEndpoints {
		return
	}
	if p.localExternal {
		l.originElements(p, to)
	}
	if p.timed {
		l.timeoutsElements(p, to)
	}
	for ls := range lists {
		l.slotElements(p, other, ls, to)
	}
	if p.Direct != nil {
		l.placeElements(p, other, to)
	}
}

// numberElement adds an element that has the number of a service port as its key. It leads to a class at a step.
func (l *layout) numberElement(p *port, s *nft.Set, data nft.Value, c class, at step, to *wants) {
	to.own = append(to.own, nft.Element{Set: s, Key: nft.Value{}.Uint32(p.number), Data: data, Comment: p.comment})
	to.leadTo(l, c, at)
}

// originElements adds the elements that have the route of a packet by its origin.
func (l *layout) originElements(p *port, to *wants) {
	for _, by := range [...]struct {
		set *nft.Set
		route
	}{{l.shortCircuit, routeShortCircuit}, {l.local, routeLocal}} {
		c := p.routeClass(by.route, p.timed)
		l.numberElement(p, by.set, nft.Value{}.Uint32(p.number|c.number()), c, stepLocal, to)
	}
}

// slotElements adds the elements of the slots of a list that the other version of the port does not have: usually, a
// change of a large Service changes few of them.
func (l *layout) slotElements(p, other *port, ls list, to *wants) {
	e, key := nft.Element{Set: l.endpoints[ls]}, nft.Value{}.Proto(p.Protocol).Uint32(p.number)
	if p.ids != nil {
		e.Set, key = l.slots[ls], nft.Value{}.Uint32(p.number)
		if p.Limited() {
			e.Set = l.limitedSlots[ls]
		}
	}
	same := other.slots[ls]
	if p.number != other.number || p.ids != other.ids || p.ids != nil && p.Limited() != other.Limited() {
		same = nil
	}
	for i, endpoint := range p.slots[ls] {
		if i < len(same) && same[i] == endpoint {
			continue
		}
		if e.Key, e.Data = key.Uint32(uint32(i)), nft.Endpoint(endpoint); p.ids != nil {
			e.Data = nft.Value{}.Uint32(p.ids.endpointRegister(endpoint))
		}
		to.own = append(to.own, e)
	}
}

// affineElements adds the elements that an affine service port has in addition.
func (l *layout) affineElements(p *port, to *wants) {
	if p.counted != nil {
		l.countedElements(p, to)
	}
	for ls := range lists {
		if !p.Limited() {
			l.backendElements(p, ls, to)
		}
		if len(p.slots[ls]) > 0 && p.HasEndpoints {
			c, at := class{kind: kindPick, of: uint8(ls), table: p.table(ls)}, ls.pick()
			if p.Limited() {
				c.kind, at = kindChoose, ls.choose()
			}
			l.numberElement(p, l.draw[ls], nft.Value{}.Uint32(p.number|c.number()), c, at, to)
		}
	}
	if p.Limited() && p.HasEndpoints {
		c := class{kind: kindReject}
		if p.AtMaximum == model.Queue {
			c.kind = kindDrop
		}
		l.numberElement(p, l.atMaximum, nft.Value{}.Uint32(p.number|c.number()), c, stepFull, to)
	}
}

// backendElements adds the elements that lead from the ids of a list to its endpoints.
func (l *layout) backendElements(p *port, ls list, to *wants) {
	for _, endpoint := range [lists][]netip.AddrPort{p.Cluster, p.Local}[ls] {
		e, word := nft.Element{Set: l.backends[ls]}, p.ids.endpointRegister(endpoint)
		if p.Ranged() {
			e.Set, e.Key, e.Data = l.rangeBackends[ls], nft.Value{}.Uint32(word), nft.Value{}.Addr(endpoint.Addr())
		} else {
			e.Key, e.Data = nft.Value{}.Proto(p.Protocol).Uint32(word), nft.Endpoint(endpoint)
		}
		to.own = append(to.own, e)
	}
}

// countedElements adds the elements that count the connections of endpoints, and those that show the ids of endpoints
// without a slot.
func (l *layout) countedElements(p *port, to *wants) {
	for _, endpoint := range p.counted.endpoints {
		to.own = append(to.own, nft.Element{
			Set: l.limited, Key: nft.Value{}.Proto(p.Protocol).Uint32(p.ids.endpointRegister(endpoint)),
			Data: nft.Endpoint(endpoint), MaxConnections: p.MaxConnections,
		})
	}
	for i, endpoint := range p.counted.idle {
		to.own = append(to.own, nft.Element{
			Set: l.limitedSlots[listCluster], Key: nft.Value{}.Uint32(p.number).Uint32(firstIdle + uint32(i)),
			Data: nft.Value{}.Uint32(p.ids.endpointRegister(endpoint)),
		})
	}
}

// sharedElements adds the elements of a service port that other service ports may want, too. They have no data, so no
// port can change an element of another one.
func (l *layout) sharedElements(p *port, to *wants) {
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Addr.IsValid() {
			to.vote(l.regions, networkKey(f.Addr, regionBits[l.family]))
		}
		if f.AtClusterIP() {
			l.clusterIP(f.Addr, to)
		}
		if f.Last != 0 {
			to.vote(l.rangeAddresses, nft.Value{}.Addr(f.Addr))
			if isAllocated(f) {
				to.vote(l.allocatedRanges, nft.Value{}.Addr(f.Addr))
			}
		}
	}
	for _, e := range p.Hairpin {
		to.vote(l.hairpin, nft.Value{}.Addr(e.Addr()).Addr(e.Addr()))
		to.vote(l.networks, networkKey(e.Addr(), networkBits[l.family]))
	}
}

// clusterIP adds votes for a cluster IP.
func (l *layout) clusterIP(a netip.Addr, to *wants) {
	to.vote(l.clusterIPs, nft.Value{}.Addr(a))
	to.vote(l.networks, networkKey(a, networkBits[l.family]))
}
