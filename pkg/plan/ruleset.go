package plan

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Hook priorities: DNAT and masquerading stand where other software expects a service proxy to have them; what nobody has
// translated by then is looked at once more, in a nat chain too, so that no established connection pays for it.
const (
	dstnat     = -100
	srcnat     = 100
	afterwards = 10
)

// table builds the constant part of one family's table.
func (l *layout) table(o *Options) *nft.Table {
	chains := []*nft.Chain{
		base("prerouting", unix.NF_INET_PRE_ROUTING, dstnat, "packets that arrive",
			rule("", l.leased(true), jump("services"))),
		base("output", unix.NF_INET_LOCAL_OUT, dstnat, "packets of this node",
			rule("", l.leased(true), jump("services"))),
		base("prerouting-unclaimed", unix.NF_INET_PRE_ROUTING, dstnat+afterwards, "arrived, and nobody has translated them",
			l.unclaimed(destinationIsThisNode(expr.CmpOpNeq))...),
		base("output-unclaimed", unix.NF_INET_LOCAL_OUT, dstnat+afterwards, "of this node, and nobody has translated them",
			l.unclaimed(nil)...),
		base("postrouting", unix.NF_INET_POST_ROUTING, srcnat, "masquerading",
			rule("", dnatted(), goTo("translated")), askedFor(o)),
		{Name: "translated", Comment: "packets with another destination than they came with", Rules: l.translated(o)},
		{Name: "services", Comment: "finds what a packet's destination stands for", Rules: l.services(o)},
		{Name: unusedPort, Comment: "a cluster IP without such a port", Rules: l.unused()},
		{Name: kindExternalLocal.name(), Comment: "external address with policy Local", Rules: l.externalLocal(o, scopeVIP)},
		{Name: "short-circuit", Comment: "local pods and this node reach every endpoint",
			Rules: []nft.Rule{l.next(scopeVIP, l.scopes[scopeVIP].shortCircuit, stepLocal)}},
		{Name: kindNodePortExternalLocal.name(), Comment: "node port with policy Local", Rules: l.externalLocal(o, scopeNodePort)},
		{Name: "nodeport-short-circuit", Comment: "local pods and this node reach every endpoint",
			Rules: []nft.Rule{l.next(scopeNodePort, l.scopes[scopeNodePort].shortCircuit, stepLocal)}},
		{Name: kindFirewall.name(), Comment: "load-balancer address with source ranges", Rules: l.firewall()},
		{Name: kindReject.name(), Comment: "nobody there: say so at once", Rules: l.reject()},
		{Name: kindDrop.name(), Comment: "endpoints exist, but not for this traffic", Rules: []nft.Rule{rule("", countedDrop())}},
	}
	return &nft.Table{Family: l.nf, Name: TableName, Sets: l.sets(), Chains: chains, Comment: "Kubernetes services", Locked: o.LockTables}
}

func base(name string, hook uint32, priority int32, comment string, rules ...nft.Rule) *nft.Chain {
	return &nft.Chain{Name: name, Comment: comment, Type: "nat", Hook: hook, Priority: priority, Rules: rules}
}

// leased matches, for packets of the protocols that Services have, while the lease lasts, or once it has run out.
func (l *layout) leased(lasts bool) []expr.Any {
	return in(l.lease, []nft.Field{nft.L4Proto()}, !lasts)
}

// services: the class of an address, else the class of a node port.
func (l *layout) services(o *Options) []nft.Rule {
	vip, np := &l.scopes[scopeVIP], &l.scopes[scopeNodePort]
	nodePort := setPriority(key(np.key...), np.classes)
	rules := []nft.Rule{l.next(scopeVIP, vip.classes, stepFirst)}
	if !o.AnyNodeAddress[l.family] {
		onNode := in(l.nodeAddresses, []nft.Field{nft.DstAddr(l.nf)}, false)
		return append(rules, rule("", onNode, nodePort, dispatch(l.dispatch[stepFirst])))
	}
	loopback := netip.MustParsePrefix([...]string{"127.0.0.0/8", "::1/128"}[l.family])
	return append(rules, rule("", destinationIsThisNode(expr.CmpOpEq), address(nft.DstAddr(l.nf), expr.CmpOpNeq, loopback),
		nodePort, dispatch(l.dispatch[stepFirst])))
}

// next: meta priority set FRONTEND map @classes meta priority vmap @dispatch
func (l *layout) next(s scope, classes *nft.Set, st step) nft.Rule {
	return rule("", setPriority(key(l.scopes[s].key...), classes), dispatch(l.dispatch[st]))
}

// externalLocal sends local pods and this node to any endpoint, and everybody else to local ones. Only this node's own
// traffic is masqueraded: its source address may be one that the endpoint's node can't answer to through here.
func (l *layout) externalLocal(o *Options, s scope) []nft.Rule {
	shortCircuit := goTo(s.prefix() + "short-circuit")
	var rules []nft.Rule
	if pods := o.LocalPods[l.family]; pods.known() {
		rules = append(rules, rule("a local pod", l.localPods(pods, false), shortCircuit))
	}
	return append(rules,
		rule("this node", sourceIsThisNode(), markPacket(o.MasqueradeMark), shortCircuit),
		l.next(s, l.scopes[s].local, stepLocal))
}

// localPods matches packets that come from local pods, or with negate those that don't.
func (l *layout) localPods(p LocalPods, negate bool) []expr.Any {
	op := expr.CmpOpEq
	if negate {
		op = expr.CmpOpNeq
	}
	if p.Prefix.IsValid() {
		return address(nft.SrcAddr(l.nf), op, p.Prefix)
	}
	return inputInterface(op, p.Interface, p.InterfacePrefix)
}

func (l *layout) firewall() []nft.Rule {
	vip := &l.scopes[scopeVIP]
	source := append(append([]nft.Field{}, vip.key...), nft.SrcAddr(l.nf))
	return []nft.Rule{
		rule("not in loadBalancerSourceRanges", in(l.allowedSources, source, true), countedDrop()),
		l.next(scopeVIP, vip.restricted, stepAllowed),
	}
}

// reject answers at once. A TCP reset isn't subject to the kernel's limit on ICMP errors, so that no client ever waits.
func (l *layout) reject() []nft.Rule {
	return []nft.Rule{
		rule("", protocol(unix.IPPROTO_TCP), countedReset()),
		rule("", countedReject(l.nf)),
	}
}

// unclaimed handles what nobody has translated: Services, if kube-nftproxy is gone for longer than its lease lasts and
// another proxy may have taken over, and addresses of services that no service port stands for. Forwarded packets only:
// who owns such an address on this node, as a node-local DNS cache does, may answer there.
func (l *layout) unclaimed(forwarded []expr.Any) []nft.Rule {
	daddr := []nft.Field{nft.DstAddr(l.nf)}
	return []nft.Rule{
		rule("the lease has run out", l.leased(false), jump("services")),
		rule("a cluster IP", in(l.clusterIPs, daddr, false), forwarded, goTo(unusedPort)),
		rule("a service address that is not in use", in(l.serviceCIDRs, daddr, false), forwarded, countedDrop()),
	}
}

// unusedPort is the chain of packets to cluster IPs for which no port was found. They are looked for once more: before kernel 6.17
// ("netfilter: nf_tables: restart set lookup on base_seq change") who looks for an element in the moment in which a
// batch replaces it may find neither the old one nor the new one.
const unusedPort = "unused-port"

// What is refused is counted in a set that packets fill, not by the elements of cluster IPs: ten thousand counters that nearly all stay
// at 0 would take a fifth to a third of the kernel's time for a full batch. In a set that is full the rule does nothing.
func (l *layout) unused() []nft.Rule {
	return []nft.Rule{
		rule("a port that was replaced just then", jump("services")),
		rule("counted", count(l.unusedPorts, nft.DstAddr(l.nf))),
		rule("a cluster IP without such a port", goTo(kindReject.name())),
	}
}

// translated handles the packets that somebody has given another destination.
func (l *layout) translated(o *Options) []nft.Rule {
	hairpin := in(l.hairpin, []nft.Field{nft.SrcAddr(l.nf), nft.DstAddr(l.nf)}, false)
	return []nft.Rule{
		rule("the scratch register is not left behind", clearPriority()),
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
	switch c.kind.stage() {
	case stageDirect:
		ch.Rules = l.direct(o, c.kind.scope(), c.kind.route(), c.n)
	case stageAffinity:
		ch.Rules = l.sticky(o, c.kind.scope(), c.kind.route(), time.Duration(c.n)*time.Second)
	case stagePick:
		ch.Rules = l.pick(c)
	default:
		panic(fmt.Sprintf("class %v has no chain of its own", c))
	}
	return ch
}

// fewer is the comment of a rule for a packet that found its class just before a batch came with fewer endpoints, and drew one
// that has gone: the first one is there.
const fewer = "fewer by now"

// direct: dnat to FRONTEND . numgen random mod n map @endpoints
func (l *layout) direct(o *Options, s scope, r route, n uint32) []nft.Rule {
	sc := &l.scopes[s]
	rules := append(l.masqueradeRoute(o, r), rule("", dnat(l.nf, indexed(sc.key, n), sc.endpoints[r.list()])))
	if n == 1 {
		return rules
	}
	return append(rules, rule(fewer, dnat(l.nf, indexed(sc.key, 1), sc.endpoints[r.list()])))
}

// pick: meta priority set FRONTEND . numgen random mod n map @slots
func (l *layout) pick(c class) []nft.Rule {
	s := &l.scopes[c.kind.scope()]
	slots := s.slots[c.kind.list()]
	rules := []nft.Rule{rule("", setPriority(indexed(s.key, c.n), slots))}
	if c.n == 1 {
		return rules
	}
	return append(rules, rule(fewer, hasPriority(c.number()), setPriority(indexed(s.key, 1), slots)))
}

// masqueradeRoute marks the packets of a route that need masquerading.
func (l *layout) masqueradeRoute(o *Options, r route) []nft.Rule {
	mark := markPacket(o.MasqueradeMark)
	pods := o.LocalPods[l.family]
	switch r {
	case routeExternal:
		return []nft.Rule{rule("", mark)}
	case routeCluster, routeClusterLocal:
		switch {
		case o.MasqueradeAll:
			return []nft.Rule{rule("", mark)}
		case pods.known():
			return []nft.Rule{rule("not from a local pod", l.localPods(pods, true), mark)}
		}
	}
	return nil
}

// The scratch register holds a service's id in its upper half and, once an endpoint is known, that endpoint's id within
// the service in its lower half; 0 is no endpoint's.
const (
	serviceBits  = 0xffff0000
	endpointBits = 0x0000ffff
)

// sticky sends a client to the endpoint that it had before, if that endpoint still serves it; otherwise it picks one and
// remembers it. The kernel never overwrites the data of a remembered client, hence delete before update.
func (l *layout) sticky(o *Options, s scope, r route, timeout time.Duration) []nft.Rule {
	sc := &l.scopes[s]
	saddr := nft.SrcAddr(l.nf)
	update := expr.Dynset{Timeout: timeout}
	toBackend := dnat(l.nf, key(nft.L4Proto(), nft.Priority()), l.backends[r.list()])
	return append(l.masqueradeRoute(o, r),
		rule("the service's id", setPriority(key(sc.key...), sc.affinity)),
		rule("a client that was here before", setPriority(key(nft.Priority(), saddr), l.affinity)),
		rule("its time starts anew", hasEndpointID(), remember(l.affinity, saddr, unix.NFT_DYNSET_OP_UPDATE, update)),
		rule("same endpoint, if it still serves", toBackend),
		rule("otherwise pick one", setPriority(key(sc.key...), sc.draw[r.list()]), dispatch(l.dispatch[stepPick])),
		rule("", remember(l.affinity, saddr, dynsetDelete, expr.Dynset{})),
		rule("", remember(l.affinity, saddr, unix.NFT_DYNSET_OP_UPDATE, update)),
		rule("", toBackend))
}

// samples holds a class of every kind that has a chain for every number in use.
func (l *layout) samples() []class {
	var list []class
	for s := range scopes {
		for r := range routes {
			list = append(list, class{directKind(s, r), 1}, class{affinityKind(s, r), 1})
		}
		for ls := range lists {
			list = append(list, class{pickKind(s, ls), 1})
		}
	}
	return list
}
