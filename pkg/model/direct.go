package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// With direct server return, the node at which a packet to a load-balancer or external IP, or to a node port, arrives
// passes the packet on to the node of its endpoint, unchanged. That node translates the packet, and the replies leave
// from there. So all nodes must have the same table of endpoints.

// Direct has the places of the endpoints of a service port with direct server return. All lists are sorted and free
// of duplicates.
type Direct struct {
	// Here are the endpoints on this node, Elsewhere those on other nodes: those of Cluster, and those that terminate,
	// because open connections may still have them. Endpoints without a node are in neither list.
	Here, Elsewhere []netip.AddrPort
	// Earlier has Elsewhere and the endpoints without a node. EarlierWeights are their weights; nil if they are equal.
	Earlier        []netip.AddrPort
	EarlierWeights []uint16
	// Asked is true if an annotation of the Service asks for direct server return, and false if it is the default of
	// the node. NAT is the algorithm of the service port without direct server return.
	Asked bool
	NAT   balance.Method
}

// WithoutDirect returns a service port that has direct server return as it is with NAT.
func (sp *ServicePort) WithoutDirect() *ServicePort {
	out := *sp
	out.Method, out.Direct = sp.Direct.NAT, nil
	return &out
}

// forwardDirect is the value of the annotation for direct server return. usesNAT is the effect of an invalid value,
// and of everything that prevents direct server return.
const (
	forwardDirect = "dsr"
	usesNAT       = "the Service uses NAT"
)

// forwarding is the value of the annotation, or the default of the node.
type forwarding struct {
	// direct is true with direct server return, and asked if the annotation is the reason.
	direct, asked bool
	// nat is the reason why a Service without the annotation uses NAT, although the default of the node is direct
	// server return.
	nat string
}

func (b *builder) setForwarding(name string) {
	direct := name == forwardDirect
	b.forwarding = forwarding{direct: direct, asked: direct, nat: "an annotation selects NAT"}
}

// useNAT records that the Service, or one of its ports, cannot have direct server return. This is a problem if an
// annotation asks for it.
func (b *builder) useNAT(reason string) {
	if b.asked {
		b.problem(ForwardingField, quoted(forwardDirect, reason))
	} else {
		b.nat = reason
	}
}

// checkDirect decides whether the Service can have the direct server return that it wants.
func (b *builder) checkDirect() {
	reason := b.preventsDirect()
	if reason == "" {
		return
	}
	b.direct = false
	b.useNAT(reason + "; " + usesNAT)
	if b.method.Key == balance.Chance {
		b.method = balance.Method{}
	}
}

// methodOf returns the algorithm of a port of a Service that wants direct server return. With direct server return, all
// nodes must choose the same endpoint, so Maglev replaces the random algorithm.
func (b *builder) methodOf(sp *ServicePort) balance.Method {
	m := b.method
	if m.Key == balance.Chance {
		if !b.direct || sp.Protocol == inet.SCTP || !slices.ContainsFunc(sp.Frontends, Frontend.MayBeDirect) {
			return balance.Method{}
		}
		m.Key = balance.Flow
	}
	return m
}

// limitDirect disables direct server return if the tables of the Service exceed the limit with it.
func (b *builder) limitDirect() {
	if b.slots() <= b.limits.Slots {
		return
	}
	b.direct = false
	b.useNAT(fmt.Sprintf("its tables exceed the limit of %d slots; use smaller tables and weights, or divide the "+
		"Service; %s", b.limits.Slots, usesNAT))
	for _, sp := range b.out.Ports {
		sp.Method = b.methodOf(sp)
	}
}

// preventsDirect returns the property of the Service or of the program that prevents direct server return, or "". A
// property that differs between ports or nodes is in [builder.locate].
func (b *builder) preventsDirect() string {
	switch {
	case !b.opts.Direct:
		return "the program runs without --direct-server-return"
	case b.externalLocal:
		return "externalTrafficPolicy is Local"
	case b.svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP:
		return "the Service has session affinity; use the algorithm " + balance.SourceHash + " instead"
	case b.maximum > 0:
		return "the endpoints have a connection limit"
	case b.slow > 0:
		return "the Service has slow start"
	case b.out.SpreadSilent > 0:
		return "the connections of the Service are spread"
	case len(b.ranges) > 0:
		return "the Service has port ranges"
	case b.selectsNodes:
		return "only some nodes serve the Service"
	}
	return ""
}

// The shortest prefixes of networks of nodes, for each family: the rules must also find smaller networks in them.
var shortestNodeNetwork = [...]int{inet.IPv4: 8, inet.IPv6: 52}

// ParseNodeNetworks reads the networks of all nodes: CIDRs, separated by commas.
func ParseNodeNetworks(text string) (networks [2][]netip.Prefix, err error) {
	for item := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		p, err := ParsePrefix(strings.TrimSpace(item))
		if err != nil {
			return networks, fmt.Errorf("must be CIDRs: %w", err)
		}
		f := inet.FamilyOf(p.Addr())
		if shortest := shortestNodeNetwork[f]; p.Bits() < shortest {
			return networks, fmt.Errorf("%s is too large: the shortest prefix of %s has the length %d", p, f, shortest)
		}
		networks[f] = outermost(append(networks[f], p))
	}
	return networks, nil
}

// locate sets the places of the endpoints of a service port with direct server return. It returns the property of the
// port that prevents direct server return, or "".
func (b *builder) locate(sp *ServicePort, s *selection) (reason string) {
	nat := b.method
	if nat.Key == balance.Chance {
		nat = balance.Method{}
	}
	switch {
	case !slices.ContainsFunc(sp.Frontends, Frontend.MayBeDirect):
		return ""
	case sp.Protocol == inet.SCTP:
		return "SCTP"
	case s.forCluster&(thisNodeHint|thisZoneHint) != 0:
		sp.Method = nat
		return "hints select endpoints near this node"
	}
	mayHave := func(e *endpoint) bool { return e.has(s.forCluster) || e.has(terminating) }
	earlier := func(e *endpoint) bool { return mayHave(e) && !e.has(local) }
	sp.Direct = &Direct{
		Here:           pick(s.endpoints, func(e *endpoint) bool { return mayHave(e) && e.has(local) }),
		Elsewhere:      pick(s.endpoints, func(e *endpoint) bool { return earlier(e) && !e.has(nodeless) }),
		Earlier:        pick(s.endpoints, earlier),
		EarlierWeights: sp.weightsOf(s.endpoints, earlier, false),
		Asked:          b.asked, NAT: nat,
	}
	return ""
}

// MayBeDirect reports whether direct server return applies to the frontend, if its service port has it. Direct server
// return handles each packet to an address and a port, also replies to a process that has opened a connection from
// there. So it does not apply to the primary address of this node: some load balancers use it, and the author of a
// Service can write any address into spec.externalIPs. The rules of node ports handle no packet of a known connection.
func (f Frontend) MayBeDirect() bool {
	return f.isForDirect() && !f.AtClusterIP() && !f.OnNode && !f.Local && f.Last == 0
}

// isForDirect reports whether a frontend is of a kind for which there is direct server return.
func (f Frontend) isForDirect() bool {
	return f.Kind == ExternalIP || f.Kind == LoadBalancer || f.OnAllNodes
}

// forwardingNotes returns the effect of the node's default on a Service without an annotation for direct server return.
func forwardingNotes(b *builder) []string {
	const isDefault = "direct server return is the default of this node"
	outside := func(sp *ServicePort) bool { return slices.ContainsFunc(sp.Frontends, Frontend.isForDirect) }
	switch {
	case !b.opts.DirectDefault || b.asked || !slices.ContainsFunc(b.out.Ports, outside):
		return nil
	case b.nat != "":
		return []string{isDefault + ": " + b.nat}
	}
	return []string{isDefault + ", and the Service has no annotation for it"}
}
