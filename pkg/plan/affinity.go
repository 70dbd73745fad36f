package plan

import (
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Session affinity needs numbers that fit into the scratch register: one for the service port, one for each of its
// endpoints. A number is taken from a hash of what it stands for, so that a restart finds the same ones; where two hashes
// meet, which among a thousand services happens to about eight, the later comer takes the next free number.
//
// A number may be used again as soon as its endpoint is gone: a remembered client of the old endpoint then goes to the new
// one, which is as good as any, and never to another service's, for the number is only looked up among those in use.

// portID identifies a service port: kube-proxy keeps clients' endpoints by it, whatever address they came by.
type portID struct {
	name     model.PortName
	protocol model.Protocol
	family   model.Family
}

// ids are the numbers of service ports with affinity, of one family.
type ids struct {
	ports map[portID]*affinePort
	taken map[uint16]portID
}

// affinePort holds a service port's number and those of its endpoints.
type affinePort struct {
	id        uint16
	endpoints map[netip.AddrPort]uint16
	taken     map[uint16]struct{}
}

func newIDs() *ids {
	return &ids{ports: map[portID]*affinePort{}, taken: map[uint16]portID{}}
}

// maxIDs is the number of service ports with affinity, and of endpoints of each, that can be told apart.
const maxIDs = 1<<16 - 1

// port returns the numbers of a service port, or nil if there is none left.
func (t *ids) port(id portID) *affinePort {
	if p := t.ports[id]; p != nil {
		return p
	}
	if len(t.ports) == maxIDs {
		return nil
	}
	n := number(xxhash.Sum64String(id.name.String() + "/" + id.protocol.String()))
	for {
		if _, taken := t.taken[n]; !taken {
			break
		}
		n = following(n)
	}
	p := &affinePort{id: n, endpoints: map[netip.AddrPort]uint16{}, taken: map[uint16]struct{}{}}
	t.ports[id], t.taken[n] = p, id
	return p
}

// release gives a service port's numbers back.
func (t *ids) release(id portID) {
	if p := t.ports[id]; p != nil {
		delete(t.taken, p.id)
		delete(t.ports, id)
	}
}

// keepIDs takes the numbers back from endpoints that only the port's earlier form had.
func (p *port) keepIDs(before *port) {
	if p.arranged == [lists]*arrangement{} {
		p.ids.keep(p.lists[:]...)
		return
	}
	for ls := range lists {
		for _, e := range before.backends(p, ls) {
			if !p.has(e) {
				p.ids.remove(e)
			}
		}
	}
}

// has tells whether one of the lists has an endpoint.
func (p *port) has(e netip.AddrPort) bool {
	for ls, a := range p.arranged {
		if a == nil && slices.Contains(p.lists[ls], e) {
			return true
		}
		if a != nil {
			if _, found := slices.BinarySearchFunc(a.set, e, netip.AddrPort.Compare); found {
				return true
			}
		}
	}
	return false
}

func (p *affinePort) remove(e netip.AddrPort) {
	delete(p.taken, p.endpoints[e])
	delete(p.endpoints, e)
}

// keep takes the numbers back from endpoints that are in none of the given lists.
func (p *affinePort) keep(lists ...[]netip.AddrPort) {
	gone := make(map[netip.AddrPort]struct{}, len(p.endpoints))
	for e := range p.endpoints {
		gone[e] = struct{}{}
	}
	for _, l := range lists {
		for _, e := range l {
			delete(gone, e)
		}
	}
	for e := range gone {
		p.remove(e)
	}
}

func (p *affinePort) add(e netip.AddrPort) {
	if _, ok := p.endpoints[e]; ok || len(p.endpoints) == maxIDs {
		return
	}
	n := number(hashEndpoint(e))
	for {
		if _, taken := p.taken[n]; !taken {
			break
		}
		n = following(n)
	}
	p.endpoints[e], p.taken[n] = n, struct{}{}
}

// number folds a hash into 1..65535; 0 stands for none.
func number(hash uint64) uint16 { return uint16(hash%maxIDs) + 1 }

func following(n uint16) uint16 { return n%maxIDs + 1 }

// register is what the scratch register holds for the service port, and for one of its endpoints.
func (p *affinePort) register() uint32 { return uint32(p.id) << 16 }

func (p *affinePort) endpointRegister(e netip.AddrPort) uint32 {
	return uint32(p.id)<<16 | uint32(p.endpoints[e])
}
