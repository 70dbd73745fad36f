package plan

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Sink receives each change of the wanted elements. To replace an element, the planner first removes it. It may also
// remove an element and put an equal one: the sink compares them. A chain of a class is wanted as long as an element
// that leads to it is wanted, see [Rules.ClassChain].
type Sink interface {
	// Put receives an element that is wanted now.
	Put(nft.Element)
	// Remove receives an element that is not wanted any more.
	Remove(nft.Element)
	// Discard receives an element that must not stay if packets have added it.
	Discard(nft.Element)
	// ChangeRules announces that the constant rules have changed.
	ChangeRules()
}

// ReportTo makes the planner report to a sink: first all wanted elements, then each difference. The sink replaces an
// earlier one.
func (p *Planner) ReportTo(to Sink) {
	p.sink = to
	p.Elements(func(e *nft.Element) { to.Put(*e) })
}

// noSink is the sink before [Planner.ReportTo].
type noSink struct{}

func (noSink) Put(nft.Element)     {}
func (noSink) Remove(nft.Element)  {}
func (noSink) Discard(nft.Element) {}
func (noSink) ChangeRules()        {}

// votes has the numbers of votes for and against each thing that several owners may want. A thing is wanted while there
// is at least one vote for it, and none against it.
type votes[K comparable] map[K]tally

type tally struct{ pro, contra int32 }

func (t tally) wanted() bool { return t.pro > 0 && t.contra == 0 }

// cast adds votes for and against a thing, or withdraws them if the numbers are negative. It reports whether the thing
// was wanted before, and whether it is now.
func (v votes[K]) cast(k K, pro, contra int32) (was, is bool) {
	old := v[k]
	now := tally{old.pro + pro, old.contra + contra}
	if now == (tally{}) {
		delete(v, k)
	} else {
		v[k] = now
	}
	return old.wanted(), now.wanted()
}

// each calls f for each wanted thing.
func (v votes[K]) each(f func(K)) {
	for k, t := range v {
		if t.wanted() {
			f(k)
		}
	}
}

// replace replaces what an owner wants. It adds the new votes before it withdraws the old ones, because an element that
// stays wanted would change twice otherwise.
func (p *Planner) replace(old, now *wants) {
	var removed, added wants
	removed.own, added.own = replaced(old.own, now.own)
	removed.leads, added.leads = replaced(old.leads, now.leads)
	removed.pro, added.pro = replaced(old.pro, now.pro)
	removed.contra, added.contra = replaced(old.contra, now.contra)
	for _, e := range removed.own {
		p.sink.Remove(e)
	}
	for _, e := range added.own {
		p.sink.Put(e)
	}
	p.vote(&added, 1)
	p.vote(&removed, -1)
}

// nearby is the distance up to which replaced finds a moved element.
const nearby = 16

// replaced returns the elements that only old has, and the elements that only now has. Few elements may be new or
// missing between those that both lists have, which are in the same order. An element that has moved further than
// that may be in both results.
func replaced[E comparable](old, now []E) (removed, added []E) {
	if len(old) == 0 {
		return nil, now
	}
	for _, e := range now {
		i := slices.Index(old[:min(len(old), nearby)], e)
		if i < 0 {
			added = append(added, e)
			continue
		}
		removed = append(removed, old[:i]...)
		old = old[i+1:]
	}
	return append(removed, old...), added
}

// vote adds the votes of an owner, or withdraws them if n is -1.
func (p *Planner) vote(w *wants, n int32) {
	for _, l := range w.leads {
		if was, is := p.leads.cast(l, n, 0); was != is {
			p.report(l.element(), is)
		}
	}
	for _, id := range w.pro {
		if was, is := p.shared.cast(id, n, 0); was != is {
			p.report(sharedElement(id), is)
		}
	}
	for _, id := range w.contra {
		if was, is := p.shared.cast(id, 0, n); was != is {
			p.report(sharedElement(id), is)
		}
	}
}

// report reports that an element is wanted now, or not any more. If an address does not refuse unused ports any more,
// it also forgets the element that packets may have added. A change of the cluster IPs may change the winners of other
// Services' claims.
func (p *Planner) report(e nft.Element, wanted bool) {
	l := p.rules.layouts[e.Set.Family]
	if wanted {
		p.sink.Put(e)
	} else if p.sink.Remove(e); e.Set == l.clusterIPs || e.Set == l.refused {
		p.sink.Discard(nft.Element{Set: l.unusedPorts, Key: e.Key})
	}
	if e.Set == l.clusterIPs {
		addr, _ := netip.AddrFromSlice(e.Key.Bytes())
		p.claims.unsettle(addr)
	}
}

// sharedElement returns an element that several owners may want.
func sharedElement(id nft.ID) nft.Element { return nft.Element{Set: id.Set, Key: id.Key} }

// Tables returns the wanted tables, without elements.
func (p *Planner) Tables() []*nft.Table {
	var out []*nft.Table
	classes := [2]map[class]bool{{}, {}}
	p.leads.each(func(l lead) {
		if c, onDemand := classOf(l.family, l.class.chain()); onDemand {
			classes[l.family][c] = true
		}
	})
	for _, f := range p.rules.options.Families {
		t := *p.rules.tables[f]
		t.Chains = slices.Clip(t.Chains)
		for _, c := range slices.SortedFunc(maps.Keys(classes[f]), class.compare) {
			t.Chains = append(t.Chains, p.rules.layouts[f].classChain(&p.rules.options, c))
		}
		out = append(out, &t)
	}
	return out
}

// Elements calls f for every wanted element, or only for those of some sets; f must not keep or change it. For sets
// other than those of classes, source ranges, port ranges and deleted frontends, it visits all elements of the plan.
func (p *Planner) Elements(f func(*nft.Element), of ...*nft.Set) {
	for _, s := range of {
		p.elementsOf(s, f)
	}
	if len(of) == 0 {
		_ = p.ElementsInParts(math.MaxInt, f, nil) // a single part, so next is not called
	}
}

// ElementsInParts calls f for every wanted element, in parts of about most elements. It calls next before each part but
// the first, and returns the error of next if that fails. Each Service is in one part, the smaller Services before the
// larger ones.
func (p *Planner) ElementsInParts(most int, f func(*nft.Element), next func() error) error {
	each := func(e nft.Element) { f(&e) }
	for _, fam := range p.rules.options.Families {
		l := p.rules.layouts[fam]
		for _, e := range l.fixed() {
			each(e)
		}
		for _, e := range l.nodeElements(&p.nodes[fam]).own {
			each(e)
		}
	}
	for k := range p.deleted {
		each(p.deletedElement(k))
	}
	p.leads.each(func(l lead) { each(l.element()) })
	shared := func(last bool) {
		p.shared.each(func(id nft.ID) {
			if namedRows()[id.Set.Name].last == last {
				each(sharedElement(id))
			}
		})
	}
	shared(false) // among them the regions: without its region, no Service is found
	var list wants
	part := 0
	for _, s := range p.bySize(most) {
		p.allElements(s, list.empty())
		if n := len(list.own); part > 0 && n > most-part {
			if err := next(); err != nil {
				return err
			}
			part = 0
		}
		part += len(list.own)
		for i := range list.own {
			f(&list.own[i])
		}
	}
	shared(true)
	return nil
}

// bySize returns all Services; the smaller ones first if they have more than most elements.
func (p *Planner) bySize(most int) []*service {
	services := slices.Collect(maps.Values(p.services))
	if p.rooms[ofElements].Total() > most {
		slices.SortFunc(services, func(a, b *service) int { return a.takes[ofElements] - b.takes[ofElements] })
	}
	return services
}

// allElements adds all that a Service wants.
func (p *Planner) allElements(s *service, to *wants) {
	p.serviceElements(s, &noService, to)
	s.eachFrontend(func(c claim) {
		if p.claims.winner(c.frontend.Key).frontend == c.frontend {
			p.frontendElements(c, to)
		}
	})
}

func (p *Planner) elementsOf(s *nft.Set, f func(*nft.Element)) {
	l, found := p.rules.layouts[s.Family], wants{}
	only := func(e nft.Element) {
		if e.Set == s {
			f(&e)
		}
	}
	switch {
	case s.Verdict:
		for _, e := range l.fixed() {
			only(e)
		}
		p.leads.each(func(l lead) { only(l.element()) })
	case s == l.ranges || s == l.restrictedRanges:
		for _, keys := range p.claims.rangesAt {
			for k := range keys {
				if k.Family == l.family {
					p.frontendElements(p.claims.winner(k), &found)
				}
			}
		}
	case s == l.deletedUDP:
		for k := range p.deleted {
			only(p.deletedElement(k))
		}
	case slices.Contains(l.sources[:], s):
		for _, service := range p.services {
			if sources := service.sources[l.family]; sources != nil {
				l.sourceElements(sources, &found)
			}
		}
	default:
		p.Elements(func(e *nft.Element) {
			if e.Set == s {
				f(e)
			}
		})
	}
	for _, e := range found.own {
		only(e)
	}
}
