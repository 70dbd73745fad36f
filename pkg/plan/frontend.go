package plan

import (
	"net/netip"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// port is a planned service port. The elements of its frontends lead to its number, and the number leads to its
// endpoints.
type port struct {
	// ServicePort is the service port in the form that has room: without the properties that this form lacks.
	*model.ServicePort
	// form is this form, and elements the room that it takes. number is 0 in the form formSingle.
	form     form
	elements int
	number   uint32
	// comment is the name in the comments of elements.
	comment string
	// sources are the source ranges of the Service in the port's family; nil if no frontend of the Service is restricted.
	sources *sources
	// slots are the endpoints for both policies, in the order of their slots.
	slots [lists][]netip.AddrPort
	// earlier are the endpoints that open connections of each slot of listCluster may have, see [port.findEarlier]; nil
	// without direct server return.
	earlier []netip.AddrPort
	// timeout is the timeout of session affinity in seconds, one of timeouts; 0 without session affinity.
	timeout uint32
	// ids are the ids of the endpoints; nil if the port is not affine, see numbers.go.
	ids *affinePort
	// counted are the endpoints whose connections count for a maximum; nil for none.
	counted *counted
	// holds is true if packets are held, because the Service scales to zero and has no endpoint.
	holds bool
}

func (p *port) id() portID { return portID{p.Name, p.Protocol, p.Family} }

// fill completes a port after its form, its number and its ids are known.
func (p *port) fill() {
	p.ServicePort = p.form.reduce(p.ServicePort)
	if p.Affinity > 0 {
		p.timeout = timeoutClass(uint32(p.Affinity / time.Second))
	}
	for ls := range lists {
		set, weights := p.endpoints(ls), [lists][]uint16{p.ClusterWeights, p.LocalWeights}[ls]
		switch {
		case p.form == formSingle:
			p.slots[ls] = set
		case p.Method.Key != balance.Chance || weights != nil:
			p.slots[ls] = p.Method.Fill(set, weights)
		default:
			p.slots[ls] = inSlots(set)
		}
	}
	p.findEarlier()
}

// endpoints returns the endpoints of a list, each once and sorted.
func (p *port) endpoints(ls list) []netip.AddrPort {
	return [...][]netip.AddrPort{p.Cluster, p.Local}[ls]
}

// identified returns the endpoints that have ids, each once and sorted.
func (p *port) identified() []netip.AddrPort {
	if p.counted != nil {
		return p.counted.endpoints
	}
	return union(p.Cluster, p.Local)
}

// frontendKey returns the key of a frontend in the maps.
func frontendKey(k *model.Key) nft.Value {
	var v nft.Value
	if k.Addr.IsValid() {
		v = v.Addr(k.Addr)
	}
	return v.Proto(k.Protocol).Port(k.Port)
}

// frontendEnd returns the last key of a frontend that is a range of ports, otherwise the empty value.
func frontendEnd(k *model.Key) nft.Value {
	if k.Last == 0 {
		return nft.Value{}
	}
	return nft.Value{}.Addr(k.Addr).Proto(k.Protocol).Port(k.Last)
}

// class returns the class of a frontend for packets whose source is allowed.
func (p *port) class(f *model.Frontend) class {
	switch {
	case p.holds:
		return class{kind: kindHold}
	case !p.HasEndpoints:
		return class{kind: kindReject}
	case p.number == 0 && (f.Kind == model.NodePort || f.Local && f.Kind != model.ClusterIP):
		return class{kind: kindDrop}
	case f.Kind == model.ClusterIP && f.Local:
		return p.routeClass(routeClusterLocal)
	case f.Kind == model.ClusterIP:
		return p.routeClass(routeCluster)
	case p.isDirect(f):
		return class{kind: kindReturn, table: p.table(listCluster)}
	case !f.Local:
		return p.routeClass(routeExternal)
	}
	return class{kind: kindExternalLocal}
}

// routeClass returns the class of a route. If the route's list is empty, the class drops: other endpoints exist, but none for this traffic.
func (p *port) routeClass(r route) class {
	switch {
	case len(p.slots[r.list()]) == 0:
		return class{kind: kindDrop}
	case p.number == 0:
		return class{kind: kindSingle, of: uint8(r)}
	case p.Limited():
		return class{kind: kindLimited, of: uint8(r)}
	case p.timeout > 0:
		return class{kind: kindAffinity, of: uint8(r), timeout: p.timeout}
	case p.ranged():
		return class{kind: kindRange, of: uint8(r)}
	}
	return class{kind: kindDirect, of: uint8(r), table: p.table(r.list())}
}

// table is the table of a list. The list must not be empty.
func (p *port) table(ls list) table {
	n := uint32(len(p.slots[ls]))
	if p.Method.Key == balance.Chance {
		n = tableSize(n)
	}
	return table{n, selectorOf(p.Method, p.Family)}
}

// routesByOrigin reports whether the route of some packets depends on their origin: the port has a frontend with the external policy Local.
func (p *port) routesByOrigin() bool {
	_, external := p.localPolicies()
	return p.HasEndpoints && external
}

// mapsOf returns the map for a frontend, and the map for its allowed sources.
func (l *layout) mapsOf(f *model.Frontend) (all, restricted *nft.Set) {
	switch {
	case f.Kind == model.NodePort:
		return l.nodePorts, l.restrictedNodePorts
	case f.Last != 0:
		return l.ranges, l.restrictedRanges
	}
	return l.services, l.restricted
}

// leadTo emits the vote for the element that leads to a class at a step.
func (l *layout) leadTo(c class, st step, to emit) {
	if !c.isFixed(st) {
		to.vote(l.dispatchElement(st, c), 1, 0)
	}
}

// frontendElements emits the elements of a frontend. Each has a class, which selects a chain at a step.
func (l *layout) frontendElements(p *port, f *model.Frontend, to emit) {
	set, restricted := l.mapsOf(f)
	e := nft.Element{Set: set, Key: frontendKey(&f.Key), KeyEnd: frontendEnd(&f.Key), Comment: p.comment}
	c, at := p.class(f), stepFirst
	if f.Last != 0 {
		at = stepRange
	}
	if p.sources != nil && f.Sources != nil {
		firewall := firewallOf(f)
		e.Data = firewall.word(p.sources.number)
		to.own(e)
		l.leadTo(firewall, at, to)
		e.Set, at = restricted, stepAllowed
	}
	e.Data = c.word(p.number)
	to.own(e)
	l.leadTo(c, at, to)
	if c.kind == kindSingle {
		to.own(nft.Element{Set: l.singles, Key: e.Key, Data: nft.Endpoint(first(p.slots[c.route().list()]))})
	}
	if c.kind == kindReturn {
		l.directElements(p, f, to)
	}
	l.behaviourElements(p, f, to)
}

// portElements emits the elements of a service port that belong to no single frontend, apart from own elements that
// other, an earlier or later version of the port, has, too.
func (l *layout) portElements(p, other *port, to emit) {
	l.sharedElements(p, to)
	l.numberElements(p, to)
	l.countedElements(p, to.own)
	for ls := range lists {
		l.backendElements(p, other, ls, to.own)
		l.slotElements(p, other, ls, to.own)
	}
	l.placeElements(p, other, to.own)
}

// numberElements emits the elements that have the number of a service port as their key. Each has a class.
func (l *layout) numberElements(p *port, to emit) {
	if p.number == 0 || !p.HasEndpoints {
		return
	}
	put := func(s *nft.Set, data nft.Value, c class, at step) {
		to.own(nft.Element{Set: s, Key: nft.Value{}.Uint32(p.number), Data: data, Comment: p.comment})
		l.leadTo(c, at, to)
	}
	if p.routesByOrigin() {
		for _, by := range [...]struct {
			set *nft.Set
			route
		}{{l.shortCircuit, routeShortCircuit}, {l.local, routeLocal}} {
			c := p.routeClass(by.route)
			put(by.set, c.word(p.number), c, stepLocal)
		}
	}
	if p.ids == nil {
		return
	}
	for ls := range lists {
		if len(p.slots[ls]) > 0 {
			c, at := class{kind: kindPick, of: uint8(ls), table: p.table(ls)}, ls.pick()
			if p.Limited() {
				c.kind, at = kindChoose, ls.choose()
			}
			put(l.draw[ls], nft.Value{}.Uint32(p.number|c.number()), c, at)
		}
	}
	if p.Limited() {
		c := class{kind: kindReject}
		if p.AtMaximum == model.Queue {
			c.kind = kindDrop
		}
		put(l.atMaximum, c.word(p.number), c, stepFull)
	}
}

// slotElements calls each for the elements of the slots of a list, apart from those that other, an earlier or later
// version of the port, has, too.
func (l *layout) slotElements(p, other *port, ls list, each func(nft.Element)) {
	if p.number == 0 || !p.HasEndpoints {
		return
	}
	same := p.slots[ls][:0]
	if p.number == other.number && p.Limited() == other.Limited() && other.HasEndpoints {
		same = other.slots[ls]
	}
	e, key := nft.Element{Set: l.endpoints[ls]}, nft.Value{}.Proto(p.Protocol).Uint32(p.number)
	if p.ids != nil {
		e.Set, key = l.slots[ls], nft.Value{}.Uint32(p.number)
	}
	if p.Limited() {
		e.Set = l.limitedSlots[ls]
	}
	for i, endpoint := range p.slots[ls] {
		if i < len(same) && same[i] == endpoint {
			continue
		}
		if e.Key, e.Data = key.Uint32(uint32(i)), nft.Endpoint(endpoint); p.ids != nil {
			e.Data = nft.Value{}.Uint32(p.ids.endpointRegister(endpoint))
		}
		each(e)
	}
}

// backendElements calls each for the elements that lead from the ids of a list to its endpoints, apart from those that
// other, an earlier or later version of the port, has, too.
func (l *layout) backendElements(p, other *port, ls list, each func(nft.Element)) {
	if p.ids == nil || p.Limited() {
		return
	}
	endpoints := p.endpoints(ls)
	if p.ids == other.ids && !other.Limited() {
		_, endpoints = difference(other.endpoints(ls), endpoints)
	}
	e := nft.Element{Set: l.backends[ls]}
	if p.ranged() {
		e.Set = l.rangeBackends[ls]
	}
	for _, endpoint := range endpoints {
		if word := p.ids.endpointRegister(endpoint); p.ranged() {
			e.Key, e.Data = nft.Value{}.Uint32(word), nft.Value{}.Addr(endpoint.Addr())
		} else {
			e.Key, e.Data = nft.Value{}.Proto(p.Protocol).Uint32(word), nft.Endpoint(endpoint)
		}
		each(e)
	}
}

// countedElements calls each for the elements that count the connections of endpoints, and for those that show the ids of endpoints without a slot.
func (l *layout) countedElements(p *port, each func(nft.Element)) {
	if p.counted == nil {
		return
	}
	e := nft.Element{Set: l.limited, MaxConnections: p.MaxConnections}
	for _, endpoint := range p.counted.endpoints {
		e.Key, e.Data = nft.Value{}.Proto(p.Protocol).Uint32(p.ids.endpointRegister(endpoint)), nft.Endpoint(endpoint)
		each(e)
	}
	e = nft.Element{Set: l.limitedSlots[listCluster]}
	for i, endpoint := range p.counted.idle {
		e.Key, e.Data = nft.Value{}.Uint32(p.number).Uint32(firstIdle+uint32(i)), nft.Value{}.Uint32(p.ids.endpointRegister(endpoint))
		each(e)
	}
}

// sharedElements emits the votes of a service port for elements that other service ports may want, too. They have no
// data, so no port can change an element of another one.
func (l *layout) sharedElements(p *port, to emit) {
	want := func(e nft.Element) { to.vote(e, 1, 0) }
	at := func(s *nft.Set, a netip.Addr) { want(nft.Element{Set: s, Key: nft.Value{}.Addr(a)}) }
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Addr.IsValid() {
			want(l.region(f.Addr))
		}
		if f.AtClusterIP() {
			at(l.clusterIPs, f.Addr)
			want(l.network(f.Addr))
		}
		if f.Last != 0 {
			at(l.rangeAddresses, f.Addr)
			if isAllocated(f) {
				at(l.allocatedRanges, f.Addr)
			}
		}
	}
	for _, e := range p.Hairpin {
		want(nft.Element{Set: l.hairpin, Key: nft.Value{}.Addr(e.Addr()).Addr(e.Addr())})
		want(l.network(e.Addr()))
	}
}

// network returns the element of the network of an address.
func (l *layout) network(a netip.Addr) nft.Element {
	return networkElement(l.networks, a, networkBits[l.family])
}

func networkElement(s *nft.Set, a netip.Addr, bits int) nft.Element {
	return nft.Element{Set: s, Key: nft.Value{}.Addr(netip.PrefixFrom(a, bits).Masked().Addr())}
}
