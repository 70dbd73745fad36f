package model

import (
	"net/netip"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The API server does not validate zones. A zone in a metric has no characters that a terminal would execute or
// reorder, and 63 bytes at most.
func TestZonesArePrintable(t *testing.T) {
	s := slice("s", discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, Zone: new("\x1b[31m\u202ezone" + string(make([]byte, 100)))})
	zone := Zones([]*Slice{NewSlice(s, Limits{}, Stored{Zones: true})})[netip.MustParseAddr("10.1.0.1")]
	lab.Same(t, `\x1b[31m\u202ezone`+strings.Repeat(`\x00`, 63-12), zone, "the zone")
}
