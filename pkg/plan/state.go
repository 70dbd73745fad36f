package plan

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/dchest/siphash"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// put notes that an element is wanted which was not. It doesn't keep the element.
func (p *Planner) put(e *nft.Element) {
	f := familyOf(e.Set)
	p.digests[f] += p.keys[f].digest(e)
	p.counts[e.Set]++
	if p.delta != nil {
		p.delta.put(e)
		p.grow(e.Set)
	}
}

// remove notes that an element is not wanted any more.
func (p *Planner) remove(e *nft.Element) {
	f := familyOf(e.Set)
	p.digests[f] -= p.keys[f].digest(e)
	p.counts[e.Set]--
	if p.delta != nil {
		p.delta.remove(e)
	}
}

func familyOf(s *nft.Set) model.Family { return ofNFT(s.Family) }

func ofNFT(f nft.Family) model.Family {
	if f == nft.IPv4 {
		return model.IPv4
	}
	return model.IPv6
}

// NFT returns nftables' number of a family.
func NFT(f model.Family) nft.Family {
	if f == model.IPv4 {
		return nft.IPv4
	}
	return nft.IPv6
}

// share counts the elements that service ports have in common: n is 1 for a Service that comes, -1 for one that goes.
func (p *Planner) share(s *service, n int32) {
	if s == nil {
		return
	}
	for _, port := range s.ports {
		p.layouts[port.family].shared(port, func(e nft.Element) { p.shareElement(&e, n) })
	}
}

func (p *Planner) shareElement(e *nft.Element, n int32) {
	id := e.ID()
	users, shared := p.shared[id]
	if !shared {
		p.put(e)
	}
	if users += n; users > 0 {
		p.shared[id] = users
		return
	}
	p.remove(e)
	delete(p.shared, id)
}

// Take returns what has changed since the last call, or since [Planner.Track], and forgets it. It is what leads from the tables as they were then
// to [Planner.Tables] and [Planner.Elements].
func (p *Planner) Take() *Change {
	d := p.delta
	c := &Change{Rules: d.rules, Unused: d.unused}
	for _, key := range d.chains {
		if _, ok := p.chains[key]; ok {
			c.Chains = append(c.Chains, Chain{key.family, p.layouts[key.family].classChain(&p.options, key.class)})
		}
	}
	c.Delete, c.Add = d.elementsChanged()
	p.remake(c)
	for _, e := range c.Delete {
		if l := p.layouts[familyOf(e.Set)]; e.Set == l.clusterIPs {
			c.Forget = append(c.Forget, nft.Element{Set: l.unusedPorts, Key: e.Key})
		}
	}
	d.reset()
	return c
}

// Changed reports whether there is something for [Planner.Take] to return.
func (p *Planner) Changed() bool {
	d := p.delta
	return d != nil && (d.rules || len(d.elements)+len(d.chains)+len(d.unused)+len(d.grown) > 0)
}

// Tables returns the tables as they should be, without elements.
func (p *Planner) Tables() []*nft.Table {
	var out []*nft.Table
	for _, f := range p.options.Families {
		t := *p.tables[f]
		t.Chains = slices.Clip(t.Chains)
		var classes []class
		for key := range p.chains {
			if key.family == f {
				classes = append(classes, key.class)
			}
		}
		slices.SortFunc(classes, class.compare)
		for _, c := range classes {
			t.Chains = append(t.Chains, p.layouts[f].classChain(&p.options, c))
		}
		out = append(out, &t)
	}
	return out
}

// Untrack stops keeping track of changes, because what the kernel holds isn't known: the tables will be compared or written
// as a whole.
func (p *Planner) Untrack() { p.delta = nil }

// Track starts keeping track of changes: the kernel holds just what is wanted now.
func (p *Planner) Track() { p.delta = newDelta() }

// Elements calls f for every element that should be there; f must not keep or change it.
func (p *Planner) Elements(f func(*nft.Element)) {
	_ = p.ElementsInParts(math.MaxInt, f, nil) // there is one part
}

// ElementsInParts is Elements, and calls next before each further part of about as many elements, until that fails. Each Service is in one
// part, the smaller Services before the larger ones.
func (p *Planner) ElementsInParts(most int, f func(*nft.Element), next func() error) error {
	var room nft.Element // one for all: there may be a million
	none := &port{}
	each := func(e nft.Element) {
		room = e
		f(&room)
	}
	for _, fam := range p.options.Families {
		for _, e := range p.layouts[fam].fixed() {
			each(e)
		}
	}
	for u := range p.uses {
		each(p.layouts[u.family].dispatchElement(u.step, u.class))
	}
	for _, elements := range p.ranges {
		for _, e := range elements {
			each(e)
		}
	}
	head := func(e nft.Element, _ step, _ class) {
		if e.Set != nil {
			each(e)
		}
	}
	services, part := slices.Collect(maps.Values(p.services)), 0
	if p.taken.elements > most {
		slices.SortFunc(services, func(a, b *service) int { return a.weight - b.weight })
	}
	for _, s := range services {
		if part > 0 && s.weight > most-part {
			if err := next(); err != nil {
				return err
			}
			part = 0
		}
		part += s.weight
		for fam, sources := range s.sources {
			if sources != nil {
				p.layouts[fam].sourceElements(sources, f)
			}
		}
		for _, port := range s.ports {
			l := p.layouts[port.family]
			for i := range port.frontends {
				if frontend := &port.frontends[i]; p.claims[frontend.Key].winner.frontend == frontend {
					l.head(port, frontend, head)
				}
			}
			l.tail(port, head)
			l.backendElements(port, none, f)
			for ls := range lists {
				s := &p.slots[0]
				s.fill(l, port, ls)
				for i, e := range s.endpoints() {
					f(s.at(i, e))
				}
			}
		}
	}
	// Until all are there, no packet to a cluster IP is refused.
	for id := range p.shared {
		each(nft.Element{Set: id.Set, Key: id.Key})
	}
	return nil
}

// State returns the element that tells a later process what a family's table holds: the form of the table, the key and the value of a
// digest of its elements that doesn't depend on their order, and where the assigning of numbers has come to.
func (p *Planner) State(nf nft.Family) *nft.Element {
	f := ofNFT(nf)
	return &nft.Element{Set: p.layouts[f].state, Key: nft.Value{}.Uint32(1), Comment: p.state(f).comment()}
}

func (p *Planner) state(f model.Family) State {
	return State{Layout: p.layout[f], Key: p.keys[f], Digest: p.digests[f], Next: p.numbers[f].others.next}
}

// State is what the element of the set [StateSet] says.
type State struct {
	// Layout is a fingerprint of all in the table but its elements, Digest the sum of the digests of these.
	Layout, Digest uint64
	// Key is that of the digest. Whoever knows it can make elements that don't show in it; only root can read it.
	Key digestKey
	// Next is the number to assign next.
	Next uint32
}

const stateComment = "layout %016x key %016x%016x next %x digest %016x"

// comment is that of the element. It holds the key: no log, page or command may show it.
func (s State) comment() string {
	return fmt.Sprintf(stateComment, s.Layout, s.Key[0], s.Key[1], s.Next, s.Digest)
}

// ReadState reads what an element says.
func ReadState(e *nft.Element) (s State, err error) {
	if _, err := fmt.Sscanf(e.Comment, stateComment, &s.Layout, &s.Key[0], &s.Key[1], &s.Next, &s.Digest); err != nil {
		return s, fmt.Errorf("read state: %w", err)
	}
	return s, nil
}

// Differs names the parts in which a table with this state differs from one with another state, without values: "" if there are none.
func (s State) Differs(other State) string {
	var parts []string
	if s.Layout != other.Layout {
		parts = append(parts, "sets, chains or rules")
	}
	if s.Key != other.Key || s.Digest != other.Digest {
		parts = append(parts, "elements")
	}
	if s.Next != other.Next {
		parts = append(parts, "the next number")
	}
	return strings.Join(parts, ", ")
}

// digestKey is the key of digests. It is random, so that a tenant can't choose objects whose elements have the digest of others.
type digestKey [2]uint64

func newDigestKey() (k digestKey) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return digestKey{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// digest is a keyed hash (SipHash) of all that makes up an element. Digests of elements are added up.
func (k digestKey) digest(e *nft.Element) uint64 {
	var room [256]byte
	b := append(room[:0], e.Set.Name...)
	b = append(b, 0, byte(len(e.Key.Bytes())))
	b = append(b, e.Key.Bytes()...)
	b = append(b, byte(len(e.KeyEnd.Bytes())))
	b = append(b, e.KeyEnd.Bytes()...)
	if e.IntervalEnd || e.Jump {
		b = append(b, 1)
	}
	b = append(b, byte(len(e.Data.Bytes())))
	b = append(b, e.Data.Bytes()...)
	b = append(b, e.Chain...)
	b = append(b, 0)
	b = append(b, nft.CutComment(e.Comment)...) // as it is read back
	return siphash.Hash(k[0], k[1], b) & hashMask
}

// DigestOf is what an element adds to the digest of a state with this key; sums may overflow. Elements of the set of states, and
// those that packets add, add nothing and must not be given.
func (s *State) DigestOf(e *nft.Element) uint64 { return s.Key.digest(e) }

// Digest is what an element adds to the digest in the [Planner.State] of its family.
func (p *Planner) Digest(e *nft.Element) uint64 { return p.keys[familyOf(e.Set)].digest(e) }

// fingerprint is a hash of everything in a table that isn't an element, with one chain of every kind of class.
func (l *layout) fingerprint(o *Options) uint64 {
	return nft.Fingerprint(l.sample(o))
}
