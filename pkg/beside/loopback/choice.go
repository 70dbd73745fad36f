package loopback

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// choice selects the endpoint of each new connection. All clients have the same address. So with session affinity,
// all of them share one endpoint. After a timeout without a new connection, it selects an endpoint again (kube-proxy:
// localnodeportproxy).
type choice struct {
	// endpoints are sorted. An endpoint with a greater weight occurs several times.
	endpoints []netip.AddrPort
	// affinity is the timeout of session affinity; 0 means none.
	affinity time.Duration
	// kept is the endpoint of the last connection with session affinity, and used is the time of that connection.
	kept netip.AddrPort
	used time.Time
}

// set replaces the endpoints, which must be sorted. If the timeout changes, it forgets the kept endpoint, as
// kube-proxy does.
func (c *choice) set(endpoints []netip.AddrPort, affinity time.Duration) {
	if c.affinity != affinity {
		c.kept = netip.AddrPort{}
	}
	c.endpoints, c.affinity = endpoints, affinity
}

// next returns the endpoint for a new connection, or the zero AddrPort if there is no endpoint. now is the current
// time.
func (c *choice) next(now time.Time) netip.AddrPort {
	if len(c.endpoints) == 0 {
		return netip.AddrPort{}
	}
	if c.affinity == 0 {
		return c.endpoints[rand.IntN(len(c.endpoints))]
	}
	_, present := slices.BinarySearchFunc(c.endpoints, c.kept, netip.AddrPort.Compare)
	if !present || now.Sub(c.used) > c.affinity {
		c.kept = c.endpoints[rand.IntN(len(c.endpoints))]
	}
	c.used = now
	return c.kept
}
