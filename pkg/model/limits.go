package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Limits bound the cost of one Service with its EndpointSlices, even for a hostile author. Each limit is far above real
// use. Only the part of an object above a limit is skipped. Every node skips the same part, regardless of the order of
// events, and reports one [Problem] for each exceeded limit. A zero field stands for the field of [DefaultLimits].
type Limits struct {
	// Ports is the number of service ports (items of spec.ports). The first ones of the list are kept.
	Ports int
	// Addresses is the number of load-balancer IPs and external IPs of both families. Load-balancer IPs are kept before
	// external IPs, and the first ones of each list.
	Addresses int
	// Frontends is the number of addresses times ports, plus node ports, of both families. It must be at least 4 times
	// Ports, so that cluster IPs and node ports always fit. Other addresses are kept in the same order as for
	// Addresses.
	Frontends int
	// PortRanges is the number of ranges of ports times addresses, of both families. TCP ranges are kept before UDP
	// ranges, and these before SCTP ranges.
	PortRanges int
	// SourceRanges is the number of source ranges of one family, merged into the fewest prefixes. Lower addresses are
	// kept. Packets from sources in the other ranges are dropped.
	SourceRanges int
	// Slices is the number of EndpointSlices. The first ones by name are kept.
	Slices int
	// SlicePorts is the number of ports of one EndpointSlice. The first ones of the list are kept.
	SlicePorts int
	// Pairs is the number of pairs of an endpoint and a port of the Service in all EndpointSlices, of both families,
	// and the number of endpoints of one EndpointSlice. A slice counts at least its ports, because to read them takes
	// time. Session affinity or a connection limit halves this limit, and a policy Local halves it again. The first
	// slices by name are kept. In the slice that exceeds the limit, ready
	// endpoints are kept before others, and lower addresses before higher ones.
	Pairs int
	// PortEndpoints is the number of distinct endpoints of one service port in one family. Ready endpoints are kept
	// before others, and lower addresses before higher addresses.
	PortEndpoints int
	// Slots is the number of slots of the tables of a Service with an algorithm or weights, of both families. All
	// endpoints count, and with a policy Local they count twice. Above this limit, or above [balance.MostHashed]
	// endpoints of a service port with an algorithm, endpoints are chosen at random, with equal shares.
	Slots int
	// Problems is the number of reported problems of one object, besides exceeded limits. One more problem states the
	// number of the rest. All EndpointSlices of a Service together have at most 10 times this number, and one more
	// problem for the rest.
	Problems int
}

// DefaultLimits returns the default of each limit.
func DefaultLimits() Limits { return Limits{}.OrDefault() }

// OrDefault returns the limits with defaults for zero fields. The flag --limits changes SourceRanges, because lists of
// sources such as those of a content delivery network grow, and Pairs, because a DaemonSet has as many endpoints as the
// cluster has nodes. No real Service needs more of the other quantities. Tests set smaller limits.
func (l Limits) OrDefault() Limits {
	return Limits{
		Ports:         cmp.Or(l.Ports, 2_000),
		Addresses:     cmp.Or(l.Addresses, 4_000),
		Frontends:     cmp.Or(l.Frontends, 10_000),
		PortRanges:    cmp.Or(l.PortRanges, 64),
		SourceRanges:  cmp.Or(l.SourceRanges, 1_000),
		Slices:        cmp.Or(l.Slices, 4_000),
		SlicePorts:    cmp.Or(l.SlicePorts, 2_000),
		Pairs:         cmp.Or(l.Pairs, 20_000),
		PortEndpoints: cmp.Or(l.PortEndpoints, 16_384),
		Slots:         cmp.Or(l.Slots, 32_768),
		Problems:      cmp.Or(l.Problems, 20),
	}
}

// Limit names a limit that an object exceeds.
type Limit string

// The limits, in the order of [Limits].
const (
	limitPorts         Limit = "service ports"
	limitAddresses     Limit = "load-balancer and external IPs"
	limitFrontends     Limit = "frontends (addresses times ports)"
	limitPortRanges    Limit = "port ranges (ranges times addresses)"
	limitSourceRanges  Limit = "source ranges of one family, after merging"
	limitSlices        Limit = "EndpointSlices"
	limitSlicePorts    Limit = "ports of one EndpointSlice"
	limitHints         Limit = "zones or nodes in the hints of an endpoint"
	limitPairs         Limit = "endpoints times ports"
	limitPortEndpoints Limit = "endpoints of one port"
	limitSlots         Limit = "slots"
	limitHostPorts     Limit = "host ports of a pod"
)

// exceeded returns the reason of a problem: the number, the limit, the skipped part, and the remedy. The number is 0 if
// it is not known, because pkg/watch cuts the list.
func (l Limit) exceeded(have, most int, out, remedy string) string {
	if have == 0 {
		return fmt.Sprintf("more than the limit of %d %s: %s; %s", most, l, out, remedy)
	}
	return fmt.Sprintf("%d are above the limit of %d %s: %s; %s", have, most, l, out, remedy)
}

// problems collects the problems of an object.
type problems struct {
	// kind and name are those of the object. most is the limit.
	kind string
	name types.NamespacedName
	most int
	list []Problem
	// more counts the problems above the limit.
	more int
	// unlimited do not count against the limit: exceeded limits, and invalid sources that close frontends.
	unlimited []Problem
}

func (p *problems) problemOf(field, reason string) Problem {
	return Problem{Kind: p.kind, Name: p.name, Field: field, Reason: reason}
}

// full reports whether the limit is reached. It then counts one more problem, which need not be formatted.
func (p *problems) full() bool {
	if len(p.list) < p.most {
		return false
	}
	p.more++
	return true
}

// problem adds a problem. Above the limit, it only counts the problem.
func (p *problems) problem(field, reason string) { p.add(p.problemOf(field, reason)) }

func (p *problems) add(problem Problem) {
	if !p.full() {
		p.list = append(p.list, problem)
	}
}

// reportExcess adds a problem about an exceeded limit, once for each limit.
func (p *problems) reportExcess(limit Limit, field string, have, most int, out, remedy string) {
	if slices.ContainsFunc(p.unlimited, func(p Problem) bool { return p.Limit == limit }) {
		return
	}
	excess := p.problemOf(field, limit.exceeded(have, most, out, remedy))
	excess.Limit = limit
	p.unlimited = append(p.unlimited, excess)
}

// all returns the problems of the object. If some were only counted, a problem of a field states their number.
func (p *problems) all(field string) []Problem {
	list := p.list
	if p.more > 0 {
		list = append(list, p.problemOf(field, fmt.Sprintf("and %d more parts that cannot be used", p.more)))
	}
	return append(list, p.unlimited...)
}

// The author of an object chooses its texts, and their lengths. A text or list that is above its limit is cut before
// the object is stored, so that the loop reads only the part below the limit. The limits of texts are far above the
// length of any valid text.
const (
	// LongestText is the limit in bytes of each text, except lists in annotations: a name, an address, or the value of
	// an annotation.
	LongestText = 1 << 10
	// LongestList is the limit in bytes of a list in an annotation. It suffices for 1,000 IPv6 addresses with weights.
	LongestList = 64 << 10
	// mostItems is the limit of the items of a list in an annotation, and of spec.loadBalancerSourceRanges.
	mostItems = 2_000
	// MostHints is the limit of the zones, and of the nodes, in the hints of an endpoint. The API server allows 8.
	MostHints = 64
	// MostFamilies is the limit of the IP families, and of the cluster IPs, of a Service. The API server has the same
	// one.
	MostFamilies = 2
	// mostUnknown limits the stored annotations without a meaning: the author of a Service may write thousands.
	mostUnknown = 20
)

// cutMark is the end of a cut text. No valid text ends with it.
const cutMark = "…"

// Cut returns a text without the bytes above a limit. A cut text is not valid: it does not equal another text, and its
// length is above the limit.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:most] + cutMark
}

// StoredAnnotations returns the annotations of a Service, or of an EndpointSlice, that the program reads. Of a
// Service, it also returns the first unknown annotations by name that have the program's prefix, without their
// values: they become problems.
func StoredAnnotations(all map[string]string, slice bool) (stored map[string]string) {
	store := func(name, text string) {
		if stored == nil {
			stored = map[string]string{}
		}
		stored[name] = text
	}
	var unknown []string
	for name, text := range all {
		i := slices.IndexFunc(Annotations, func(a Annotation) bool { return a.Name == name && a.OfSlices() == slice })
		if i >= 0 {
			store(name, Cut(text, Annotations[i].Longest()))
		} else if !slice && strings.HasPrefix(name, prefix) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown) // all nodes store the same ones
	for _, name := range unknown[:min(len(unknown), mostUnknown)] {
		store(Cut(name, LongestText), "")
	}
	return stored
}

// Longest returns the limit in bytes of the value of the annotation.
func (a *Annotation) Longest() int {
	if a.List {
		return LongestList
	}
	return LongestText
}

// Items returns the limit of the items of a list of source ranges, or of a list in an annotation.
func (l *Limits) Items() int { return max(mostItems, 2*l.SourceRanges) } //nolint:mnd // two families

// itemsOf returns the items of a list in an annotation. It parses no item of a list that is above a limit, and returns
// an error.
func (l *Limits) itemsOf(text string) ([]string, error) {
	if len(text) > LongestList {
		return nil, fmt.Errorf("the list has more than %d bytes", LongestList)
	}
	if n := strings.Count(text, ",") + 1; n > l.Items() {
		return nil, fmt.Errorf("the list has %d items, above the limit of %d", n, l.Items())
	}
	return strings.Split(text, ","), nil
}
