package model

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/printable"
)

// Place is the place of an endpoint by its EndpointSlice. A field is empty if the slice does not have it, or if the
// source does not store it. The texts are printable: the API server does not validate zones, and metrics show them.
type Place struct {
	Zone, Node string
}

// longestZone is the length in bytes of the longest zone, the limit of a label's value. Longer zones are truncated.
const longestZone = 63

// Places returns the places of the endpoints of slices, by address. Slices are those of one Service.
func Places(slices []*discoveryv1.EndpointSlice) map[netip.Addr]Place {
	places := map[netip.Addr]Place{}
	for _, s := range slices {
		for i := range s.Endpoints {
			ep, p := &s.Endpoints[i], Place{}
			addr, ok := firstAddress(ep)
			if !ok {
				continue
			}
			if ep.Zone != nil {
				p.Zone = printable.Text((*ep.Zone)[:min(len(*ep.Zone), longestZone)])
			}
			if ep.NodeName != nil {
				p.Node = printable.Text(*ep.NodeName)
			}
			places[addr] = p
		}
	}
	return places
}
