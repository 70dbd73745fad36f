package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// maxEndpointProblems is the number of invalid endpoints of one slice with a problem of their own. Further ones are
// only counted.
const maxEndpointProblems = 3

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
		r := sliceReader{b, s, problems{kind: "EndpointSlice", name: s.Name, most: b.limits.Problems}}
		parts := r.parts(groupAt)
		keep := s.Len()
		if pairs := len(parts) * keep; pairs <= left {
			left -= pairs
		} else {
			keep, left, exceeded = left/len(parts), 0, true
		}
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

// sliceReader reads one slice.
type sliceReader struct {
	b *builder
	s *Slice
	problems
}

// parts returns a part for each usable port of the slice that matches a port of the Service. It returns one part for
// all other usable ports together. If there is no usable port, it records the reason for [Explain]. An empty list of
// ports is valid: the EndpointSlice controller writes it if no pod has the named target port.
func (r *sliceReader) parts(groupAt map[groupKey]int) (parts []part) {
	f, known := familyNamed(r.s.AddressType)
	switch {
	case !known:
		r.problem("addressType", quoted(string(r.s.AddressType), "not IPv4 or IPv6"))
		r.unread("the slice's address type " + string(r.s.AddressType) + " is not one of IP")
		return nil
	case !r.b.cluster[f].IsValid():
		r.unread("the Service has no " + f.String() + " cluster IP")
		return nil
	}
	n, most := len(r.s.Ports), r.b.limits.SlicePorts
	if n > most {
		r.reportExcess(limitSlicePorts, "ports", 0, most,
			fmt.Sprintf("ports from %s on are not used", index("ports", most)), "divide the Service")
	}
	unusable := "its slice has no port: no container port of the pod matches the targetPort of the Service"
	others, hasOthers := len(r.b.groups)-1, false
	for i := range r.s.Ports[:min(n, most)] {
		p := &r.s.Ports[i]
		protocol, field, reason := checkPort(p)
		if reason != "" {
			if n == 1 {
				unusable = index("its slice's ports", i) + field + " " + reason
			}
			if !r.full() {
				r.problem(index("ports", i)+field, reason)
			}
			continue
		}
		if at, found := groupAt[groupKey{family: f, protocol: protocol, name: *p.Name}]; found {
			parts = append(parts, part{group: at, port: uint16(*p.Port)})
		} else {
			hasOthers = true
		}
	}
	if hasOthers {
		return append(parts, part{group: others})
	}
	if len(parts) == 0 {
		r.unread(unusable)
		if r.b.out.TerminateGone {
			return []part{{group: others, portless: true}}
		}
	}
	return parts
}

// unread records that no port of the slice is usable.
func (r *sliceReader) unread(why string) {
	if r.b.unread == nil {
		r.b.unread = map[*Slice]string{}
	}
	r.b.unread[r.s] = why
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

// checkPort returns the protocol of a slice's port, or the invalid field and the reason.
func checkPort(p *discoveryv1.EndpointPort) (protocol inet.Protocol, field, reason string) {
	if p.Name == nil {
		return 0, ".name", "is missing"
	}
	if p.Port == nil {
		return 0, ".port", "is missing; a slice for all ports is not supported"
	}
	if _, ok := portNumber(*p.Port); !ok {
		return 0, ".port", fmt.Sprintf("%d is not a port", *p.Port)
	}
	name := corev1.ProtocolTCP
	if p.Protocol != nil {
		name = *p.Protocol
	}
	protocol, ok := protocolOf(name)
	if !ok {
		return 0, ".protocol", quoted(string(name), "not TCP, UDP or SCTP")
	}
	return protocol, "", ""
}

// reportEndpoints adds the problems of the annotations and the endpoints.
func (r *sliceReader) reportEndpoints() {
	if p := r.s.problems; p != nil {
		for _, problem := range p.list {
			r.add(problem)
		}
		r.more += p.more
	}
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
