package plan

import (
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// Hook priorities. All of these chains are nat chains: the kernel evaluates the nat chains of a hook at dstnat, in the
// order of their priorities, until one translates the packet. Of two chains with one priority, it evaluates the younger
// one first. So the rules of Services share no priority with the chains of other proxies, container runtimes and
// iptables, which are at dstnat: see docs/decisions/0008-first.md.
//
// Masquerading has the lowest priority that the kernel permits for a nat chain: after another program has translated
// the source of a packet, the kernel evaluates no later nat chain, so the packet would keep the bit of its mark and the
// word in its scratch register.
const (
	dstnat      = -100
	lowest      = -199
	afterOthers = 1000
)

// FirstPriority is the priority at which the default instance looks for Services while the lease lasts: before all
// chains at dstnat.
const FirstPriority = dstnat - 1

// priorities are the priorities of the chains that look for Services while the lease lasts, of those that look for them
// after it has expired, and of those for packets that no program has translated.
type priorities struct{ leased, expired, unclaimed int32 }

// prioritiesOf returns the priorities of an instance. The default instance is first while the lease lasts. Afterwards,
// it is directly behind a proxy at dstnat that has taken over. An instance with a name is always behind the other
// proxy, also behind the expired chains of the default instance. It handles unclaimed packets before the default
// instance, which drops packets to service addresses that it does not serve.
func prioritiesOf(o *Options) priorities {
	if o.ServiceProxyName != "" {
		return priorities{leased: dstnat + 2, expired: dstnat + 3, unclaimed: afterOthers - 1}
	}
	return priorities{leased: FirstPriority, expired: dstnat + 1, unclaimed: afterOthers}
}

// table builds the constant part of one family's table.
func (l *layout) table(o *Options) *nft.Table {
	at := prioritiesOf(o)
	chains := []*nft.Chain{
		base("prerouting", unix.NF_INET_PRE_ROUTING, at.leased, "packets that arrive", l.toServices(o)...),
		base("output", unix.NF_INET_LOCAL_OUT, at.leased, "packets of this node", l.toServices(o)...),
		base("prerouting-expired", unix.NF_INET_PRE_ROUTING, at.expired,
			"arrived, and the lease has expired", l.afterLease(o)),
		base("output-expired", unix.NF_INET_LOCAL_OUT, at.expired,
			"of this node, and the lease has expired", l.afterLease(o)),
		base("prerouting-unclaimed", unix.NF_INET_PRE_ROUTING, at.unclaimed, "arrived, and no program has translated them",
			l.unclaimed(o, true)...),
		base("output-unclaimed", unix.NF_INET_LOCAL_OUT, at.unclaimed, "of this node, and no program has translated them",
			l.unclaimed(o, false)...),
		base("input", unix.NF_INET_LOCAL_IN, lowest, "packets for this node",
			rule("", hasBits(topBit), goTo("clear-register"))),
		base("postrouting", unix.NF_INET_POST_ROUTING, lowest, "masquerading",
			rule("", dnatted(), goTo("translated")), masqueradeMarked(o)),
		{Name: "clear-register", Comment: "sets the kernel's own priority", Rules: l.clearRegister()},
		{Name: "translated", Comment: "packets with another destination than they came with", Rules: l.translated(o)},
		{Name: "translated-near", Comment: "to a local endpoint, or to a cluster IP", Rules: l.translatedNear()},
		{
			Name: "services", Comment: "finds the Service of a packet's destination",
			Rules: append(l.toSingle(o), l.find()...),
		},
		{Name: nodePortChain, Comment: "finds the Service of a node port", Rules: l.findNodePort(o)},
		{Name: unusedPort, Comment: unusedComment(o), Rules: l.unused(o)},
		{
			Name: nameOf(kindExternalLocal), Comment: "external address or node port with policy Local",
			Rules: l.externalLocal(o),
		},
		{Name: nameOf(kindFirewall), Comment: "load-balancer address with source ranges", Rules: l.firewall()},
		l.holdChain(),
	}
	chains = append(chains, l.refusals()...)
	for ls := range lists {
		gone := remember(l.affinity, nft.SrcAddr(l.family), dynsetDelete, expr.Dynset{})
		chains = append(chains,
			&nft.Chain{
				Name: ls.fewer(), Comment: "fewer endpoints by now: the first one exists", Rules: l.first(ls),
			},
			&nft.Chain{Name: ls.keepPort(), Comment: "draws the endpoint of a port range", Rules: l.keepPort(ls)},
			&nft.Chain{Name: ls.rangeOrGone(), Comment: "the endpoint of a port range, or one that does not serve",
				Rules: append(l.toRangeBackend(ls), rule("it does not serve", gone))},
			&nft.Chain{Name: ls.knownOrNew(), Comment: "the client's endpoint, or a new one", Rules: l.knownOrNew(ls)},
			&nft.Chain{Name: ls.toKnown(), Comment: "to the client's endpoint", Rules: l.toKnown(ls)},
			&nft.Chain{Name: ls.anyNotFull(), Comment: "some slots, one after the other", Rules: l.anyNotFull(ls)},
			&nft.Chain{Name: ls.unlessFull(), Comment: "skips full endpoints", Rules: l.unlessFull(ls)})
	}
	for r := range routes {
		chains = append(chains,
			&nft.Chain{Name: class{kind: kindLimited, of: uint8(r)}.name(),
				Comment: "endpoints have a connection limit",
				Rules:   append(l.masqueradeRoute(o, r), rule("", goTo(r.list().unlessFull())))})
	}
	chains = append(chains, &nft.Chain{Name: admit, Comment: "counts the connections of an endpoint", Rules: l.admit()},
		&nft.Chain{
			Name: allFull, Comment: "no endpoint has a place: refused, or dropped so that the client retries",
			Rules: l.refuse(),
		})
	if o.DirectReturn {
		chains = append(chains, l.directChains(o)...)
	}
	return &nft.Table{
		Family: l.family, Name: Table(o.ServiceProxyName), Sets: l.sets(), Chains: chains,
		Comment: "Kubernetes services",
	}
}

func base(name string, hook uint32, priority int32, comment string, rules ...nft.Rule) *nft.Chain {
	return &nft.Chain{Name: name, Comment: comment, Type: "nat", Hook: hook, Priority: priority, Rules: rules}
}

// leased matches packets of the protocols of Services while the lease lasts. With lasts false, it matches all other
// packets.
func (l *layout) leased(lasts bool) []expr.Any {
	return in(l.lease, []nft.Field{nft.L4Proto()}, !lasts)
}

// toServices sends packets that may be for a Service to the chain services, while the lease lasts. For most other
// packets, the lookup of the network is the only lookup.
func (l *layout) toServices(o *Options) []nft.Rule {
	rules := []nft.Rule{rule("", l.inRegions(false), l.leased(true), goTo("services"))}
	if o.AnyNodeAddress[l.family] {
		rules = append(rules, rule("an address of this node",
			destinationIsThisNode(expr.CmpOpEq), l.leased(true), goTo("services")))
	}
	return rules
}

// afterLease sends packets that may be for a Service to the chain services, after the lease has expired. Node ports are
// served in other networks than those of Services, too. While the lease lasts, the rule needs one lookup for most
// packets.
func (l *layout) afterLease(o *Options) nft.Rule {
	var network []expr.Any
	if !o.AnyNodeAddress[l.family] {
		network = l.inRegions(false)
	}
	return rule("the lease has expired", network, l.leased(false), goTo("services"))
}

// toSingle: dnat to ip daddr . meta l4proto . th dport map @singles
//
// A rule after dnat would not be evaluated. So packets that need masquerading at a cluster IP are marked first, and
// packets to all other addresses lose the mark again.
func (l *layout) toSingle(o *Options) []nft.Rule {
	rules := append(l.masqueradeRoute(o, routeCluster),
		rule("a cluster IP with one endpoint", dnat(l.family, key(l.vip()...), l.singles)))
	if meaning, test := l.masqueraded(o, routeCluster); meaning != "" {
		rules = append(rules, rule("not a cluster IP with one endpoint", test, unmarkPacket(o.MasqueradeMark)))
	}
	return rules
}

// find looks up the class of an address. Packets to other addresses may be for a node port.
func (l *layout) find() []nft.Rule {
	return []nft.Rule{
		rule("", setPriority(key(l.vip()...), l.services), dispatch(wordBits, l.dispatch[stepFirst])),
		rule("not an address and port of a Service", hasNoBits(topBit), goTo(nodePortChain)),
	}
}

// nodePortChain is the chain of packets that are not for an address and a port in the map services.
const nodePortChain = "node-port"

// findNodePort looks up the class of a node port.
func (l *layout) findNodePort(o *Options) []nft.Rule {
	daddr := []nft.Field{nft.DstAddr(l.family)}
	onNode := in(l.nodeAddresses, daddr, false)
	if o.AnyNodeAddress[l.family] {
		onNode = append(destinationIsThisNode(expr.CmpOpEq),
			address(daddr[0], expr.CmpOpNeq, inet.Loopback[l.family])...)
	}
	rules := []nft.Rule{
		rule("a port range takes precedence", in(l.allocatedRanges, daddr, false), onNode,
			setPriority(key(l.vipOfFlow()...), l.ranges), back()),
		rule("", onNode, setPriority(key(l.nodePort()...), l.nodePorts), dispatch(wordBits, l.dispatch[stepFirst])),
	}
	if l.dsr.nodes != nil {
		rules = append(rules, l.findPassedNodePort(o))
	}
	return rules
}

// externalLocal sends packets of local pods and of this node to any endpoint, and all other packets to local endpoints.
// Only packets of this node are masqueraded: the endpoint's node may send replies to their source address by another
// path.
//
// After one lookup has found a word with a class, later lookups find nothing: the keys of both maps have no class.
func (l *layout) externalLocal(o *Options) []nft.Rule {
	number := key(nft.Priority())
	rules := []nft.Rule{rule("", keepBits(portBits))}
	if pods := o.LocalPods[l.family]; pods.known() {
		rules = append(rules, rule("a local pod", l.localPods(pods, false), setPriority(number, l.shortCircuit)))
	}
	return append(rules,
		rule("this node", hasNoBits(classBits), sourceIsThisNode(expr.CmpOpEq), setPriority(number, l.shortCircuit),
			markPacket(o.MasqueradeMark)),
		rule("all others", setPriority(number, l.local)),
		rule("", dispatch(wordBits, l.dispatch[stepLocal])))
}

// localPods matches packets from local pods, or with negate all other packets.
func (l *layout) localPods(p LocalPods, negate bool) []expr.Any {
	op := expr.CmpOpEq
	if negate {
		op = expr.CmpOpNeq
	}
	if p.Prefix.IsValid() {
		return address(nft.SrcAddr(l.family), op, p.Prefix)
	}
	return inputInterface(op, p.Interface, p.InterfacePrefix)
}

func (l *layout) firewall() []nft.Rule {
	return append([]nft.Rule{rule("", keepBits(portBits))}, l.allowed(balancerSources, key(l.vip()...), l.restricted)...)
}

// source loads the scratch register and the source address into registers of nft. The scratch register is in network
// order: nft needs this for the fields of a concatenation with ranges.
func (l *layout) source() []expr.Any {
	return []expr.Any{
		nft.Priority().Load(reg),
		&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 4, Size: 4},
		nft.SrcAddr(l.family).Load(reg + 1),
	}
}

// refusals returns the chains of the kinds that refuse all packets, or drop all packets. A kind whose outcome may do
// both has a chain of its own.
func (l *layout) refusals() (chains []*nft.Chain) {
	for k := range kindEnd {
		row := &outcome.Rows[kinds[k].outcome]
		if row.Refuses == row.Drops {
			continue
		}
		rules := l.reject()
		if row.Drops {
			rules = []nft.Rule{rule("", countedDrop())}
		}
		chains = append(chains, &nft.Chain{Name: nameOf(k), Comment: row.Words, Rules: rules})
	}
	return chains
}

// reject answers with a TCP reset or an ICMP error. The kernel limits the rate of ICMP errors, but not of TCP resets.
// So no TCP client has to wait.
func (l *layout) reject() []nft.Rule {
	return []nft.Rule{
		rule("", protocol(inet.TCP), countedReset()),
		rule("", countedReject(l.family)),
	}
}

// unclaimed handles packets that no program has translated:
//   - to ranges of ports, see portranges.go,
//   - to service addresses and ports that no service port has, and echo requests, see vips.go.
//
// It handles arriving packets of the last kind only if the kernel would forward them. A program on this node may have
// the address and answer, for example a node-local DNS cache. Or policy routing may lead the packet to a transparent
// proxy on this node.
func (l *layout) unclaimed(o *Options, arrived bool) []nft.Rule {
	daddr := []nft.Field{nft.DstAddr(l.family)}
	var forwarded []expr.Any
	rules := []nft.Rule{rule(noServiceNetwork, l.inRegions(true), back())}
	if arrived {
		forwarded = destinationIsThisNode(expr.CmpOpNeq)
		rules = append(rules, rule("policy routing by mark doesn't forward it", marked(), notForwarded(), accept()))
	}
	rules = append(append(append(rules, l.inRange(arrived)), l.vipRules(o, arrived)...),
		rule("a cluster IP", in(l.clusterIPs, daddr, false), forwarded, goTo(unusedPort)),
		// Negated, so that the counters of the elements count only the last rule.
		rule(NoServiceAddress, in(l.serviceCIDRs, daddr, true), back()))
	if !arrived {
		rules = append(rules, rule("a reset to an address of this node", related(expr.CmpOpNeq), back()))
	}
	unused := outcome.Rows[outcome.UnusedAddress].Words
	return append(rules, rule(unused, in(l.serviceCIDRs, daddr, false), forwarded, countedDrop()))
}

// noServiceNetwork is the comment of the rule that returns if the destination is in no network of an address of
// Services.
const noServiceNetwork = "no network of a service address"

// NoServiceAddress is the comment of the rule that returns if the destination is not an address of Services.
const NoServiceAddress = "no service address"

// unusedPort is the chain of packets to a port of a cluster IP that no rule has found. The chain looks up the packet
// once more. If a commit replaces an element, a lookup at the same time may find neither the old element nor the new
// one. Kernel 6.17 fixed this ("netfilter: nf_tables: restart set lookup on base_seq change").
const unusedPort = "unused-port"

// unused returns the rules of the chain unused-port. They count refused packets in a set that packets fill, and not
// with counters in cluster-ips. Ten thousand counters, nearly all 0, would take a fifth to a third of the kernel's time
// for a full batch. If the set is full, nothing is counted.
func (l *layout) unused(o *Options) []nft.Rule {
	return []nft.Rule{
		rule("a batch may have replaced the port just now", jump("services")),
		rule("counted", enter(l.unusedPorts, nft.DstAddr(l.family), 0)),
		rule(unusedComment(o), goTo(nameOf(kindReject))),
	}
}

// clearRegister sets the priority that the kernel would have set: for IPv4 the priority of the type of service
// (rt_tos2priority), otherwise 0. If a process has set a priority for its socket, the first packet loses it.
func (l *layout) clearRegister() []nft.Rule {
	rules := []nft.Rule{rule("", setPriorityTo(0))}
	if l.family == inet.IPv6 {
		return rules
	}
	// ip_tos2prio of net/ipv4/route.c: only two bits of the type of service matter.
	const bulk, interactive, both = 0x08, 0x10, 0x18
	return append(rules,
		rule("", typeOfService(0), back()),
		rule("", typeOfService(bulk), setPriorityTo(2)),
		rule("", typeOfService(interactive), setPriorityTo(6)),
		rule("", typeOfService(both), setPriorityTo(4)))
}

// translated clears the register. If a program has translated the destination of a packet, and the packet needs
// masquerading, translated masquerades it. The kernel evaluates these rules for each new connection to a Service: each
// further lookup would add up to a tenth to its cost.
func (l *layout) translated(o *Options) []nft.Rule {
	return []nft.Rule{
		rule("", hasBits(topBit), jump("clear-register")),
		masqueradeMarked(o),
		rule("", l.inNetwork(l.networks, networkBits[l.family], false), jump("translated-near")),
	}
}

// translatedNear handles packets to the networks of local endpoints and of cluster IPs.
func (l *layout) translatedNear() []nft.Rule {
	daddr := nft.DstAddr(l.family)
	return []nft.Rule{
		rule("an endpoint that reaches itself",
			in(l.hairpin, []nft.Field{nft.SrcAddr(l.family), daddr}, false), masquerade()),
		rule("translated to a cluster IP, by an endpoint with such an address or by another program",
			in(l.clusterIPs, []nft.Field{daddr}, false), countedDrop()),
	}
}

// masqueradeMarked masquerades packets with the bit of the mark, and clears the bit. If the bit stayed, a tunnel would
// copy the mark to the outer packet, and the rules would masquerade it a second time.
func masqueradeMarked(o *Options) nft.Rule {
	return rule("requested by the mark", unmarkPacket(o.MasqueradeMark), masquerade())
}

// classChain builds the chain of a class. It panics for a class whose chain is in every plan.
func (l *layout) classChain(o *Options, c class) *nft.Chain {
	ch := &nft.Chain{Name: c.chain()}
	switch c.kind {
	case kindChoose:
		ch.Rules = l.choose(c)
	case kindPick:
		ch.Rules = l.pick(c)
	case kindDirect:
		ch.Rules = l.direct(o, c.route().list(), c.table)
	case kindReturn:
		ch.Rules = l.serveDirect(o, c.table)
	case kindPass:
		ch.Rules = l.pass(chance(c.of), c.table)
	case kindAffinity:
		ch.Rules = l.sticky(o, c.route().list(), c.timeout)
	case kindSingle:
		ch.Comment, ch.Rules = "no room for more endpoints", l.toExternalSingle(o)
	case kindTimed:
		ch.Comment, ch.Rules = "timeouts in connection tracking", l.timedRules(c.route())
	case kindTimeouts:
		return timeoutsChain(c)
	case kindRange:
		keep := rule("", goTo(c.route().list().keepPort()))
		ch.Comment, ch.Rules = "a port range", append(l.masqueradeRoute(o, c.route()), keep)
	case kindRangeSources:
		ch.Comment, ch.Rules = sourceWords(c), l.rangeSourceRules(c.sources())
	case kindSources:
		ch.Comment, ch.Rules = sourceWords(c), l.sourceRules(c.sources())
	default:
		panic(fmt.Sprintf("class %v has no chain of its own", c))
	}
	return ch
}

// nameOf is the name of the only chain of a kind.
func nameOf(k kind) string { return kinds[k].prefix }

// draws returns the tables from which successive rules draw a slot, until one is filled. A table of more than
// exactSlots for a random number has some empty slots, but more than four fifths are filled. So the shares of endpoints
// differ by 1 % at most.
func (t table) draws() []table {
	if filled := surelyFilled(t.size); filled < t.size && t.by == (selector{}) {
		return []table{t, t, t, {size: filled}}
	}
	return []table{t}
}

// undone is the comment of a rule for a packet whose service port a batch deleted after the packet had found its class.
const undone = "the service port was deleted just now"

// fewer is the chain for a packet that drew the slot of an endpoint that a batch deleted after the packet had found its
// class.
func (l list) fewer() string { return "fewer-" + l.prefix() + "endpoints" }

// direct: dnat to meta l4proto . meta priority . numgen random mod n map @endpoints, or with a hash instead of numgen
func (l *layout) direct(o *Options, ls list, t table) []nft.Rule {
	rules := append(l.masqueradeList(o, ls), rule("", keepBits(portBits)))
	for _, draw := range t.draws() {
		rules = append(rules, rule(drawComment(t, draw), l.toEndpoint(ls, draw)))
	}
	return append(rules, rule("", goTo(ls.fewer())))
}

// first sends a packet to the endpoint in slot 0, which is filled as long as the service port has an endpoint.
func (l *layout) first(ls list) []nft.Rule {
	return []nft.Rule{rule("", l.toEndpoint(ls, table{size: 1})), rule(undone, setPriorityTo(0))}
}

func (l *layout) toEndpoint(ls list, t table) []expr.Any {
	return dnat(l.family, indexed(l.family, []nft.Field{nft.L4Proto(), nft.Priority()}, t), l.endpoints[ls])
}

func drawComment(t, draw table) string {
	if draw == t {
		return ""
	}
	return "an empty slot three times"
}

// pick: meta priority set meta priority . numgen random mod n map @slots, or with a hash instead of numgen
func (l *layout) pick(c class) []nft.Rule {
	rules := []nft.Rule{rule("", keepBits(affineBits))}
	for i, draw := range c.table.draws() {
		var none []expr.Any
		if i > 0 {
			none = hasNoBits(endpointBits)
		}
		slot := indexed(l.family, []nft.Field{nft.Priority()}, draw)
		rules = append(rules, rule(drawComment(c.table, draw), none, setPriority(slot, l.slots[c.list()])))
	}
	return rules
}

// masqueraded returns a test for packets of a route that need masquerading, with its meaning. The meaning is empty if
// no packets do.
func (l *layout) masqueraded(o *Options, r route) (meaning string, test []expr.Any) {
	pods := o.LocalPods[l.family]
	switch {
	case r == routeExternal:
		return "from outside: replies return by this node", nil
	case r != routeCluster && r != routeClusterLocal:
	case o.MasqueradeAll:
		return "all traffic to cluster IPs", nil
	case pods.known():
		return "not from a local pod", l.localPods(pods, true)
	}
	return "", nil
}

// masqueradeRoute marks the packets of a route that need masquerading.
func (l *layout) masqueradeRoute(o *Options, r route) (rules []nft.Rule) {
	if meaning, test := l.masqueraded(o, r); meaning != "" {
		rules = append(rules, rule(meaning, test, markPacket(o.MasqueradeMark)))
	}
	return rules
}

// toExternalSingle: dnat to ip daddr . meta l4proto . th dport map @external-singles
func (l *layout) toExternalSingle(o *Options) []nft.Rule {
	return append(l.masqueradeRoute(o, routeExternal),
		rule("", dnat(l.family, key(l.vip()...), l.externalSingles)),
		rule(undone, setPriorityTo(0)))
}

// masqueradeList marks the packets of all routes to a list that need masquerading. It tests the route last: most
// packets are from local pods.
func (l *layout) masqueradeList(o *Options, ls list) (rules []nft.Rule) {
	for r := range routes {
		if meaning, test := l.masqueraded(o, r); meaning != "" && r.list() == ls {
			rules = append(rules, rule(meaning, test, hasRoute(r), markPacket(o.MasqueradeMark)))
		}
	}
	return rules
}

// sticky sends a client to its earlier endpoint, if this endpoint still serves. Otherwise the rules pick an endpoint
// and remember it, unless the namespace of the Service has too many clients. They first delete the earlier element: an
// update of an element in the kernel does not change its data.
func (l *layout) sticky(o *Options, ls list, timeout uint32) []nft.Rule {
	saddr := nft.SrcAddr(l.family)
	keepTime := remember(l.affinity, saddr, unix.NFT_DYNSET_OP_UPDATE,
		expr.Dynset{Timeout: time.Duration(timeout) * time.Second})
	return append(l.masqueradeList(o, ls),
		rule("the service port's number", keepBits(affineBits)),
		rule("a known client", setPriority(key(nft.Priority(), saddr), l.affinity)),
		rule("restart its timeout", hasBits(endpointBits), keepTime),
		rule("", jump(ls.knownOrNew())),
		rule("the client is remembered", hasBits(endpointBits), priorityBits(reg, affineBits),
			[]expr.Any{loadedIn(l.crowded, true)}, keepTime),
		rule("", goTo(ls.toKnown())))
}

// knownOrNew is the chain that translates a packet to the earlier endpoint of its client, or picks an endpoint. toKnown
// is the chain that translates the packet to the picked one.
func (l list) knownOrNew() string { return "affinity-" + l.prefix() + "known-or-new" }
func (l list) toKnown() string    { return "affinity-" + l.prefix() + "to-known" }

func (l *layout) toBackend(ls list) []expr.Any {
	return dnat(l.family, key(nft.L4Proto(), nft.Priority()), l.backends[ls])
}

func (l *layout) knownOrNew(ls list) []nft.Rule {
	return []nft.Rule{
		rule("same endpoint, if it still serves", l.toBackend(ls)),
		rule("a port range, or it does not serve", hasBits(endpointBits), jump(ls.rangeOrGone())),
		rule("pick one", keepBits(affineBits), setPriority(key(nft.Priority()), l.draw[ls]),
			dispatch(endpointBits, l.dispatch[ls.pick()])),
		rule("fewer by now: the first one exists", hasNoBits(endpointBits), l.firstSlot(ls)),
	}
}

func (l *layout) toKnown(ls list) []nft.Rule {
	return append([]nft.Rule{rule("", l.toBackend(ls))}, append(l.toRangeBackend(ls), rule(undone, setPriorityTo(0)))...)
}

// firstSlot: meta priority set meta priority . numgen random mod 1 map @slots
func (l *layout) firstSlot(ls list) []expr.Any {
	return setPriority(indexed(l.family, []nft.Field{nft.Priority()}, table{size: 1}), l.slots[ls])
}
