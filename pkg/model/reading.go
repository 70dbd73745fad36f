package model

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Slice is a stored EndpointSlice that is decoded on demand. Two equal values (==) have the same content.
type Slice interface {
	// Read decodes the slice into an object. It overwrites the object's previous content and reuses the memory of its lists and of
	// their items, which belong to the caller. It returns false if the slice cannot be decoded.
	Read(into *discoveryv1.EndpointSlice) bool
}

// Scratch is scratch memory for decoded objects. They are several times as large as the Service that Rebuild makes from them, so Rebuild
// reuses their memory. The zero value is ready for use, by one goroutine at a time.
type Scratch struct {
	// Service is the Service to build. The caller fills it.
	Service corev1.Service
	slices  [manySlices]discoveryv1.EndpointSlice
	groups  []group
	builder builder
}

// Scratch keeps the memory of a list for the next Service only if the list has at most this many items.
const (
	keepEndpoints = 1_000
	keepPorts     = 64
)

// tidy releases the memory of unusually large objects.
func (r *Scratch) tidy() {
	r.builder = builder{}
	if cap(r.Service.Spec.Ports) > keepPorts {
		r.Service = corev1.Service{}
	}
	for i := range r.slices {
		if s := &r.slices[i]; cap(s.Endpoints) > keepEndpoints || cap(s.Ports) > keepPorts {
			*s = discoveryv1.EndpointSlice{}
		}
	}
	if cap(r.groups) > keepPorts {
		r.groups = nil
	}
	for i := range r.groups {
		g := &r.groups[i]
		g.merged = merged{traits: g.traits}
		if cap(g.found) > keepEndpoints {
			g.found, g.traits = nil, nil
		}
	}
}

// Reading caches the content of a Service's EndpointSlices. After a change, [Rebuild] reads only the changed slices. With slow start, it also has
// the starting endpoints. A Reading is immutable.
type Reading struct {
	starts *Starts
	// Besides the slices, the parts depend on node, served, listed and ports. If one of these changes, all parts are stale.
	node   Node
	served [2]bool
	listed bool // Service.TerminateGone
	ports  []groupKey
	parts  map[Slice]*part
	groups groups // the endpoints of all parts
}

// part is the content of one slice. The endpoints of each group are sorted.
type part struct {
	// name is the name of the slice, or empty if the slice cannot be read.
	name     string
	groups   []groupEndpoints
	problems []Problem
	// targets and endpoints are the numbers of targets and endpoints of the slice. kept is the number of its endpoints within the
	// limits, or -1 if the whole slice is left out.
	targets, endpoints, kept int
}

// groupEndpoints are the endpoints of one slice for one group.
type groupEndpoints struct {
	group     int
	endpoints []endpoint
}

// manySlices is the smallest number of slices for which a Reading saves time.
const manySlices = 3

// Starts returns the starting endpoints; nil without slow start. The Reading may be nil.
func (r *Reading) Starts() *Starts {
	if r == nil {
		return nil
	}
	return r.starts
}

// Rebuild returns the same Service as [Build] for scratch.Service, but reads only changed slices. previous is the Reading that the last call for this
// Service returned, or nil. The returned Reading is nil for a Service with few slices and without slow start. A slice that cannot be read is ignored.
//
// now is the current time. An endpoint that is ready now, but was not ready in the previous Reading, is starting. Before the first sync, now is the
// zero time, and all endpoints have their full weight.
func Rebuild(scratch *Scratch, previous *Reading, stored []Slice, node Node, opts Options, now time.Time) (*Service, *Reading) {
	svc := &scratch.Service
	if !proxied(svc) {
		return nil, nil
	}
	defer scratch.tidy()
	b := &scratch.builder
	*b = newBuilder(svc, node, opts)
	b.observed = observed{valid: true, before: previous.Starts(), now: now}
	b.groups.list = scratch.groups
	if len(stored) < manySlices {
		var few [manySlices]*discoveryv1.EndpointSlice
		for i, s := range stored {
			if s.Read(&scratch.slices[i]) {
				few[i] = &scratch.slices[i]
			}
		}
		b.build(few[:])
		scratch.groups = b.groups.list
		if b.starts == nil {
			return b.out, nil
		}
		return b.out, &Reading{starts: b.starts}
	}
	b.service()
	b.groups.reset(b.out.Ports)
	current := b.read(previous, stored, &scratch.slices[0])
	scratch.groups, b.groups = b.groups.list, current.groups
	b.finish()
	current.starts = b.starts
	return b.out, current
}

// read reads the slices that have changed and returns the new Reading. It decodes one slice at a time into scratch. The builder's
// groups are empty before and after the call.
func (b *builder) read(previous *Reading, stored []Slice, scratch *discoveryv1.EndpointSlice) *Reading {
	current := &Reading{node: b.node, ports: b.groups.keys(), listed: b.out.TerminateGone, parts: make(map[Slice]*part, len(stored))}
	for f := range inet.Families {
		current.served[f] = b.cluster[f].IsValid()
	}
	if previous == nil || previous.node != current.node || previous.served != current.served || previous.listed != current.listed || !slices.Equal(previous.ports, current.ports) {
		previous = &Reading{}
	}
	c := sliceBudget{limits: &b.limits}
	whole := true
	for _, s := range stored {
		p := previous.parts[s]
		if p == nil {
			p = b.part(s, scratch, c.admit)
		} else if p.name != "" {
			c.admit(p.targets, p.endpoints) // only to count: cut applies the limits
		}
		current.parts[s] = p
		whole = whole && p.kept == p.endpoints
	}
	if !whole || c.slices > b.limits.Slices || c.pairs > b.limits.Pairs {
		b.cut(current, stored, scratch)
	}
	var added, removed []*part
	for _, s := range stored {
		p := current.parts[s]
		if p != previous.parts[s] {
			added = append(added, p)
		}
		b.addOfSlice(p.problems)
	}
	for s, p := range previous.parts {
		if current.parts[s] != p {
			removed = append(removed, p)
		}
	}
	current.groups = b.groups.empty()
	if !current.groups.change(&previous.groups, removed, added) {
		current.groups = b.groups.empty()
		for _, p := range current.parts {
			for _, of := range p.groups {
				g := &current.groups.list[of.group]
				g.found = append(g.found, of.endpoints...)
			}
		}
		current.groups.merge()
		for i := range current.groups.list {
			current.groups.list[i].found = nil
		}
	}
	return current
}

// cut applies the limits to the slices in the order of their names. If a slice gets more endpoints or fewer, but not
// none, cut reads the slice again.
func (b *builder) cut(current *Reading, stored []Slice, scratch *discoveryv1.EndpointSlice) {
	byName := func(x, y Slice) int { return cmp.Compare(current.parts[x].name, current.parts[y].name) }
	sorted := slices.SortedStableFunc(slices.Values(stored), byName)
	c := sliceBudget{limits: &b.limits}
	for _, s := range sorted {
		p := current.parts[s]
		if p.name == "" {
			continue
		}
		keep, ok := c.admit(p.targets, p.endpoints)
		if !ok {
			keep = -1
		}
		switch {
		case keep == p.kept:
		case !ok:
			p = &part{name: p.name, targets: p.targets, endpoints: p.endpoints, kept: -1}
		default:
			p = b.part(s, scratch, func(int, int) (int, bool) { return keep, ok })
		}
		current.parts[s] = p
	}
	c.report(b)
}

// part reads one slice. admit gets the numbers of its targets and endpoints. It returns the number of endpoints to keep, and false if
// the whole slice is left out.
func (b *builder) part(s Slice, scratch *discoveryv1.EndpointSlice, admit func(targets, endpoints int) (int, bool)) *part {
	p := &part{}
	if !s.Read(scratch) {
		return p
	}
	p.name, p.targets, p.endpoints = scratch.Name, b.targetsOf(scratch), len(scratch.Endpoints)
	kept, ok := admit(p.targets, p.endpoints)
	if p.kept = kept; !ok {
		p.kept = -1
		return p
	}
	before := b.ofSlices
	b.ofSlices = nil
	b.collect(scratch, kept)
	if len(b.ofSlices) > 0 {
		p.problems = slices.Clip(b.ofSlices[0])
	}
	b.ofSlices = before
	for i := range b.groups.list {
		if g := &b.groups.list[i]; len(g.found) > 0 {
			slices.SortFunc(g.found, compareEndpoints)
			p.groups = append(p.groups, groupEndpoints{i, slices.Clone(g.found)})
			g.found = g.found[:0]
		}
	}
	p.groups = slices.Clip(p.groups)
	return p
}

// keys returns the keys of the groups of service ports.
func (g *groups) keys() []groupKey {
	keys := make([]groupKey, len(g.list)-1)
	for i := range keys {
		keys[i] = g.list[i].groupKey
	}
	return keys
}

// empty returns groups of the same ports without endpoints, in new memory. The result has no index: do not call find on it.
func (g *groups) empty() groups {
	list := make([]group, len(g.list))
	for i := range list {
		list[i].groupKey = g.list[i].groupKey
	}
	return groups{list: list}
}

// change copies the endpoints of the groups in before, then removes the endpoints of the removed parts and adds the endpoints of
// the added parts. It returns false if the result is ambiguous (see merged.change).
func (g *groups) change(before *groups, removed, added []*part) bool {
	for i := range before.list {
		g.list[i].merged = before.list[i].merged
	}
	differences := make([][2][]endpoint, len(g.list))
	for which, parts := range [2][]*part{removed, added} {
		for _, p := range parts {
			for _, of := range p.groups {
				// The list belongs to the part. Without capacity, append copies it instead of writing into it.
				if d := &differences[of.group][which]; *d == nil {
					*d = slices.Clip(of.endpoints)
				} else {
					*d = append(*d, of.endpoints...)
				}
			}
		}
	}
	for i, d := range differences {
		if !g.list[i].change(difference(d[0], d[1])) {
			return false
		}
	}
	return true
}

// difference returns the endpoints that only one of the two lists holds.
func difference(before, after []endpoint) (removed, added []endpoint) {
	for _, list := range [][]endpoint{before, after} {
		if !slices.IsSortedFunc(list, compareEndpoints) { // the list combines several parts
			slices.SortFunc(list, compareEndpoints)
		}
	}
	for len(before) > 0 && len(after) > 0 {
		switch c := compareEndpoints(before[0], after[0]); {
		case c < 0:
			removed, before = append(removed, before[0]), before[1:]
		case c > 0:
			added, after = append(added, after[0]), after[1:]
		default:
			before, after = before[1:], after[1:]
		}
	}
	return append(removed, before...), append(added, after...)
}

// change removes and adds endpoints. It returns false if several endpoints have or had the same address and port. The
// merged list has only one endpoint for each address and port, so change cannot restore a hidden one.
func (m *merged) change(removed, added []endpoint) bool {
	if m.twice {
		return false
	}
	if len(removed)+len(added) == 0 {
		return true
	}
	old := *m
	n := len(old.addrs) - len(removed) + len(added)
	*m = merged{addrs: make([]netip.AddrPort, 0, n), traits: make([]traits, 0, n)}
	weighted := old.weights != nil || slices.ContainsFunc(added, func(e endpoint) bool { return e.more > 0 })
	if weighted && old.weights == nil {
		old.weights = slices.Repeat([]uint16{1}, len(old.addrs))
	}
	next := 0 // index of the first old endpoint that is not copied yet
	copyNext := func(n int) {
		m.addrs, m.traits = append(m.addrs, old.addrs[next:next+n]...), append(m.traits, old.traits[next:next+n]...)
		if weighted {
			m.weights = append(m.weights, old.weights[next:next+n]...)
		}
		next += n
	}
	copyUntil := func(e netip.AddrPort) (there bool) {
		i, there := slices.BinarySearchFunc(old.addrs[next:], e, netip.AddrPort.Compare)
		copyNext(i)
		return there
	}
	for len(removed)+len(added) > 0 {
		if len(added) == 0 || len(removed) > 0 && removed[0].Compare(added[0].AddrPort) <= 0 {
			copyUntil(removed[0].AddrPort)
			next, removed = next+1, removed[1:]
			continue
		}
		e := added[0]
		if there := copyUntil(e.AddrPort); there || len(m.addrs) > 0 && m.addrs[len(m.addrs)-1] == e.AddrPort {
			return false
		}
		m.addrs, m.traits, added = append(m.addrs, e.AddrPort), append(m.traits, e.traits), added[1:]
		if weighted {
			m.weights = append(m.weights, 1+e.more)
		}
	}
	copyNext(len(old.addrs) - next)
	if !slices.ContainsFunc(m.weights, func(w uint16) bool { return w > 1 }) {
		m.weights = nil
	}
	m.present = presentIn(m.traits)
	return true
}
