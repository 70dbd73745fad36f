package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// The kernel evaluates the rules once for each flow. If a UDP flow continues after its endpoint was removed, or began
// before the Service had an endpoint, the program must delete it from conntrack. The same applies to a flow of another
// protocol without a reply, while the client repeats its first segment. These functions list the frontends with flows
// to check, and their endpoints.

// noteFlows records that flows to the frontend of a contest may be stale. Before [Planner.Begin] has returned, the
// caller checks all frontends anyway.
func (p *Planner) noteFlows(c contest) {
	udp, gone := c.key.Protocol == inet.UDP, c.is.service == nil
	if gone && c.was.service == nil {
		return
	}
	if udp || p.begun {
		p.flows[c.key] = struct{}{}
	}
	if udp && (p.begun || !gone) {
		p.noteDeleted(c.key, gone)
	}
}

// Flows answers which flows to the planned frontends may continue.
type Flows struct{ planner *Planner }

// Flows returns the flows to the planned frontends.
func (p *Planner) Flows() Flows { return Flows{p} }

// Take returns the changed frontends since the last call, and forgets them. For a range of ports, it also returns its
// [Flows.SinglePortsBeside]. For a deleted single port, it also returns the frontends that serve its clients now. Call
// it after a successful sync.
func (fs Flows) Take() map[model.Key]struct{} {
	p := fs.planner
	if len(p.flows) == 0 {
		return nil
	}
	taken := p.flows
	p.flows = map[model.Key]struct{}{}
	p.addHeirs(taken)
	if p.claims.singlesAt != nil { // since the first range of ports
		p.addRangesBefore(taken)
		fs.SinglePortsBeside(taken, func(k model.Key) { taken[k] = struct{}{} })
	}
	return taken
}

// addHeirs adds to keys the frontends that now serve the clients of the deleted single ports in keys. These are the
// node port with the same number, and the ranges at the address. Without them, each flow to a deleted port would be
// stale, even if it began after the deletion.
func (p *Planner) addHeirs(keys map[model.Key]struct{}) {
	var deleted map[model.AddrProtocol]bool
	var nodePorts []model.Key
	for k := range keys {
		if k.Last != 0 || p.claims.winner(k).service != nil {
			continue
		}
		if deleted == nil {
			deleted = map[model.AddrProtocol]bool{}
		}
		deleted[k.AddrProtocol()] = true
		if k.Addr = (netip.Addr{}); p.claims.winner(k).service != nil {
			nodePorts = append(nodePorts, k)
		}
	}
	if deleted == nil {
		return
	}
	for _, k := range nodePorts {
		keys[k] = struct{}{}
	}
	for at, ranges := range p.claims.rangesAt {
		for k := range ranges {
			nodePort := deleted[model.AddrProtocol{Protocol: k.Protocol}] && p.servesNodePorts(k)
			if p.claims.winner(k).service != nil && (deleted[at] || nodePort) {
				keys[k] = struct{}{}
			}
		}
	}
}

// FlowPolicy restricts the flows to a frontend. Endpoints and Sources are shared: do not change them.
type FlowPolicy struct {
	// Port is the service port that has the frontend.
	Port model.PortName
	// Endpoints are the endpoints to which flows may continue, sorted.
	Endpoints []netip.AddrPort
	// Sources restricts the clients that may open flows; nil admits all.
	Sources *model.Sources
	// BeforeNodePorts is true for a range of ports that takes precedence over node ports.
	BeforeNodePorts bool
}

// Of returns the restrictions of the flows to a frontend. exists is false if no Service has the frontend.
func (fs Flows) Of(k model.Key) (flows FlowPolicy, exists bool) {
	c := fs.planner.claims.winner(k)
	if c.service == nil {
		return flows, false
	}
	return FlowPolicy{c.port.Name, c.port.Serving, c.frontend.Sources, c.precedesNodePorts()}, true
}

// Each calls f for every planned frontend of all protocols, with the result of [Flows.Of].
func (fs Flows) Each(f func(k model.Key, flows FlowPolicy, exists bool)) {
	for k := range fs.planner.claims.byKey {
		if flows, exists := fs.Of(k); exists {
			f(k, flows, exists)
		}
	}
}

// Frontends calls f for each frontend of a protocol that the Service has. It skips claimed frontends that another
// Service has. allocated is true if the API server or a load balancer has allocated the address or the node port to the
// Service. It is false for external IPs: the author of a Service can write any address there, also one at which another
// program has connections.
func (s PlannedService) Frontends(protocol inet.Protocol, f func(k model.Key, allocated bool)) {
	s.eachFrontend(func(c claim) {
		if c.port.Protocol == protocol && s.planner.claims.winner(c.frontend.Key).service == s.service {
			f(c.frontend.Key, isAllocated(c.frontend))
		}
	})
}
