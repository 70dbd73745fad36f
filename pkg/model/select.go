package model

import (
	"cmp"
	"fmt"
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

// has says whether the endpoint has all of the wanted traits.
func (e *endpoint) has(want traits) bool { return e.traits&want == want }

// A groupKey says which service port an endpoint is for.
type groupKey struct {
	family   Family
	protocol Protocol
	name     string
}

type group struct {
	groupKey
	endpoints []endpoint
}

// groups holds the endpoints of one Service by service port. Few ports are searched one by one, many by an index.
type groups struct {
	list  []group
	byKey map[groupKey]int
}

const indexFrom = 8 // groups

// find returns the position of a group, or -1.
func (g *groups) find(k groupKey) int {
	if g.byKey != nil {
		if i, ok := g.byKey[k]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(g.list, func(have group) bool { return have.groupKey == k })
}

// at returns the position of a group, which is made if need be.
func (g *groups) at(k groupKey) int {
	if i := g.find(k); i >= 0 {
		return i
	}
	g.list = append(g.list, group{groupKey: k})
	if g.byKey != nil {
		g.byKey[k] = len(g.list) - 1
	} else if len(g.list) == indexFrom {
		g.byKey = make(map[groupKey]int, 2*indexFrom)
		for i := range g.list {
			g.byKey[g.list[i].groupKey] = i
		}
	}
	return len(g.list) - 1
}

// localReady counts the distinct addresses of ready endpoints on this node over all groups, also those that no port of
// the Service uses, as kube-proxy does.
func (g *groups) localReady() (count [2]int) {
	var addrs []netip.Addr
	for i := range g.list {
		for _, e := range g.list[i].endpoints {
			if e.has(ready | local) {
				addrs = append(addrs, e.Addr())
			}
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

// collect adds the endpoints of one slice to the groups.
func (b *builder) collect(s *discoveryv1.EndpointSlice) {
	f, ok := familyOfSlice(s.AddressType)
	if !ok {
		b.sliceProblem(s, "addressType", quoted(string(s.AddressType), "not IPv4 or IPv6"))
		return
	}
	if !b.cluster[f].IsValid() {
		return
	}
	var buf [4]target
	targets := b.targets(buf[:0], s, f)
	for _, t := range targets {
		g := &b.groups.list[t.group]
		g.endpoints = slices.Grow(g.endpoints, len(s.Endpoints))
	}
	if len(targets) > 0 {
		b.addEndpoints(s, f, targets)
	}
}

func (b *builder) addEndpoints(s *discoveryv1.EndpointSlice, f Family, targets []target) {
	bad := 0
	for i := range s.Endpoints {
		ep := &s.Endpoints[i]
		addr, reason := addressOf(ep, f)
		if reason != "" {
			if bad++; bad <= maxEndpointProblems {
				b.sliceProblem(s, index("endpoints", i)+".addresses", reason)
			}
			continue
		}
		t := b.traitsOf(ep)
		for _, target := range targets {
			g := &b.groups.list[target.group]
			g.endpoints = append(g.endpoints, endpoint{netip.AddrPortFrom(addr, target.port), t})
		}
	}
	if more := bad - maxEndpointProblems; more > 0 {
		b.sliceProblem(s, "endpoints", fmt.Sprintf("%d more have no usable address", more))
	}
}

func (b *builder) sliceProblem(s *discoveryv1.EndpointSlice, field, reason string) {
	b.out.Problems = append(b.out.Problems, Problem{
		Kind:   "EndpointSlice",
		Name:   types.NamespacedName{Namespace: s.Namespace, Name: s.Name},
		Field:  field,
		Reason: reason,
	})
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

// targets appends the usable ports of a slice. No ports at all is what the controller writes where no pod has the
// wanted named port, so it is no problem.
func (b *builder) targets(targets []target, s *discoveryv1.EndpointSlice, f Family) []target {
	for i := range s.Ports {
		p := &s.Ports[i]
		field, reason := checkPort(p)
		if reason != "" {
			b.sliceProblem(s, index("ports", i)+field, reason)
			continue
		}
		protocol, _ := slicePortProtocol(p)
		at := b.groups.at(groupKey{family: f, protocol: protocol, name: *p.Name})
		targets = append(targets, target{group: at, port: uint16(*p.Port)})
	}
	return targets
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
	slices.SortFunc(endpoints, func(a, b endpoint) int {
		if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
			return c
		}
		return cmp.Compare(b.traits^terminating, a.traits^terminating)
	})
	return slices.CompactFunc(endpoints, func(a, b endpoint) bool { return a.AddrPort == b.AddrPort })
}

// choose selects the endpoints of a service port, out of merged ones. It follows kube-proxy's CategorizeEndpoints:
// ready endpoints, or where there are none, those that still serve while they terminate; for Cluster and Local each on
// its own.
//
// Cluster is also needed where all external frontends are Local: pods and the node itself reach every endpoint through
// them.
func (sp *ServicePort) choose(endpoints []endpoint) {
	usesCluster, usesLocal := sp.policies()
	forCluster := ready | topology(endpoints)
	if !some(endpoints, ready) {
		forCluster = serving | terminating
	}
	forLocal := local | ready
	if usesLocal && !some(endpoints, local|ready) {
		forLocal = local | serving | terminating
	}
	inCluster := func(e *endpoint) bool { return usesCluster && e.has(forCluster) }
	inLocal := func(e *endpoint) bool { return usesLocal && e.has(forLocal) }
	hairpin := func(e *endpoint) bool { return e.has(local) && (inCluster(e) || inLocal(e)) }

	sp.HasEndpoints = some(endpoints, forCluster)
	sp.Cluster = pick(endpoints, inCluster)
	sp.Local = pick(endpoints, inLocal, sp.Cluster)
	sp.Hairpin = pick(endpoints, hairpin, sp.Cluster, sp.Local)
	if sp.Protocol == UDP {
		goesOn := func(e *endpoint) bool { return e.has(ready) || e.has(serving) }
		sp.Serving = pick(endpoints, goesOn, sp.Cluster, sp.Local)
	}
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
func topology(endpoints []endpoint) traits {
	common, seen := hintsNode|hintsZone, traits(0)
	for i := range endpoints {
		if e := &endpoints[i]; e.has(ready) {
			common &= e.traits
			seen |= e.traits
		}
	}
	switch {
	case common&hintsNode != 0 && seen&nodeHint != 0:
		return nodeHint
	case common&hintsZone != 0 && seen&zoneHint != 0:
		return zoneHint
	}
	return 0
}

func some(endpoints []endpoint, want traits) bool {
	return slices.ContainsFunc(endpoints, func(e endpoint) bool { return e.has(want) })
}

// pick returns the chosen endpoints, nil if there are none. Where one of the lists made before is the same, it returns
// that one: there may be very many endpoints.
func pick(endpoints []endpoint, chosen func(*endpoint) bool, made ...[]netip.AddrPort) []netip.AddrPort {
	n := 0
	for i := range endpoints {
		if chosen(&endpoints[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	list := make([]netip.AddrPort, 0, n)
	for i := range endpoints {
		if chosen(&endpoints[i]) {
			list = append(list, endpoints[i].AddrPort)
		}
	}
	for _, m := range made {
		if slices.Equal(m, list) {
			return m
		}
	}
	return list
}
