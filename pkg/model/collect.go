package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// traits are the facts about an endpoint that determine whether it is used.
type traits uint16

// The traits, the least important first. Of two endpoints with the same address and port, compareEndpoints prefers
// the one that is not passive, then the one that is not terminating. If both are equal in this, it prefers the one with
// the more important trait.
const (
	redirected   traits = 1 << iota // belongs to the Service that a local redirect names
	nodeless                        // its slice has no node for it
	anyZoneHint                     // has a hint for some zone
	thisZoneHint                    // has a hint for this node's zone
	anyNodeHint                     // has a hint for some node
	thisNodeHint                    // has a hint for this node
	local                           // is on this node
	serving
	ready
	terminating
	passive // not used because of a local redirect
)

// has reports whether all wanted traits are set.
func (t traits) has(want traits) bool { return t&want == want }

// tier returns the rank of an endpoint at limits: 0 is the best. It is the same on every node.
func (t traits) tier() int {
	switch {
	case t.has(ready):
		return 0
	case t.has(serving | terminating):
		return 1
	}
	return 2
}

// endpoint is one endpoint of a slice at one port.
type endpoint struct {
	netip.AddrPort
	traits
	// weight is at least 1. missing is the part of it that a starting endpoint does not have yet, in units of
	// 1/[fullShare].
	weight  uint16
	missing uint8
	// slice and of are its source.
	slice *Slice
	of    *Endpoint
}

// A groupKey identifies the service port of an endpoint within a Service.
type groupKey struct {
	family   inet.Family
	protocol inet.Protocol
	name     string
}

// group has the endpoints of one service port in all slices, within the limits. The last group is for slice ports that
// match no service port. It has endpoints only for Service.LocalReady and Service.Listed.
type group struct {
	groupKey
	parts []part
	// endpoints are sorted, without duplicates, which are in the other list.
	endpoints, duplicates []endpoint
}

// firstPort returns the index of the first port of the same family.
func firstPort(ports []*ServicePort, of *ServicePort) int {
	return slices.IndexFunc(ports, func(sp *ServicePort) bool { return sp.Family == of.Family })
}

// groupOf returns the endpoints of a service port by its index. Ranges have the endpoints of the first port.
func (b *builder) groupOf(i int) *group {
	if sp := b.out.Ports[i]; sp.Ranged() {
		i = firstPort(b.out.Ports, sp)
	}
	return &b.groups[i]
}

// A part is a slice with the number of one of its ports, for the group with an index.
type part struct {
	group int
	slice *Slice
	port  uint16
	// portless is true if the slice has no usable port, and is read only for Service.Listed.
	portless bool
	// redirected is true if the slice belongs to the Service that a local redirect names.
	redirected bool
}

// collect makes a group for each service port, and adds the endpoints of slices to them, within the limits of slices
// and of pairs. The slices are in the order of their names. Those of a local redirect are last.
func (b *builder) collect(o Objects) {
	list, most := o.Slices, b.limits.Slices
	n := len(list)
	if n > most {
		b.reportExcess(limitSlices, "EndpointSlices", n, most, fmt.Sprintf("the last %d by name are not used", n-most),
			"use larger EndpointSlices")
	}
	b.groups = make([]group, len(b.out.Ports)+1)
	groupAt := make(map[groupKey]int, len(b.out.Ports))
	for i, sp := range b.out.Ports {
		key := groupKey{family: sp.Family, protocol: sp.Protocol, name: sp.Name.Port}
		b.groups[i].groupKey = key
		if _, known := groupAt[key]; !known { // a port may have the name RangesPort
			groupAt[key] = i
		}
	}
	list = list[:min(n, most)]
	own := len(list)
	if b.redirect != "" {
		list = slices.Concat(list, b.onThisNode(o.Redirect))
	}
	left, exceeded := b.limits.Pairs, false
	for i, s := range list {
		if left == 0 {
			exceeded = exceeded || s.Len() > 0
			continue
		}
		r := sliceReader{b, s, problems{kind: "EndpointSlice", name: s.Name, most: b.limits.Problems}}
		parts := r.parts(groupAt)
		keep := s.Len()
		if len(parts)*keep > left {
			keep, left, exceeded = left/len(parts), 0, true
		}
		left = max(0, left-max(len(parts)*keep, len(s.Ports)))
		if keep == 0 && s.Len() > 0 {
			continue
		}
		within := s
		if keep < len(s.Endpoints) {
			within = b.node.bestOf(s, keep)
		}
		for _, p := range parts {
			p.slice, p.redirected = within, i >= own
			if p.group < len(b.out.Ports) || b.out.HealthCheckNodePort != 0 || b.out.TerminateGone {
				b.groups[p.group].parts = append(b.groups[p.group].parts, p)
			}
		}
		if len(parts) > 0 && (len(s.Unusable)+s.overHints > 0 || s.problems != nil) {
			r.reportEndpoints()
		}
		if len(r.list)+len(r.unlimited) > 0 && i < own {
			for _, p := range r.all("ports, endpoints") {
				b.ofSlices.add(p)
			}
		}
	}
	if exceeded {
		b.reportExcess(limitPairs, "EndpointSlices", 0, b.limits.Pairs,
			"only EndpointSlices that are first by name are used", "divide the Service")
	}
	for i := range b.groups {
		if g := &b.groups[i]; len(g.parts) > 0 {
			b.read(g)
		}
	}
}

// read reads the endpoints of a group. It sorts them, and separates duplicates.
func (b *builder) read(g *group) {
	n := 0
	for _, p := range g.parts {
		n += len(p.slice.Endpoints)
	}
	all := make([]endpoint, 0, n)
	for _, p := range g.parts {
		for i := range p.slice.Endpoints {
			e := b.node.endpoint(p.slice, &p.slice.Endpoints[i], p.port)
			b.weighted = b.weighted || e.weight != 1
			if p.portless {
				e.traits = 0
			}
			if p.redirected { // its hints are for clients of the other Service
				e.traits = e.traits&(local|serving|ready|terminating) | redirected
			}
			all = append(all, e)
		}
	}
	if b.redirect != "" {
		divert(all)
	}
	order := make([]int32, len(all)) // because an endpoint is large, the sort moves indexes
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int { return compareEndpoints(&all[i], &all[j]) })
	g.endpoints = make([]endpoint, 0, len(all))
	for _, i := range order {
		if n := len(g.endpoints); n > 0 && g.endpoints[n-1].AddrPort == all[i].AddrPort {
			g.duplicates = append(g.duplicates, all[i])
		} else {
			g.endpoints = append(g.endpoints, all[i])
		}
	}
}

// onThisNode returns the parts of slices with the endpoints on this node, within the limit of slices.
func (b *builder) onThisNode(list []*Slice) (parts []*Slice) {
	for _, s := range list[:min(len(list), b.limits.Slices)] {
		part := &Slice{Name: s.Name, AddressType: s.AddressType, Ports: s.Ports}
		for i := range s.Endpoints {
			if name := s.Endpoints[i].Node(); name != "" && name == b.node.Name {
				part.Endpoints = append(part.Endpoints, s.Endpoints[i])
			}
		}
		if len(part.Endpoints) > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// divert makes endpoints passive: the Service's own ones if the other Service has a ready one on this node, otherwise
// those of the other Service. A passive endpoint gets no new connections. It keeps existing UDP flows while it serves,
// so that no reply is lost.
func divert(all []endpoint) {
	divert := slices.ContainsFunc(all, func(e endpoint) bool { return e.has(redirected | ready) })
	for i := range all {
		e := &all[i]
		if e.has(redirected) == divert {
			continue
		}
		if e.has(ready) {
			e.traits |= serving
		}
		e.traits = e.traits&(redirected|nodeless|local|serving) | passive
	}
}

// compareEndpoints sorts by address and port. Of endpoints with the same address and port, the preferred one is
// first, and the others are not used. A new pod may get the address of a pod that still terminates: the endpoint that
// is not terminating is preferred. An endpoint that moves between slices may be in both with different conditions:
// the entry with the better conditions is preferred. kube-proxy keeps the last entry that it reads.
func compareEndpoints(a, b *endpoint) int {
	if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
		return c
	}
	const worse = passive | terminating
	return cmp.Or(cmp.Compare(b.traits^worse, a.traits^worse), cmp.Compare(b.weight, a.weight))
}

// bestOf returns a slice with only the best endpoints.
func (n *Node) bestOf(s *Slice, most int) *Slice {
	all, out := make([]endpoint, len(s.Endpoints)), *s
	for i := range s.Endpoints {
		all[i] = n.endpoint(s, &s.Endpoints[i], 0)
	}
	kept, _ := best(all, most)
	out.Endpoints = make([]Endpoint, most)
	for i, e := range kept {
		out.Endpoints[i] = *e.of
	}
	return &out
}

// best returns n of more sorted endpoints, and the others. It prefers ready endpoints, then endpoints that serve while
// they terminate, then others. Among equals, it prefers lower addresses.
func best(list []endpoint, n int) (kept, others []endpoint) {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b endpoint) int { return cmp.Compare(a.tier(), b.tier()) })
	slices.SortFunc(list[:n], func(a, b endpoint) int { return compareEndpoints(&a, &b) })
	return list[:n], list[n:]
}

// endpoint returns an endpoint of a slice as this node sees it, at a port. An endpoint of weight 0 gets no new
// connections, and may continue existing ones: it is neither ready nor terminating.
func (n *Node) endpoint(s *Slice, of *Endpoint, port uint16) endpoint {
	e := endpoint{
		AddrPort: netip.AddrPortFrom(of.Addr, port), traits: of.conditions, weight: max(1, of.weight), slice: s, of: of,
	}
	if of.weight == 0 {
		e.traits &^= ready | terminating
	}
	at := of.at.Value()
	for _, fact := range [...]struct {
		holds bool
		trait traits
	}{
		{at.node == "", nodeless},
		{at.node != "" && at.node == n.Name, local},
		{at.hints.nodes != "", anyNodeHint},
		{n.Name != "" && strings.Contains(at.hints.nodes, "\n"+n.Name+"\n"), thisNodeHint},
		{at.hints.zones != "", anyZoneHint},
		{n.Zone != "" && strings.Contains(at.hints.zones, "\n"+n.Zone+"\n"), thisZoneHint},
	} {
		if fact.holds {
			e.traits |= fact.trait
		}
	}
	return e
}

// selection has the endpoints of one service port, with the reasons why policies do not use them.
type selection struct {
	// endpoints are those among which the service port selects: sorted, and without duplicates. unused are duplicates,
	// and endpoints above the limit.
	endpoints, unused []endpoint
	// forCluster and forLocal are the traits that an endpoint needs for policy Cluster and for policy Local.
	forCluster, forLocal traits
}

// selectEndpoints selects the endpoints of each service port, and counts those on this node.
func (b *builder) selectEndpoints() {
	if b.direct {
		b.limitDirect()
	}
	hasTables := b.weighted || b.slow > 0 ||
		slices.ContainsFunc(b.out.Ports, func(sp *ServicePort) bool { return sp.Method.Key != balance.Chance })
	if hasTables && b.applySlotLimit() {
		for _, sp := range b.out.Ports {
			sp.Method = balance.Method{}
		}
		for _, g := range b.groups {
			for i := range g.endpoints {
				g.endpoints[i].weight = 1
			}
		}
	}
	if b.slow > 0 {
		b.setStarts()
	}
	most, excess, ports, prevents := b.limits.PortEndpoints, 0, 0, ""
	for i, sp := range b.out.Ports {
		g := b.groupOf(i)
		s := selection{endpoints: g.endpoints, unused: g.duplicates}
		if n := len(g.endpoints); n > most {
			excess, ports = max(excess, n), ports+1
			var others []endpoint
			s.endpoints, others = best(g.endpoints, most)
			s.unused = slices.Concat(g.duplicates, others)
		}
		if sp.Ranged() {
			s.withoutPorts()
		}
		b.choose(sp, &s)
		if b.direct {
			if reason := b.locate(sp, &s); reason != "" && prevents == "" {
				prevents = fmt.Sprintf("port %q: %s; ports of this kind use NAT", sp.Name.Port, reason)
			}
		}
		b.selections = append(b.selections, s)
	}
	if prevents != "" {
		b.useNAT(prevents)
	}
	if ports > 0 {
		b.reportExcess(limitPortEndpoints, "EndpointSlices", excess, most,
			fmt.Sprintf("%d ports do not use all of their endpoints", ports),
			"ready ones are kept before others, and lower addresses before higher ones; divide the Service")
	}
	if b.out.HealthCheckNodePort != 0 {
		b.countLocal()
	}
	if b.out.TerminateGone {
		b.setListed()
	}
}

// choose selects the endpoints of a service port. It follows kube-proxy's CategorizeEndpoints: ready endpoints, or if
// there are none, endpoints that still serve while they terminate. Cluster and Local are selected independently.
//
// The list Cluster is needed even if all external frontends have policy Local: through these frontends, pods and the
// node itself reach every endpoint.
func (b *builder) choose(sp *ServicePort, s *selection) {
	usesCluster, usesLocal := sp.policies()
	s.forCluster, s.forLocal = demands(s.endpoints)
	sp.HasEndpoints = slices.ContainsFunc(s.endpoints, func(e endpoint) bool { return e.has(s.forCluster) })
	inCluster := func(e *endpoint) bool { return usesCluster && e.has(s.forCluster) }
	inLocal := func(e *endpoint) bool { return usesLocal && e.has(s.forLocal) }
	isUsed := func(e *endpoint) bool { return inCluster(e) || inLocal(e) }
	hairpin := func(e *endpoint) bool { return e.has(local) && isUsed(e) }
	serves := func(e *endpoint) bool { return e.has(ready) || e.has(serving) }

	sp.Cluster = pick(s.endpoints, inCluster)
	sp.Local = pick(s.endpoints, inLocal, sp.Cluster)
	if b.weighted || b.slow > 0 {
		sp.ClusterWeights = sp.weightsOf(s.endpoints, inCluster, b.slow > 0)
		sp.LocalWeights = sp.weightsOf(s.endpoints, inLocal, b.slow > 0)
	}
	sp.Hairpin = pick(s.endpoints, hairpin, sp.Cluster, sp.Local)
	sp.Serving = pick(s.endpoints, serves, sp.Cluster, sp.Local)
	if sp.MaxConnections > 0 {
		sp.Idle = pick(s.endpoints, func(e *endpoint) bool { return !isUsed(e) })
	}
}

// policies reports whether any frontend needs endpoints of policy Cluster, and of policy Local.
func (sp *ServicePort) policies() (cluster, local bool) {
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		cluster = cluster || !f.Local || f.Kind != ClusterIP
		local = local || f.Local
	}
	return cluster, local
}

// demands returns the traits that an endpoint needs for policy Cluster and for policy Local.
//
// For policy Cluster, it may need a hint for this node. Hints of one kind (node or zone) apply only if every ready
// endpoint has such a hint, and at least one of these hints matches this node. Hints for nodes precede those for zones
// (KEP-3015). Fields such as trafficDistribution are not read: controllers turn them into hints.
func demands(list []endpoint) (forCluster, forLocal traits) {
	common, seen := anyNodeHint|anyZoneHint, traits(0)
	forCluster, forLocal = serving|terminating, local|serving|terminating
	for i := range list {
		t := list[i].traits
		if t.has(ready) {
			common &= t
			seen |= t
			forCluster = ready
		}
		if t.has(ready | local) {
			forLocal = ready | local
		}
	}
	switch {
	case common&anyNodeHint != 0 && seen&thisNodeHint != 0:
		forCluster |= thisNodeHint
	case common&anyZoneHint != 0 && seen&thisZoneHint != 0:
		forCluster |= thisZoneHint
	}
	return forCluster, forLocal
}

// pick returns the chosen endpoints, or nil if there are none. To save memory, it returns one of the given lists if it
// is equal.
func pick(list []endpoint, chosen func(*endpoint) bool, existing ...[]netip.AddrPort) []netip.AddrPort {
	n := 0
	for i := range list {
		if e := &list[i]; chosen(e) {
			existing = slices.DeleteFunc(existing, func(l []netip.AddrPort) bool { return len(l) <= n || l[n] != e.AddrPort })
			n++
		}
	}
	for _, l := range existing {
		if len(l) == n {
			return l
		}
	}
	if n == 0 {
		return nil
	}
	picked := make([]netip.AddrPort, 0, n)
	for i := range list {
		if chosen(&list[i]) {
			picked = append(picked, list[i].AddrPort)
		}
	}
	return picked
}

// weightsOf returns the weights of the chosen endpoints; nil if they are equal. They are reduced, unless the Service
// has both slow start and the random algorithm, see slowed.
func (sp *ServicePort) weightsOf(list []endpoint, chosen func(*endpoint) bool, slow bool) []uint16 {
	var weights []uint16
	var shares []uint8
	for i := range list {
		if e := &list[i]; chosen(e) {
			weights, shares = append(weights, e.weight), append(shares, fullShare-e.missing)
		}
	}
	weights = balance.Reduce(weights)
	if !slow || len(shares) == 0 {
		return weights
	}
	if sp.Method.Key == balance.Chance {
		for i, share := range shares {
			sp.Rising += weightAt(weights, i) * (fullShare - int(share))
		}
	}
	return slowed(weights, shares, sp.Method.Key)
}

// countLocal sets Service.LocalReady. As in kube-proxy, it includes endpoints that no port of the Service uses.
func (b *builder) countLocal() {
	var addrs []netip.Addr
	for _, g := range b.groups {
		for i := range g.endpoints {
			if e := &g.endpoints[i]; e.has(ready | local) {
				addrs = append(addrs, e.Addr())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, addr := range slices.Compact(addrs) {
		b.out.LocalReady[inet.FamilyOf(addr)]++
	}
}
