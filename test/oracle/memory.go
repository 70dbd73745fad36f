package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Memory tracks the endpoint of each client with session affinity. A client belongs to a service port, at any of its addresses.
// It stays with its endpoint if the endpoint may receive its packets, no more than the timeout passes between two of them, and
// neither the timeout nor the endpoint changes in between.
type Memory struct {
	clients map[client]pin
}

type client struct {
	port string
	addr netip.Addr
}

type pin struct {
	endpoint netip.AddrPort
	until    time.Time
	timeout  time.Duration
}

// Narrow returns the part of a verdict that is possible for this client's packet.
func (m *Memory) Narrow(v Verdict, from netip.Addr, now time.Time) Verdict {
	p, known := m.clients[client{v.Port, from}]
	if v.Affinity == 0 || !known || !now.Before(p.until) {
		return v
	}
	if i := slices.IndexFunc(v.Endpoints, func(e Endpoint) bool { return v.pinned(e.AddrPort) == p.endpoint }); i >= 0 {
		v.Endpoints = v.Endpoints[i : i+1]
	}
	return v
}

// pinned returns the endpoint with which a client stays: with ranges, at all ports of the ranges.
func (v Verdict) pinned(e netip.AddrPort) netip.AddrPort {
	if v.Ranged {
		return netip.AddrPortFrom(e.Addr(), 0)
	}
	return e
}

// Note records the endpoint that received a client's packet. Memory does not rely on the last part of the timeout: the kernel's
// clock is a different one.
func (m *Memory) Note(v Verdict, from netip.Addr, endpoint netip.AddrPort, now time.Time) {
	if v.Affinity == 0 {
		return
	}
	if m.clients == nil {
		m.clients = map[client]pin{}
	}
	m.clients[client{v.Port, from}] = pin{v.pinned(endpoint), now.Add(v.Affinity - v.Affinity/5), v.Affinity}
}

// Follow applies new objects. A client is forgotten if the timeout of its Service changes, or if its endpoint is not chosen any
// more: a returning endpoint is another one. An endpoint that only policy Local chooses may be forgotten, too.
func (m *Memory) Follow(r *Oracle) {
	for c, p := range m.clients {
		of := fmt.Sprintf("%s six=%v", c.port, c.addr.Is6())
		chosen, _ := r.choose(r.listOf(of))
		if r.affinities[of] != p.timeout || !slices.ContainsFunc(chosen, func(e endpoint) bool { return e.addr == p.endpoint }) {
			delete(m.clients, c)
		}
	}
}

// Restart records a restart of the program. The program finds a service port by its addresses: if another Service has the cluster
// IP, it may not know the clients any more.
func (m *Memory) Restart(r *Oracle) {
	has := map[string]bool{}
	for t, c := range r.claims {
		has[key(c.service, c.port, t.six)] = has[key(c.service, c.port, t.six)] || c.internal
	}
	for at, list := range r.ranges {
		for _, c := range list {
			of := key(c.service, c.port, at.addr.Is6())
			has[of] = has[of] || c.internal
		}
	}
	for c := range m.clients {
		if !has[fmt.Sprintf("%s six=%v", c.port, c.addr.Is6())] {
			delete(m.clients, c)
		}
	}
}

// Lose records that the endpoint of a client's packet is unknown.
func (m *Memory) Lose(v Verdict, from netip.Addr) { delete(m.clients, client{v.Port, from}) }

// Forget records that the kernel may have lost the affinity map.
func (m *Memory) Forget() { clear(m.clients) }
