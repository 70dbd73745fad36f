package model

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// maxEndpointProblems is the number of invalid endpoints of one slice with a problem of their own. Further ones are
// only counted.
const maxEndpointProblems = 3

// traits are the facts about an endpoint that determine whether it is used.
type traits uint8

// The traits, the least important first. Of two endpoints with the same address and port, compareEndpoints prefers
// the one that is not terminating. If both are equal in this, it prefers the one with the more important trait.
const (
	anyZoneHint  traits = 1 << iota // has a hint for some zone
	thisZoneHint                    // has a hint for this node's zone
	anyNodeHint                     // has a hint for some node
	thisNodeHint                    // has a hint for this node
	local                           // is on this node
	serving
	ready
	terminating
)

type endpoint struct {
	netip.AddrPort
	traits
	// more is the weight minus one.
	more uint16
}

// has reports whether all wanted traits are set.
func (t traits) has(want traits) bool { return t&want == want }

// A groupKey identifies the service port of an endpoint within a Service.
type groupKey struct {
	family   inet.Family
	protocol inet.Protocol
	name     string
}

type group struct {
	groupKey
	// found holds the endpoints of all slices, with duplicates. Those of each slice are sorted, and ends has their ends.
	found []endpoint
	ends  []int
	merged
}

// merged holds the endpoints of a group, with the traits of each. They are sorted by address and port, and free of
// duplicates.
type merged struct {
	addrs  []netip.AddrPort
	traits []traits
	// weights are nil if all are 1.
	weights []uint16
	// present has the combinations of traits that occur. They are few even if there are many endpoints.
	present traitSet
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

// some reports whether any combination in the set has all wanted traits.
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

// groups holds the endpoints of one Service by service port, in the order of Service.Ports. The last group is for
// slice ports that match no service port. It has only endpoints on this node; for Service.Listed, it has all
// endpoints. byKey is the index of the other groups.
type groups struct {
	list  []group
	byKey map[groupKey]int
}

// newGroups returns one empty group for each service port, and one for all other ports.
func newGroups(ports []*ServicePort) groups {
	g := groups{list: make([]group, len(ports)+1), byKey: make(map[groupKey]int, len(ports))}
	for i, p := range ports {
		key := groupKey{family: p.Family, protocol: p.Protocol, name: p.Name.Port}
		g.list[i].groupKey = key
		if _, known := g.byKey[key]; !known { // a range of ports has the key of its first port
			g.byKey[key] = i
		}
	}
	return g
}

// find returns the index of a port's group. For a port that the Service does not have, it returns the index of the
// last group.
func (g *groups) find(k groupKey) int {
	if i, ok := g.byKey[k]; ok {
		return i
	}
	return len(g.list) - 1
}

// merge merges the found endpoints of each group.
func (g *groups) merge() {
	for i := range g.list {
		g.list[i].merge()
	}
}

func (g *group) merge() {
	endpoints := slices.CompactFunc(mergeSorted(g.found, g.ends), func(a, b endpoint) bool { return a.AddrPort == b.AddrPort })
	n := len(endpoints)
	g.merged = merged{addrs: make([]netip.AddrPort, n), traits: make([]traits, n)}
	for i := range endpoints {
		g.addrs[i], g.traits[i] = endpoints[i].AddrPort, endpoints[i].traits
		if endpoints[i].more > 0 && g.weights == nil {
			g.weights = slices.Repeat([]uint16{1}, len(endpoints))
		}
		if g.weights != nil {
			g.weights[i] = 1 + endpoints[i].more
		}
	}
	g.present, g.found, g.ends = presentIn(g.traits), nil, nil
}

// best returns at most n of the endpoints. It prefers ready endpoints, then endpoints that serve while they
// terminate, then others. Among equals, it prefers lower addresses.
func (m *merged) best(n int) merged {
	var of, keep [3]int
	for _, t := range m.traits {
		of[t.tier()]++
	}
	left := n
	for i := range of {
		keep[i] = min(of[i], left)
		left -= keep[i]
	}
	out := merged{addrs: make([]netip.AddrPort, 0, n), traits: make([]traits, 0, n)}
	for i, t := range m.traits {
		if keep[t.tier()] > 0 {
			keep[t.tier()]--
			out.addrs, out.traits = append(out.addrs, m.addrs[i]), append(out.traits, t)
			if m.weights != nil {
				out.weights = append(out.weights, m.weights[i])
			}
		}
	}
	out.present = presentIn(out.traits)
	return out
}

// tier returns the rank of an endpoint: 0 is the best. The rank of an endpoint is the same on every node.
func (t traits) tier() int {
	switch {
	case t.has(ready):
		return 0
	case t.has(serving | terminating):
		return 1
	}
	return 2
}

// tier returns the rank of an endpoint of a slice.
func (e *Endpoint) tier() int {
	if e.weight == 0 {
		return e.conditions.quarantine().tier()
	}
	return e.conditions.tier()
}

// localReady counts the distinct addresses of ready endpoints on this node over all groups. As in kube-proxy, it
// includes endpoints that no port of the Service uses.
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
		count[inet.FamilyOf(addr)]++
	}
	return count
}

// A target is one port of a slice: the group of its endpoints, and their port number.
type target struct {
	group int
	port  uint16
}

// collectAll adds the endpoints of slices to the groups, within the limits of slices and pairs.
func (b *builder) collectAll(list []*Slice) {
	c := sliceBudget{limits: &b.limits}
	for _, s := range list {
		if keep, ok := c.admit(b.targetsOf(s), s.Len()); ok {
			b.collect(s, keep)
		}
	}
	c.report(b)
}

// sliceBudget counts slices and pairs against their limits. The results of admit are final only if the caller passes
// the slices in order of their names. The totals do not depend on the order.
type sliceBudget struct {
	limits        *Limits
	slices, pairs int
}

// admit counts one slice and returns the number of its endpoints within the limits. ok is false if the whole slice is
// left out, because none of its endpoints is within the limits.
func (c *sliceBudget) admit(targets, endpoints int) (n int, ok bool) {
	c.slices++
	if c.slices > c.limits.Slices {
		return 0, false
	}
	left := max(0, c.limits.Pairs-c.pairs)
	c.pairs += targets * endpoints
	if targets == 0 || endpoints == 0 {
		return endpoints, true
	}
	n = min(endpoints, left/targets)
	return n, n > 0
}

// report reports the limits that the slices exceed.
func (c *sliceBudget) report(b *builder) {
	if c.slices > c.limits.Slices {
		b.reportExcess(limitSlices, "EndpointSlices", c.slices, c.limits.Slices, fmt.Sprintf("the last %d by name are not used", c.slices-c.limits.Slices),
			"use larger EndpointSlices")
	}
	if c.pairs > c.limits.Pairs {
		b.reportExcess(limitPairs, "EndpointSlices", 0, c.limits.Pairs,
			"only EndpointSlices that are first by name are used", "divide the Service")
	}
}

// targetsOf returns the number of targets of a slice.
func (b *builder) targetsOf(s *Slice) (n int) {
	f, ok := familyNamed(s.AddressType)
	if !ok || !b.cluster[f].IsValid() {
		return 0
	}
	others, other := len(b.groups.list)-1, 0
	for _, p := range b.portsOf(s) {
		if _, reason := checkPort(&p); reason != "" {
			continue
		}
		if b.groups.find(keyOf(&p, f)) == others {
			other = 1
		} else {
			n++
		}
	}
	if n == 0 && b.out.TerminateGone {
		other = 1
	}
	return n + other
}

// portsOf returns the ports of a slice, within the limit.
func (b *builder) portsOf(s *Slice) []discoveryv1.EndpointPort {
	return s.Ports[:min(len(s.Ports), b.limits.SlicePorts)]
}

// collect adds at most keep endpoints of one slice to the groups.
func (b *builder) collect(s *Slice, keep int) {
	r := sliceReader{b: b, s: s}
	r.read(keep)
	b.addOfSlice(append(r.problems.all(r.problemOf("ports, endpoints", "")), r.unlimited...))
}

// sliceReader reads one slice.
type sliceReader struct {
	b         *builder
	s         *Slice
	problems  problems
	unlimited []Problem
	// portless is true if the slice has no usable port, and is read only for Service.Listed.
	portless bool
}

func (r *sliceReader) read(keep int) {
	f, ok := familyNamed(r.s.AddressType)
	if !ok {
		r.problem("addressType", quoted(string(r.s.AddressType), "not IPv4 or IPv6"))
		return
	}
	if !r.b.cluster[f].IsValid() {
		return
	}
	targets := r.targets(f)
	if len(targets) == 0 {
		if !r.b.out.TerminateGone {
			return
		}
		r.portless = true
		targets = append(targets, target{group: len(r.b.groups.list) - 1})
	}
	list := r.s.Endpoints
	if keep < r.s.Len() {
		list = slices.SortedStableFunc(slices.Values(list), func(a, b Endpoint) int {
			return cmp.Or(cmp.Compare(a.tier(), b.tier()), a.Addr.Compare(b.Addr))
		})
		list = list[:min(keep, len(list))]
	}
	for _, t := range targets {
		r.add(t, list)
	}
	r.reportEndpoints()
}

func (r *sliceReader) add(t target, list []Endpoint) {
	g := &r.b.groups.list[t.group]
	every := t.group < len(r.b.groups.list)-1 || r.b.out.TerminateGone
	if every {
		g.found = slices.Grow(g.found, len(list))
	}
	for i := range list {
		e := r.b.endpoint(&list[i], t.port)
		if r.portless {
			e.traits = 0
		}
		if every || e.has(local) {
			g.found = append(g.found, e)
		}
	}
	start := 0
	if n := len(g.ends); n > 0 {
		start = g.ends[n-1]
	}
	if of := g.found[start:]; !slices.IsSortedFunc(of, compareEndpoints) { // after addresses that are not unique, or in order of tiers
		slices.SortFunc(of, compareEndpoints)
	}
	g.ends = append(g.ends, len(g.found))
}

// reportEndpoints adds the problems of the annotations and the endpoints.
func (r *sliceReader) reportEndpoints() {
	for _, p := range r.s.problems.list {
		r.problems.add(r.b.limits.Problems, p)
	}
	r.problems.more += r.s.problems.more
	for i := range r.s.Unusable[:min(len(r.s.Unusable), maxEndpointProblems)] {
		u := &r.s.Unusable[i]
		r.problem(index("endpoints", u.index)+".addresses", u.why())
	}
	if more := len(r.s.Unusable) - maxEndpointProblems; more > 0 {
		r.problem("endpoints", fmt.Sprintf("%d more have no usable address", more))
	}
	if n := r.s.overHints; n > 0 {
		r.reportExcess(limitHints, "endpoints", 0, MostHints,
			fmt.Sprintf("the hints of %d endpoints are used only in part", n), "use fewer hints")
	}
}

func (r *sliceReader) problem(field, reason string) {
	r.problems.add(r.b.limits.Problems, r.problemOf(field, reason))
}

// reportExcess adds a problem about an exceeded limit of the slice.
func (r *sliceReader) reportExcess(limit Limit, field string, have, most int, out, remedy string) {
	p := r.problemOf(field, limit.exceeded(have, most, out, remedy))
	p.Limit = limit
	r.unlimited = append(r.unlimited, p)
}

func (r *sliceReader) problemOf(field, reason string) Problem {
	return r.s.problemOf(field, reason)
}

// targets returns a target for each usable port of the slice that matches a port of the Service. It returns one target
// for all other usable ports together. An empty list of ports is valid: the EndpointSlice controller writes it if no
// pod has the named target port.
func (r *sliceReader) targets(f inet.Family) (targets []target) {
	others, othersToo := len(r.b.groups.list)-1, false
	if n, most := len(r.s.Ports), r.b.limits.SlicePorts; n > most {
		r.reportExcess(limitSlicePorts, "ports", 0, most,
			fmt.Sprintf("ports from %s on are not used", index("ports", most)), "divide the Service")
	}
	for i, p := range r.b.portsOf(r.s) {
		field, reason := checkPort(&p)
		if reason != "" {
			if !r.problems.full(r.b.limits.Problems) {
				r.problem(index("ports", i)+field, reason)
			}
			continue
		}
		if at := r.b.groups.find(keyOf(&p, f)); at == others {
			othersToo = true
		} else {
			targets = append(targets, target{group: at, port: uint16(*p.Port)})
		}
	}
	if othersToo {
		targets = append(targets, target{group: others})
	}
	return targets
}

// keyOf returns the group key of a slice's port. The port must be usable (see checkPort).
func keyOf(p *discoveryv1.EndpointPort, f inet.Family) groupKey {
	protocol, _ := slicePortProtocol(p)
	return groupKey{family: f, protocol: protocol, name: *p.Name}
}

// checkPort returns the invalid field of a slice's port and the reason, or two empty strings.
func checkPort(p *discoveryv1.EndpointPort) (field, reason string) {
	if p.Name == nil {
		return ".name", "is missing"
	}
	if p.Port == nil {
		return ".port", "is missing; a slice for all ports is not supported"
	}
	if _, ok := portNumber(*p.Port); !ok {
		return ".port", fmt.Sprintf("%d is not a port", *p.Port)
	}
	if _, ok := slicePortProtocol(p); !ok {
		return ".protocol", quoted(string(*p.Protocol), "not TCP, UDP or SCTP")
	}
	return "", ""
}

func slicePortProtocol(p *discoveryv1.EndpointPort) (inet.Protocol, bool) {
	if p.Protocol == nil {
		return protocolOf(corev1.ProtocolTCP)
	}
	return protocolOf(*p.Protocol)
}

// endpoint returns an endpoint of a slice at a port. An endpoint of weight 0 gets no new connections.
func (b *builder) endpoint(in *Endpoint, port uint16) endpoint {
	e := endpoint{AddrPort: netip.AddrPortFrom(in.Addr, port), traits: in.conditions}
	at := in.at.Value()
	if b.direct && at.node == "" {
		if b.nodeless == nil {
			b.nodeless = map[netip.Addr]bool{}
		}
		b.nodeless[in.Addr] = true
	}
	if b.node.Name != "" && at.node == b.node.Name {
		e.traits |= local
	}
	if at.hints != (hints{}) {
		e.traits |= b.node.hints(at.hints)
	}
	if in.weight == 0 {
		e.traits = e.quarantine()
		return e
	}
	e.more = in.weight - 1
	return e
}

func (n *Node) hints(h hints) (t traits) {
	if h.nodes != "" {
		t |= anyNodeHint
	}
	if n.Name != "" && strings.Contains(h.nodes, "\n"+n.Name+"\n") {
		t |= thisNodeHint
	}
	if h.zones != "" {
		t |= anyZoneHint
	}
	if n.Zone != "" && strings.Contains(h.zones, "\n"+n.Zone+"\n") {
		t |= thisZoneHint
	}
	return t
}

// mergeSorted returns the endpoints of sorted lists, sorted. ends are the ends of the lists. It overwrites both
// arguments.
func mergeSorted(list []endpoint, ends []int) []endpoint {
	into := make([]endpoint, len(list))
	for len(ends) > 1 {
		pairs, start := ends[:0], 0
		for i := 0; i < len(ends); i += 2 {
			middle, end := ends[i], ends[min(i+1, len(ends)-1)]
			mergeTwo(into[start:start], list[start:middle], list[middle:end])
			pairs, start = append(pairs, end), end
		}
		list, into, ends = into, list, pairs
	}
	return list
}

// mergeTwo appends the endpoints of two sorted lists, sorted.
func mergeTwo(into, a, b []endpoint) []endpoint {
	for len(a) > 0 && len(b) > 0 {
		if compareEndpoints(a[0], b[0]) <= 0 {
			into, a = append(into, a[0]), a[1:]
		} else {
			into, b = append(into, b[0]), b[1:]
		}
	}
	return append(append(into, a...), b...)
}

// compareEndpoints sorts by address and port. Of endpoints with the same address and port, the preferred one is
// first, and the others are not used. A new pod may get the address of a pod that still terminates: the endpoint that
// is not terminating is preferred. An endpoint that moves between slices may be in both with different conditions:
// the entry with the better conditions is preferred. kube-proxy keeps the last entry that it reads.
func compareEndpoints(a, b endpoint) int {
	if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(b.traits^terminating, a.traits^terminating), cmp.Compare(b.more, a.more))
}

// choose selects the endpoints of a service port from merged endpoints. It follows kube-proxy's CategorizeEndpoints:
// ready endpoints, or if there are none, endpoints that still serve while they terminate. Cluster and Local are
// selected independently.
//
// The list Cluster is needed even if all external frontends have policy Local: through these frontends, pods and the
// node itself reach every endpoint.
//
// shares are the shares of the endpoints, or nil without slow start.
func (sp *ServicePort) choose(m *merged, shares []uint8) {
	usesCluster, usesLocal := sp.policies()
	forCluster, forLocal := demands(&m.present, usesLocal)
	inCluster := func(t traits) bool { return usesCluster && t.has(forCluster) }
	inLocal := func(t traits) bool { return usesLocal && t.has(forLocal) }
	hairpin := func(t traits) bool { return t.has(local) && (inCluster(t) || inLocal(t)) }

	sp.HasEndpoints = m.present.some(forCluster)
	sp.Cluster = m.pick(inCluster)
	sp.Local = m.pick(inLocal, sp.Cluster)
	sp.ClusterWeights, sp.LocalWeights = sp.weightsOf(m, shares, sp.Cluster), sp.weightsOf(m, shares, sp.Local)
	sp.Hairpin = m.pick(hairpin, sp.Cluster, sp.Local)
	if sp.MaxConnections > 0 {
		sp.Idle = m.pick(func(t traits) bool { return !inCluster(t) && !inLocal(t) })
	}
	serves := func(t traits) bool { return t.has(ready) || t.has(serving) }
	sp.Serving = m.pick(serves, sp.Cluster, sp.Local)
}

// demands returns the traits that an endpoint needs for policy Cluster and for policy Local. Ignore forLocal if no
// frontend uses policy Local. Build and Explain share demands, so that they agree.
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

// policies reports whether any frontend needs endpoints of policy Cluster, and of policy Local.
func (sp *ServicePort) policies() (cluster, local bool) {
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		cluster = cluster || !f.Local || f.Kind != ClusterIP
		local = local || f.Local
	}
	return cluster, local
}

// topology returns the hint that an endpoint must have to be used for policy Cluster, or 0. Hints of one kind (node
// or zone) apply only if every ready endpoint has such a hint, and at least one of these hints matches this node.
// Hints for nodes precede those for zones (KEP-3015). Fields such as trafficDistribution are not read: controllers
// turn them into hints.
func topology(present *traitSet) traits {
	common, seen := anyNodeHint|anyZoneHint, traits(0)
	present.each(func(t traits) {
		if t.has(ready) {
			common &= t
			seen |= t
		}
	})
	switch {
	case common&anyNodeHint != 0 && seen&thisNodeHint != 0:
		return thisNodeHint
	case common&anyZoneHint != 0 && seen&thisZoneHint != 0:
		return thisZoneHint
	}
	return 0
}

// weightsOf returns the weights of a list that pick has returned; nil if they are equal. They are reduced, unless the
// Service has both slow start and the random algorithm, see slowed.
func (sp *ServicePort) weightsOf(m *merged, shares []uint8, list []netip.AddrPort) []uint16 {
	if m.weights == nil && shares == nil || list == nil {
		return nil
	}
	weights, of, at := make([]uint16, 0, len(list)), make([]uint8, 0, len(list)), 0
	for _, e := range list {
		for m.addrs[at] != e {
			at++
		}
		if m.weights != nil {
			weights = append(weights, m.weights[at])
		}
		if shares != nil {
			of = append(of, shares[at])
		}
	}
	weights = balance.Reduce(weights)
	if shares == nil {
		return weights
	}
	if sp.Method.Key == balance.Chance {
		for i, share := range of {
			sp.Rising += weightAt(weights, i) * (fullShare - int(share))
		}
	}
	return slowed(weights, of, sp.Method.Key)
}

// pick returns the chosen endpoints, or nil if there are none. To save memory, it returns an existing list if one is
// equal: the list of all endpoints, or one of the given lists.
func (m *merged) pick(chosen func(traits) bool, existing ...[]netip.AddrPort) []netip.AddrPort {
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
	for _, e := range existing {
		if slices.Equal(e, list) {
			return e
		}
	}
	return list
}
