package plan

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/want"
)

// Sink receives each change of the wanted elements. To replace an element, the planner first removes it. It may also remove an element and put an
// equal one: the sink compares them.
// A chain of a class is wanted as long as an element that leads to it is wanted, see [Rules.ClassChain].
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

// ReportTo makes the planner report to a sink: first all wanted elements, then each difference. The sink replaces an earlier one.
func (p *Planner) ReportTo(to Sink) {
	p.sink = to
	p.Elements(func(e *nft.Element) { to.Put(*e) })
}

func (p *Planner) put(e nft.Element) {
	if p.sink != nil {
		p.sink.Put(e)
	}
}

// remove also forgets the element that packets may have added as long as e existed.
func (p *Planner) remove(e nft.Element) {
	if p.sink == nil {
		return
	}
	p.sink.Remove(e)
	if l := p.rules.layouts[e.Set.Family]; e.Set == l.clusterIPs || e.Set == l.refused {
		p.sink.Discard(nft.Element{Set: l.unusedPorts, Key: e.Key})
	}
}

// emit receives the elements that a Service wants: its own elements, which no other Service can want, and its
// votes for and against elements that other Services may want, too.
type emit struct {
	own  func(nft.Element)
	vote func(e nft.Element, pro, contra int32)
}

// noVotes ignores votes.
func noVotes(nft.Element, int32, int32) {}

// ballot is an element with the votes of an owner.
type ballot struct {
	nft.Element
	pro, contra int32
}

// replace replaces elements by others. It adds the new votes before it withdraws the old ones, see [want.Table.Vote].
func (p *Planner) replace(old, now func(emit)) {
	old(p.withdrawing)
	now(p.adding)
	for i := range p.withdrawn {
		b := &p.withdrawn[i]
		p.vote(b.Element, -b.pro, -b.contra)
	}
	clear(p.withdrawn)
	p.withdrawn = p.withdrawn[:0]
}

// vote adds votes for and against an element.
func (p *Planner) vote(e nft.Element, pro, contra int32) {
	table := p.shared
	if e.Set.Verdict {
		table = p.classes
	}
	switch table.Vote(&e, pro, contra) {
	case want.Wanted:
		p.put(e)
	case want.Unwanted:
		p.remove(e)
	case want.Same:
		return
	}
	if l := p.rules.layouts[e.Set.Family]; e.Set == l.clusterIPs {
		p.claims.unsettle(addrOf(e.Key), nil)
	}
}

// serviceElements emits the elements of a Service, apart from those of its frontends, and apart from own elements that
// other, an earlier or later version of the Service, has, too. Both Services may be nil.
func (p *Planner) serviceElements(s, other *service, to emit) {
	if s == nil {
		return
	}
	for _, port := range s.ports {
		p.rules.layouts[port.Family].portElements(port, other.port(port.id()), to)
	}
	for f, sources := range s.sources {
		if sources != nil {
			p.rules.layouts[f].sourceElements(sources, other.sourcesOf(f), to.own)
		}
	}
}

// frontendElements emits the elements of the frontend with which a Service has a key. The claim may be the zero claim.
func (p *Planner) frontendElements(c claim, to emit) {
	if c.service != nil {
		p.rules.layouts[c.port.Family].frontendElements(c.port, c.frontend, to)
	}
}

// Tables returns the wanted tables, without elements.
func (p *Planner) Tables() []*nft.Table {
	var out []*nft.Table
	classes := [2]map[class]bool{{}, {}}
	p.classes.Each(func(e *nft.Element) {
		f := e.Set.Family
		if c, is := classOf(f, e.Chain); is {
			classes[f][c] = true
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
// other than those of classes, source ranges and port ranges, it visits all elements of the plan.
func (p *Planner) Elements(f func(*nft.Element), of ...*nft.Set) {
	for _, s := range of {
		p.elementsOf(s, f)
	}
	if len(of) == 0 {
		_ = p.ElementsInParts(math.MaxInt, f, nil) // a single part, so next is not called
	}
}

// ElementsInParts calls f for every wanted element, in parts of about most elements. It calls next before each part but the first, and returns
// the error of next if that fails. Each Service is in one part, the smaller Services before the larger ones.
func (p *Planner) ElementsInParts(most int, f func(*nft.Element), next func() error) error {
	var room nft.Element // one allocation for all: there may be a million elements
	each := func(e nft.Element) {
		room = e
		f(&room)
	}
	for _, fam := range p.rules.options.Families {
		for _, e := range p.rules.layouts[fam].fixed() {
			each(e)
		}
	}
	for _, elements := range p.nodeElements {
		for _, e := range elements {
			each(e)
		}
	}
	for k := range p.deleted {
		each(p.deletedElement(k))
	}
	p.classes.Each(f)
	p.shared.Each(func(e *nft.Element) {
		if !namedRows()[e.Set.Name].last { // among them the regions: without its region, no Service is found
			f(e)
		}
	})
	services, part, contested := p.list, 0, p.claims.conflicts() > 0
	if p.rooms.elements.Total() > most {
		services = slices.Clone(services)
		slices.SortFunc(services, func(a, b *service) int { return a.elements() - b.elements() })
	}
	to := emit{each, noVotes}
	for _, s := range services {
		if n := s.elements(); part > 0 && n > most-part {
			if err := next(); err != nil {
				return err
			}
			part = 0
		}
		part += s.elements()
		p.serviceElements(s, nil, to)
		s.eachFrontend(func(c claim) {
			if !contested || p.claims.winner(c.frontend.Key).frontend == c.frontend {
				p.frontendElements(c, to)
			}
		})
	}
	p.shared.Each(func(e *nft.Element) {
		if namedRows()[e.Set.Name].last {
			f(e)
		}
	})
	return nil
}

func (p *Planner) elementsOf(s *nft.Set, f func(*nft.Element)) {
	l := p.rules.layouts[s.Family]
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
		p.classes.Each(func(e *nft.Element) { only(*e) })
	case s == l.ranges || s == l.restrictedRanges:
		for _, keys := range p.claims.rangesAt {
			for k := range keys {
				if k.Family == l.family {
					p.frontendElements(p.claims.winner(k), emit{only, noVotes})
				}
			}
		}
	case slices.Contains(l.sources[:], s):
		for _, service := range p.services {
			if sources := service.sources[l.family]; sources != nil {
				l.sourceElements(sources, nil, only)
			}
		}
	default:
		p.Elements(func(e *nft.Element) {
			if e.Set == s {
				f(e)
			}
		})
	}
}

// addrOf returns the address that is a whole key.
func addrOf(key nft.Value) netip.Addr {
	a, _ := netip.AddrFromSlice(key.Bytes())
	return a
}
