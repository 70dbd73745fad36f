package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Limits bound the cost of one Service with its EndpointSlices, whoever wrote them. Each is far above real use. An object above a limit
// loses the excess and nothing else, in the same way on every node and whatever the order of events, and has one [Problem] for each
// limit that it exceeds. A field that is 0 stands for that of [DefaultLimits].
type Limits struct {
	// Ports is the number of service ports (items of spec.ports). The first ones of the list stay.
	Ports int
	// Addresses is the number of load-balancer IPs and external IPs of both families. Load-balancer IPs stay before external IPs, and
	// among these the lower addresses stay.
	Addresses int
	// Frontends is the number of addresses times ports, and of node ports, of both families. It must be at least 4 times Ports:
	// cluster IPs and node ports always fit. Addresses are left out as for Addresses.
	Frontends int
	// SourceRanges is the number of source ranges of one family, after those that overlap or touch have been joined. The lower
	// addresses stay. Sources in other ranges are refused.
	SourceRanges int
	// Slices is the number of EndpointSlices. The first ones by name stay.
	Slices int
	// SlicePorts is the number of ports of one EndpointSlice that are ports of the Service, too. The first ones of the list stay.
	SlicePorts int
	// Pairs is the number of pairs of an endpoint and a port of the Service in all EndpointSlices, of both families; half of it with
	// session affinity, and half of that with a policy Local. The slices stay that are first by name. Of the slice that exceeds the limit, ready endpoints stay before others,
	// and lower addresses before higher ones.
	Pairs int
	// PortEndpoints is the number of different endpoints of one service port in one family. Ready ones stay before others, and lower
	// addresses before higher ones.
	PortEndpoints int
	// Problems is the number of problems that are reported of one object; one more tells the number of all others. Of all
	// EndpointSlices of a Service together, 10 times as many are reported.
	Problems int
}

// DefaultLimits returns the limits that hold unless others are set.
func DefaultLimits() Limits {
	return Limits{
		Ports: 2_000, Addresses: 4_000, Frontends: 10_000, SourceRanges: 1_000,
		Slices: 4_000, SlicePorts: 2_000, Pairs: 20_000, PortEndpoints: 16_384, Problems: 20,
	}
}

// orDefault returns the limits without zero fields.
func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	return Limits{
		Ports: cmp.Or(l.Ports, d.Ports), Addresses: cmp.Or(l.Addresses, d.Addresses), Frontends: cmp.Or(l.Frontends, d.Frontends),
		SourceRanges: cmp.Or(l.SourceRanges, d.SourceRanges), Slices: cmp.Or(l.Slices, d.Slices), SlicePorts: cmp.Or(l.SlicePorts, d.SlicePorts),
		Pairs: cmp.Or(l.Pairs, d.Pairs), PortEndpoints: cmp.Or(l.PortEndpoints, d.PortEndpoints), Problems: cmp.Or(l.Problems, d.Problems),
	}
}

// Limit names a limit that an object exceeds.
type Limit string

// The limits, in the order of [Limits].
const (
	LimitPorts         Limit = "service ports"
	LimitAddresses     Limit = "load-balancer and external IPs"
	LimitFrontends     Limit = "frontends (addresses times ports)"
	LimitSourceRanges  Limit = "source ranges of one family, after merging"
	LimitSlices        Limit = "EndpointSlices"
	LimitSlicePorts    Limit = "ports of one EndpointSlice"
	LimitPairs         Limit = "endpoints times ports"
	LimitPortEndpoints Limit = "endpoints of one port"
)

// exceeded returns the reason of a problem: the number and its limit, the part that is left out, and the remedy.
func (l Limit) exceeded(have, most int, out, remedy string) string {
	return fmt.Sprintf("%d are above the limit of %d %s: %s; %s", have, most, l, out, remedy)
}

// problems collects those of one object.
type problems struct {
	list []Problem
	// more is the number of those above the limit.
	more int
}

// add takes a problem, which is only counted where there are already as many as the limit.
func (p *problems) add(limit int, problem Problem) {
	if len(p.list) < limit {
		p.list = append(p.list, problem)
	} else {
		p.more++
	}
}

// all returns the problems of an object, and one more that counts the others.
func (p *problems) all(of Problem) []Problem {
	if p.more == 0 {
		return p.list
	}
	of.Reason = fmt.Sprintf("and %d more parts that cannot be used", p.more)
	return append(p.list, of)
}

// LimitsOf returns the default limits with those that are given by name. It fails for a name that is none, or a number that cannot be a limit.
func LimitsOf(given map[string]int) (Limits, error) {
	l := DefaultLimits()
	fields := map[string]*int{
		"ports": &l.Ports, "addresses": &l.Addresses, "frontends": &l.Frontends, "source-ranges": &l.SourceRanges, "slices": &l.Slices,
		"slice-ports": &l.SlicePorts, "pairs": &l.Pairs, "endpoints": &l.PortEndpoints, "problems": &l.Problems,
	}
	if err := SetLimits(given, fields); err != nil {
		return l, err
	}
	switch {
	case l.Frontends < 4*l.Ports:
		return l, fmt.Errorf("limit frontends is %d: it must be at least 4 times the limit ports, %d", l.Frontends, 4*l.Ports)
	case l.PortEndpoints > 1<<16-1:
		return l, fmt.Errorf("limit endpoints is %d: it must be at most 65535", l.PortEndpoints)
	}
	return l, nil
}

// SetLimits sets fields, by their names, to the numbers that are given. It fails for a name that is none, or a number below 1.
func SetLimits(given map[string]int, fields map[string]*int) error {
	for name, n := range given {
		switch field := fields[name]; {
		case field == nil:
			return fmt.Errorf("limit %q is unknown: use %s", name, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case n < 1:
			return fmt.Errorf("limit %s is %d: it must be at least 1", name, n)
		default:
			*field = n
		}
	}
	return nil
}
