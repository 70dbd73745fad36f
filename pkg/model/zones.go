package model

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/printable"
)

// longestZone is the length in bytes of the longest zone, the limit of a label's value. Longer zones are truncated.
const longestZone = 63

// Zones returns the zones of the endpoints of slices, by address; "" for an endpoint without one. Slices are those of
// one Service. The texts are printable: the API server does not validate zones, and metrics show them.
func Zones(slices []*discoveryv1.EndpointSlice) map[netip.Addr]string {
	zones := map[netip.Addr]string{}
	for _, s := range slices {
		for i := range s.Endpoints {
			ep := &s.Endpoints[i]
			addr, ok := firstAddress(ep)
			if !ok {
				continue
			}
			zones[addr] = ""
			if ep.Zone != nil {
				zones[addr] = printable.Text((*ep.Zone)[:min(len(*ep.Zone), longestZone)])
			}
		}
	}
	return zones
}
