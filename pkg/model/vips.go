package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Several Services may share an address. So each frontend has a stance on behaviours of its address, such as answers to ping. An address has a
// behaviour if at least one of its frontends is for it, and none is against it.

// Stance is the stance of a frontend on a behaviour of its address.
type Stance uint8

// The stances.
const (
	Neutral Stance = iota
	// WhileServing: for it while a new connection to the frontend would reach an endpoint.
	WhileServing
	// For: always for it.
	For
	Against
)

// UnusedPorts selects the load-balancer and external IPs that refuse connections to unused ports. The zero value selects no address.
type UnusedPorts struct {
	// All selects all load-balancer and external IPs, unless the Service has a load-balancer class.
	All bool
	// Within selects the load-balancer and external IPs in these prefixes.
	Within []netip.Prefix
}

// Any reports whether an address may be selected.
func (u *UnusedPorts) Any() bool { return u.All || len(u.Within) > 0 }

// ParseUnusedPorts parses the value of --refuse-unused-ports: cluster, all, or prefixes with commas.
func ParseUnusedPorts(text string) (u UnusedPorts, err error) {
	switch text {
	case "cluster":
		return u, nil
	case "all":
		return UnusedPorts{All: true}, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		p, err := ParsePrefix(strings.TrimSpace(item))
		if err != nil {
			return UnusedPorts{}, fmt.Errorf("must be cluster, all, or CIDRs: %q %w", item, err)
		}
		u.Within = append(u.Within, p)
	}
	return u, nil
}

// Ping selects the addresses that answer echo requests. Annotations may override it.
type Ping string

// The values of --answer-ping.
const (
	// PingNone: no address, and annotations have no effect.
	PingNone Ping = "none"
	// PingAnnotated: only addresses of Services with the annotation.
	PingAnnotated Ping = "annotated"
	// PingReady: all addresses with an endpoint for new connections.
	PingReady Ping = "ready"
	// PingAlways: all addresses.
	PingAlways Ping = "always"
)

// Pings are all values of --answer-ping.
var Pings = []Ping{PingNone, PingAnnotated, PingReady, PingAlways}

// Answers reports whether an address may answer. The zero value is PingNone.
func (p Ping) Answers() bool { return p != "" && p != PingNone }

// stances are the stances of a Service's frontends.
type stances struct {
	// refuseAll is the stance of load-balancer and external IPs, refuseWithin of those in UnusedPorts.Within.
	refuseAll, refuseWithin Stance
	// ping is the stance of cluster IPs, pingOutside of other addresses without source ranges, pingRestricted of those with source ranges.
	ping, pingOutside, pingRestricted Stance
}

// setRefusal sets the stance of an annotation.
func (b *builder) setRefusal(on bool) {
	b.refuseUnused = Against
	if on {
		b.refuseUnused = For
	}
}

// setPing sets the stance of an annotation. An invalid value is against an answer.
func (b *builder) setPing(name string) {
	switch Ping(name) {
	case PingAlways:
		b.answer = For
	case PingReady:
		b.answer = WhileServing
	default:
		b.answer = Against
	}
}

// stances returns the stances of the annotations, or those of the node's options.
func (b *builder) stances() (s stances) {
	if b.opts.UnusedPorts.Any() {
		s.refuseAll, s.refuseWithin = For, For
		if b.svc.Spec.LoadBalancerClass != nil {
			s.refuseAll = Against
		}
		if b.svc.Annotations[annotationWholeIP] == "true" {
			s.refuseAll, s.refuseWithin = Against, Against
		}
		if b.refuseUnused != Neutral {
			s.refuseAll, s.refuseWithin = b.refuseUnused, b.refuseUnused
		}
	}
	if b.answer != Neutral {
		s.ping, s.pingOutside, s.pingRestricted = b.answer, b.answer, b.answer
		return s
	}
	switch b.opts.Ping {
	case PingReady:
		s.ping = WhileServing
	case PingAlways:
		s.ping = For
	}
	// An address with source ranges must not answer: all sources would get the reply.
	if b.svc.Spec.LoadBalancerClass == nil {
		s.pingOutside = s.ping
	}
	return s
}

// setStances sets the stances of all frontends except node ports.
func (b *builder) setStances() {
	s := b.stances()
	if s == (stances{}) {
		return
	}
	for f := range b.fronts {
		for i := range b.fronts[f] {
			front := &b.fronts[f][i]
			switch {
			case front.Sources != nil:
				front.Ping = s.pingRestricted
			case front.AtClusterIP():
				front.Ping = s.ping
			default:
				front.Ping = s.pingOutside
			}
			within := func(p netip.Prefix) bool { return p.Contains(front.Addr) }
			switch {
			case front.AtClusterIP(): // unused ports of cluster IPs are always refused
			case b.opts.UnusedPorts.All:
				front.RefuseUnused = s.refuseAll
			case slices.ContainsFunc(b.opts.UnusedPorts.Within, within):
				front.RefuseUnused = s.refuseWithin
			}
		}
	}
}
