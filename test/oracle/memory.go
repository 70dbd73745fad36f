package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Memory follows which endpoint each client is with, by session affinity. A client belongs to a service port, whichever of
// its addresses it uses; it stays for as long as the endpoint may get its packets, no more time passes between two of
// them than the timeout, and neither the timeout nor the endpoint goes away in between.
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

// Narrow leaves of a verdict what may come of the packet of this client.
func (m *Memory) Narrow(v Verdict, from netip.Addr, now time.Time) Verdict {
	p, known := m.clients[client{v.Port, from}]
	if v.Affinity == 0 || !known || !now.Before(p.until) {
		return v
	}
	if i := slices.IndexFunc(v.Endpoints, func(e Endpoint) bool { return e.AddrPort == p.endpoint }); i >= 0 {
		v.Endpoints = v.Endpoints[i : i+1]
	}
	return v
}

// Note takes up which endpoint has got a client's packet. It isn't held to the last part of the timeout: the kernel's clock
// isn't ours.
func (m *Memory) Note(v Verdict, from netip.Addr, endpoint netip.AddrPort, now time.Time) {
	if v.Affinity == 0 {
		return
	}
	if m.clients == nil {
		m.clients = map[client]pin{}
	}
	m.clients[client{v.Port, from}] = pin{endpoint, now.Add(v.Affinity - v.Affinity/5), v.Affinity}
}

// Follow notes what the objects are now. A client is forgotten when its Service has another timeout, and when its endpoint isn't
// chosen any more: it is another one if it returns. One that only policy Local chooses may be forgotten, too.
func (m *Memory) Follow(r *Oracle) {
	for c, p := range m.clients {
		of := fmt.Sprintf("%s six=%v", c.port, c.addr.Is6())
		chosen, _ := r.choose(r.endpoints[of])
		if r.affinities[of] != p.timeout || !slices.ContainsFunc(chosen, func(e endpoint) bool { return e.addr == p.endpoint }) {
			delete(m.clients, c)
		}
	}
}

// Restart notes that the program was started anew. It finds a service port by its addresses: where others have the cluster IP, it may
// not know the clients any more.
func (m *Memory) Restart(r *Oracle) {
	has := map[string]bool{}
	for t, c := range r.claims {
		has[key(c.service, c.port, t.six)] = has[key(c.service, c.port, t.six)] || c.internal
	}
	for c := range m.clients {
		if !has[fmt.Sprintf("%s six=%v", c.port, c.addr.Is6())] {
			delete(m.clients, c)
		}
	}
}

// Lose notes that nobody knows which endpoint has got a client's packet.
func (m *Memory) Lose(v Verdict, from netip.Addr) { delete(m.clients, client{v.Port, from}) }

// Forget notes that the kernel may have lost what it remembered.
func (m *Memory) Forget() { clear(m.clients) }
