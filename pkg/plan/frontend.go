package plan

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// port is a service port as it stands in the tables: its frontends lead to its number, and its endpoints are found by that.
type port struct {
	name model.PortName
	// comment is the name as elements have it.
	comment   string
	protocol  inet.Protocol
	family    inet.Family
	frontends []model.Frontend
	// number is 0 where there was none left: the port drops everything.
	number uint32
	// sources are those of the Service in the port's family; nil if it has none.
	sources *sources
	// lists are the endpoints of both policies, each in the order of its slots, see [rearrange]; scored is its limit.
	lists  [lists][]netip.AddrPort
	scored int
	// arranged are lists of many endpoints, which change in place. Those that a later form of the port has taken over are passed.
	arranged [lists]*arrangement
	hairpin  []netip.AddrPort
	// serving are the endpoints with which a UDP flow that has begun may go on, sorted.
	serving      []netip.AddrPort
	hasEndpoints bool
	passed       [lists]bool
	// timeout is that of affinity in seconds, as it is in the tables; with it go the ids.
	timeout uint32
	ids     *affinePort
}

// sources are the source ranges of a Service in one family. They stand in the tables once, whatever the number of its load-balancer
// addresses and ports.
type sources struct {
	family inet.Family
	// number is 0 where there was none left: no source is allowed.
	number uint32
	ranges []model.AddrRange
}

func (p *port) id() portID { return portID{p.name, p.protocol, p.family} }

// arrange takes over a list of the port's earlier form, and makes it that of other endpoints.
func (p *port) arrange(before *port, ls list, endpoints []netip.AddrPort) {
	list, known := before.list(ls), before.arranged[ls]
	if before.passed[ls] {
		known = nil
	}
	if before.scored != p.scored || len(list) > p.scored {
		list, known = nil, nil
	}
	p.lists[ls], p.arranged[ls] = rearrange(list, known, endpoints, p.scored)
	before.passed[ls] = known != nil || before.passed[ls]
}

// list returns one of the lists, also where a later form of the port has taken it over.
func (p *port) list(ls list) []netip.AddrPort {
	if p.passed[ls] {
		return p.arranged[ls].undone()
	}
	return p.lists[ls]
}

// backends are the endpoints of a list, or where it was made of that of the port's other form in place, those which only this form
// has.
func (p *port) backends(other *port, ls list) []netip.AddrPort {
	a := p.arranged[ls]
	switch {
	case p.ids != other.ids || a == nil || a != other.arranged[ls]:
		return p.list(ls)
	case p.passed[ls]:
		return a.removed
	}
	return a.added
}

// keepIDs takes the ids back from endpoints that only the port's earlier form had.
func (p *port) keepIDs(before *port) {
	if !p.searchable() {
		p.ids.keep(p.lists[:]...)
		return
	}
	for ls := range lists {
		for _, e := range before.backends(p, ls) {
			if !p.has(e) {
				p.ids.remove(e)
			}
		}
	}
}

// searchable reports whether some list changes in place, and no long one would have to be searched from its beginning.
func (p *port) searchable() bool {
	for ls, a := range p.arranged {
		if a == nil && len(p.lists[ls]) > many {
			return false
		}
	}
	return p.arranged != [lists]*arrangement{}
}

// has tells whether one of the lists has an endpoint.
func (p *port) has(e netip.AddrPort) bool {
	for ls, a := range p.arranged {
		if a == nil && slices.Contains(p.lists[ls], e) {
			return true
		}
		if a != nil {
			if _, found := slices.BinarySearchFunc(a.set, e, netip.AddrPort.Compare); found {
				return true
			}
		}
	}
	return false
}

// value is the key by which a frontend stands in maps.
func value(k *model.Key) nft.Value {
	var v nft.Value
	if k.Addr.IsValid() {
		v = v.Addr(k.Addr)
	}
	return v.Proto(k.Protocol).Port(k.Port)
}

// class is that of a frontend once its source may come.
func (p *port) class(f *model.Frontend) class {
	switch {
	case !p.hasEndpoints:
		return class{kind: kindReject}
	case f.Kind == model.ClusterIP && f.Local:
		return p.routeClass(routeClusterLocal)
	case f.Kind == model.ClusterIP:
		return p.routeClass(routeCluster)
	case !f.Local:
		return p.routeClass(routeExternal)
	}
	return class{kind: kindExternalLocal}
}

// routeClass is that of a route. A list without endpoints drops: there are some, but not for this traffic.
func (p *port) routeClass(r route) class {
	n := len(p.lists[r.list()])
	switch {
	case n == 0 || p.number == 0:
		return class{kind: kindDrop}
	case p.ids != nil:
		return class{kind: affinityKind(r)}
	}
	return class{kind: directKind(r), n: tableSize(uint32(n))}
}

// apart reports whether a frontend tells traffic apart by where it comes from.
func (p *port) apart() bool {
	return p.hasEndpoints && slices.ContainsFunc(p.frontends, func(f model.Frontend) bool { return f.Local && f.Kind != model.ClusterIP })
}

// head calls each for the elements of a frontend, with the step at which the class in it chooses a chain.
func (l *layout) head(p *port, f *model.Frontend, each func(nft.Element, step, class)) {
	e := nft.Element{Set: l.services, Key: value(&f.Key), Comment: p.comment}
	if f.Kind == model.NodePort {
		e.Set = l.nodePorts
	}
	at, c := stepFirst, p.class(f)
	if p.sources != nil && f.AllowedSources != nil {
		firewall := class{kind: kindFirewall}
		e.Data = firewall.word(p.sources.number)
		each(e, at, firewall)
		e.Set, at = l.restricted, stepAllowed
	}
	e.Data = c.word(p.number)
	each(e, at, c)
}

// tail calls each for the elements of a service port that are neither numbered nor of one frontend. Those without a class come with
// the zero class.
func (l *layout) tail(p *port, each func(nft.Element, step, class)) {
	if p.number == 0 || !p.hasEndpoints {
		return
	}
	key := nft.Value{}.Uint32(p.number)
	if p.apart() {
		for set, r := range map[*nft.Set]route{l.shortCircuit: routeShortCircuit, l.local: routeLocal} {
			c := p.routeClass(r)
			each(nft.Element{Set: set, Key: key, Data: c.word(p.number), Comment: p.comment}, stepLocal, c)
		}
	}
	if p.ids == nil {
		return
	}
	for ls := range lists {
		if n := len(p.lists[ls]); n > 0 {
			c := class{kind: pickKind(ls), n: tableSize(uint32(n))}
			each(nft.Element{Set: l.draw[ls], Key: key, Data: nft.Value{}.Uint32(p.number | c.number()), Comment: p.comment}, stepPick+step(ls), c)
		}
	}
	each(nft.Element{}, stepRemember, class{kind: kindRemember, n: p.timeout, block: blockOf(p.number)})
}

// slots are the numbered elements that a service port has of one list. There are very many of them, so that they are made one at
// a time in the same place.
type slots struct {
	port *port
	list list
	// n is their number.
	n    int
	ids  *affinePort
	key  nft.Value
	room nft.Element
}

// fill makes them those of a list of a port.
func (s *slots) fill(l *layout, p *port, ls list) {
	s.n = 0
	if p.number == 0 || !p.hasEndpoints {
		return
	}
	s.port, s.list, s.n, s.ids = p, ls, len(p.lists[ls]), p.ids
	if s.ids != nil {
		s.key, s.room = nft.Value{}.Uint32(p.number), nft.Element{Set: l.slots[ls]}
		return
	}
	s.key, s.room = nft.Value{}.Proto(p.protocol).Uint32(p.number), nft.Element{Set: l.endpoints[ls]}
}

// endpoints are those that stand in the slots.
func (s *slots) endpoints() []netip.AddrPort {
	if s.n == 0 {
		return nil
	}
	return s.port.list(s.list)
}

// at is the element of a number: the endpoint itself, or its id where there is affinity. It is good until the next call.
func (s *slots) at(i int, endpoint netip.AddrPort) *nft.Element {
	s.room.Key = s.key.Uint32(uint32(i))
	if s.ids != nil {
		s.room.Data = nft.Value{}.Uint32(s.ids.endpointRegister(endpoint))
	} else {
		s.room.Data = nft.Endpoint(endpoint)
	}
	return &s.room
}

// backendElements calls each for the elements by which endpoints of a port with affinity are found, but for those that the other form
// of the port has as well.
func (l *layout) backendElements(p, other *port, each func(*nft.Element)) {
	if p.ids == nil {
		return
	}
	for ls := range lists {
		e := nft.Element{Set: l.backends[ls]}
		for _, endpoint := range p.backends(other, ls) {
			e.Key = nft.Value{}.Proto(p.protocol).Uint32(p.ids.endpointRegister(endpoint))
			e.Data = nft.Endpoint(endpoint)
			each(&e)
		}
	}
}

// shared calls each for every element that a service port needs and that others may need too. Such elements have no data, so that no
// port can change those of another.
func (l *layout) shared(p *port, each func(nft.Element)) {
	for i := range p.frontends {
		if f := &p.frontends[i]; f.AtClusterIP() {
			each(nft.Element{Set: l.clusterIPs, Key: nft.Value{}.Addr(f.Addr)})
		}
	}
	for _, e := range p.hairpin {
		each(nft.Element{Set: l.hairpin, Key: nft.Value{}.Addr(e.Addr()).Addr(e.Addr())})
	}
}
