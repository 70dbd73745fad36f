package loopback

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// choice picks the endpoint of each new connection. All clients have one address, so session affinity keeps one endpoint for all of them, for
// as long as any of them connects (kube-proxy: localnodeportproxy).
type choice struct {
	// endpoints are sorted.
	endpoints []netip.AddrPort
	// affinity is the timeout of session affinity; 0 means none.
	affinity time.Duration
	// kept is the endpoint of the last connection with session affinity, used the time of that connection.
	kept netip.AddrPort
	used time.Time
}

// set replaces the endpoints. The kept endpoint is forgotten if the timeout changes, as in kube-proxy.
func (c *choice) set(endpoints []netip.AddrPort, affinity time.Duration) {
	if c.affinity != affinity {
		c.kept = netip.AddrPort{}
	}
	c.endpoints, c.affinity = endpoints, affinity
}

// next returns the endpoint of a connection that begins now, or the zero AddrPort if there is no endpoint.
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
