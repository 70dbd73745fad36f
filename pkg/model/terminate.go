package model

import (
	"fmt"
	"net/netip"
	"slices"
)

// Termination selects the established TCP connections of a Service that the program terminates.
type Termination string

// The values of annotationTerminate, and of the flag --terminate-connections.
const (
	// TerminateOff: none.
	TerminateOff Termination = "off"
	// TerminateGone: connections to endpoints that have left all EndpointSlices of the Service. A terminating or unready
	// endpoint is in a slice.
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

// setListed sets Service.Listed. If a limit skips endpoints, an endpoint that is not in the list may still be in a
// slice. The program then terminates no connections of the Service.
func (b *builder) setListed() {
	if slices.ContainsFunc(b.unlimited, func(p Problem) bool { return p.Limit == limitSlices || p.Limit == limitPairs }) {
		b.out.TerminateGone = false
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
