package plan

import (
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Hook priorities: DNAT and masquerading stand where other software expects a service proxy to have them. Packets that no program has
// translated meet rules once more, in nat chains too, so that established connections have no overhead. The kernel evaluates all nat chains of a
// hook at dstnat, in the order of their priorities, until one translates the packet.
const (
	dstnat      = -100
	srcnat      = 100
	early       = 10
	afterOthers = 1000
)

// priorities returns the priorities of the chains that translate, and of those for packets that no program has translated. Beside another proxy,
// whose DNAT is at dstnat, its frontends take precedence. The default instance drops packets to service addresses that it doesn't know, some of
// which are those of an instance with a name.
func priorities(o *Options) (translating, unclaimed int32) {
	if o.ServiceProxyName != "" {
		return dstnat + 1, afterOthers - 1
	}
	return dstnat, afterOthers
}

// table builds the constant part of one family's table.
func (l *layout) table(o *Options) *nft.Table {
	translating, unclaimed := priorities(o)
	chains := []*nft.Chain{
		base("prerouting", unix.NF_INET_PRE_ROUTING, translating, "packets that arrive",
			rule("", l.leased(true), jump("services"))),
		base("output", unix.NF_INET_LOCAL_OUT, translating, "packets of this node",
			rule("", l.leased(true), jump("services"))),
		base("prerouting-unclaimed", unix.NF_INET_PRE_ROUTING, unclaimed, "arrived, and no program has translated them",
			l.unclaimed(true)...),
		base("output-unclaimed", unix.NF_INET_LOCAL_OUT, unclaimed, "of this node, and no program has translated them",
			l.unclaimed(false)...),
		base("input", unix.NF_INET_LOCAL_IN, srcnat-early, "packets for this node",
			rule("", hasBits(ourBit), goTo("clear-register"))),
		base("postrouting-translated", unix.NF_INET_POST_ROUTING, srcnat-early, "packets before any program masquerades them",
			rule("", hasBits(ourBit), goTo("clear-register")),
			rule("translated to a cluster IP by another program", dnatted(), in(l.clusterIPs, []nft.Field{nft.DstAddr(l.family)}, false), countedDrop())),
		base("postrouting", unix.NF_INET_POST_ROUTING, srcnat, "masquerading",
			rule("", dnatted(), goTo("translated")), askedFor(o)),
		{Name: "clear-register", Comment: "the priority is the kernel's again", Rules: l.clearRegister()},
		{Name: "translated", Comment: "packets with another destination than they came with", Rules: l.translated(o)},
		{Name: "services", Comment: "finds the Service of a packet's destination", Rules: l.find(o)},
		{Name: unusedPort, Comment: "a cluster IP without such a port", Rules: l.unused()},
		{Name: kindExternalLocal.name(), Comment: "external address or node port with policy Local", Rules: l.externalLocal(o)},
		{Name: kindFirewall.name(), Comment: "load-balancer address with source ranges", Rules: l.firewall()},
		{Name: kindReject.name(), Comment: "no endpoint: refused at once", Rules: l.reject()},
		{Name: kindDrop.name(), Comment: "endpoints exist, but not for this traffic", Rules: []nft.Rule{rule("", countedDrop())}},
	}
	for ls := range lists {
		chains = append(chains, &nft.Chain{Name: ls.fewer(), Comment: "fewer endpoints by now: the first one exists", Rules: l.first(ls)})
	}
	for r := range routes {
		chains = append(chains, &nft.Chain{Name: affinityKind(r).name(), Comment: "a client stays with its endpoint", Rules: l.sticky(o, r)})
	}
	return &nft.Table{Family: l.family, Name: Table(o.ServiceProxyName), Sets: l.sets(), Chains: chains, Comment: "Kubernetes services"}
}

func base(name string, hook uint32, priority int32, comment string, rules ...nft.Rule) *nft.Chain {
	return &nft.Chain{Name: name, Comment: comment, Type: "nat", Hook: hook, Priority: priority, Rules: rules}
}

// leased matches, for packets of the protocols that Services have, while the lease lasts, or once it has run out.
func (l *layout) leased(lasts bool) []expr.Any {
	return in(l.lease, []nft.Field{nft.L4Proto()}, !lasts)
}

// find: the class of an address, else the class of a node port.
func (l *layout) find(o *Options) []nft.Rule {
	nodePort := setPriority(key(l.nodePort()...), l.nodePorts)
	// One rule for both: the kernel walks all that a map of verdicts leads to, at every commit, once for each rule that uses it.
	first := rule("", dispatch(wordBits, l.dispatch[stepFirst]))
	rules := []nft.Rule{rule("", setPriority(key(l.vip()...), l.services))}
	notFound := hasNoBits(ourBit)
	if !o.AnyNodeAddress[l.family] {
		onNode := in(l.nodeAddresses, []nft.Field{nft.DstAddr(l.family)}, false)
		return append(rules, rule("", notFound, onNode, nodePort), first)
	}
	loopback := inet.Loopback[l.family]
	return append(rules, rule("", notFound, destinationIsThisNode(expr.CmpOpEq), address(nft.DstAddr(l.family), expr.CmpOpNeq, loopback), nodePort), first)
}

// externalLocal sends local pods and this node to any endpoint, and all others to local ones. Only this node's own
// traffic is masqueraded: its source address may be one that the endpoint's node can't answer to through here.
//
// What has been found is a key of neither map, so that the rules after it find nothing.
func (l *layout) externalLocal(o *Options) []nft.Rule {
	number := key(nft.Priority())
	rules := []nft.Rule{rule("", keepBits(portBits))}
	if pods := o.LocalPods[l.family]; pods.known() {
		rules = append(rules, rule("a local pod", l.localPods(pods, false), setPriority(number, l.shortCircuit)))
	}
	return append(rules,
		rule("this node", hasNoBits(classBits), sourceIsThisNode(), setPriority(number, l.shortCircuit), markPacket(o.MasqueradeMark)),
		rule("all others", setPriority(number, l.local)),
		rule("", dispatch(wordBits, l.dispatch[stepLocal])))
}

// localPods matches packets that come from local pods, or with negate those that don't.
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
	return []nft.Rule{
		rule("", keepBits(portBits)),
		rule("not in loadBalancerSourceRanges", l.source(), notIn(l.allowedSources), countedDrop()),
		rule("", setPriority(key(l.vip()...), l.restricted), dispatch(wordBits, l.dispatch[stepAllowed])),
	}
}

// source puts the register and the source address into registers. The register is in network order, as nft has the fields of a
// concatenation with ranges.
func (l *layout) source() []expr.Any {
	return []expr.Any{
		nft.Priority().Load(reg),
		&expr.Byteorder{SourceRegister: reg, DestRegister: reg, Op: expr.ByteorderHton, Len: 4, Size: 4},
		nft.SrcAddr(l.family).Load(reg + 1),
	}
}

// reject answers at once. A TCP reset isn't subject to the kernel's limit on ICMP errors, so that no client ever waits.
func (l *layout) reject() []nft.Rule {
	return []nft.Rule{
		rule("", protocol(inet.TCP), countedReset()),
		rule("", countedReject(l.family)),
	}
}

// unclaimed handles packets that no program has translated: Services, if kube-nftproxy is away for longer than its lease lasts and
// another proxy may have taken over, and addresses of services that no service port stands for. Of packets that arrive, those only
// that are to be forwarded: a program that owns such an address on this node, as a node-local DNS cache does, may answer there, and so
// may a transparent proxy to which policy routing leads.
func (l *layout) unclaimed(arrived bool) []nft.Rule {
	daddr := []nft.Field{nft.DstAddr(l.family)}
	var forwarded []expr.Any
	rules := []nft.Rule{rule("the lease has run out", l.leased(false), jump("services"))}
	if arrived {
		forwarded = destinationIsThisNode(expr.CmpOpNeq)
		rules = append(rules, rule("policy routing by mark doesn't forward it", marked(), notForwarded(), accept()))
	}
	return append(rules,
		rule("a cluster IP", in(l.clusterIPs, daddr, false), forwarded, goTo(unusedPort)),
		rule("a service address that is not in use", in(l.serviceCIDRs, daddr, false), forwarded, countedDrop()))
}

// unusedPort is the chain of packets to cluster IPs for which no port was found. They are looked for once more: before kernel 6.17
// ("netfilter: nf_tables: restart set lookup on base_seq change") who looks for an element in the moment in which a
// batch replaces it may find neither the old one nor the new one.
const unusedPort = "unused-port"

// unused are the rules of that chain. They count refused packets in a set that packets fill, not by the elements of cluster IPs: ten thousand
// counters, of which nearly all stay at 0, would take a fifth to a third of the kernel's time for a full batch. In a full set the rule does nothing.
func (l *layout) unused() []nft.Rule {
	return []nft.Rule{
		rule("a port that was replaced just then", jump("services")),
		rule("counted", count(l.unusedPorts, nft.DstAddr(l.family))),
		rule("a cluster IP without such a port", goTo(kindReject.name())),
	}
}

// clearRegister gives a packet the priority that the kernel would have given it: for IPv4 that of its type of service
// (rt_tos2priority). A priority that a process has set for its socket is lost on the first packet.
func (l *layout) clearRegister() []nft.Rule {
	rules := []nft.Rule{rule("", setPriorityTo(0))}
	if l.family == inet.IPv6 {
		return rules
	}
	// ip_tos2prio of net/ipv4/route.c, of which only two bits of the type of service count.
	const bulk, interactive, both = 0x08, 0x10, 0x18
	return append(rules,
		rule("", typeOfService(0), back()),
		rule("", typeOfService(bulk), setPriorityTo(2)),
		rule("", typeOfService(interactive), setPriorityTo(6)),
		rule("", typeOfService(both), setPriorityTo(4)))
}

// translated handles the packets that a program has given another destination.
func (l *layout) translated(o *Options) []nft.Rule {
	hairpin := in(l.hairpin, []nft.Field{nft.SrcAddr(l.family), nft.DstAddr(l.family)}, false)
	return []nft.Rule{
		askedFor(o),
		rule("an endpoint that reaches itself", hairpin, masquerade()),
	}
}

// askedFor masquerades packets that carry the mark. The bit is cleared: an encapsulated packet inherits the mark and would be
// masqueraded a second time.
func askedFor(o *Options) nft.Rule {
	return rule("asked for", unmarkPacket(o.MasqueradeMark), masquerade())
}

// classChain builds the chain of a class that has one for every number in use.
func (l *layout) classChain(o *Options, c class) *nft.Chain {
	ch := &nft.Chain{Name: c.chain()}
	switch {
	case c.kind >= kindRemember:
		saddr := nft.SrcAddr(l.family)
		timeout := expr.Dynset{Timeout: time.Duration(c.n) * time.Second}
		ch.Rules = []nft.Rule{rule("", remember(l.affinity, saddr, unix.NFT_DYNSET_OP_UPDATE, timeout))}
	case c.kind >= kindPick:
		ch.Rules = l.pick(c)
	case c.kind >= kindDirect:
		ch.Rules = l.direct(o, c.kind.route().list(), c.n)
	default:
		panic(fmt.Sprintf("class %v has no chain of its own", c))
	}
	return ch
}

// draws are the sizes from which a slot of a table is drawn, until one is filled: a table of more than exactSlots has some empty ones. More
// than four fifths of its slots are filled, so that an endpoint's share is off by a hundredth at most.
func draws(size uint32) []uint32 {
	if filled := surelyFilled(size); filled < size {
		return []uint32{size, size, size, filled}
	}
	return []uint32{size}
}

// undone is the comment of a rule for a packet whose service port a batch deleted after the packet had found its class.
const undone = "gone by now"

// fewer is the chain for a packet that drew the slot of an endpoint that a batch deleted after the packet had found its class.
func (l list) fewer() string { return "fewer-" + l.prefix() + "endpoints" }

// direct: dnat to meta l4proto . meta priority . numgen random mod n map @endpoints
func (l *layout) direct(o *Options, ls list, n uint32) []nft.Rule {
	var rules []nft.Rule
	for r := range routes {
		for _, mark := range l.masqueradeRoute(o, r) {
			if r.list() == ls {
				rules = append(rules, rule(mark.Comment, hasRoute(r), mark.Exprs))
			}
		}
	}
	rules = append(rules, rule("", keepBits(portBits)))
	for _, size := range draws(n) {
		rules = append(rules, rule(drawComment(n, size), l.toEndpoint(ls, size)))
	}
	return append(rules, rule("", goTo(ls.fewer())))
}

// first sends a packet to the endpoint of a service port that exists as long as the service port has any.
func (l *layout) first(ls list) []nft.Rule {
	return []nft.Rule{rule("", l.toEndpoint(ls, 1)), rule(undone, setPriorityTo(0))}
}

func (l *layout) toEndpoint(ls list, size uint32) []expr.Any {
	return dnat(l.family, indexed([]nft.Field{nft.L4Proto(), nft.Priority()}, size), l.endpoints[ls])
}

func drawComment(n, size uint32) string {
	if size == n {
		return ""
	}
	return "an empty slot three times"
}

// pick: meta priority set meta priority . numgen random mod n map @slots
func (l *layout) pick(c class) []nft.Rule {
	rules := []nft.Rule{rule("", keepBits(affineBits))}
	for i, size := range draws(c.n) {
		var none []expr.Any
		if i > 0 {
			none = hasNoBits(endpointBits)
		}
		rules = append(rules, rule(drawComment(c.n, size), none, setPriority(indexed([]nft.Field{nft.Priority()}, size), l.slots[c.kind.list()])))
	}
	return rules
}

// masqueradeRoute marks the packets of a route that need masquerading.
func (l *layout) masqueradeRoute(o *Options, r route) []nft.Rule {
	mark := markPacket(o.MasqueradeMark)
	pods := o.LocalPods[l.family]
	switch r {
	case routeExternal:
		return []nft.Rule{rule("from outside: replies return by this node", mark)}
	case routeCluster, routeClusterLocal:
		switch {
		case o.MasqueradeAll:
			return []nft.Rule{rule("all traffic to cluster IPs", mark)}
		case pods.known():
			return []nft.Rule{rule("not from a local pod", l.localPods(pods, true), mark)}
		}
	}
	return nil
}

// sticky sends a client to the endpoint that it had before, if that endpoint still serves it; otherwise it picks one and
// remembers it. The kernel never overwrites the data of a remembered client, hence the deletion.
func (l *layout) sticky(o *Options, r route) []nft.Rule {
	saddr := nft.SrcAddr(l.family)
	toBackend := dnat(l.family, key(nft.L4Proto(), nft.Priority()), l.backends[r.list()])
	keepTime := dispatch(blockBits, l.dispatch[stepRemember])
	return append(l.masqueradeRoute(o, r),
		rule("the service port's number", keepBits(affineBits)),
		rule("a client that was here before", setPriority(key(nft.Priority(), saddr), l.affinity)),
		rule("its time starts again", hasBits(endpointBits), keepTime),
		rule("same endpoint, if it still serves", toBackend),
		rule("it doesn't", hasBits(endpointBits), remember(l.affinity, saddr, dynsetDelete, expr.Dynset{})),
		rule("pick one", keepBits(affineBits), setPriority(key(nft.Priority()), l.draw[r.list()]), dispatch(endpointBits, l.dispatch[stepPick+step(r.list())])),
		rule("fewer by now: the first one exists", hasNoBits(endpointBits), setPriority(indexed([]nft.Field{nft.Priority()}, 1), l.slots[r.list()])),
		rule("", hasBits(endpointBits), keepTime),
		rule("", toBackend),
		rule(undone, setPriorityTo(0)))
}

// samples holds a class of every kind that has a chain for every number in use, with an exact table and a rounded one.
func (l *layout) samples() []class {
	var list []class
	for k := kindDirect; k < kindEnd; k++ {
		list = append(list, class{kind: k, n: 1})
		if k < kindRemember {
			list = append(list, class{kind: k, n: 3}, class{kind: k, n: tableSize(exactSlots + 1)})
		}
	}
	return list
}
