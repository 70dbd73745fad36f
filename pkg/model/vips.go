package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Several Services may share an address. So each frontend has a vote on behaviours of its address, such as answers
// to ping. An address has a behaviour if at least one of its frontends is for it, and none is against it.

// Vote is the vote of a frontend on a behaviour of its address.
type Vote uint8

// The votes.
const (
	Neutral Vote = iota
	// WhileServing: for it while a new connection to the frontend would reach an endpoint.
	WhileServing
	// For: always for it.
	For
	Against
)

// UnusedPorts selects the load-balancer and external IPs that refuse connections to unused ports. The zero value
// selects no address.
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

// votes are the votes of a Service's frontends.
type votes struct {
	// refuseAll is the vote of load-balancer and external IPs, refuseWithin of those in UnusedPorts.Within.
	refuseAll, refuseWithin Vote
	// ping is the vote of cluster IPs, pingOutside of other addresses without source ranges, pingRestricted of those
	// with source ranges.
	ping, pingOutside, pingRestricted Vote
}

// setRefusal sets the vote of an annotation.
func (b *builder) setRefusal(on bool) {
	b.refuseUnused = Against
	if on {
		b.refuseUnused = For
	}
}

// setPing sets the vote of an annotation. An invalid value is against an answer.
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

// votes returns the votes of the annotations, or those of the node's options.
func (b *builder) votes() (v votes) {
	if b.opts.UnusedPorts.Any() {
		v.refuseAll, v.refuseWithin = For, For
		if b.svc.Spec.LoadBalancerClass != nil {
			v.refuseAll = Against
		}
		if b.svc.Annotations[annotationWholeIP] == "true" {
			v.refuseAll, v.refuseWithin = Against, Against
		}
		if b.refuseUnused != Neutral {
			v.refuseAll, v.refuseWithin = b.refuseUnused, b.refuseUnused
		}
	}
	if b.answer != Neutral {
		v.ping, v.pingOutside, v.pingRestricted = b.answer, b.answer, b.answer
		return v
	}
	switch b.opts.Ping {
	case PingReady:
		v.ping = WhileServing
	case PingAlways:
		v.ping = For
	}
	// An address with source ranges must not answer: all sources would get the reply.
	if b.svc.Spec.LoadBalancerClass == nil {
		v.pingOutside = v.ping
	}
	return v
}

// setVotes sets the votes of all frontends except node ports.
func (b *builder) setVotes() {
	v := b.votes()
	for f := range b.fronts {
		for i := range b.fronts[f] {
			front := &b.fronts[f][i]
			switch {
			case front.Sources != nil:
				front.Ping = v.pingRestricted
			case front.AtClusterIP():
				front.Ping = v.ping
			default:
				front.Ping = v.pingOutside
			}
			within := func(p netip.Prefix) bool { return p.Contains(front.Addr) }
			switch {
			case front.AtClusterIP(): // unused ports of cluster IPs are always refused
			case b.opts.UnusedPorts.All:
				front.RefuseUnused = v.refuseAll
			case slices.ContainsFunc(b.opts.UnusedPorts.Within, within):
				front.RefuseUnused = v.refuseWithin
			}
		}
	}
}
