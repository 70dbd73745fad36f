package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

func (s *service) sourcesOf(f int) *sources {
	if s == nil {
		return nil
	}
	return s.sources[f]
}

// assignSources gives the source ranges of a Service a number in each family. If the node or the namespace has no room for them, no source is
// allowed.
func (p *Planner) assignSources(s, old *service) {
	for _, port := range s.ports {
		f := port.family
		for i := range port.frontends {
			if ranges := port.frontends[i].AllowedSources; ranges != nil {
				if s.sources[f] == nil {
					s.sources[f] = p.newSources(s, old.sourcesOf(int(f)), port, ranges)
				}
				port.sources = s.sources[f]
				break
			}
		}
	}
}

func (p *Planner) newSources(s *service, before *sources, port *port, ranges []model.AddrRange) *sources {
	out := &sources{family: port.family, ranges: ranges}
	if before != nil {
		out.number = before.number
	}
	if out.number == 0 {
		out.number = p.number(sourcesID(s.name, port.family), 0)
	}
	t := p.of(s.name.Namespace)
	if before != nil {
		p.taken.ranges, t.ranges = p.taken.ranges-len(before.ranges), t.ranges-len(before.ranges)
	}
	const field, closed = "spec.loadBalancerSourceRanges", "no source is allowed: "
	switch reason := p.lacksRanges(s.name.Namespace, len(ranges)); {
	case out.number == 0:
		out.ranges = nil
		s.leave(field, closed+"no number is left for the source ranges of a Service of this namespace")
		s.lacks.number[port.family] = true
	case reason != "":
		out.ranges = nil
		s.leave(field, closed+reason)
		s.lacks.ranges[port.family] = len(ranges)
	}
	p.taken.ranges, t.ranges = p.taken.ranges+len(out.ranges), t.ranges+len(out.ranges)
	return out
}

// lacksRanges returns the reason why a Service of a namespace cannot have n source ranges; "" if it can.
func (p *Planner) lacksRanges(namespace string, n int) string {
	most, t := p.options.Room.SourceRanges, p.takenBy(namespace)
	switch {
	case t.ranges+n > most/perNamespace:
		return fmt.Sprintf("the Service has %d source ranges, the others of its namespace %d, and a namespace has room for %d", n, t.ranges, most/perNamespace)
	case p.taken.ranges+n > most:
		return fmt.Sprintf("the Service has %d source ranges, all others %d, and the node has room for %d", n, p.taken.ranges, most)
	}
	return ""
}

// sourcesID returns an id for the source ranges of a Service that no service port has: the name of a port has no space.
func sourcesID(name types.NamespacedName, f inet.Family) portID {
	return portID{name: model.PortName{NamespacedName: name, Port: " sources"}, family: f}
}

// sourceElements calls each for every source range of a Service.
func (l *layout) sourceElements(s *sources, each func(*nft.Element)) {
	if s == nil || s.number == 0 {
		return
	}
	key := nft.Value{}.BigEndian(s.number)
	for _, r := range s.ranges {
		each(&nft.Element{Set: l.allowedSources, Key: key.Addr(r.First), KeyEnd: key.Addr(r.Last)})
	}
}

func (p *Planner) changeSources(l *layout, namespace string, was, is *sources) {
	if was != nil && is != nil && was.number == is.number && slices.Equal(was.ranges, is.ranges) {
		return
	}
	l.sourceElements(was, p.remove)
	l.sourceElements(is, p.put)
	if was != nil && is == nil {
		p.taken.ranges -= len(was.ranges)
		p.of(namespace).ranges -= len(was.ranges)
	}
}
