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

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// maxEndpointProblems is the number of invalid endpoints of one slice with a problem of their own. Further ones are only counted.
const maxEndpointProblems = 3

// traits are the facts about an endpoint that determine whether it is used.
type traits uint8

// The traits, the least important first. Of two endpoints with the same address and port, compareEndpoints prefers the one that is not terminating.
// If both are equal in this, it prefers the one with the more important trait.
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
	// found holds the endpoints in the order of reading, with duplicates.
	found []endpoint
	merged
}

// merged holds the endpoints of a group, with the traits of each. They are sorted by address and port, free of duplicates, and
// immutable.
type merged struct {
	addrs  []netip.AddrPort
	traits []traits
	// weights are nil if all are 1.
	weights []uint16
	// present has the combinations of traits that occur. They are few even if there are many endpoints.
	present traitSet
	// twice is true if duplicates were removed.
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

// groups holds the endpoints of one Service by service port, in the order of Service.Ports. The last group is for slice ports that match no
// service port. It has only endpoints on this node; for Service.Listed, it has all endpoints. With indexFrom groups or more, byKey is their index.
type groups struct {
	list  []group
	byKey map[groupKey]int
}

const indexFrom = 9

// reset makes one empty group for each service port, and one for all other ports. It reuses memory.
func (g *groups) reset(ports []*ServicePort) {
	n := len(ports) + 1
	g.byKey = nil
	if n >= indexFrom {
		g.byKey = make(map[groupKey]int, n)
	}
	g.list = slices.Grow(g.list[:0], n)[:n]
	for i := range g.list {
		g.list[i] = group{found: g.list[i].found[:0], merged: merged{traits: g.list[i].traits[:0]}}
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

// find returns the index of a port's group. For a port that the Service does not have, it returns the index of the last group.
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

// merge merges the found endpoints of each group.
func (g *groups) merge() {
	for i := range g.list {
		g.list[i].merge()
	}
}

func (g *group) merge() {
	endpoints := merge(g.found)
	n := len(endpoints)
	g.merged = merged{addrs: make([]netip.AddrPort, n), traits: slices.Grow(g.traits[:0], n)[:n], twice: n < len(g.found)}
	for i := range endpoints {
		g.addrs[i], g.traits[i] = endpoints[i].AddrPort, endpoints[i].traits
		if endpoints[i].more > 0 && g.weights == nil {
			g.weights = slices.Repeat([]uint16{1}, len(endpoints))
		}
		if g.weights != nil {
			g.weights[i] = 1 + endpoints[i].more
		}
	}
	g.present, g.found = presentIn(g.traits), g.found[:0]
}

// best returns at most n of the endpoints. It prefers ready endpoints, then endpoints that serve while they terminate, then
// others. Among equals, it prefers lower addresses.
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
	out := merged{addrs: make([]netip.AddrPort, 0, n), traits: make([]traits, 0, n), twice: m.twice}
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

// localReady counts the distinct addresses of ready endpoints on this node over all groups. As in kube-proxy, it includes
// endpoints that no port of the Service uses.
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

// collectAll adds the endpoints of slices to the groups, within the limits of slices and pairs. Nil slices are ignored.
func (b *builder) collectAll(list []*discoveryv1.EndpointSlice) {
	n, pairs := 0, 0
	for _, s := range list {
		if s != nil {
			n, pairs = n+1, pairs+len(s.Ports)*len(s.Endpoints)
		}
	}
	if n <= b.limits.Slices && pairs <= b.limits.Pairs { // the usual case: no sorting
		for _, s := range list {
			if s != nil {
				b.collect(s, len(s.Endpoints))
			}
		}
		return
	}
	c := sliceBudget{limits: &b.limits}
	for _, s := range byName(list) {
		if keep, ok := c.admit(b.targetsOf(s), len(s.Endpoints)); ok {
			b.collect(s, keep)
		}
	}
	c.report(b)
}

// sliceBudget counts slices and pairs against their limits. The results of admit are final only if the caller passes the slices in order of
// their names. The totals do not depend on the order.
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

// byName returns slices without nil, in the order of their names.
func byName(list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	list = slices.DeleteFunc(slices.Clone(list), func(s *discoveryv1.EndpointSlice) bool { return s == nil })
	slices.SortStableFunc(list, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// targetsOf returns the number of targets of a slice.
func (b *builder) targetsOf(s *discoveryv1.EndpointSlice) (n int) {
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
func (b *builder) portsOf(s *discoveryv1.EndpointSlice) []discoveryv1.EndpointPort {
	return s.Ports[:min(len(s.Ports), b.limits.SlicePorts)]
}

// collect adds at most keep endpoints of one slice to the groups.
func (b *builder) collect(s *discoveryv1.EndpointSlice, keep int) {
	r := sliceReader{b: b, s: s}
	r.read(keep)
	b.addOfSlice(append(r.problems.all(r.problemOf("ports, endpoints", "")), r.unlimited...))
}

// sliceReader reads one slice.
type sliceReader struct {
	b         *builder
	s         *discoveryv1.EndpointSlice
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
	var buf [4]target
	targets := r.targets(buf[:0], f)
	if len(targets) == 0 {
		if !r.b.out.TerminateGone {
			return
		}
		r.portless = true
		targets = append(targets, target{group: len(r.b.groups.list) - 1})
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
	r.eachEndpoint(f, func(e endpoint) { r.add(targets, e) })
}

// addFirst adds the best keep endpoints of the slice (see tier).
func (r *sliceReader) addFirst(f inet.Family, targets []target, keep int) {
	list := make([]endpoint, 0, len(r.s.Endpoints))
	r.eachEndpoint(f, func(e endpoint) { list = append(list, e) })
	slices.SortFunc(list, func(a, b endpoint) int { return cmp.Or(cmp.Compare(a.tier(), b.tier()), compareEndpoints(a, b)) })
	for _, e := range list[:min(keep, len(list))] {
		r.add(targets, e)
	}
}

func (r *sliceReader) add(targets []target, e endpoint) {
	for _, target := range targets {
		g := &r.b.groups.list[target.group]
		if target.group < len(r.b.groups.list)-1 || e.has(local) || r.b.out.TerminateGone {
			if r.portless {
				e.traits = 0
			}
			e.AddrPort = netip.AddrPortFrom(e.Addr(), target.port)
			g.found = append(g.found, e)
		}
	}
}

// eachEndpoint calls each for every endpoint with a usable address, and adds problems for the others. The port of these endpoints is not set yet.
func (r *sliceReader) eachEndpoint(f inet.Family, each func(endpoint)) {
	bad, overHints, weights := 0, 0, r.b.limits.readWeights(r.s, r.invalid)
	for i := range r.s.Endpoints {
		ep := &r.s.Endpoints[i]
		addr, reason := addressOf(ep, f)
		if reason != "" {
			if bad++; bad <= maxEndpointProblems {
				r.problem(index("endpoints", i)+".addresses", ofAddress(ep, reason))
			}
			continue
		}
		if h := ep.Hints; h != nil && max(len(h.ForZones), len(h.ForNodes)) > MostHints {
			overHints++
		}
		each(r.b.endpoint(ep, addr, &weights))
	}
	if more := bad - maxEndpointProblems; more > 0 {
		r.problem("endpoints", fmt.Sprintf("%d more have no usable address", more))
	}
	if overHints > 0 {
		r.reportExcess(limitHints, "endpoints", 0, MostHints,
			fmt.Sprintf("the hints of %d endpoints are used only in part", overHints), "use fewer hints")
	}
}

func (r *sliceReader) problem(field, reason string) {
	r.problems.add(r.b.limits.Problems, r.problemOf(field, reason))
}

// invalid adds a problem about an invalid value.
func (r *sliceReader) invalid(field, value, reason string) {
	if !r.problems.full(r.b.limits.Problems) {
		r.problem(field, quoted(value, reason))
	}
}

// reportExcess adds a problem about an exceeded limit of the slice.
func (r *sliceReader) reportExcess(limit Limit, field string, have, most int, out, remedy string) {
	p := r.problemOf(field, limit.exceeded(have, most, out, remedy))
	p.Limit = limit
	r.unlimited = append(r.unlimited, p)
}

func (r *sliceReader) problemOf(field, reason string) Problem {
	return Problem{Kind: "EndpointSlice", Name: types.NamespacedName{Namespace: r.s.Namespace, Name: r.s.Name}, Field: field, Reason: reason}
}

// targets appends a target for each usable port of the slice that matches a port of the Service. It appends one target
// for all other usable ports together. An empty list of ports is valid: the EndpointSlice controller writes it if no
// pod has the named target port.
func (r *sliceReader) targets(targets []target, f inet.Family) []target {
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

// addressOf returns the address of an endpoint, or the reason why it has none, see [ofAddress]. As in kube-proxy, it
// uses the first address. The API lets a consumer use any of the addresses. Loopback and link-local addresses, which
// the API server rejects, would lead to this node and its neighbours.
func addressOf(ep *discoveryv1.Endpoint, f inet.Family) (addr netip.Addr, reason string) {
	if len(ep.Addresses) == 0 {
		return addr, "has no address"
	}
	addr, err := parseRaw(ep.Addresses[0])
	if err != nil {
		return addr, err.Error()
	}
	addr = addr.Unmap()
	if inet.FamilyOf(addr) != f {
		return addr, ofOtherFamily[f]
	}
	switch {
	case addr.IsLoopback():
		return addr, "is a loopback address"
	case addr.IsLinkLocalUnicast():
		return addr, "is a link-local address"
	}
	return addr, unusable(addr)
}

// ofOtherFamily are the reasons why an address in a slice of a family is not used.
var ofOtherFamily = [...]string{
	inet.IPv4: "not an IPv4 address, as addressType says",
	inet.IPv6: "not an IPv6 address, as addressType says",
}

// ofAddress adds the address of an endpoint to the reason why the endpoint has none.
func ofAddress(ep *discoveryv1.Endpoint, reason string) string {
	if len(ep.Addresses) == 0 {
		return reason
	}
	return quoted(ep.Addresses[0], reason)
}

// endpoint returns an endpoint of a slice with the given weights. Its port is not set yet.
func (b *builder) endpoint(ep *discoveryv1.Endpoint, addr netip.Addr, weights *sliceWeights) endpoint {
	e := endpoint{AddrPort: netip.AddrPortFrom(addr, 0), traits: b.traitsOf(ep)}
	if w := weights.of(addr); w > 0 {
		e.more = w - 1
	} else {
		e.traits = e.quarantine()
	}
	return e
}

// traitsOf reads a missing condition as ready, serving and not terminating, as the API defines.
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
	for i := range min(len(h.ForNodes), MostHints) {
		t |= anyNodeHint
		if n.Name != "" && h.ForNodes[i].Name == n.Name {
			t |= thisNodeHint
		}
	}
	for i := range min(len(h.ForZones), MostHints) {
		t |= anyZoneHint
		if n.Zone != "" && h.ForZones[i].Name == n.Zone {
			t |= thisZoneHint
		}
	}
	return t
}

// merge sorts endpoints in place and removes duplicates of an address and port. A new pod may get the address of a pod that still terminates: merge
// keeps the endpoint that is not terminating. An endpoint that moves between slices may be in both with different conditions: merge keeps the entry
// with the better conditions. kube-proxy keeps the last entry that it reads.
func merge(endpoints []endpoint) []endpoint {
	slices.SortFunc(endpoints, compareEndpoints)
	return slices.CompactFunc(endpoints, func(a, b endpoint) bool { return a.AddrPort == b.AddrPort })
}

// compareEndpoints sorts by address and port. If these are equal, the preferred endpoint is first.
func compareEndpoints(a, b endpoint) int {
	if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(b.traits^terminating, a.traits^terminating), cmp.Compare(b.more, a.more))
}

// choose selects the endpoints of a service port from merged endpoints. It follows kube-proxy's CategorizeEndpoints: ready
// endpoints, or if there are none, endpoints that still serve while they terminate. Cluster and Local are selected independently.
//
// The list Cluster is needed even if all external frontends have policy Local: through these frontends, pods and the node itself
// reach every endpoint.
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

// demands returns the traits that an endpoint needs for policy Cluster and for policy Local. Ignore forLocal if no frontend uses
// policy Local. Build and Explain share demands, so that they agree.
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

// topology returns the hint that an endpoint must have to be used for policy Cluster, or 0. Hints of one kind (node or zone) apply only if every
// ready endpoint has such a hint, and at least one of these hints matches this node. Hints for nodes precede those for zones (KEP-3015). Fields such
// as trafficDistribution are not read: controllers turn them into hints.
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

// weightsOf returns the weights of a list that pick has returned; nil if they are equal. They are reduced, unless the Service has both slow start and
// the random algorithm, see slowed.
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

// pick returns the chosen endpoints, or nil if there are none. To save memory, it returns an existing list if one is equal: the
// list of all endpoints, or one of the given lists.
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
