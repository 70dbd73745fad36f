package model

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
)

// Termination selects the established TCP connections of a Service that the program terminates.
type Termination string

// The values of annotationTerminate, and of the flag --terminate-connections.
const (
	// TerminateOff: none.
	TerminateOff Termination = "off"
	// TerminateGone: connections to endpoints that have left all EndpointSlices of the Service. A terminating or
	// unready endpoint is in a slice.
	TerminateGone Termination = "gone"
)

// ParseTermination returns an error if the text is not a Termination.
func ParseTermination(text string) (Termination, error) {
	switch t := Termination(text); t {
	case TerminateOff, TerminateGone:
		return t, nil
	}
	return TerminateOff, fmt.Errorf("must be %s or %s", TerminateGone, TerminateOff)
}

// leastSilence is the smallest number of seconds of annotationSpread: during a shorter silence, a request may be under
// way in most connections.
const leastSilence = 5

const connectionsStay = "its connections are not spread"

// checkSpread clears SpreadSilent if a connection may not end, or if its client would return to the same endpoint.
func (b *builder) checkSpread() {
	reason := ""
	switch {
	case b.out.SpreadSilent == 0:
	case !b.out.TerminateGone:
		reason = "needs " + annotationTerminate + ": " + string(TerminateGone)
	case b.svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP:
		reason = "with session affinity, a client returns to its endpoint"
	case b.method.Key != balance.Chance:
		reason = "the algorithm returns a client to its endpoint"
	}
	if reason != "" {
		b.problem(SpreadField, quoted(b.svc.Annotations[annotationSpread], reason+"; "+connectionsStay))
		b.out.SpreadSilent = 0
	}
}

// setListed sets Service.Listed. If a limit skips endpoints, an endpoint that is not in the list may still be in a
// slice. The program then terminates no connections of the Service.
func (b *builder) setListed() {
	if slices.ContainsFunc(b.unlimited, func(p Problem) bool { return p.Limit == limitSlices || p.Limit == limitPairs }) {
		b.out.TerminateGone, b.out.SpreadSilent = false, 0
		return
	}
	var list []netip.Addr
	for _, g := range b.groups {
		for i := range g.endpoints {
			list = append(list, g.endpoints[i].Addr())
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	b.out.Listed = slices.Clip(slices.Compact(list))
}
