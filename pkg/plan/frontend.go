package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// port is a service port in the form of the tables. The elements of its frontends lead to its number, and the number leads to its endpoints.
type port struct {
	name model.PortName
	// comment is the name in the comments of elements.
	comment   string
	frontends []model.Frontend
	// sources are the source ranges of the Service in the port's family; nil if no frontend of the Service is restricted.
	sources *sources
	// lists are the endpoints for both policies, each in the order of the slots, see [rearrange]. Read extras with [port.extra].
	lists  [lists][]netip.AddrPort
	extras [lists]*extra
	// method is the algorithm that selects a slot.
	method  balance.Method
	hairpin []netip.AddrPort
	// serving are the endpoints to which an existing UDP flow may continue, sorted.
	serving []netip.AddrPort
	// form is the form that has room, and elements the room that it takes. number is 0 in the form formSingle.
	form         form
	elements     int
	number       uint32
	protocol     inet.Protocol
	family       inet.Family
	hasEndpoints bool
	// ids are the ids of the endpoints; nil if the port is not affine, see numbers.go. timeout is the timeout of
	// session affinity in seconds, one of timeouts; 0 without session affinity.
	timeout uint32
	ids     *affinePort
	// maxConnections is the maximum of connections of each endpoint, 0 for none. It applies without session affinity. counted are the endpoints that have
	// it; nil for none. queues is true if the port drops packets while all endpoints are full.
	counted        *counted
	maxConnections uint16
	queues         bool
	// holds is true if packets are held, because the Service scales to zero and has no endpoint.
	holds bool
}

// extra has the parts of a list that few service ports have.
type extra struct {
	// filled is not nil if an endpoint may have several slots, as with a hash or weights.
	filled *filled
	// groups is the grouping of a list with very many endpoints; otherwise nil.
	groups *grouping
	// arranged is the arrangement of a list with many endpoints, which changes in place; nil for a short list. superseded is true after a later form
	// of the port has taken over the arrangement and changed it.
	arranged   *arrangement
	superseded bool
}

// noExtra stands for a nil extra. Nothing changes it.
var noExtra = extra{}

// extra returns the extra of a list. Only arrange changes it.
func (p *port) extra(ls list) *extra {
	if x := p.extras[ls]; x != nil {
		return x
	}
	return &noExtra
}

// filled is a list in which an endpoint may have several slots: its endpoints, once and sorted, with their weights.
type filled struct {
	endpoints []netip.AddrPort
	weights   []uint16
}

func (p *port) id() portID { return portID{p.name, p.protocol, p.family} }

// arrange sets a list to the given endpoints; weights are nil if all are equal. It starts from the same list of the port's earlier form, and takes
// over its arrangement if there is one. The earlier form then has superseded set. If there are more than most endpoints, they compete only in groups.
func (p *port) arrange(before *port, ls list, endpoints []netip.AddrPort, weights []uint16, most int) {
	earlier := before.extra(ls)
	f := earlier.filled
	if p.method.Key != balance.Chance || weights != nil {
		p.extras[ls], p.lists[ls] = &extra{filled: &filled{endpoints, weights}}, before.lists[ls]
		if f == nil || p.method != before.method || !slices.Equal(f.endpoints, endpoints) || !slices.Equal(f.weights, weights) {
			p.lists[ls] = p.method.Fill(endpoints, weights)
		}
		return
	}
	if len(endpoints) > most {
		groups := earlier.groups.change(endpoints)
		p.extras[ls], p.lists[ls] = &extra{groups: groups}, groups.inTurn()
		return
	}
	list, known := before.list(ls), earlier.arranged
	if earlier.superseded {
		known = nil
	}
	if earlier.groups != nil || f != nil || before.form == formSingle {
		list, known = nil, nil
	}
	now, arranged := rearrange(list, known, endpoints)
	if p.lists[ls] = now; arranged != nil {
		p.extras[ls] = &extra{arranged: arranged}
	}
	if known != nil {
		earlier.superseded = true
	}
}

// fill sets the properties that the form of the port has, and the lists of endpoints. See [port.arrange] for most.
func (p *port) fill(before *port, sp *model.ServicePort, most int) {
	clusterWeights, localWeights := sp.ClusterWeights, sp.LocalWeights
	switch p.form {
	case formSingle:
		p.lists = [lists][]netip.AddrPort{sp.Cluster, sp.Local}
		return
	case formEqual:
		clusterWeights, localWeights = nil, nil
	case formAffine:
		p.maxConnections, p.queues = sp.MaxConnections, sp.AtMaximum == model.Queue
		if sp.Affinity > 0 {
			p.timeout = timeoutClass(uint32(sp.Affinity / time.Second))
		}
	}
	if p.form > formEqual {
		p.method = sp.Method
	}
	p.arrange(before, listCluster, sp.Cluster, clusterWeights, most)
	p.arrange(before, listLocal, sp.Local, localWeights, most)
}

// only returns the endpoint of a list that serves alone in the form formSingle. The list must not be empty.
func (p *port) only(ls list) netip.AddrPort {
	return slices.MinFunc(p.lists[ls], func(a, b netip.AddrPort) int {
		return cmp.Or(cmp.Compare(score(0, hashEndpoint(a)), score(0, hashEndpoint(b))), a.Compare(b))
	})
}

// list returns one of the lists. If a later form of the port has taken over the arrangement, list restores a copy of the earlier state.
func (p *port) list(ls list) []netip.AddrPort {
	if x := p.extra(ls); x.superseded {
		return x.arranged.undone()
	}
	return p.lists[ls]
}

// endpoints are the endpoints of a list, each once.
func (p *port) endpoints(ls list) []netip.AddrPort {
	if f := p.extra(ls).filled; f != nil {
		return f.endpoints
	}
	return p.list(ls)
}

// backends returns the endpoints of a list whose elements may differ from those of the port's other form. If both forms share an arrangement and the ids,
// these are the endpoints that the other form lacks. Otherwise, these are all endpoints.
func (p *port) backends(other *port, ls list) []netip.AddrPort {
	x := p.extra(ls)
	switch {
	case p.ids != other.ids || p.counted != nil || other.counted != nil || x.arranged == nil || x.arranged != other.extra(ls).arranged:
		return p.endpoints(ls)
	case x.superseded:
		return x.arranged.removed
	}
	return x.arranged.added
}

// limits reports whether the maximum of connections applies.
func (p *port) limits() bool { return p.maxConnections > 0 && p.timeout == 0 }

// freeIDs frees the ids of endpoints that only the port's earlier form had.
func (p *port) freeIDs(before *port) {
	if p.counted != nil {
		p.ids.keepOnly(p.counted.endpoints)
		return
	}
	if before.counted != nil || !p.searchable() {
		p.ids.keepOnly(p.endpoints(listCluster), p.endpoints(listLocal))
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

// searchable reports whether [port.has] is fast: at least one list has an arrangement, and each list without one is short.
func (p *port) searchable() bool {
	searchable := false
	for ls := range lists {
		arranged := p.extra(ls).arranged != nil
		if !arranged && len(p.lists[ls]) > many {
			return false
		}
		searchable = searchable || arranged
	}
	return searchable
}

// has reports whether one of the lists has an endpoint.
func (p *port) has(e netip.AddrPort) bool {
	for ls := range lists {
		a := p.extra(ls).arranged
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
	case !p.hasEndpoints:
		return class{kind: kindReject}
	case p.number == 0 && (f.Kind == model.NodePort || f.Local && f.Kind != model.ClusterIP):
		return class{kind: kindDrop}
	case f.Kind == model.ClusterIP && f.Local:
		return p.routeClass(routeClusterLocal)
	case f.Kind == model.ClusterIP:
		return p.routeClass(routeCluster)
	case !f.Local:
		return p.routeClass(routeExternal)
	}
	return class{kind: kindExternalLocal}
}

// routeClass returns the class of a route. If the route's list is empty, the class drops: other endpoints exist, but none for this traffic.
func (p *port) routeClass(r route) class {
	switch {
	case len(p.lists[r.list()]) == 0:
		return class{kind: kindDrop}
	case p.number == 0:
		return class{kind: singleKind(r)}
	case p.limits():
		return class{kind: limitedKind(r)}
	case p.timeout > 0:
		return class{kind: affinityKind(r), timeout: p.timeout}
	case p.ranged():
		return class{kind: rangeKind(r)}
	}
	return class{kind: directKind(r), table: p.table(r.list())}
}

// table is the table of a list. The list must not be empty.
func (p *port) table(ls list) table {
	n := uint32(len(p.lists[ls]))
	if p.method.Key == balance.Chance {
		n = tableSize(n)
	}
	return table{n, selectorOf(p.method, p.family)}
}

// routesByOrigin reports whether the route of some packets depends on their origin: the port has a frontend with the external policy Local.
func (p *port) routesByOrigin() bool {
	return p.hasEndpoints && slices.ContainsFunc(p.frontends, func(f model.Frontend) bool { return f.Local && f.Kind != model.ClusterIP })
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

// frontendElements calls each for the elements of a frontend, with the class in the element, and the step at which this class selects a chain.
func (l *layout) frontendElements(p *port, f *model.Frontend, each func(nft.Element, step, class)) {
	set, restricted := l.mapsOf(f)
	e := nft.Element{Set: set, Key: frontendKey(&f.Key), KeyEnd: frontendEnd(&f.Key), Comment: p.comment}
	c, at := p.class(f), stepFirst
	if f.Last != 0 {
		at = stepRange
	}
	if p.sources != nil && f.Sources != nil {
		firewall := firewallOf(f)
		e.Data = firewall.word(p.sources.number)
		each(e, at, firewall)
		e.Set, at = restricted, stepAllowed
	}
	e.Data = c.word(p.number)
	each(e, at, c)
	if c.kind >= kindSingle && c.kind < kindAffinity {
		each(nft.Element{Set: l.singles, Key: e.Key, Data: nft.Endpoint(p.only(c.kind.route().list()))}, at, c)
	}
}

// portElements calls each for the elements of a service port that belong neither to a slot nor to a frontend, with
// class and step.
func (l *layout) portElements(p *port, each func(nft.Element, step, class)) {
	if p.number == 0 || !p.hasEndpoints {
		return
	}
	key := nft.Value{}.Uint32(p.number)
	if p.routesByOrigin() {
		for _, by := range [...]struct {
			set *nft.Set
			route
		}{{l.shortCircuit, routeShortCircuit}, {l.local, routeLocal}} {
			c := p.routeClass(by.route)
			each(nft.Element{Set: by.set, Key: key, Data: c.word(p.number), Comment: p.comment}, stepLocal, c)
		}
	}
	if p.ids == nil {
		return
	}
	for ls := range lists {
		if len(p.lists[ls]) > 0 {
			c, at := class{kind: pickKind(ls), table: p.table(ls)}, stepPick+step(ls)
			if p.limits() {
				c.kind, at = chooseKind(ls), stepChoose+step(ls)
			}
			each(nft.Element{Set: l.draw[ls], Key: key, Data: nft.Value{}.Uint32(p.number | c.number()), Comment: p.comment}, at, c)
		}
	}
	if p.limits() {
		c := class{kind: kindReject}
		if p.queues {
			c.kind = kindDrop
		}
		each(nft.Element{Set: l.atMaximum, Key: key, Data: c.word(p.number), Comment: p.comment}, stepFull, c)
	}
}

// slots makes the elements of one list of a service port, one for each slot. A list can have very many elements, so all of them use the same
// memory.
type slots struct {
	port *port
	list list
	// n is the number of elements.
	n       int
	ids     *affinePort
	key     nft.Value
	element nft.Element
}

// reset sets the list and the service port.
func (s *slots) reset(l *layout, p *port, ls list) {
	s.n = 0
	if p.number == 0 || !p.hasEndpoints {
		return
	}
	s.port, s.list, s.n, s.ids = p, ls, len(p.lists[ls]), p.ids
	if s.ids != nil {
		s.key, s.element = nft.Value{}.Uint32(p.number), nft.Element{Set: l.slots[ls]}
		if p.limits() {
			s.element.Set = l.limitedSlots[ls]
		}
		return
	}
	s.key, s.element = nft.Value{}.Proto(p.protocol).Uint32(p.number), nft.Element{Set: l.endpoints[ls]}
}

// endpoints returns the endpoints in the order of the slots.
func (s *slots) endpoints() []netip.AddrPort {
	if s.n == 0 {
		return nil
	}
	return s.port.list(s.list)
}

// at returns the element of a slot, with an endpoint, or with its id if the port has endpoint ids. The next call overwrites it.
func (s *slots) at(i int, endpoint netip.AddrPort) *nft.Element {
	s.element.Key = s.key.Uint32(uint32(i))
	if s.ids != nil {
		s.element.Data = nft.Value{}.Uint32(s.ids.endpointRegister(endpoint))
	} else {
		s.element.Data = nft.Endpoint(endpoint)
	}
	return &s.element
}

// backendElements calls each for the elements that lead from the endpoint ids of a port to its endpoints. It may leave out elements that the
// other form of the port has, too.
func (l *layout) backendElements(p, other *port, each func(*nft.Element)) {
	if p.ids == nil {
		return
	}
	if l.countedElements(p, each); p.limits() {
		return
	}
	for ls := range lists {
		e := nft.Element{Set: l.backends[ls]}
		if p.ranged() {
			e.Set = l.rangeBackends[ls]
		}
		for _, endpoint := range p.backends(other, ls) {
			if word := p.ids.endpointRegister(endpoint); p.ranged() {
				e.Key, e.Data = nft.Value{}.Uint32(word), nft.Value{}.Addr(endpoint.Addr())
			} else {
				e.Key, e.Data = nft.Value{}.Proto(p.protocol).Uint32(word), nft.Endpoint(endpoint)
			}
			each(&e)
		}
	}
}

// countedElements calls each for the elements that count the connections of endpoints, and for those that show the ids of endpoints without a slot.
func (l *layout) countedElements(p *port, each func(*nft.Element)) {
	if p.counted == nil {
		return
	}
	e := nft.Element{Set: l.limited, MaxConnections: p.maxConnections}
	for _, endpoint := range p.counted.endpoints {
		e.Key, e.Data = nft.Value{}.Proto(p.protocol).Uint32(p.ids.endpointRegister(endpoint)), nft.Endpoint(endpoint)
		each(&e)
	}
	e = nft.Element{Set: l.limitedSlots[listCluster]}
	for i, endpoint := range p.counted.idle {
		e.Key, e.Data = nft.Value{}.Uint32(p.number).Uint32(firstIdle+uint32(i)), nft.Value{}.Uint32(p.ids.endpointRegister(endpoint))
		each(&e)
	}
}

// shared is an element that several service ports may need. It has no data, so no port can change an element of another one. The set and an address
// give its key.
type shared struct {
	set  *nft.Set
	addr netip.Addr
}

// element returns the element. An element of the set hairpin has the address twice.
func (s shared) element() nft.Element {
	e := nft.Element{Set: s.set, Key: nft.Value{}.Addr(s.addr)}
	if len(s.set.Key) > 1 {
		e.Key = e.Key.Addr(s.addr)
	}
	return e
}

// sharedElements calls each for every shared element that a service port needs.
func (l *layout) sharedElements(p *port, each func(shared)) {
	for i := range p.frontends {
		f := &p.frontends[i]
		if f.Addr.IsValid() {
			each(l.region(f.Addr))
		}
		if f.AtClusterIP() {
			each(shared{l.clusterIPs, f.Addr})
			each(l.network(f.Addr))
		}
		if f.Last != 0 {
			each(shared{l.rangeAddresses, f.Addr})
			if isAllocated(f) {
				each(shared{l.allocatedRanges, f.Addr})
			}
		}
	}
	for _, e := range p.hairpin {
		each(shared{l.hairpin, e.Addr()})
		each(l.network(e.Addr()))
	}
}

// network returns the element of the network of an address.
func (l *layout) network(a netip.Addr) shared {
	return sharedNetwork(l.networks, a, networkBits[l.family])
}

func sharedNetwork(s *nft.Set, a netip.Addr, bits int) shared {
	return shared{s, netip.PrefixFrom(a, bits).Masked().Addr()}
}
