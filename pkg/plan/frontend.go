package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// port is a service port as it stands in the tables.
type port struct {
	name model.PortName
	// comment is the name as elements have it.
	comment   string
	protocol  model.Protocol
	family    model.Family
	frontends []model.Frontend
	// lists are the endpoints of both policies, each in the order of its slots.
	lists [lists][]netip.AddrPort
	// arranged are lists of many endpoints, which change in place. Those that a later form of the port has taken over are passed.
	arranged [lists]*arrangement
	hairpin  []netip.AddrPort
	// serving are the endpoints with which a UDP flow that has begun may go on, sorted.
	serving      []netip.AddrPort
	hasEndpoints bool
	passed       [lists]bool
	// timeout is that of affinity in seconds; with it go the ids.
	timeout uint32
	ids     *affinePort
}

func (p *port) id() portID { return portID{p.name, p.protocol, p.family} }

// arrange takes over a list of the port's earlier form, and makes it that of other endpoints.
func (p *port) arrange(before *port, ls list, endpoints []netip.AddrPort) {
	list, known := before.list(ls), before.arranged[ls]
	if before.passed[ls] {
		known = nil
	}
	p.lists[ls], p.arranged[ls] = rearrange(list, known, endpoints)
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

func scopeOf(f *model.Frontend) scope {
	if f.Kind == model.NodePort {
		return scopeNodePort
	}
	return scopeVIP
}

// value is the key by which a frontend stands in maps.
func value(k *model.Key) nft.Value {
	var v nft.Value
	if k.Addr.IsValid() {
		v = v.Addr(k.Addr)
	}
	return v.Proto(uint8(k.Protocol)).Port(k.Port)
}

// arrival is one step of a frontend's way: a map that holds its class, and the class.
type arrival struct {
	classes *nft.Set
	step    step
	class   class
}

// maxArrivals is the greatest number of arrivals of a frontend.
const maxArrivals = 4

// arrivals appends what a frontend does, as the classes that it has in the maps of its scope.
func (l *layout) arrivals(out []arrival, p *port, f *model.Frontend) []arrival {
	sc := &l.scopes[scopeOf(f)]
	set, at := sc.classes, stepFirst
	if f.AllowedSources != nil {
		out = append(out, arrival{set, at, class{kind: kindFirewall}})
		set, at = sc.restricted, stepAllowed
	}
	switch {
	case !p.hasEndpoints:
		return append(out, arrival{set, at, class{kind: kindReject}})
	case f.Kind == model.ClusterIP && f.Local:
		return append(out, arrival{set, at, p.class(f, routeClusterLocal)})
	case f.Kind == model.ClusterIP:
		return append(out, arrival{set, at, p.class(f, routeCluster)})
	case !f.Local:
		return append(out, arrival{set, at, p.class(f, routeExternal)})
	}
	apart := class{kind: kindExternalLocal}
	if scopeOf(f) == scopeNodePort {
		apart.kind = kindNodePortExternalLocal
	}
	return append(out,
		arrival{set, at, apart},
		arrival{sc.shortCircuit, stepLocal, p.class(f, routeShortCircuit)},
		arrival{sc.local, stepLocal, p.class(f, routeLocal)})
}

// class is that of a frontend on a route. A list without endpoints drops: there are some, but not for this traffic.
func (p *port) class(f *model.Frontend, r route) class {
	n := len(p.lists[r.list()])
	switch {
	case n == 0:
		return class{kind: kindDrop}
	case p.ids != nil:
		return class{affinityKind(scopeOf(f), r), p.timeout}
	}
	return class{directKind(scopeOf(f), r), uint32(n)}
}

// head calls each for every element of a frontend that is not numbered.
func (l *layout) head(p *port, f *model.Frontend, each func(nft.Element)) {
	sc := &l.scopes[scopeOf(f)]
	key := value(&f.Key)
	var room [maxArrivals]arrival
	for _, a := range l.arrivals(room[:0], p, f) {
		each(nft.Element{Set: a.classes, Key: key, Data: a.class.value(), Comment: p.comment})
	}
	if p.ids != nil && p.hasEndpoints {
		for ls := range lists {
			if p.uses(f, ls) {
				each(nft.Element{Set: sc.draw[ls], Key: key, Data: p.pick(f, ls).value()})
			}
		}
		each(nft.Element{Set: sc.affinity, Key: key, Data: nft.Value{}.Uint32(p.ids.register()), Comment: p.comment})
	}
	for _, src := range f.AllowedSources {
		each(nft.Element{Set: l.allowedSources, Key: key.Addr(src.First), KeyEnd: key.Addr(src.Last)})
	}
}

// uses appends the classes of a frontend that have chains of their own.
func (l *layout) uses(out []use, p *port, f *model.Frontend) []use {
	var room [maxArrivals]arrival
	for _, a := range l.arrivals(room[:0], p, f) {
		if a.class.kind.perCount() {
			out = append(out, use{l.family, a.step, a.class})
		}
	}
	for ls := range lists {
		if p.ids != nil && p.uses(f, ls) {
			out = append(out, use{l.family, stepPick, p.pick(f, ls)})
		}
	}
	return out
}

// pick is the class that chooses an endpoint's id out of a list for a new client.
func (p *port) pick(f *model.Frontend, ls list) class {
	return class{pickKind(scopeOf(f), ls), uint32(len(p.lists[ls]))}
}

// uses tells whether a frontend leads to a port's list, and there is something in it.
func (p *port) uses(f *model.Frontend, ls list) bool {
	clusterToo := f.Local && f.Kind != model.ClusterIP
	wanted := !f.Local && ls == listCluster || f.Local && ls == listLocal || clusterToo
	return wanted && p.hasEndpoints && len(p.lists[ls]) > 0
}

// slots are the numbered elements that a frontend has of one list. There are very many of them, so that they are made one at
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

// fill makes them those of a claim; of none if it is none.
func (s *slots) fill(l *layout, c *claim, ls list) {
	s.n = 0
	if c.service == nil || !c.port.uses(c.frontend, ls) {
		return
	}
	sc := &l.scopes[scopeOf(c.frontend)]
	s.port, s.list, s.n, s.ids, s.key = c.port, ls, len(c.port.lists[ls]), c.port.ids, value(&c.frontend.Key)
	s.room = nft.Element{Set: sc.endpoints[ls]}
	if s.ids != nil {
		s.room.Set = sc.slots[ls]
	}
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

// shared calls each for every element that a service port needs and that others may need too, but for backends that the other form
// of the port needs as well.
func (l *layout) shared(p, other *port, each func(nft.Element)) {
	for i := range p.frontends {
		if f := &p.frontends[i]; f.AtClusterIP() {
			each(nft.Element{Set: l.clusterIPs, Key: nft.Value{}.Addr(f.Addr)})
		}
	}
	for _, e := range p.hairpin {
		each(nft.Element{Set: l.hairpin, Key: nft.Value{}.Addr(e.Addr()).Addr(e.Addr())})
	}
	if p.ids == nil {
		return
	}
	for ls := range lists {
		for _, e := range p.backends(other, ls) {
			key := nft.Value{}.Proto(uint8(p.protocol)).Uint32(p.ids.endpointRegister(e))
			each(nft.Element{Set: l.backends[ls], Key: key, Data: nft.Endpoint(e)})
		}
	}
}
