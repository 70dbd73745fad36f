package model

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxEndpointProblems is the number of bad endpoints of one slice that are reported one by one; the rest are counted.
const maxEndpointProblems = 3

// traits are what decides whether an endpoint is used.
type traits uint8

// The traits; of two endpoints with the same address and port, that with the larger number is taken (merge).
const (
	hintsZone traits = 1 << iota // has a hint for some zone
	zoneHint                     // has a hint for this node's zone
	hintsNode                    // has a hint for some node
	nodeHint                     // has a hint for this node
	local                        // is on this node
	serving
	ready
	terminating
)

type endpoint struct {
	netip.AddrPort
	traits
}

// has says whether all of the wanted traits are among them.
func (t traits) has(want traits) bool { return t&want == want }

// A groupKey says which service port an endpoint is for.
type groupKey struct {
	family   Family
	protocol Protocol
	name     string
}

type group struct {
	groupKey
	// found are endpoints as they are found, in any order.
	found []endpoint
	merged
}

// merged are the endpoints of a group, sorted by address and port, none of which is there twice, with the traits of each. They are
// immutable.
type merged struct {
	addrs  []netip.AddrPort
	traits []traits
	// present are the traits that some endpoint has. There are few different ones, however many endpoints there are.
	present traitSet
	// twice is set where an address and port were found more than once.
	twice bool
}

// traitSet is a set of combinations of traits.
type traitSet [4]uint64

func (s *traitSet) add(t traits) { s[t>>6] |= 1 << (t & 63) }

// each calls f for all combinations in the set.
func (s *traitSet) each(f func(traits)) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			f(traits(i<<6 | bits.TrailingZeros64(word)))
		}
	}
}

// some says whether the set has a combination with all of the wanted traits.
func (s *traitSet) some(want traits) (found bool) {
	s.each(func(t traits) { found = found || t.has(want) })
	return found
}

func presentIn(list []traits) (s traitSet) {
	for i, t := range list {
		if i == 0 || t != list[i-1] {
			s.add(t)
		}
	}
	return s
}

// groups holds the endpoints of one Service by service port, in the order of Service.Ports. The last group holds the endpoints on
// this node of slices with ports that no service port has. Few ports are searched one by one, many by an index.
type groups struct {
	list  []group
	byKey map[groupKey]int
}

const indexFrom = 8 // groups

// reset makes them empty groups for service ports, in memory of earlier ones.
func (g *groups) reset(ports []*ServicePort) {
	n := len(ports) + 1
	g.byKey = nil
	if n > indexFrom {
		g.byKey = make(map[groupKey]int, n)
	}
	g.list = slices.Grow(g.list[:0], n)[:n]
	for i := range g.list {
		g.list[i] = group{found: g.list[i].found[:0]}
		if i == len(ports) {
			continue
		}
		key := groupKey{family: ports[i].Family, protocol: ports[i].Protocol, name: ports[i].Name.Port}
		g.list[i].groupKey = key
		if g.byKey != nil {
			g.byKey[key] = i
		}
	}
}

// find returns the position of the group of a port; the last one for a port that the Service doesn't have.
func (g *groups) find(k groupKey) int {
	others := len(g.list) - 1
	if g.byKey != nil {
		if i, ok := g.byKey[k]; ok {
			return i
		}
		return others
	}
	if i := slices.IndexFunc(g.list[:others], func(have group) bool { return have.groupKey == k }); i >= 0 {
		return i
	}
	return others
}

// merge merges what has been found in all groups.
func (g *groups) merge() {
	for i := range g.list {
		g.list[i].merge()
	}
}

func (g *group) merge() {
	endpoints := merge(g.found)
	g.merged = merged{addrs: make([]netip.AddrPort, len(endpoints)), traits: make([]traits, len(endpoints)), twice: len(endpoints) < len(g.found)}
	for i := range endpoints {
		g.addrs[i], g.traits[i] = endpoints[i].AddrPort, endpoints[i].traits
	}
	g.present, g.found = presentIn(g.traits), g.found[:0]
}

// usable returns at most n of the endpoints: ready ones before those that serve while they terminate, these before others, and lower
// addresses before higher ones.
func (m *merged) usable(n int) merged {
	var of, keep [3]int
	for _, t := range m.traits {
		of[t.tier()]++
	}
	left := n
	for i := range of {
		keep[i] = min(of[i], left)
		left -= keep[i]
	}
	out := merged{addrs: make([]netip.AddrPort, 0, n), traits: make([]traits, 0, n), twice: m.twice}
	for i, t := range m.traits {
		if keep[t.tier()] > 0 {
			keep[t.tier()]--
			out.addrs, out.traits = append(out.addrs, m.addrs[i]), append(out.traits, t)
		}
	}
	out.present = presentIn(out.traits)
	return out
}

// tier is smaller for an endpoint that is used before another one, the same on every node.
func (t traits) tier() int {
	switch {
	case t.has(ready):
		return 0
	case t.has(serving | terminating):
		return 1
	}
	return 2
}

// localReady counts the distinct addresses of ready endpoints on this node over all groups, also those that no port of
// the Service uses, as kube-proxy does.
func (g *groups) localReady() (count [2]int) {
	var addrs []netip.Addr
	for i := range g.list {
		m := &g.list[i].merged
		for _, e := range m.pick(func(t traits) bool { return t.has(ready | local) }) {
			addrs = append(addrs, e.Addr())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, addr := range slices.Compact(addrs) {
		count[FamilyOf(addr)]++
	}
	return count
}

// A target is one port of a slice: which group its endpoints belong to, and with which port number.
type target struct {
	group int
	port  uint16
}

// collectAll adds the endpoints of slices to the groups, nil ones passed over, within the limits of slices and pairs.
func (b *builder) collectAll(list []*discoveryv1.EndpointSlice) {
	n, most := 0, 0
	for _, s := range list {
		if s != nil {
			n, most = n+1, most+pairs(len(s.Ports), len(s.Endpoints))
		}
	}
	if n <= b.limits.Slices && most <= b.limits.Pairs { // nearly always
		for _, s := range list {
			if s != nil {
				b.collect(s, len(s.Endpoints))
			}
		}
		return
	}
	list = slices.DeleteFunc(slices.Clone(list), func(s *discoveryv1.EndpointSlice) bool { return s == nil })
	slices.SortStableFunc(list, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	c := cutter{limits: &b.limits}
	for _, s := range list {
		if keep, ok := c.keep(b.targetsOf(s), len(s.Endpoints)); ok {
			b.collect(s, keep)
		}
	}
	c.report(b)
}

// pairs is the number of pairs of a slice's ports and endpoints.
func pairs(ports, endpoints int) int { return ports * endpoints }

// cutter finds the parts of slices that are above the limits of slices and pairs. It is told of the slices in order of their names.
type cutter struct {
	limits        *Limits
	slices, pairs int
}

// keep returns the number of endpoints that are kept of a slice with a number of targets; ok is false if the slice is left out.
func (c *cutter) keep(targets, endpoints int) (n int, ok bool) {
	c.slices++
	if c.slices > c.limits.Slices {
		return 0, false
	}
	left := max(0, c.limits.Pairs-c.pairs)
	c.pairs += pairs(targets, endpoints)
	if targets > 0 {
		endpoints = min(endpoints, left/targets)
	}
	return endpoints, true
}

// report reports the limits that the slices exceed.
func (c *cutter) report(b *builder) {
	if c.slices > c.limits.Slices {
		b.exceeds(LimitSlices, "EndpointSlices", c.slices, c.limits.Slices, fmt.Sprintf("the last %d by name are not used", c.slices-c.limits.Slices),
			"use larger EndpointSlices")
	}
	if c.pairs > c.limits.Pairs {
		b.exceeds(LimitPairs, "EndpointSlices", c.pairs, c.limits.Pairs, fmt.Sprintf("%d are not used", c.pairs-c.limits.Pairs),
			"EndpointSlices that are first by name are kept; divide the Service")
	}
}

// targetsOf returns the number of targets of a slice.
func (b *builder) targetsOf(s *discoveryv1.EndpointSlice) (n int) {
	f, ok := familyOfSlice(s.AddressType)
	if !ok || !b.cluster[f].IsValid() {
		return 0
	}
	others, othersToo := len(b.groups.list)-1, 0
	for i := range s.Ports {
		if _, reason := checkPort(&s.Ports[i]); reason != "" {
			continue
		}
		if b.groups.find(keyOf(&s.Ports[i], f)) == others {
			othersToo = 1
		} else {
			n++
		}
	}
	return min(n, b.limits.SlicePorts) + othersToo
}

// collect adds at most a number of the endpoints of one slice to the groups.
func (b *builder) collect(s *discoveryv1.EndpointSlice, keep int) {
	r := sliceReader{b: b, s: s}
	r.read(keep)
	b.ofSlices = append(b.ofSlices, r.problems.all(r.problemOf("ports, endpoints", ""))...)
	b.ofSlices = append(b.ofSlices, r.over...)
}

// sliceReader reads one slice.
type sliceReader struct {
	b        *builder
	s        *discoveryv1.EndpointSlice
	problems problems
	over     []Problem
}

func (r *sliceReader) read(keep int) {
	f, ok := familyOfSlice(r.s.AddressType)
	if !ok {
		r.problem("addressType", quoted(string(r.s.AddressType), "not IPv4 or IPv6"))
		return
	}
	if !r.b.cluster[f].IsValid() {
		return
	}
	var buf [4]target
	targets := r.targets(buf[:0], f)
	if len(targets) == 0 {
		return
	}
	if keep < len(r.s.Endpoints) {
		r.addFirst(f, targets, keep)
		return
	}
	others := len(r.b.groups.list) - 1
	for _, t := range targets {
		if g := &r.b.groups.list[t.group]; t.group != others {
			g.found = slices.Grow(g.found, len(r.s.Endpoints))
		}
	}
	r.eachEndpoint(f, func(addr netip.Addr, t traits) { r.add(targets, addr, t) })
}

// addFirst adds some of the endpoints, those that are used before others.
func (r *sliceReader) addFirst(f Family, targets []target, keep int) {
	list := make([]endpoint, 0, len(r.s.Endpoints))
	r.eachEndpoint(f, func(addr netip.Addr, t traits) { list = append(list, endpoint{netip.AddrPortFrom(addr, 0), t}) })
	slices.SortFunc(list, func(a, b endpoint) int { return cmp.Or(cmp.Compare(a.tier(), b.tier()), compareEndpoints(a, b)) })
	for _, e := range list[:min(keep, len(list))] {
		r.add(targets, e.Addr(), e.traits)
	}
}

func (r *sliceReader) add(targets []target, addr netip.Addr, t traits) {
	for _, target := range targets {
		g := &r.b.groups.list[target.group]
		if target.group < len(r.b.groups.list)-1 || t.has(local) {
			g.found = append(g.found, endpoint{netip.AddrPortFrom(addr, target.port), t})
		}
	}
}

// eachEndpoint calls each for every endpoint with a usable address.
func (r *sliceReader) eachEndpoint(f Family, each func(netip.Addr, traits)) {
	bad := 0
	for i := range r.s.Endpoints {
		ep := &r.s.Endpoints[i]
		addr, reason := addressOf(ep, f)
		if reason != "" {
			if bad++; bad <= maxEndpointProblems {
				r.problem(index("endpoints", i)+".addresses", reason)
			}
			continue
		}
		each(addr, r.b.traitsOf(ep))
	}
	if more := bad - maxEndpointProblems; more > 0 {
		r.problem("endpoints", fmt.Sprintf("%d more have no usable address", more))
	}
}

func (r *sliceReader) problem(field, reason string) {
	r.problems.add(r.b.limits.Problems, r.problemOf(field, reason))
}

func (r *sliceReader) problemOf(field, reason string) Problem {
	return Problem{Kind: "EndpointSlice", Name: types.NamespacedName{Namespace: r.s.Namespace, Name: r.s.Name}, Field: field, Reason: reason}
}

func familyOfSlice(t discoveryv1.AddressType) (Family, bool) {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return IPv6, true
	}
	return 0, false
}

// targets appends the usable ports of a slice that are ports of the Service, and one for all others together. No ports at all is what
// the controller writes where no pod has the wanted named port, so it is no problem.
func (r *sliceReader) targets(targets []target, f Family) []target {
	others, othersToo, n := len(r.b.groups.list)-1, false, 0
	for i := range r.s.Ports {
		p := &r.s.Ports[i]
		field, reason := checkPort(p)
		if reason != "" {
			r.problem(index("ports", i)+field, reason)
			continue
		}
		at := r.b.groups.find(keyOf(p, f))
		if at == others {
			othersToo = true
			continue
		}
		if n++; n <= r.b.limits.SlicePorts {
			targets = append(targets, target{group: at, port: uint16(*p.Port)})
		}
	}
	if most := r.b.limits.SlicePorts; n > most {
		p := r.problemOf("ports", LimitSlicePorts.exceeded(n, most, fmt.Sprintf("the last %d are not used", n-most), "divide the Service"))
		p.Limit = LimitSlicePorts
		r.over = append(r.over, p)
	}
	if othersToo {
		targets = append(targets, target{group: others})
	}
	return targets
}

// keyOf returns the key of the group of a slice's port that is usable.
func keyOf(p *discoveryv1.EndpointPort, f Family) groupKey {
	protocol, _ := slicePortProtocol(p)
	return groupKey{family: f, protocol: protocol, name: *p.Name}
}

// checkPort returns the field of a slice's port that is wrong and why, or two empty strings.
func checkPort(p *discoveryv1.EndpointPort) (field, reason string) {
	if p.Name == nil {
		return ".name", "is missing"
	}
	if p.Port == nil {
		return ".port", "is missing; all ports at once are not supported"
	}
	if _, ok := portNumber(*p.Port); !ok {
		return ".port", fmt.Sprintf("%d is not a port", *p.Port)
	}
	if _, ok := slicePortProtocol(p); !ok {
		return ".protocol", quoted(string(*p.Protocol), "not TCP, UDP or SCTP")
	}
	return "", ""
}

func slicePortProtocol(p *discoveryv1.EndpointPort) (Protocol, bool) {
	if p.Protocol == nil {
		return protocolOf(corev1.ProtocolTCP)
	}
	return protocolOf(*p.Protocol)
}

// addressOf returns the address of an endpoint, or why it has none. Only the first counts: the API lets a consumer
// choose any, and kube-proxy takes this one. Loopback addresses are let through, as kube-proxy does.
func addressOf(ep *discoveryv1.Endpoint, f Family) (addr netip.Addr, reason string) {
	if len(ep.Addresses) == 0 {
		return addr, "has no address"
	}
	addr, err := parseRaw(ep.Addresses[0])
	if err != nil {
		return addr, quoted(ep.Addresses[0], err.Error())
	}
	addr = addr.Unmap()
	if FamilyOf(addr) != f {
		return addr, quoted(ep.Addresses[0], "not an "+f.String()+" address, as addressType says")
	}
	if reason = unusable(addr); reason != "" {
		return addr, quoted(ep.Addresses[0], reason)
	}
	return addr, ""
}

// traitsOf reads missing conditions as ready, serving and not terminating, as the API says.
func (b *builder) traitsOf(ep *discoveryv1.Endpoint) (t traits) {
	if c := ep.Conditions.Ready; c == nil || *c {
		t |= ready
	}
	if c := ep.Conditions.Serving; c == nil || *c {
		t |= serving
	}
	if c := ep.Conditions.Terminating; c != nil && *c {
		t |= terminating
	}
	if b.node.Name != "" && ep.NodeName != nil && *ep.NodeName == b.node.Name {
		t |= local
	}
	if ep.Hints != nil {
		t |= b.node.hints(ep.Hints)
	}
	return t
}

func (n *Node) hints(h *discoveryv1.EndpointHints) (t traits) {
	for i := range h.ForNodes {
		t |= hintsNode
		if n.Name != "" && h.ForNodes[i].Name == n.Name {
			t |= nodeHint
		}
	}
	for i := range h.ForZones {
		t |= hintsZone
		if n.Zone != "" && h.ForZones[i].Name == n.Zone {
			t |= zoneHint
		}
	}
	return t
}

// merge sorts endpoints in place and leaves one of each address and port. A pod's address may be used again while the
// old pod still terminates: then the one that is not terminating counts. An endpoint that is moving between slices may
// be in two of them in different states: then the choice is kube-proxy's accident of order, and here the more usable
// one.
func merge(endpoints []endpoint) []endpoint {
	slices.SortFunc(endpoints, compareEndpoints)
	return slices.CompactFunc(endpoints, func(a, b endpoint) bool { return a.AddrPort == b.AddrPort })
}

// compareEndpoints puts of two endpoints with one address and port that before the other which counts.
func compareEndpoints(a, b endpoint) int {
	if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
		return c
	}
	return cmp.Compare(b.traits^terminating, a.traits^terminating)
}

// choose selects the endpoints of a service port, out of merged ones. It follows kube-proxy's CategorizeEndpoints:
// ready endpoints, or where there are none, those that still serve while they terminate; for Cluster and Local each on
// its own.
//
// Cluster is also needed where all external frontends are Local: pods and the node itself reach every endpoint through
// them.
func (sp *ServicePort) choose(m *merged) {
	usesCluster, usesLocal := sp.policies()
	forCluster, forLocal := demands(&m.present, usesLocal)
	inCluster := func(t traits) bool { return usesCluster && t.has(forCluster) }
	inLocal := func(t traits) bool { return usesLocal && t.has(forLocal) }
	hairpin := func(t traits) bool { return t.has(local) && (inCluster(t) || inLocal(t)) }

	sp.HasEndpoints = m.present.some(forCluster)
	sp.Cluster = m.pick(inCluster)
	sp.Local = m.pick(inLocal, sp.Cluster)
	sp.Hairpin = m.pick(hairpin, sp.Cluster, sp.Local)
	if sp.Protocol == UDP {
		goesOn := func(t traits) bool { return t.has(ready) || t.has(serving) }
		sp.Serving = m.pick(goesOn, sp.Cluster, sp.Local)
	}
}

// demands returns what an endpoint must have to be chosen for policy Cluster, and for policy Local; the latter says nothing where no
// frontend uses it. Explain goes by it, too.
func demands(present *traitSet, usesLocal bool) (forCluster, forLocal traits) {
	forCluster = ready | topology(present)
	if !present.some(ready) {
		forCluster = serving | terminating
	}
	forLocal = local | ready
	if usesLocal && !present.some(local|ready) {
		forLocal = local | serving | terminating
	}
	return forCluster, forLocal
}

// policies says whether any frontend needs endpoints of policy Cluster, and of policy Local.
func (sp *ServicePort) policies() (cluster, local bool) {
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		cluster = cluster || !f.Local || f.Kind != ClusterIP
		local = local || f.Local
	}
	return cluster, local
}

// topology returns the hint that an endpoint must have to be used for policy Cluster, or 0. A kind of hint counts only
// where every ready endpoint has one and one of them is for us; hints for nodes go before those for zones (KEP-3015).
// Fields that controllers turn into hints, such as trafficDistribution, are not read.
func topology(present *traitSet) traits {
	common, seen := hintsNode|hintsZone, traits(0)
	present.each(func(t traits) {
		if t.has(ready) {
			common &= t
			seen |= t
		}
	})
	switch {
	case common&hintsNode != 0 && seen&nodeHint != 0:
		return nodeHint
	case common&hintsZone != 0 && seen&zoneHint != 0:
		return zoneHint
	}
	return 0
}

// pick returns the chosen endpoints, nil if there are none. Where all are, or one of the lists made before is the same, it
// returns that list: there may be very many endpoints.
func (m *merged) pick(chosen func(traits) bool, made ...[]netip.AddrPort) []netip.AddrPort {
	all, some := true, false
	m.present.each(func(t traits) {
		c := chosen(t)
		all, some = all && c, some || c
	})
	switch {
	case !some:
		return nil
	case all:
		return m.addrs
	}
	n := 0
	for _, t := range m.traits {
		if chosen(t) {
			n++
		}
	}
	list := make([]netip.AddrPort, 0, n)
	for i, t := range m.traits {
		if chosen(t) {
			list = append(list, m.addrs[i])
		}
	}
	for _, m := range made {
		if slices.Equal(m, list) {
			return m
		}
	}
	return list
}
