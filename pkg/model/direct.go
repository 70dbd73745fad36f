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
}

// forwardDirect is the value of the annotation for direct server return. usesNAT is the effect of an invalid value,
// and of everything that prevents direct server return.
const (
	forwardDirect = "dsr"
	usesNAT       = "the Service uses NAT"
)

func (b *builder) setForwarding(name string) { b.direct = name == forwardDirect }

// checkDirect adds a problem if the Service wants direct server return, and cannot have it. With direct server
// return, all nodes must choose the same endpoint, so Maglev replaces the random algorithm.
func (b *builder) checkDirect() {
	if !b.direct {
		return
	}
	reason := b.preventsDirect()
	if reason != "" {
		b.direct = false
		b.problem(ForwardingField, quoted(forwardDirect, reason+"; "+usesNAT))
	}
	switch {
	case b.method.Key != balance.Chance:
	case b.direct:
		b.method.Key = balance.Flow
	default:
		b.method = balance.Method{}
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
	switch {
	case !slices.ContainsFunc(sp.Frontends, func(f Frontend) bool { return f.MayBeDirect() }):
		return ""
	case sp.Protocol == inet.SCTP:
		return "SCTP"
	case sp.Method.Key == balance.Chance:
		return "endpoints are chosen at random"
	case s.forCluster&(thisNodeHint|thisZoneHint) != 0:
		return "hints select endpoints near this node"
	}
	mayHave := func(e *endpoint) bool { return e.has(s.forCluster) || e.has(terminating) }
	earlier := func(e *endpoint) bool { return mayHave(e) && !e.has(local) }
	sp.Direct = &Direct{
		Here:           pick(s.endpoints, func(e *endpoint) bool { return mayHave(e) && e.has(local) }),
		Elsewhere:      pick(s.endpoints, func(e *endpoint) bool { return earlier(e) && !e.has(nodeless) }),
		Earlier:        pick(s.endpoints, earlier),
		EarlierWeights: sp.weightsOf(s.endpoints, earlier, false),
	}
	return ""
}

// MayBeDirect reports whether direct server return applies to the frontend, if its service port has it. Direct server
// return handles each packet to an address and a port, also replies to a process that has opened a connection from
// there. So it does not apply to the primary address of this node: some load balancers use it, and the author of a
// Service can write any address into spec.externalIPs. The rules of node ports handle no packet of a known connection.
func (f *Frontend) MayBeDirect() bool {
	return (f.Kind == ExternalIP || f.Kind == LoadBalancer || f.OnAllNodes) &&
		!f.AtClusterIP() && !f.OnNode && !f.Local && f.Last == 0
}
