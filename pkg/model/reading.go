package model

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Slice is an EndpointSlice that is read when it is needed. Two that are equal (==) hold the same.
type Slice interface {
	// Read makes an object that slice, whatever it was before, in memory of its lists if they are long enough. It reports false where
	// it can't be read.
	Read(into *discoveryv1.EndpointSlice) bool
}

// Room is memory into which objects are read that nobody needs once a Service has been made of them: they are several times as large
// as what becomes of them. The zero value is ready for use, by one goroutine at a time.
type Room struct {
	// Service is for the caller.
	Service corev1.Service
	slices  [manySlices]discoveryv1.EndpointSlice
	groups  []group
}

// Room keeps lists of at most this many items for the next Service.
const (
	keepEndpoints = 1_000
	keepPorts     = 64
)

// tidy gives up memory that only unusual objects need.
func (r *Room) tidy() {
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
		if cap(r.groups[i].found) > keepEndpoints {
			r.groups[i].found = nil
		}
	}
}

// Reading is what a Service's EndpointSlices came to, with what each of them held: for the Service's next form only those have to be
// read that have changed since. It is immutable.
type Reading struct {
	// A slice's part depends on these, too.
	node   Node
	served [2]bool
	ports  []groupKey
	parts  map[Slice]*part
	groups groups
}

// part is what one slice holds; the endpoints of each group are sorted.
type part struct {
	// name is that of the slice, empty if it cannot be read.
	name     string
	found    []found
	problems []Problem
	// targets and endpoints are the numbers of those that the slice has; kept is the number of endpoints that are in found, -1 for a
	// slice that is left out.
	targets, endpoints, kept int
}

// found are the endpoints of one slice for one group.
type found struct {
	group     int
	endpoints []endpoint
}

// manySlices is the number of slices from which it pays to remember what they held.
const manySlices = 3

// Rebuild returns what [Build] would of room.Service, with less work: before is the Reading that came with an earlier form of the
// Service, or nil. It returns no Reading for a Service with few slices.
func Rebuild(room *Room, before *Reading, stored []Slice, node Node, opts Options) (*Service, *Reading) {
	svc := &room.Service
	if !proxied(svc) {
		return nil, nil
	}
	defer room.tidy()
	b := newBuilder(svc, node, opts)
	b.groups.list = room.groups
	if len(stored) < manySlices {
		var few [manySlices]*discoveryv1.EndpointSlice
		for i, s := range stored {
			if s.Read(&room.slices[i]) {
				few[i] = &room.slices[i]
			}
		}
		b.build(few[:])
		room.groups = b.groups.list
		return b.out, nil
	}
	b.service()
	b.groups.reset(b.out.Ports)
	now := b.read(before, stored, &room.slices[0])
	room.groups, b.groups = b.groups.list, now.groups
	b.finish()
	return b.out, now
}

// read reads the slices that have changed, and returns what all hold; one slice at a time is in the room. The builder's groups are
// empty before and after it.
func (b *builder) read(before *Reading, stored []Slice, room *discoveryv1.EndpointSlice) *Reading {
	now := &Reading{node: b.node, ports: b.groups.keys(), parts: make(map[Slice]*part, len(stored))}
	for f := range Families {
		now.served[f] = b.cluster[f].IsValid()
	}
	if before == nil || before.node != now.node || before.served != now.served || !slices.Equal(before.ports, now.ports) {
		before = &Reading{}
	}
	var c cutter
	c.limits = &b.limits
	whole := true
	for _, s := range stored {
		p := before.parts[s]
		if p == nil {
			p = b.part(s, room, c.keep)
		} else if p.name != "" {
			c.keep(p.targets, p.endpoints)
		}
		now.parts[s] = p
		whole = whole && p.kept == p.endpoints
	}
	if !whole || c.slices > b.limits.Slices || c.pairs > b.limits.Pairs {
		b.cut(now, stored, room)
	}
	var come, gone []*part
	for _, s := range stored {
		p := now.parts[s]
		if p != before.parts[s] {
			come = append(come, p)
		}
		b.ofSlices = append(b.ofSlices, p.problems...)
	}
	for s, p := range before.parts {
		if now.parts[s] != p {
			gone = append(gone, p)
		}
	}
	now.groups = b.groups.empty()
	if !now.groups.change(&before.groups, gone, come) {
		now.groups = b.groups.empty()
		for _, p := range now.parts {
			for _, of := range p.found {
				g := &now.groups.list[of.group]
				g.found = append(g.found, of.endpoints...)
			}
		}
		now.groups.merge()
		for i := range now.groups.list {
			now.groups.list[i].found = nil
		}
	}
	return now
}

// cut reads those slices again of which more or less is kept than before, in order of their names.
func (b *builder) cut(now *Reading, stored []Slice, room *discoveryv1.EndpointSlice) {
	sorted := slices.SortedStableFunc(slices.Values(stored), func(x, y Slice) int { return cmp.Compare(now.parts[x].name, now.parts[y].name) })
	c := cutter{limits: &b.limits}
	for _, s := range sorted {
		p := now.parts[s]
		if p.name == "" {
			continue
		}
		keep, ok := c.keep(p.targets, p.endpoints)
		if !ok {
			keep = -1
		}
		if keep != p.kept {
			p = b.part(s, room, func(int, int) (int, bool) { return keep, ok })
		}
		now.parts[s] = p
	}
	c.report(b)
}

// part reads one slice, of which keep tells how many endpoints are kept.
func (b *builder) part(s Slice, room *discoveryv1.EndpointSlice, keep func(targets, endpoints int) (int, bool)) *part {
	p := &part{}
	if !s.Read(room) {
		return p
	}
	p.name, p.targets, p.endpoints = room.Name, b.targetsOf(room), len(room.Endpoints)
	kept, ok := keep(p.targets, p.endpoints)
	if p.kept = kept; !ok {
		p.kept = -1
		return p
	}
	before := b.ofSlices
	b.ofSlices = nil
	b.collect(room, kept)
	p.problems, b.ofSlices = slices.Clip(b.ofSlices), before
	for i := range b.groups.list {
		if g := &b.groups.list[i]; len(g.found) > 0 {
			slices.SortFunc(g.found, compareEndpoints)
			p.found = append(p.found, found{i, slices.Clone(g.found)})
			g.found = g.found[:0]
		}
	}
	p.found = slices.Clip(p.found)
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

// empty returns groups of the same ports without endpoints, in memory of their own. They cannot be searched.
func (g *groups) empty() groups {
	list := make([]group, len(g.list))
	for i := range list {
		list[i].groupKey = g.list[i].groupKey
	}
	return groups{list: list}
}

// change makes these the groups that others, of the same ports, become when some parts go and others come. It reports false if it
// can't tell.
func (g *groups) change(before *groups, gone, come []*part) bool {
	for i := range before.list {
		g.list[i].merged = before.list[i].merged
	}
	differences := make([][2][]endpoint, len(g.list))
	for which, parts := range [2][]*part{gone, come} {
		for _, p := range parts {
			for _, of := range p.found {
				// Clipped, the list of the first part is only copied where there is another.
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

// difference returns what of each list is not in the other.
func difference(gone, come []endpoint) (removed, added []endpoint) {
	for _, list := range [][]endpoint{gone, come} {
		if !slices.IsSortedFunc(list, compareEndpoints) { // those of more than one part
			slices.SortFunc(list, compareEndpoints)
		}
	}
	for len(gone) > 0 && len(come) > 0 {
		switch c := compareEndpoints(gone[0], come[0]); {
		case c < 0:
			removed, gone = append(removed, gone[0]), gone[1:]
		case c > 0:
			added, come = append(added, come[0]), come[1:]
		default:
			gone, come = gone[1:], come[1:]
		}
	}
	return append(removed, gone...), append(added, come...)
}

// change takes out endpoints and puts in others. It reports false where an address and port are there twice: which of them counts
// can't be told from what is left.
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
	next := 0 // what of the old ones is still to be copied
	copyUntil := func(e netip.AddrPort) (there bool) {
		n, there := slices.BinarySearchFunc(old.addrs[next:], e, netip.AddrPort.Compare)
		m.addrs, m.traits = append(m.addrs, old.addrs[next:next+n]...), append(m.traits, old.traits[next:next+n]...)
		next += n
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
	}
	m.addrs, m.traits = append(m.addrs, old.addrs[next:]...), append(m.traits, old.traits[next:]...)
	m.present = presentIn(m.traits)
	return true
}
