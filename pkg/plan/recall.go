package plan

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// recalled has the room, the numbers and the ids of endpoints that an earlier process or planner granted.
type recalled struct {
	grants map[portID]grant
	ids    map[portID]map[netip.AddrPort]uint16
	// strict is true for a family whose Services get only the room that they had, until [Planner.Begin].
	strict [2]bool
}

// grant is the room that a service port had, or the source ranges of a Service (see [sourcesID]).
type grant struct {
	number uint32
	form   form
	// holds is true if the service port held packets.
	holds bool
}

func newRecalled() *recalled {
	return &recalled{grants: map[portID]grant{}, ids: map[portID]map[netip.AddrPort]uint16{}}
}

// Resume continues the work of an earlier process, whose [Totals.Next] is next: it prepares a planner to recall a
// family's numbers. deleted are the elements of the set [DeletedUDPSet]: the earlier process may not have deleted the
// flows to these frontends, so the next call of [Flows.Take] returns them. sources are the elements of the sets with
// [HasSources]. Call Resume before [Planner.Set].
func (p *Planner) Resume(f inet.Family, next uint32, deleted, sources []nft.Element) {
	p.resume(f, next)
	p.orphans[f] = orphansIn(sources)
	for i := range deleted {
		if k, ok := deletedKey(f, &deleted[i]); ok && k.Protocol == inet.UDP {
			p.noteDeleted(k, true)
			p.flows[k] = ""
		}
	}
}

func (p *Planner) resume(f inet.Family, next uint32) {
	if next >= firstNumber && next < endOthers {
		p.numbers[f].others.next = next
	}
	if p.recalled == nil {
		p.recalled = newRecalled()
	}
	p.recalled.strict[f] = true
}

// had returns the greatest form that a service port may have while the planner recalls numbers: the form that it had.
func (r *recalled) had(id portID, sp *model.ServicePort) form {
	if !r.strict[id.family] {
		return formAffine
	}
	f := r.grants[id].form
	if sp.Direct != nil {
		sp = sp.WithoutDirect()
	}
	if f == formEqual && sp.Method.Key == balance.Chance {
		return formWeighted // a table for random numbers does not show whether there were weights
	}
	return f
}

// Numbers has the room, the numbers and the ids that a planner has assigned, so that another planner can assign the
// same ones.
type Numbers struct {
	next [2]uint32
	// crowded are the service ports of [Planner.SetCrowded].
	crowded [2][]Number
	*recalled
}

// Numbers returns the assigned numbers and ids of all Services.
func (p *Planner) Numbers() *Numbers {
	n := &Numbers{recalled: newRecalled()}
	for _, f := range p.rules.options.Families {
		n.next[f], n.crowded[f] = p.numbers[f].others.next, p.nodes[f].crowded
	}
	for _, s := range p.services {
		for f, sources := range s.sources {
			if sources != nil && sources.number != 0 {
				n.grants[sourcesID(s.name, inet.Family(f))] = grant{number: sources.number, form: formAffine}
			}
		}
		for _, port := range s.ports {
			n.grants[port.id()] = grant{port.number, port.form, port.holds}
			if port.ids != nil {
				n.ids[port.id()] = maps.Clone(port.ids.endpoints)
			}
		}
	}
	return n
}

// Continue returns a planner that grants the same Services the same room, numbers and ids as the planner of n did.
func Continue(o Options, n *Numbers) *Planner {
	p := New(o)
	p.recalled = n.recalled
	for _, f := range p.rules.options.Families {
		p.resume(f, n.next[f])
		p.SetCrowded(f, n.crowded[f])
	}
	return p
}

// endRecall stops the recall of numbers. Services that were left out of the plan for the sake of others may then have
// room.
func (p *Planner) endRecall() {
	if p.recalled == nil {
		return
	}
	p.recalled, p.freed = nil, true
	for name := range p.waiting {
		p.services[name].lacks.forOthers = true
	}
}

// Get reads elements by their keys, see [nft.Conn.Get].
type Get func(s *nft.Set, keys []nft.Value) ([]*nft.Found, error)

// Recall reads back the numbers and ids that an earlier process assigned to Services. Call it before [Planner.Set] of
// these Services. After an error, the planner recalls no more numbers.
func (p *Planner) Recall(get Get, services []*model.Service) (err error) {
	if p.recalled == nil {
		return nil
	}
	q := lookups{get: get}
	for _, s := range services {
		if s != nil {
			p.lookUpNumbers(&q, s)
		}
	}
	if err = q.run(); err == nil {
		for _, s := range services {
			if s != nil {
				p.lookUpIDs(&q, s)
			}
		}
	}
	// The rounds read the size of each table, the ids in its slots, and their endpoints. Many ids without a slot need
	// more.
	for err == nil && q.pending() {
		err = q.run()
	}
	if err != nil {
		p.endRecall()
	}
	return err
}

// lookups has the keys to look up in each set, and for each key a function that takes the found element.
type lookups struct {
	get   Get
	order []*nft.Set
	keys  map[*nft.Set][]nft.Value
	found map[*nft.Set][]func(*nft.Found)
}

func (q *lookups) pending() bool { return len(q.order) > 0 }

func (q *lookups) add(s *nft.Set, key nft.Value, found func(*nft.Found)) {
	if q.keys == nil {
		q.keys, q.found = map[*nft.Set][]nft.Value{}, map[*nft.Set][]func(*nft.Found){}
	}
	if q.keys[s] == nil {
		q.order = append(q.order, s)
	}
	q.keys[s], q.found[s] = append(q.keys[s], key), append(q.found[s], found)
}

// run looks up all keys so far. The functions that take the found elements may add more keys.
func (q *lookups) run() error {
	order, keys, found := q.order, q.keys, q.found
	q.order, q.keys, q.found = nil, nil, nil
	for _, s := range order {
		list, err := q.get(s, keys[s])
		if err != nil {
			return fmt.Errorf("read numbers of an earlier process: %w", err)
		}
		for i, e := range list {
			if e != nil {
				found[s][i](e)
			}
		}
	}
	return nil
}

// mostLookups is the number of frontends to look up for each service port. All frontends of a service port have the
// same number, but another Service may have won some of them.
const mostLookups = 4

// lookUpNumbers looks up the elements of a Service's frontends. It ignores elements with the comment of another
// Service.
func (p *Planner) lookUpNumbers(q *lookups, s *model.Service) {
	for _, sp := range s.Ports {
		l := p.rules.layouts[sp.Family]
		if l == nil || p.formsOf(sp)[0] == formSingle { // such a port needs no number
			continue
		}
		id, comment := portID{sp.Name, sp.Protocol, sp.Family}, nft.CutComment(sp.Name.String())
		note := func(e *nft.Found, f *model.Frontend) {
			word := e.Data.AsUint32()
			g, k := grantOf(word), kindOf(word)
			if f.MayBeDirect() && (k == kindDirect || k == kindTimed) { // NAT
				g.form = min(g.form, formWeighted)
			}
			switch {
			case e.Comment != comment:
			case k.restricts():
				p.recalled.note(sourcesID(s.Name, sp.Family), g)
			default:
				p.recalled.note(id, g)
			}
		}
		for i := range sp.Frontends[:min(len(sp.Frontends), mostLookups)] {
			f := &sp.Frontends[i]
			set, restricted := l.mapsOf(f)
			found := func(e *nft.Found) { note(e, f) }
			q.add(set, frontendKey(&f.Key), found)
			if f.Sources != nil {
				q.add(restricted, frontendKey(&f.Key), found)
			}
		}
	}
}

// grantOf returns the room that an element proves. A number proves all that does not need an affine number, unless the
// class of the element proves that the endpoints have equal shares.
func grantOf(word uint32) grant {
	k, g := kindOf(word), grant{number: word & portBits, form: formDirect}
	g.holds = k == kindHold
	switch {
	case g.number == topBit:
		return grant{}
	case isAffine(g.number):
		g.form = formAffine
	case k == kindDirect:
		if t, ok := tableAt(word & tableBits); ok && t.by == (selector{}) {
			g.form = formEqual
		}
	}
	return g
}

// note records the room that an element proves. Elements of other frontends may prove less, or more precisely.
func (r *recalled) note(id portID, g grant) {
	if old, known := r.grants[id]; known {
		g.form, g.holds = min(g.form, old.form), g.holds || old.holds
	}
	r.grants[id] = g
}

// lookUpIDs looks up the ids of the endpoints of affine service ports.
func (p *Planner) lookUpIDs(q *lookups, s *model.Service) {
	for _, sp := range s.Ports {
		l := p.rules.layouts[sp.Family]
		id := portID{sp.Name, sp.Protocol, sp.Family}
		number := p.recalled.grants[id].number
		if l != nil && sp.Method.Key != balance.Chance && number != 0 {
			// The elements of frontends with policy Local have no table.
			q.add(l.shortCircuit, nft.Value{}.Uint32(number), func(e *nft.Found) {
				p.recalled.note(id, grantOf(e.Data.AsUint32()))
			})
			if (sp.Timeouts != model.Timeouts{}) { // neither have those of frontends with timeouts
				for _, s := range l.timed {
					q.add(s, nft.Value{}.Uint32(number), func(e *nft.Found) {
						p.recalled.note(id, grantOf(e.Data.AsUint32()))
					})
				}
			}
		}
		if l == nil || sp.Affinity == 0 && sp.MaxConnections == 0 && !sp.Ranged() || !isAffine(number) {
			continue
		}
		ids := map[netip.AddrPort]uint16{}
		p.recalled.ids[id] = ids
		if sp.MaxConnections > 0 {
			l.lookUpIdle(q, sp.Protocol, number, 0, ids)
		}
		for ls := range lists {
			key := nft.Value{}.Uint32(number)
			q.add(l.draw[ls], key, func(e *nft.Found) {
				slots, backends := l.slots[ls], l.backends[ls]
				if sp.Limited() {
					slots, backends = l.limitedSlots[ls], l.limited
				}
				t, _ := tableAt(e.Data.AsUint32() & tableBits)
				seen := map[uint32]bool{}
				for i := range t.size {
					q.add(slots, key.Uint32(i), func(e *nft.Found) {
						word := e.Data.AsUint32()
						if seen[word] {
							return
						}
						seen[word] = true
						if sp.Ranged() {
							q.add(l.rangeBackends[ls], nft.Value{}.Uint32(word), func(e *nft.Found) {
								if a, ok := netip.AddrFromSlice(e.Data.Bytes()); ok {
									ids[netip.AddrPortFrom(a, 0)] = uint16(word & endpointBits)
								}
							})
							return
						}
						q.add(backends, nft.Value{}.Proto(sp.Protocol).Uint32(word), func(e *nft.Found) {
							ids[e.Data.AsEndpoint(l.family)] = uint16(word & endpointBits)
						})
					})
				}
			})
		}
	}
}

// lookUpIdle looks up the ids of endpoints without a slot, from an index on: a few first, and each time twice as many,
// until one is missing.
func (l *layout) lookUpIdle(q *lookups, proto inet.Protocol, number, from uint32, ids map[netip.AddrPort]uint16) {
	const few = 8
	n := from + few
	for i := range n {
		q.add(l.limitedSlots[listCluster], nft.Value{}.Uint32(number).Uint32(firstIdle+from+i), func(e *nft.Found) {
			word := e.Data.AsUint32()
			q.add(l.limited, nft.Value{}.Proto(proto).Uint32(word), func(e *nft.Found) {
				ids[e.Data.AsEndpoint(l.family)] = uint16(word & endpointBits)
			})
			if i == n-1 {
				l.lookUpIdle(q, proto, number, from+n, ids)
			}
		})
	}
}

// recallNumber assigns the number that an earlier process assigned. It returns 0 if no number is recalled, or the
// number is not free.
func (p *Planner) recallNumber(id portID, affine bool) uint32 {
	if p.recalled == nil {
		return 0
	}
	if n := p.recalled.grants[id].number; n != 0 && p.numbers[id.family].recall(n, affine) {
		return n
	}
	return 0
}

// orphans are the numbers of source ranges in the tables of an earlier process, by these ranges. If other Services have
// all frontends with source ranges of a Service, no element of a frontend shows its number.
type orphans map[string][]uint32

func orphansIn(elements []nft.Element) orphans {
	const size = 4 // of the number, the first part of a key
	ranges, out := map[uint32][]string{}, orphans{}
	for i := range elements {
		e := &elements[i]
		number := binary.BigEndian.Uint32(e.Key.Bytes())
		ranges[number] = append(ranges[number],
			e.Set.Name+string(e.Key.Bytes()[size:])+string(e.KeyEnd.Bytes()[size:]))
	}
	for number, list := range ranges {
		slices.Sort(list)
		text := strings.Join(list, "")
		out[text] = append(out[text], number)
	}
	return out
}

// recallOrphan assigns a number that had the same source ranges, after all numbers that frontends show are assigned. It
// returns 0 if there is none.
func (p *Planner) recallOrphan(s *sources) uint32 {
	left := p.orphans[s.family]
	if left == nil || p.recalled != nil {
		return 0
	}
	var ranges wants
	p.rules.layouts[s.family].sourceElements(s, &ranges)
	for text := range orphansIn(ranges.own) {
		for len(left[text]) > 0 {
			n := left[text][0]
			if left[text] = left[text][1:]; p.numbers[s.family].recall(n, false) {
				return n
			}
		}
	}
	return 0
}

// recallIDs returns the ids that an earlier process assigned to the endpoints of a service port.
func (p *Planner) recallIDs(id portID) map[netip.AddrPort]uint16 {
	if p.recalled == nil {
		return nil
	}
	return p.recalled.ids[id]
}
