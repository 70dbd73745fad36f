package plan

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// recalled has the numbers that an earlier process or planner assigned, and the ids of the endpoints of affine service ports.
type recalled struct {
	numbers map[portID]uint32
	ids     map[portID]map[netip.AddrPort]uint16
}

func newRecalled() recalled {
	return recalled{numbers: map[portID]uint32{}, ids: map[portID]map[netip.AddrPort]uint16{}}
}

// Resume prepares a planner to recall a family's numbers from an earlier process. next is the earlier process's [Planner.Next]. remembering are the
// elements of its [Planner.Remembering], and held the elements of its [Planner.Held]. Call Resume before [Planner.Set].
func (p *Planner) Resume(f inet.Family, next uint32, remembering, held []nft.Element) {
	numbers := p.numbers[f]
	if next >= firstNumber && next < endOthers {
		numbers.others.next = next
	}
	for i := range remembering {
		c, ok := classOf(f, remembering[i].Chain)
		if block := int(blockOf(remembering[i].Key.AsUint32())) - firstBlock; ok && block >= 0 {
			numbers.open(block, c.timeout, true)
		}
	}
	for i := range held {
		numbers.avoid(held[i].Key.AsUint32())
	}
	if p.recalled == nil {
		r := newRecalled()
		p.recalled = &r
	}
}

// Numbers has the numbers and ids that a planner has assigned, so that another planner can assign the same ones.
type Numbers struct {
	next [2]uint32
	// timeouts are the timeouts of the blocks, in seconds.
	timeouts [2][endBlock - firstBlock]uint32
	recalled
}

// Numbers returns the assigned numbers and ids of all Services.
func (p *Planner) Numbers() *Numbers {
	n := &Numbers{recalled: newRecalled()}
	for _, f := range p.options.Families {
		n.next[f] = p.Next(f)
		for i := range p.numbers[f].blocks {
			n.timeouts[f][i] = p.numbers[f].blocks[i].timeout
		}
	}
	for _, s := range p.services {
		for f, sources := range s.sources {
			if sources != nil {
				n.numbers[sourcesID(s.name, inet.Family(f))] = sources.number
			}
		}
		for _, port := range s.ports {
			n.numbers[port.id()] = port.number
			if port.ids != nil {
				n.ids[port.id()] = maps.Clone(port.ids.endpoints)
			}
		}
	}
	return n
}

// TakeNumbers prepares a planner to assign the numbers and ids of another planner to the same Services. Call it before [Planner.Set].
func (p *Planner) TakeNumbers(n *Numbers) {
	for _, f := range p.options.Families {
		p.Resume(f, n.next[f], nil, nil)
		for i, timeout := range n.timeouts[f] {
			if timeout != 0 {
				p.numbers[f].open(i, timeout, true)
			}
		}
	}
	p.recalled = &n.recalled
}

// Next returns the number at which a family starts its next search for a free number for service ports that are not affine.
func (p *Planner) Next(f inet.Family) uint32 { return p.numbers[f].others.next }

// Remembering returns the map from blocks of numbers to the chains of their timeouts.
func (p *Planner) Remembering(f inet.Family) *nft.Set { return p.layouts[f].dispatch[stepRemember] }

// Recalling reports whether the planner still recalls numbers of an earlier process.
func (p *Planner) Recalling() bool { return p.recalled != nil }

// EndRecall stops the recall of numbers. Call it after [Planner.Set] of all Services of the start.
func (p *Planner) EndRecall() {
	p.recalled = nil
	for _, t := range p.numbers {
		if t != nil {
			for i := range t.blocks {
				t.blocks[i].recalled = false
			}
		}
	}
}

// Get reads elements by their keys, see [nft.Conn.Get].
type Get func(s *nft.Set, keys []nft.Value) ([]*nft.Found, error)

// Recall reads back the numbers and ids that an earlier process assigned to Services. Call it before [Planner.Set] of these Services.
func (p *Planner) Recall(get Get, services []*model.Service) error {
	q := lookups{get: get}
	for _, s := range services {
		if s != nil {
			p.lookUpNumbers(&q, s)
		}
	}
	if err := q.run(); err != nil {
		return err
	}
	for _, s := range services {
		if s != nil {
			p.lookUpIDs(&q, s)
		}
	}
	for q.pending() { // three rounds: the size of each table, the ids in its slots, their endpoints
		if err := q.run(); err != nil {
			return err
		}
	}
	return nil
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

// mostLookups is the number of frontends to look up for each service port. All frontends of a service port have the same number, but another Service
// may have won some of them.
const mostLookups = 4

// lookUpNumbers looks up the elements of a Service's frontends. It ignores elements with the comment of another Service.
func (p *Planner) lookUpNumbers(q *lookups, s *model.Service) {
	for _, sp := range s.Ports {
		l := p.layouts[sp.Family]
		if l == nil {
			continue
		}
		id, comment := portID{sp.Name, sp.Protocol, sp.Family}, nft.CutComment(sp.Name.String())
		note := func(e *nft.Found) {
			switch word := e.Data.AsUint32(); {
			case e.Comment != comment:
			case kindOf(word).restricts():
				p.recalled.numbers[sourcesID(s.Name, sp.Family)] = word & portBits
			default:
				p.recalled.numbers[id] = word & portBits
			}
		}
		for i := range sp.Frontends[:min(len(sp.Frontends), mostLookups)] {
			f := &sp.Frontends[i]
			set, restricted := l.mapsOf(f)
			q.add(set, frontendKey(&f.Key), note)
			if f.Sources != nil {
				q.add(restricted, frontendKey(&f.Key), note)
			}
		}
	}
}

// lookUpIDs looks up the ids of the endpoints of affine service ports.
func (p *Planner) lookUpIDs(q *lookups, s *model.Service) {
	for _, sp := range s.Ports {
		l := p.layouts[sp.Family]
		id := portID{sp.Name, sp.Protocol, sp.Family}
		number := p.recalled.numbers[id]
		if l == nil || sp.Affinity == 0 && sp.MaxConnections == 0 && !sp.Ranged() || !isAffine(number) {
			continue
		}
		ids := map[netip.AddrPort]uint16{}
		p.recalled.ids[id] = ids
		for ls := range lists {
			key := nft.Value{}.Uint32(number)
			q.add(l.draw[ls], key, func(e *nft.Found) {
				slots, backends := l.slots[ls], l.backends[ls]
				if sp.MaxConnections > 0 {
					slots, backends = l.limitedSlots[ls], l.limited
				}
				t, _ := tableAt(e.Data.AsUint32() & 0xff)
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

// recallNumber assigns the number that an earlier process assigned. It returns 0 if no number is recalled, or the number is not free.
func (p *Planner) recallNumber(id portID, timeout uint32) uint32 {
	if p.recalled == nil {
		return 0
	}
	if n := p.recalled.numbers[id]; n != 0 && p.numbers[id.family].recall(n, timeout) {
		return n
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
