package plan

import (
	"maps"
	"math"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Sink receives each change of the wanted elements. To replace an element, the planner first removes it. It may also remove an element and put an
// equal one: the sink compares them.
// A chain of a class is wanted as long as an element that leads to it is wanted, see [Planner.ClassChain].
type Sink interface {
	// Put receives an element that is wanted now.
	Put(nft.Element)
	// Remove receives an element that is not wanted any more.
	Remove(nft.Element)
	// Expect announces the approximate number of calls of Put and Remove that follow.
	Expect(int)
}

// ReportTo makes the planner report to a sink: first all wanted elements, then each difference. The sink replaces an earlier one.
func (p *Planner) ReportTo(to Sink) {
	p.sink = to
	p.Elements(func(e *nft.Element) { to.Put(*e) })
}

// ReportsTo reports whether the planner reports to a sink.
func (p *Planner) ReportsTo(s Sink) bool { return p.sink == s }

func (p *Planner) put(e *nft.Element) {
	if p.sink != nil {
		p.sink.Put(*e)
	}
}

func (p *Planner) remove(e *nft.Element) {
	if p.sink != nil {
		p.sink.Remove(*e)
	}
}

// countShared counts the users of shared elements. n is 1 for a Service that is added, -1 for a Service that is removed.
func (p *Planner) countShared(s *service, n int32) {
	if s == nil {
		return
	}
	for _, port := range s.ports {
		p.layouts[port.Family].sharedElements(port, func(e shared) { p.countSharedElement(e, n) })
	}
}

func (p *Planner) countSharedElement(s shared, n int32) {
	before := p.shared[s]
	after := before + n
	if after == 0 {
		delete(p.shared, s)
	} else {
		p.shared[s] = after
	}
	if before > 0 && after > 0 {
		return
	}
	if s.set == p.layouts[s.set.Family].clusterIPs {
		p.unsettle(s.addr, nil)
	}
	if p.sink == nil {
		return
	}
	e := s.element()
	if after > 0 {
		p.sink.Put(e)
	} else {
		p.sink.Remove(e)
	}
}

// Tables returns the wanted tables, without elements.
func (p *Planner) Tables() []*nft.Table {
	var out []*nft.Table
	for _, f := range p.options.Families {
		t := *p.tables[f]
		t.Chains = slices.Clip(t.Chains)
		classes := map[class]bool{}
		for u := range p.uses {
			if u.family == f && u.kind.onDemand() {
				classes[u.ofChain()] = true
			}
		}
		for _, c := range slices.SortedFunc(maps.Keys(classes), class.compare) {
			t.Chains = append(t.Chains, p.layouts[f].classChain(&p.options, c))
		}
		out = append(out, &t)
	}
	return out
}

// Elements calls f for every wanted element; f must not keep or change it.
func (p *Planner) Elements(f func(*nft.Element)) {
	_ = p.ElementsInParts(math.MaxInt, f, nil) // a single part, so next is not called
}

// ElementsInParts calls f for every wanted element, in parts of about most elements. It calls next before each part but the first, and returns
// the error of next if that fails. Each Service is in one part, the smaller Services before the larger ones.
func (p *Planner) ElementsInParts(most int, f func(*nft.Element), next func() error) error {
	var room nft.Element // one allocation for all: there may be a million elements
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
	for _, elements := range p.nodeElements {
		for _, e := range elements {
			each(e)
		}
	}
	for k := range p.deleted {
		each(p.deletedElement(k))
	}
	for s := range p.shared {
		if p.isRegion(s.set) { // first: without its region, no Service is found
			each(s.element())
		}
	}
	withClass := func(e nft.Element, _ step, _ class) { each(e) }
	services, part, contested := p.list, 0, p.Conflicts() > 0
	if p.rooms.elements.Total() > most {
		services = slices.Clone(services)
		slices.SortFunc(services, func(a, b *service) int { return a.elements() - b.elements() })
	}
	for _, s := range services {
		if n := s.elements(); part > 0 && n > most-part {
			if err := next(); err != nil {
				return err
			}
			part = 0
		}
		part += s.elements()
		for fam, sources := range s.sources {
			if sources != nil {
				p.layouts[fam].allSourceElements(sources, f)
			}
		}
		for _, port := range s.ports {
			l := p.layouts[port.Family]
			for i := range port.Frontends {
				if frontend := &port.Frontends[i]; !contested || p.winner(frontend.Key).frontend == frontend {
					l.frontendElements(port, frontend, withClass)
				}
			}
			l.portElements(port, withClass)
			l.endpointElements(port, &noPort, f)
		}
	}
	// The elements of cluster-ips are last: until all parts are written, no packet to a cluster IP is refused because its Service is missing.
	for s := range p.shared {
		if !p.isRegion(s.set) {
			each(s.element())
		}
	}
	for id, s := range p.stances {
		if s.wanted() {
			each(nft.Element{Set: id.Set, Key: id.Key})
		}
	}
	return nil
}

// ElementsOf calls f for every wanted element of a set; f must not keep or change it. For a set other than source ranges and port ranges, it visits all
// elements of the plan.
func (p *Planner) ElementsOf(s *nft.Set, f func(*nft.Element)) {
	l := p.layouts[s.Family]
	if s == l.ranges || s == l.restrictedRanges {
		p.rangeElements(l, s, f)
		return
	}
	list := sourceList(slices.Index(l.sources[:], s))
	if list >= sourceLists {
		p.Elements(func(e *nft.Element) {
			if e.Set == s {
				f(e)
			}
		})
		return
	}
	for _, service := range p.services {
		l.sourceElements(service.sources[l.family], list, f)
	}
}
