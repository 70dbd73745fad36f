package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// The kernel asks the rules once per flow. A UDP flow that goes on after its endpoint has gone, or that began before there was
// one, has to be deleted from connection tracking. What follows tells which frontends to look at, and what is true of them.

// touchFlows notes that flows to a frontend may have to go.
func (p *Planner) touchFlows(k model.Key) {
	if k.Protocol == inet.UDP {
		p.flows[k] = struct{}{}
	}
}

// TakeFlows returns the UDP frontends that have changed since the last call, and forgets them. It is to be called when the
// kernel holds what is wanted.
func (p *Planner) TakeFlows() map[model.Key]struct{} {
	if len(p.flows) == 0 {
		return nil
	}
	taken := p.flows
	p.flows = map[model.Key]struct{}{}
	return taken
}

// Keys calls f for every frontend that there is, whatever its protocol.
func (p *Planner) Keys(f func(model.Key)) {
	for k := range p.claims {
		f(k)
	}
}

// FlowEndpoints returns the endpoints with which flows to a UDP frontend may go on, sorted; the list is shared and must not be changed. It
// is nil if there is no such frontend.
func (p *Planner) FlowEndpoints(k model.Key) []netip.AddrPort {
	if c := p.claims[k].winner; c.service != nil {
		return c.port.serving
	}
	return nil
}

// Holder returns the service port that has a frontend.
func (p *Planner) Holder(k model.Key) (name model.PortName, exists bool) {
	c := p.claims[k].winner
	if c.service == nil {
		return name, false
	}
	return c.port.name, true
}
