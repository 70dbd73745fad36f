package plan

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Addresses have behaviours apart from their service ports. Each behaviour has a set with its addresses, and a rule in
// the chains for packets that no program has translated. The sets and rules exist only with the options for them.
//
// No rule affects an address that an interface of this node has: the kernel itself, or a program, answers there.
// Packets to the other nodes' addresses look like packets to an address that is routed to this node. So for a selection
// that may contain such addresses (RefuseLoops), the rules refuse only packets in a routing loop. These would leave by
// the interface by which they arrived.

// vipRules returns the rules for packets that arrive, or for packets of this node.
//
// Only the protocols of Services are refused, and only while the lease lasts: if another program takes over, these
// rules refuse no packets.
func (l *layout) vipRules(o *Options, arrived bool) (rules []nft.Rule) {
	daddr, elsewhere := []nft.Field{nft.DstAddr(l.family)}, destinationIsThisNode(expr.CmpOpNeq)
	if l.pinged != nil {
		rules = append(rules, rule("ping", echoRequest(l.family), in(l.pinged, daddr, false), elsewhere,
			dnatAddress(l.family, key(nft.L4Proto()), l.pingHost)))
	}
	if l.refused != nil && (arrived || !o.RefuseLoops) {
		comment, loops := "a load-balancer or external IP", []expr.Any(nil)
		if o.RefuseLoops {
			comment, loops = "a load-balancer or external IP in a routing loop", inLoop()
		}
		rules = append(rules,
			rule(comment, in(l.refused, daddr, false), l.leased(true), elsewhere, loops, goTo(unusedPort)))
	}
	return rules
}

// unusedComment describes the packets of the chain unused-port.
func unusedComment(o *Options) string {
	if o.RefuseUnused {
		return "a Service's address without such a port"
	}
	return "a cluster IP without such a port"
}

// pingHosts returns the element with the address of this node that answers echo requests: the first given address that
// other hosts can reach.
func (l *layout) pingHosts(addrs []netip.Addr) []nft.Element {
	at := slices.IndexFunc(addrs, netip.Addr.IsGlobalUnicast)
	if at < 0 {
		return nil
	}
	key := nft.Value{}.OnlyProto(icmpOf(l.family))
	return []nft.Element{{Set: l.pingHost, Key: key, Data: nft.Value{}.Addr(addrs[at])}}
}

// behaviourElements adds the votes of a frontend for and against the behaviours of its address. Only a frontend that
// has its key votes: a Service without a port at an address may not change the behaviour of the address.
func (l *layout) behaviourElements(p *port, f *model.Frontend, to *wants) {
	ping := f.Ping
	if ping == model.WhileServing {
		if ping = model.Neutral; p.serves(f) {
			ping = model.For
		}
	}
	for _, v := range [...]struct {
		set *nft.Set
		is  model.Vote
	}{{l.refused, f.RefuseUnused}, {l.pinged, ping}} {
		switch {
		case v.set == nil:
		case v.is == model.For:
			to.vote(v.set, nft.Value{}.Addr(f.Addr))
		case v.is == model.Against:
			to.contra = append(to.contra, nft.ID{Set: v.set, Key: nft.Value{}.Addr(f.Addr)})
		}
	}
}

// serves reports whether a new connection to a frontend would reach an endpoint. With policy Local, it must be an
// endpoint on this node.
func (p *port) serves(f *model.Frontend) bool {
	return p.HasEndpoints && (p.number != 0 || f.Kind == model.ClusterIP) && len(p.endpointsOf(f)) > 0
}

// echoRequest: icmp type echo-request, or icmpv6 type echo-request
func echoRequest(f inet.Family) []expr.Any {
	request := [...]byte{inet.IPv4: 8, inet.IPv6: 128}[f]
	return append(protocol(icmpOf(f)), transport(0), test(expr.CmpOpEq, request))
}

// dnatAddress: dnat ip to KEY map @set
func dnatAddress(f inet.Family, keyWords []expr.Any, s *nft.Set) []expr.Any {
	return append(keyWords, lookup(s),
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.Number()), RegAddrMin: reg, RegAddrMax: reg})
}

// inLoop: fib daddr . iif oif exists
func inLoop() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, ResultOIF: true, FlagDADDR: true, FlagIIF: true, FlagPRESENT: true},
		test(expr.CmpOpEq, word(1)...),
	}
}

// Behaviours returns the addresses of the Service that refuse connections to unused ports, apart from cluster IPs, and
// the addresses that answer echo requests. Both lists are sorted.
func (s PlannedService) Behaviours() (refused, pinged []netip.Addr) {
	p := s.planner
	s.eachFrontend(func(c claim) {
		if p.claims.winner(c.frontend.Key).service != s.service {
			return
		}
		l := p.rules.layouts[c.port.Family]
		has := func(s *nft.Set) bool {
			id := nft.ID{Set: s, Key: nft.Value{}.Addr(c.frontend.Addr)}
			return s != nil && c.frontend.Addr.IsValid() && p.shared[id].wanted()
		}
		if has(l.refused) {
			refused = append(refused, c.frontend.Addr)
		}
		if has(l.pinged) {
			pinged = append(pinged, c.frontend.Addr)
		}
	})
	for _, list := range []*[]netip.Addr{&refused, &pinged} {
		slices.SortFunc(*list, netip.Addr.Compare)
		*list = slices.Compact(*list)
	}
	return refused, pinged
}
