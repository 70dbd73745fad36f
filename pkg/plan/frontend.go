package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// port is a service port as it stands in the tables.
type port struct {
	name      model.PortName
	protocol  model.Protocol
	family    model.Family
	frontends []model.Frontend
	// lists are the endpoints of both policies, each in the order of its slots.
	lists   [lists][]netip.AddrPort
	hairpin []netip.AddrPort
	// serving are the endpoints with which a UDP flow that has begun may go on, sorted.
	serving      []netip.AddrPort
	hasEndpoints bool
	// timeout is that of affinity in seconds; with it go the ids.
	timeout uint32
	ids     *affinePort
}

func (p *port) id() portID { return portID{p.name, p.protocol, p.family} }

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

func endpointValue(e netip.AddrPort) nft.Value {
	return nft.Value{}.Addr(e.Addr()).Port(e.Port())
}

// arrival is one step of a frontend's way: a map that holds its class, and the class.
type arrival struct {
	classes *nft.Set
	step    step
	class   class
}

// arrivals tells what a frontend does, as the classes that it has in the maps of its scope.
func (l *layout) arrivals(p *port, f *model.Frontend) []arrival {
	sc := &l.scopes[scopeOf(f)]
	set, at := sc.classes, stepFirst
	var out []arrival
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

// head lists the elements of a frontend that are not numbered, and the classes that it uses.
func (l *layout) head(p *port, f *model.Frontend) (elements []*nft.Element, uses []use) {
	sc := &l.scopes[scopeOf(f)]
	key := value(&f.Key)
	comment := p.name.String()
	for _, a := range l.arrivals(p, f) {
		elements = append(elements, &nft.Element{Set: a.classes, Key: key, Data: a.class.value(), Comment: comment})
		if a.class.kind.perCount() {
			uses = append(uses, use{l.family, a.step, a.class})
		}
	}
	for _, ls := range l.usedLists(p, f) {
		if p.ids == nil {
			continue
		}
		pick := class{pickKind(scopeOf(f), ls), uint32(len(p.lists[ls]))}
		elements = append(elements, &nft.Element{Set: sc.draw[ls], Key: key, Data: pick.value()})
		uses = append(uses, use{l.family, stepPick, pick})
	}
	if p.ids != nil && p.hasEndpoints {
		id := nft.Value{}.Uint32(p.ids.register())
		elements = append(elements, &nft.Element{Set: sc.affinity, Key: key, Data: id, Comment: comment})
	}
	for _, src := range f.AllowedSources {
		elements = append(elements, &nft.Element{Set: l.allowedSources, Key: key.Addr(src.Addr()), KeyEnd: key.Addr(last(src))})
	}
	return elements, uses
}

// usedLists tells which of a port's lists, if they have endpoints, a frontend uses.
func (l *layout) usedLists(p *port, f *model.Frontend) []list {
	var used []list
	for _, ls := range [...]list{listCluster, listLocal} {
		clusterToo := f.Local && f.Kind != model.ClusterIP
		wanted := !f.Local && ls == listCluster || f.Local && ls == listLocal || clusterToo
		if wanted && p.hasEndpoints && len(p.lists[ls]) > 0 {
			used = append(used, ls)
		}
	}
	return used
}

// last returns the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// slot is a numbered element of a frontend: the endpoint itself, or its id where there is affinity.
func (l *layout) slot(p *port, f *model.Frontend, ls list, i int) *nft.Element {
	sc := &l.scopes[scopeOf(f)]
	e := &nft.Element{Set: sc.endpoints[ls], Key: value(&f.Key).Uint32(uint32(i))}
	if p.ids != nil {
		e.Set = sc.slots[ls]
		e.Data = nft.Value{}.Uint32(p.ids.endpointRegister(p.lists[ls][i]))
		return e
	}
	e.Data = endpointValue(p.lists[ls][i])
	return e
}

// shared lists the elements that a service port needs and that others may need too.
func (l *layout) shared(p *port) []*nft.Element {
	var out []*nft.Element
	for i := range p.frontends {
		if f := &p.frontends[i]; f.Kind == model.ClusterIP {
			out = append(out, &nft.Element{Set: l.clusterIPs, Key: nft.Value{}.Addr(f.Addr)})
		}
	}
	for _, e := range p.hairpin {
		key := nft.Value{}.Addr(e.Addr()).Addr(e.Addr()).Proto(uint8(p.protocol)).Port(e.Port())
		out = append(out, &nft.Element{Set: l.hairpin, Key: key})
	}
	if p.ids == nil {
		return out
	}
	for ls := range lists {
		for _, e := range p.lists[ls] {
			key := nft.Value{}.Proto(uint8(p.protocol)).Uint32(p.ids.endpointRegister(e))
			out = append(out, &nft.Element{Set: l.backends[ls], Key: key, Data: endpointValue(e)})
		}
	}
	return out
}
