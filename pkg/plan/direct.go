package plan

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// With direct server return (DSR), the node at which a packet arrives (the ingress node) does not translate it.
// Before conntrack, the ingress node passes the packet on, unchanged, along its route to the endpoint's address. The
// node of the endpoint translates the packet, keeps the client's address, and so sends the replies itself. There is
// no tunnel and no list of nodes. All nodes have the same table of slots, so that the endpoint's node selects the
// same endpoint.
//
//	prerouting-direct   finds the Service before conntrack, also for an ICMP error about a reply
//	direct              leaves packets of local pods, and packets that another node has passed on, to the rules of NAT
//	pass-maglev-of-N    passes the packet on, if its slot is in direct-elsewhere
//	prerouting-again    finds the Service after conntrack, for a TCP segment of no known connection, which is no SYN,
//	                    and for an ICMP error about no known connection
//	direct-node-port    after conntrack, does the same as both chains for a packet to a node port
//	pass-again-...-of-N passes the segment on to the node of an earlier endpoint, if its slot is in direct-earlier
//	direct-maglev-of-N  in nat chains: translates to an endpoint in direct-here, or masquerades
//
// A packet is passed on once. If the nodes disagree about an endpoint, the second node forwards the packet with NAT.
// The TTL tells that another node has passed the packet on: to these nodes, a packet leaves with a TTL of passedTTL.
//
// A change of the endpoints moves slots. The node of the new endpoint does not know the open connections of a slot, so
// it passes their segments on once more, to the node of the earlier endpoint, which knows them. The earlier endpoint is
// a function of the present and the terminating endpoints, so the plan needs no memory, see [port.findEarlier].
//
// A node port has the address of the ingress node, which the endpoint's node does not know. So the program must know
// the networks of all nodes. The endpoint's node claims a packet to such an address if another node has passed it on.
// The ingress node decides after conntrack: a masqueraded connection of a pod has the node's address and may have the
// port.
// No packet of a connection that the ingress node knows is passed on, apart from invalid ones.

const (
	// beforeRaw is before all chains of other programs that decide about conntrack, and behind defragmentation.
	beforeRaw = -301
	// passedTTL is the TTL, or the hop limit, of a packet that a node has passed on. It is enough for a router that
	// sends the packet back, and for the path of NAT afterwards. Packets of clients rarely arrive with so few hops
	// left.
	passedTTL = 16
	// againTTL is the same for a segment of an open connection that the node of the new endpoint has passed on.
	againTTL = 8
	// afterConntrack is between conntrack (-200) and all chains that translate.
	afterConntrack = -150
)

// chance is the first or the second decision about the node of a packet.
type chance uint8

const (
	// firstChance: the node of the slot's endpoint.
	firstChance chance = iota
	// secondChance: the node of an earlier endpoint.
	secondChance
	chances
)

// chanceNames are the parts of the names of chains.
var chanceNames = []string{"", "again-"}

func (c chance) words() string {
	return [...]string{"the endpoint's node", "the node of an earlier endpoint"}[c]
}

func (c chance) ttl() byte  { return [...]byte{passedTTL, againTTL}[c] }
func (c chance) step() step { return [...]step{stepPass, stepAgain}[c] }

// passOn and passAgain are the chains of packets to a frontend with direct server return.
const passOn, passAgain = "direct", "direct-again"

// directNodePort is the chain of packets of no known connection to the networks of nodes.
const directNodePort = "direct-node-port"

// directSets are the sets of direct server return.
type directSets struct {
	// vips and nodePorts have the frontends. nodes has the networks of all nodes. Without these, node ports use NAT.
	vips, nodePorts directMaps
	nodes           *nft.Set
	// here has the endpoint of each slot whose endpoint is on this node.
	here *nft.Set
	// passed has the slots whose endpoint, or earlier endpoint, is on another node, and elsewhere has the address of
	// this endpoint. A slot whose endpoint has no node is in none of them.
	passed, elsewhere [chances]*nft.Set
}

// directMaps have the classes and numbers of frontends. quoted has them for the packet that an ICMP error quotes, whose
// source is a frontend.
type directMaps struct{ sent, quoted *nft.Set }

// quoted are the fields of the packet that an ICMP error of a family quotes: a packet from a frontend to a client.
type quoted struct {
	// comment describes the error, and match matches the form of the packet.
	comment                                                    string
	match                                                      []expr.Any
	source, destination, protocol, sourcePort, destinationPort nft.Field
}

// quotedForms returns the forms of such a packet: without IP options or extension headers, and as the first fragment of
// an IPv6 packet. A router does not fragment IPv6 packets, so this error makes the endpoint send smaller fragments.
func quotedForms(f inet.Family) []quoted {
	const icmp, comment = 8, "an error about a reply" // the length of the header of the error
	if f == inet.IPv4 {
		return []quoted{{comment, nil, nft.Transport(icmp+12, 4), nft.Transport(icmp+16, 4), nft.Transport(icmp+9, 1),
			nft.Transport(icmp+20, 2), nft.Transport(icmp+22, 2)}}
	}
	const nextHeader, first, second = icmp + 6, icmp + 40, icmp + 48
	form := func(comment string, op expr.CmpOp, protocol, ports uint32) quoted {
		return quoted{comment, []expr.Any{transport(nextHeader), test(op, unix.IPPROTO_FRAGMENT)},
			nft.Transport(icmp+8, 16), nft.Transport(icmp+24, 16), nft.Transport(protocol, 1),
			nft.Transport(ports, 2), nft.Transport(ports+2, 2)}
	}
	return []quoted{
		form(comment, expr.CmpOpNeq, nextHeader, first),
		form("an error about a fragment of a reply", expr.CmpOpEq, first, second),
	}
}

// frontend returns the fields of the frontend, nodePort those of a node port, and client those of the client.
func (q quoted) frontend() []nft.Field { return append([]nft.Field{q.source}, q.nodePort()...) }
func (q quoted) nodePort() []nft.Field { return []nft.Field{q.protocol, q.sourcePort} }
func (q quoted) client() []nft.Field   { return []nft.Field{q.destination, q.destinationPort} }

// icmpOf returns the number of the ICMP protocol of a family.
func icmpOf(f inet.Family) inet.Protocol {
	return [...]inet.Protocol{inet.IPv4: unix.IPPROTO_ICMP, inet.IPv6: unix.IPPROTO_ICMPV6}[f]
}

// directChains returns the constant chains.
func (l *layout) directChains(o *Options) []*nft.Chain {
	arrive := &nft.Chain{Name: "prerouting-direct", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: beforeRaw,
		Comment: "direct server return, before conntrack", Rules: l.findFirst(l.dsr.vips)}
	noConnection := &nft.Chain{Name: "prerouting-again", Type: "filter", Hook: unix.NF_INET_PRE_ROUTING,
		Priority: afterConntrack, Comment: "direct server return, after conntrack", Rules: l.findAgain(l.dsr.vips)}
	chains := []*nft.Chain{
		arrive, l.decide(o, passOn, "passes packets on to the endpoint's node", firstChance),
		noConnection, l.decide(o, passAgain, "passes open connections on to the node of an earlier endpoint", secondChance),
	}
	if l.dsr.nodes == nil {
		return chains
	}
	noConnection.Rules = append([]nft.Rule{
		rule("to a node, and no connection that this node knows", inState(stateNew, expr.CmpOpNeq), l.toNode(o),
			jump(directNodePort)),
		rule("the same for errors, and for the end of a connection", inState(stateInvalid, expr.CmpOpNeq), l.toNode(o),
			jump(directNodePort)),
	}, noConnection.Rules...)
	return append(chains, &nft.Chain{
		Name: directNodePort, Comment: "direct server return of node ports", Rules: l.findDirectNodePort(o),
	})
}

// findFirst finds the Service of a packet, so that it is passed on to the endpoint's node.
func (l *layout) findFirst(of directMaps) []nft.Rule {
	rules := []nft.Rule{rule("", setPriority(key(of.sent.Key...), of.sent), jump(passOn))}
	for _, q := range quotedForms(l.family) {
		rules = append(rules, rule(q.comment, l.about(q), l.findQuoted(q, of), jump(passOn)))
	}
	return rules
}

// findAgain finds the Service of a packet that may be of an open connection, so that it is passed on to the node of an
// earlier endpoint.
func (l *layout) findAgain(of directMaps) []nft.Rule {
	find := append(setPriority(key(of.sent.Key...), of.sent), jump(passAgain)...)
	rules := []nft.Rule{
		rule("a connection that another node may know", protocol(inet.TCP), inState(stateNew, expr.CmpOpNeq),
			withoutSYN(), find),
		rule("the end of such a connection", protocol(inet.TCP), inState(stateInvalid, expr.CmpOpNeq), ends(), find),
	}
	for _, q := range quotedForms(l.family) {
		rules = append(rules, rule(q.comment, l.about(q), inState(stateInvalid, expr.CmpOpNeq), l.findQuoted(q, of),
			jump(passAgain)))
	}
	return rules
}

// about matches an ICMP error that quotes a packet of a form.
func (l *layout) about(q quoted) []expr.Any {
	return slices.Concat(protocol(icmpOf(l.family)), l.icmpError(), q.match)
}

// findQuoted: meta priority set FRONTEND map @quoted
func (l *layout) findQuoted(q quoted, of directMaps) []expr.Any {
	fields := q.frontend()
	if of == l.dsr.nodePorts {
		fields = q.nodePort()
	}
	return setPriority(key(fields...), of.quoted)
}

// byNAT leaves a packet to the rules of NAT.
func byNAT() []expr.Any { return append(setPriorityTo(0), back()...) }

// decide returns the chain of packets to a frontend, for a chance.
func (l *layout) decide(o *Options, name, comment string, c chance) *nft.Chain {
	icmp := icmpOf(l.family)
	rules := []nft.Rule{rule("the lease has expired", l.leased(false), notProtocol(icmp), byNAT())}
	if pods := o.LocalPods[l.family]; pods.known() {
		rules = append(rules, rule("a local pod", l.localPods(pods, false), byNAT()))
		if pods.Prefix.IsValid() { // the author of a Service can write any address into spec.externalIPs
			toPod := address(nft.DstAddr(l.family), expr.CmpOpEq, pods.Prefix)
			rules = append(rules, rule("a pod's address: it may be a reply", toPod, byNAT()))
		}
	}
	return &nft.Chain{Name: name, Comment: comment, Rules: append(rules,
		rule("another node has passed it on", l.ttl(expr.CmpOpLte, c.ttl()), byNAT()),
		rule("", dispatch(wordBits, l.dispatch[c.step()])),
		rule(undone, setPriorityTo(0)),
	)}
}

// toNode: ip daddr @direct-nodes ip daddr != PODS
func (l *layout) toNode(o *Options) []expr.Any {
	daddr := nft.DstAddr(l.family)
	words := in(l.dsr.nodes, []nft.Field{daddr}, false)
	if pods := o.LocalPods[l.family].Prefix; pods.IsValid() {
		words = append(words, address(daddr, expr.CmpOpNeq, pods)...)
	}
	return words
}

// findDirectNodePort finds the Service of a node port. Packets between nodes use NAT: if this node passed the packet of
// another node on to the same node, that node would drop its own address as the source.
func (l *layout) findDirectNodePort(o *Options) []nft.Rule {
	daddr := []nft.Field{nft.DstAddr(l.family)}
	rules := []nft.Rule{
		rule("from a node, or masqueraded there", notProtocol(icmpOf(l.family)),
			in(l.dsr.nodes, []nft.Field{nft.SrcAddr(l.family)}, false), back()),
		rule("a Service has this address and port", setPriority(key(l.vip()...), l.services), byNAT()),
		rule("a port range takes precedence", in(l.allocatedRanges, daddr, false),
			setPriority(key(l.vipOfFlow()...), l.ranges), byNAT()),
	}
	if !o.AnyNodeAddress[l.family] {
		rules = append(rules, rule("this node has no node ports at this address", in(l.nodeAddresses, daddr, true),
			destinationIsThisNode(expr.CmpOpEq), back()))
	}
	rules = append(rules, rule("to another node, which has not passed it on", destinationIsThisNode(expr.CmpOpNeq),
		l.ttl(expr.CmpOpGt, passedTTL), back()))
	return slices.Concat(rules, l.findFirst(l.dsr.nodePorts), l.findAgain(l.dsr.nodePorts))
}

// findPassedNodePort finds the Service of a node port of another node, which has passed the packet on.
func (l *layout) findPassedNodePort(o *Options) nft.Rule {
	var ofNoPod []expr.Any
	if pods := o.LocalPods[l.family]; pods.known() {
		ofNoPod = l.localPods(pods, true)
	}
	port := key(l.nodePort()...)
	return rule("another node has passed it on", l.ttl(expr.CmpOpLte, passedTTL), l.toNode(o),
		destinationIsThisNode(expr.CmpOpNeq), sourceIsThisNode(expr.CmpOpNeq), ofNoPod,
		setPriority(port, l.dsr.nodePorts.sent), setPriority(port, l.nodePorts), dispatch(wordBits, l.dispatch[stepFirst]))
}

// pass: SLOT @direct-passed ip ttl set 17 dup to SLOT map @direct-elsewhere counter drop
//
// SLOT is meta priority . jhash ip saddr . th sport mod n seed S. The kernel lowers the TTL of the copy by one. The
// set direct-passed makes other packets keep their TTL: in the order of nft, a rule sets the TTL before the lookup in
// the map.
func (l *layout) pass(ch chance, t table) []nft.Rule {
	icmp := icmpOf(l.family)
	to := func(places chance, client []nft.Field) []expr.Any {
		slot := func(skipped uint32) []expr.Any {
			return indexedBy(client, l.family, []nft.Field{nft.Priority()}, t, skipped)
		}
		return slices.Concat(slot(forSet), []expr.Any{loadedIn(l.dsr.passed[places], false)}, l.setTTL(ch.ttl()+1),
			slot(forMap), []expr.Any{lookup(l.dsr.elsewhere[places]), &expr.Dup{RegAddr: reg}}, countedDrop())
	}
	rules := []nft.Rule{rule("", keepBits(portBits))}
	add := func(comment string, match []expr.Any, client []nft.Field) {
		rules = append(rules, rule(comment, match, to(ch, client)))
		if ch == secondChance {
			newer := rule("the sender had a newer table than this node", match, to(firstChance, client))
			rules = append(rules, newer)
		}
	}
	add("", notProtocol(icmp), clientFields(l.family))
	for _, q := range quotedForms(l.family) {
		add(q.comment, slices.Concat(protocol(icmp), q.match), q.client())
	}
	return append(rules, rule("an endpoint on this node, or without a node", setPriorityTo(0)))
}

// serveDirect: dnat ip to meta l4proto . meta priority . jhash ip saddr . th sport mod n seed S map @direct-here
func (l *layout) serveDirect(o *Options, t table) []nft.Rule {
	slot := indexed(l.family, []nft.Field{nft.L4Proto(), nft.Priority()}, t)
	return []nft.Rule{
		rule("", keepBits(portBits)),
		rule("this node", sourceIsThisNode(expr.CmpOpEq), markPacket(o.MasqueradeMark)),
		rule("an endpoint on this node: it sees the client", dnat(l.family, slot, l.dsr.here)),
		rule("an endpoint elsewhere: replies return by this node", markPacket(o.MasqueradeMark)),
		rule("", l.toEndpoint(listCluster, t)),
		rule("", goTo(listCluster.fewer())),
	}
}

// isDirect reports whether a frontend has direct server return. The port must have endpoints.
func (p *port) isDirect(f *model.Frontend) bool {
	return p.Direct != nil && f.MayBeDirect() && len(p.slots[listCluster]) > 0
}

// directElements adds the elements of a frontend with direct server return.
func (l *layout) directElements(p *port, f *model.Frontend, to *wants) {
	pass := class{kind: kindPass, table: p.table(listCluster)}
	maps := l.dsr.vips
	if f.Kind == model.NodePort {
		maps = l.dsr.nodePorts
	}
	for _, s := range []*nft.Set{maps.sent, maps.quoted} {
		to.own = append(to.own, nft.Element{
			Set: s, Key: frontendKey(&f.Key), Data: nft.Value{}.Uint32(p.number | pass.number()), Comment: p.comment,
		})
	}
	to.leadTo(l, pass, stepPass)
	if p.Protocol == inet.TCP {
		pass.of = uint8(secondChance)
		to.leadTo(l, pass, stepAgain)
	}
}

// place has the destinations of the packets to a slot with direct server return: its endpoint if that is on this node,
// and the address of an endpoint on another node to which packets are passed on.
type place struct {
	here      netip.AddrPort
	elsewhere netip.Addr
	chance    chance
}

// findPlaces finds the places of the slots of listCluster. If the endpoint of a slot is on this node, open connections
// may have an earlier endpoint: the one that has the slot in a table with the terminating endpoints, and without the
// endpoints on this node, which knows their connections. If the slot's present endpoint is new, this is the endpoint
// before it. If the earlier endpoint terminates, it has its slot in this table.
func (p *port) findPlaces() {
	slots, d := p.slots[listCluster], p.Direct
	var earlier []netip.AddrPort
	method := p.Method
	method.Size = uint32(len(slots))
	if len(d.Here) > 0 && p.Protocol == inet.TCP && method.Slots(len(d.Earlier), d.EarlierWeights) == len(slots) {
		earlier = method.Fill(d.Earlier, d.EarlierWeights)
	}
	p.places = make([]place, len(slots))
	for i, endpoint := range slots {
		switch {
		case isIn(d.Here, endpoint):
			p.places[i].here = endpoint
			if earlier != nil && isIn(d.Elsewhere, earlier[i]) {
				p.places[i].elsewhere, p.places[i].chance = earlier[i].Addr(), secondChance
			}
		case isIn(d.Elsewhere, endpoint):
			p.places[i].elsewhere, p.places[i].chance = endpoint.Addr(), firstChance
		}
	}
}

// placeElements adds the elements of the places that the other version of the port does not have.
func (l *layout) placeElements(p, other *port, to *wants) {
	for i, place := range p.places {
		if other.number == p.number && i < len(other.places) && place == other.places[i] {
			continue
		}
		slot := nft.Value{}.Uint32(p.number).Uint32(uint32(i))
		if place.here.IsValid() {
			key := nft.Value{}.Proto(p.Protocol).Uint32(p.number).Uint32(uint32(i))
			to.own = append(to.own, nft.Element{Set: l.dsr.here, Key: key, Data: nft.Endpoint(place.here)})
		}
		if a := place.elsewhere; a.IsValid() {
			to.own = append(to.own, nft.Element{Set: l.dsr.passed[place.chance], Key: slot},
				nft.Element{Set: l.dsr.elsewhere[place.chance], Key: slot, Data: nft.Value{}.Addr(a)})
		}
	}
}

// ttl: ip ttl OP VALUE, or ip6 hoplimit OP VALUE
func (l *layout) ttl(op expr.CmpOp, value byte) []expr.Any {
	return []expr.Any{network(ttlOffset[l.family]), test(op, value)}
}

// ttlOffset is the offset of the TTL in the header, and of the hop limit.
var ttlOffset = [...]uint32{inet.IPv4: 8, inet.IPv6: 7}

// setTTL: ip ttl set VALUE, or ip6 hoplimit set VALUE. The IPv4 header has a checksum of 16-bit words, so the rule
// writes the protocol, too.
func (l *layout) setTTL(value byte) []expr.Any {
	const checksum = 10
	write := &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: reg,
		Base: expr.PayloadBaseNetworkHeader, Offset: ttlOffset[l.family], Len: 1,
	}
	if l.family == inet.IPv6 {
		return []expr.Any{&expr.Immediate{Register: reg, Data: []byte{value}}, write}
	}
	write.Len, write.CsumType, write.CsumOffset = 2, expr.CsumTypeInet, checksum
	return []expr.Any{
		nft.Network(write.Offset, write.Len).Load(reg),
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 2, Mask: []byte{0, 0xff}, Xor: []byte{value, 0}},
		write,
	}
}

// ends: tcp flags & (fin | rst) != 0. conntrack takes such a segment of no known connection for invalid.
func ends() []expr.Any {
	const flags, fin, rst = 13, 0x01, 0x04
	return []expr.Any{transport(flags), and(fin | rst), test(expr.CmpOpNeq, 0)}
}

// icmpError: icmp type & 247 == 3 (destination unreachable and time exceeded), or icmpv6 type & 252 == 0 (the same and
// packet too big; no packet has type 0)
func (l *layout) icmpError() []expr.Any {
	match := [...]struct{ mask, value byte }{inet.IPv4: {0xf7, 3}, inet.IPv6: {0xfc, 0}}[l.family]
	return []expr.Any{transport(0), and(match.mask), test(expr.CmpOpEq, match.value)}
}
