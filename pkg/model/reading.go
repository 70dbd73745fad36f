package model

import (
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

// Reading is what a Service's EndpointSlices came to, with what each of them held: for the Service's next form only those have to be
// read that have changed since. It is immutable.
type Reading struct {
	// node and served are what a slice's part depends on, too.
	node   Node
	served [2]bool
	parts  map[Slice]*part
	groups groups
}

// part is what one slice holds; the endpoints of each group are sorted.
type part struct {
	groups   []group
	problems []Problem
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
	if len(stored) < manySlices {
		var few [manySlices]*discoveryv1.EndpointSlice
		for i, s := range stored {
			if s.Read(&room.slices[i]) {
				few[i] = &room.slices[i]
			}
		}
		b := builder{svc: svc, node: node, opts: opts, groups: groups{list: room.groups[:0]}}
		b.build(few[:])
		room.groups = b.groups.list
		return b.out, nil
	}
	b := builder{svc: svc, node: node, opts: opts}
	b.service()
	now := b.read(before, stored, &room.slices[0])
	b.finish()
	return b.out, now
}

// read fills the groups, and returns how; one slice at a time is in the room.
func (b *builder) read(before *Reading, stored []Slice, room *discoveryv1.EndpointSlice) *Reading {
	now := &Reading{node: b.node, parts: make(map[Slice]*part, len(stored))}
	for f := range Families {
		now.served[f] = b.cluster[f].IsValid()
	}
	if before == nil || before.node != now.node || before.served != now.served {
		before = &Reading{}
	}
	var come, gone []*part
	for _, s := range stored {
		p := before.parts[s]
		if p == nil {
			p = b.part(s, room)
			come = append(come, p)
		}
		now.parts[s] = p
		b.out.Problems = append(b.out.Problems, p.problems...)
	}
	for s, p := range before.parts {
		if now.parts[s] == nil {
			gone = append(gone, p)
		}
	}
	if !now.groups.change(&before.groups, gone, come) {
		now.groups = groups{}
		for _, p := range now.parts {
			for i := range p.groups {
				g := &now.groups.list[now.groups.at(p.groups[i].groupKey)]
				g.found = append(g.found, p.groups[i].found...)
			}
		}
		now.groups.merge()
		for i := range now.groups.list {
			now.groups.list[i].found = nil
		}
	}
	b.groups = now.groups
	return now
}

// part reads one slice.
func (b *builder) part(s Slice, room *discoveryv1.EndpointSlice) *part {
	alone := builder{node: b.node, cluster: b.cluster, out: &Service{}}
	if s.Read(room) {
		alone.collect(room)
	}
	for i := range alone.groups.list {
		slices.SortFunc(alone.groups.list[i].found, compareEndpoints)
	}
	return &part{alone.groups.list, alone.out.Problems}
}

// change makes these the groups that others become when some parts go and others come. It reports false if it can't tell.
func (g *groups) change(before *groups, gone, come []*part) bool {
	*g = before.clone()
	var differences [][2][]endpoint
	for which, parts := range [2][]*part{gone, come} {
		for _, p := range parts {
			for i := range p.groups {
				at := g.at(p.groups[i].groupKey)
				for len(differences) <= at {
					differences = append(differences, [2][]endpoint{})
				}
				// Clipped, the list of the first part is only copied where there is another.
				if d := &differences[at][which]; *d == nil {
					*d = slices.Clip(p.groups[i].found)
				} else {
					*d = append(*d, p.groups[i].found...)
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
