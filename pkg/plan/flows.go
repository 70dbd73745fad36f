package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// The kernel evaluates the rules once for each flow. If a UDP flow continues after its endpoint was removed, or began
// before the Service had an endpoint, the program must delete it from conntrack. The same applies to a flow of another
// protocol without a reply, while the client repeats its first segment. These functions list the frontends with flows
// to check, and their endpoints.

// noteFlows records that flows to the frontend of a contest may be stale, because of a change of a Service of a
// namespace. Before [Planner.Begin] has returned, the caller checks all frontends anyway.
func (p *Planner) noteFlows(c contest, namespace string) {
	udp, gone := c.key.Protocol == inet.UDP, c.is.service == nil
	if gone && c.was.service == nil {
		return
	}
	if udp || p.begun {
		p.flows[c.key] = namespace
	}
	if udp && (p.begun || !gone) {
		p.noteDeleted(c.key, gone)
	}
}

// Flows answers which flows to the planned frontends may continue.
type Flows struct {
	planner *Planner
	// NodeNetworks are those of all nodes whose node ports may have direct server return.
	NodeNetworks [2][]netip.Prefix
}

// Flows returns the flows to the planned frontends.
func (p *Planner) Flows() Flows { return Flows{p, p.rules.options.NodeNetworks} }

// Take returns the changed frontends since the last call, and forgets them. Each has the namespace of the Service whose
// change concerns it; "" if this was in an earlier process or is [Conflicts.Settle], or for the following frontends.
// For ranges of ports and node ports, Take also returns their [Flows.SinglePortsBeside]. For a deleted single port, it
// also returns the frontends that serve its clients now. Call it after a successful sync.
func (fs Flows) Take() map[model.Key]string {
	p := fs.planner
	if len(p.flows) == 0 {
		return nil
	}
	taken := p.flows
	p.flows = map[model.Key]string{}
	var deleted []model.Key
	others := p.claims.sharePlaces()
	for k := range taken {
		if others = others || k.Last != 0; k.Last == 0 && p.claims.winner(k).service == nil {
			deleted = append(deleted, k)
		}
	}
	if len(deleted) > 0 {
		p.addHeirs(taken, deleted)
	}
	if others {
		p.addRangesBefore(taken)
		fs.SinglePortsBeside(taken, func(k model.Key) {
			if _, changed := taken[k]; !changed {
				taken[k] = ""
			}
		})
	}
	return taken
}

// addHeirs adds to keys the frontends that now serve the clients of deleted single ports. These are the node port with
// the same number, and the ranges at the address. Without them, each flow to a deleted port would be stale, even if it
// began after the deletion.
func (p *Planner) addHeirs(keys map[model.Key]string, deleted []model.Key) {
	places := map[model.AddrProtocol]bool{}
	for _, k := range deleted {
		places[k.AddrProtocol()] = true
		if k.Addr = (netip.Addr{}); p.claims.winner(k).service != nil {
			keys[k] = ""
		}
	}
	for at, ranges := range p.claims.rangesAt {
		for k := range ranges {
			nodePort := places[model.AddrProtocol{Protocol: k.Protocol}] && p.servesNodePorts(k)
			if p.claims.winner(k).service != nil && (places[at] || nodePort) {
				keys[k] = ""
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

// The batch that deletes a UDP frontend adds it to the set deleted-udp. It stays there until the flows to it are
// deleted, which happens beside the loop. If the process dies before, no other trace of the frontend is left, and the
// flows would continue as long as their clients send. The next process finds the frontend in the set. No rule looks up
// the set.

// noteDeleted records that no Service has a UDP frontend any more, or with gone false that one has it.
func (p *Planner) noteDeleted(k model.Key, gone bool) {
	if _, known := p.deleted[k]; known == gone {
		return
	}
	e := p.deletedElement(k)
	if gone {
		p.deleted[k] = struct{}{}
		p.sink.Put(e)
	} else {
		delete(p.deleted, k)
		p.sink.Remove(e)
	}
}

// Deleted records that the flows to deleted frontends are deleted. It ignores other frontends.
func (fs Flows) Deleted(keys []model.Key) {
	for _, k := range keys {
		fs.planner.noteDeleted(k, false)
	}
}

// deletedElement returns the element of a deleted frontend: its address, protocol and port, and the last port of a
// range or 0. A node port has the unspecified address.
func (p *Planner) deletedElement(k model.Key) nft.Element {
	addr := k.Addr
	if !addr.IsValid() {
		addr = inet.Unspecified[k.Family]
	}
	key := nft.Value{}.Addr(addr).Proto(k.Protocol).Port(k.Port).Port(k.Last)
	return nft.Element{Set: p.rules.layouts[k.Family].deletedUDP, Key: key}
}

// deletedKey returns the frontend of an element. It reports false if the key has another form.
func deletedKey(f inet.Family, e *nft.Element) (k model.Key, ok bool) {
	n := len(e.Key.Bytes()) - 4 // without the last port
	if n != f.AddrLen()+8 {     // the address, the protocol and the port
		return k, false
	}
	if k, ok = FrontendOf(f, &nft.Element{Key: e.Key.Cut(0, n)}); k.Addr.IsUnspecified() {
		k.Addr = netip.Addr{}
	}
	k.Last = binary.BigEndian.Uint16(e.Key.Bytes()[n:])
	return k, ok
}

// FrontendSets returns the sets of an instance's table that have the elements of all frontends of a family.
// [FrontendOf] reads such an element.
func FrontendSets(f inet.Family, serviceProxyName string) []*nft.Set {
	l := newLayout(f, &Options{ServiceProxyName: serviceProxyName})
	return []*nft.Set{l.singles, l.services, l.nodePorts, l.ranges}
}

// FrontendOf returns the frontend of an element of [FrontendSets], by the element's key. It reports false if the key
// has another length.
func FrontendOf(f inet.Family, e *nft.Element) (k model.Key, ok bool) {
	const word = 4 // a protocol takes one word, and so does a port
	b := e.Key.Bytes()
	k.Family = f
	switch len(b) - 2*word {
	case 0:
	case f.AddrLen():
		k.Addr, _ = netip.AddrFromSlice(b[:len(b)-2*word])
		b = b[len(b)-2*word:]
	default:
		return model.Key{}, false
	}
	k.Protocol, k.Port = inet.Protocol(b[0]), binary.BigEndian.Uint16(b[word:])
	if end := e.KeyEnd.Bytes(); len(end) == len(e.Key.Bytes()) {
		k.Last = binary.BigEndian.Uint16(end[len(end)-word:])
	}
	return k, true
}
