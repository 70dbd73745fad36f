package model

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/printable"
)

// longestZone is the length in bytes of the longest zone, the limit of a label's value. Longer zones are truncated.
const longestZone = 63

// Zones returns the zones of the endpoints of slices, by address; "" for an endpoint without one. Slices are those of
// one Service. The texts are printable: the API server does not validate zones, and metrics show them.
func Zones(slices []*Slice) map[netip.Addr]string {
	zones := map[netip.Addr]string{}
	for _, s := range slices {
		for i := range s.Endpoints {
			zone := s.Endpoints[i].Zone()
			zones[s.Endpoints[i].Addr] = printable.Text(zone[:min(len(zone), longestZone)])
		}
	}
	return zones
}
