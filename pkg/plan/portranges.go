package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// A Service can have ranges of ports. Packets keep their port. The rules look for ranges in the chains for unclaimed
// packets, after they have found no port, node port or rule of another program. So the rules find single ports first,
// but the plan has a single port in a range of another Service only if its claim is better, see places.go. A node port
// is no claim to an address: its number is allocated for all addresses that serve node ports. So the rules look for
// ranges of addresses that are allocated to a Service before they look for node ports, and for ranges of external IPs
// after them. The hash set allocated-ranges has the first kind of addresses. The hash set range-addresses has all
// addresses of ranges. Packets to other addresses need no lookup in the ranges, whose cost grows with their number.
//
// The map ranges gives number and class, as services does for exact ports. A service port with ranges has endpoint ids,
// as with session affinity. The map range-backends has the addresses of these endpoints. Some classes only occur with
// ranges. They are in the dispatch maps only while a range uses them: at each commit, the kernel walks all chains below
// the maps.

// keepPort is the chain of packets to a range without session affinity. rangeOrGone is the chain of packets whose
// client has an endpoint that is not in backends.
func (l list) keepPort() string    { return l.prefix() + "keep-port" }
func (l list) rangeOrGone() string { return "affinity-" + l.prefix() + "range-or-gone" }

// RangesSet is the name of the map of port ranges.
const RangesSet = "ranges"

// vipOfFlow has the fields with which rules look up a key of [layout.vip] in a set of ranges.
func (l *layout) vipOfFlow() []nft.Field {
	return []nft.Field{nft.DstAddr(l.family), nft.FlowProtocol(), nft.DstPort()}
}

// inRange: ip daddr @range-addresses meta priority set ip daddr . ct protocol . th dport map @ranges meta priority &
// WORD vmap @dispatch-range
//
// For packets of this node, it also has ct state & related == 0, see [related].
func (l *layout) inRange(arrived bool) nft.Rule {
	var notReset []expr.Any
	if !arrived {
		notReset = related(expr.CmpOpEq)
	}
	return rule("a port range", in(l.rangeAddresses, []nft.Field{nft.DstAddr(l.family)}, false), notReset,
		setPriority(key(l.vipOfFlow()...), l.ranges), dispatch(wordBits, l.dispatch[stepRange]))
}

// rangeSourceRules returns the rules of the chain for port ranges with source ranges. A set without ranges of the
// Service denies nothing.
func (l *layout) rangeSourceRules(list sourceList) []nft.Rule {
	return append(l.denied(), l.allowed(list, key(l.vipOfFlow()...), l.restrictedRanges)...)
}

// toRangeBackend: dnat to meta priority map @range-backends
func (l *layout) toRangeBackend(ls list) []nft.Rule {
	return []nft.Rule{rule("keeps the port", dnatAddress(l.family, key(nft.Priority()), l.rangeBackends[ls]))}
}

// keepPort draws the id of an endpoint.
func (l *layout) keepPort(ls list) []nft.Rule {
	return append([]nft.Rule{
		rule("pick one", keepBits(affineBits), setPriority(key(nft.Priority()), l.draw[ls]),
			dispatch(endpointBits, l.dispatch[ls.pick()])),
		rule("fewer by now: the first one exists", hasNoBits(endpointBits), l.firstSlot(ls)),
	}, append(l.toRangeBackend(ls), rule(undone, setPriorityTo(0)))...)
}

// SinglePortsBeside calls f for the frontends of single ports that may take precedence over a range or a node port in
// keys. For a range, these have the same address and protocol, or are node ports of the protocol, if the address may
// serve node ports. For a node port, these have its number, at an address that serves node ports, of this or another
// node. f may add to keys. For ranges, it visits the frontends of the Services at their addresses once, or those of all
// Services: 1 ms for 50,000. For node ports of other nodes, it visits those of the Services with an address of a node.
func (fs Flows) SinglePortsBeside(keys map[model.Key]string, f func(model.Key)) {
	p := fs.planner
	places, shared, services := map[model.AddrProtocol]bool{}, map[netip.Addr]bool{}, map[*service]struct{}{}
	var near [2][]netip.Addr
	for family := range near {
		near[family] = p.sharedNodeAddresses(inet.Family(family))
	}
	nodePorts, all := map[model.Key]bool{}, false
	for k := range keys {
		if k.Last == 0 {
			if !k.Addr.IsValid() {
				nodePorts[k] = true
				fs.beside(k, near[k.Family], f)
			}
			continue
		}
		places[k.AddrProtocol()], shared[k.Addr] = true, true
		c := p.claims.winner(k)
		if p.servesNodePorts(k) && (c.service == nil || !c.precedesNodePorts()) {
			places[model.AddrProtocol{Protocol: k.Protocol}], all = true, true
		}
		if c.service != nil {
			services[c.service] = struct{}{}
		}
		all = all || p.claims.isClusterIP(k.Family, k.Addr) && (c.service == nil || c.elsewhere())
	}
	elsewhere := func(k model.Key) bool { // like a node port in keys, at the address of any node
		nodePort := k
		nodePort.Addr = netip.Addr{}
		return nodePorts[nodePort] && p.nodes[k.Family].inNetworks(k.Addr)
	}
	visit := func(s *service) {
		s.eachFrontend(func(c claim) {
			k := c.frontend.Key
			if k.Last == 0 && (places[k.AddrProtocol()] || elsewhere(k)) && p.claims.winner(k).service == s {
				f(k)
			}
		})
	}
	if all {
		for _, s := range p.services {
			visit(s)
		}
		return
	}
	for a := range shared {
		maps.Copy(services, p.claims.places.sharing[a])
	}
	if len(nodePorts) > 0 && len(p.nodes[inet.IPv4].networks)+len(p.nodes[inet.IPv6].networks) > 0 {
		for a, of := range p.claims.places.sharing {
			if p.nodes[inet.FamilyOf(a)].inNetworks(a) {
				maps.Copy(services, of)
			}
		}
	}
	for s := range services {
		visit(s)
	}
}

// beside calls f for the frontends of single ports with the number of a node port at addresses.
func (fs Flows) beside(nodePort model.Key, addresses []netip.Addr, f func(model.Key)) {
	for _, a := range addresses {
		k := nodePort
		if k.Addr = a; fs.planner.claims.winner(k).service != nil {
			f(k)
		}
	}
}

// sharedNodeAddresses returns the addresses of a family that serve node ports and are addresses of Services.
func (p *Planner) sharedNodeAddresses(f inet.Family) (shared []netip.Addr) {
	for _, a := range p.nodes[f].addresses {
		if _, is := p.claims.places.sharing[a]; is {
			shared = append(shared, a)
		}
	}
	return shared
}

// addRangesBefore adds to keys the ranges that take precedence over the node ports in keys.
func (p *Planner) addRangesBefore(keys map[model.Key]string) {
	nodePorts := map[inet.Protocol]bool{}
	for k := range keys {
		if !k.Addr.IsValid() {
			nodePorts[k.Protocol] = true
		}
	}
	if len(nodePorts) == 0 {
		return
	}
	for at, ranges := range p.claims.places.won {
		for _, c := range ranges {
			if k := c.frontend.Key; nodePorts[at.Protocol] && c.precedesNodePorts() && p.servesNodePorts(k) {
				keys[k] = ""
			}
		}
	}
}

// servesNodePorts reports whether node ports may be served at the address of a key.
func (p *Planner) servesNodePorts(k model.Key) bool {
	return p.rules.options.AnyNodeAddress[k.Family] || slices.Contains(p.nodes[k.Family].addresses, k.Addr)
}
