package oracle

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Objects are the objects in the API server.
type Objects struct {
	Services     []*corev1.Service
	Slices       []*discoveryv1.EndpointSlice
	Node         *corev1.Node
	ServiceCIDRs []*networkingv1.ServiceCIDR
	Pods         []*corev1.Pod
}

// Add adds an object of any kind that the oracle knows, and ignores others.
func (o *Objects) Add(object runtime.Object) {
	switch object := object.(type) {
	case *corev1.Service:
		o.Services = append(o.Services, object)
	case *discoveryv1.EndpointSlice:
		o.Slices = append(o.Slices, object)
	case *corev1.Node:
		o.Node = object
	case *networkingv1.ServiceCIDR:
		o.ServiceCIDRs = append(o.ServiceCIDRs, object)
	case *corev1.Pod:
		o.Pods = append(o.Pods, object)
	}
}

// Machine is the node on which the program runs, with the program's settings.
type Machine struct {
	// Name is the name of its Node.
	Name string
	// Addresses are those of its interfaces except loopback. Masquerading uses the first one of a family.
	Addresses []netip.Addr
	// LocalPod reports whether the program takes a packet for one of a local pod; nil without a setting for that.
	LocalPod func(Packet) bool
	// Pods are the prefixes by which the program recognises pods, if it does so by addresses.
	Pods [2]netip.Prefix
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
	// IgnoreExternalIPs is the feature gate AllowServiceExternalIPs=false.
	IgnoreExternalIPs bool
	// DirectServerReturn is the flag with this name, DirectByDefault is true for its value all, and NodeNetworks are the
	// prefixes of the flag direct-server-return-node-cidrs.
	DirectServerReturn bool
	DirectByDefault    bool
	NodeNetworks       []netip.Prefix
	// NodePortAddresses are prefixes; none means the Node's primary addresses.
	NodePortAddresses []netip.Prefix
	// RefuseUnusedPorts and AnswerPing are the flags with these names; empty for their defaults. Out returns the interface of this node for packets to an
	// address; nil if RefuseUnusedPorts is not "all".
	RefuseUnusedPorts, AnswerPing string
	Out                           func(netip.Addr) string
}

// Packet is the first packet of a connection.
type Packet struct {
	From netip.Addr
	// Device is the interface of this node by which it arrives; empty for a packet of the node itself.
	Device string
	To     netip.AddrPort
	// Protocol is empty for an ICMP echo request, which has no port.
	Protocol corev1.Protocol
	// Port is the source port, or 0 if it is unknown.
	Port uint16
}

// Outcome is the result for a packet.
type Outcome string

// The outcomes.
const (
	NotService Outcome = "not a service"
	Refused    Outcome = "refused"
	Dropped    Outcome = "dropped"
	Answered   Outcome = "answered"
	// Echoed: an echo reply from the address.
	Echoed Outcome = "echoed"
)

// Verdict holds all possible results for a packet.
type Verdict struct {
	Outcome Outcome
	// Port names the packet's service port, or "".
	Port string
	// Ranged is true if the service port has ranges, so that the packet keeps its port.
	Ranged bool
	// Endpoints are the possible endpoints, sorted; for Answered only. Their probabilities are in proportion to their weights.
	Endpoints []Endpoint
	// Hashed is true if a hash of the client selects the endpoint. Chosen is then the index of the endpoint of a client without an earlier one, or -1
	// if the hash needs an unknown source port.
	Hashed bool
	Chosen int
	// Affinity is the time after its last packet for which a client stays with its endpoint; 0 without affinity.
	Affinity time.Duration
	// Maximum is the connection limit of each endpoint, or 0. AtMaximum is the outcome while all endpoints have it.
	Maximum   int
	AtMaximum Outcome
}

// ForNewClient returns the part of a verdict that is possible for a client without an earlier endpoint: the endpoint of its hash.
func (v Verdict) ForNewClient() Verdict {
	if v.Hashed && v.Chosen >= 0 {
		v.Endpoints = v.Endpoints[v.Chosen : v.Chosen+1]
		v.Chosen = 0
	}
	return v
}

// Endpoint is a possible endpoint of a packet.
type Endpoint struct {
	netip.AddrPort
	// Sees is the source address that the endpoint sees. It is invalid if the endpoint drops the packet because it has the
	// endpoint's own address as source.
	Sees   netip.Addr
	Weight int
	// Passed is true if the node passes the packet on, unchanged, to the endpoint's node.
	Passed bool
}

// Oracle holds the state of the cluster.
type Oracle struct {
	machine Machine
	primary []netip.Addr // of the Node
	zone    string
	labels  labels.Set // of the Node
	cidrs   []netip.Prefix
	claims  map[target]claim
	// affinities are the timeouts of service ports by family.
	affinities map[string]time.Duration
	inUse      map[netip.Addr]bool // cluster IPs
	endpoints  map[string][]endpoint
	services   []*corev1.Service
	ranges     map[rangePlace][]rangeClaim
	// firstPorts has the first port of the Service for each service port with ranges.
	firstPorts map[string]string
}

// target is a destination. It has no address for a node port.
type target struct {
	addr     netip.Addr
	port     uint16
	protocol corev1.Protocol
	six      bool
}

// claim is the treatment that a Service wants for packets to a target.
type claim struct {
	service  *corev1.Service
	port     *corev1.ServicePort
	internal bool // for the cluster IP
	// allocated is true if the address is the Service's cluster IP, even if it is of another kind, too.
	allocated bool
	// balanced is true if a load balancer has the address.
	balanced bool
	// onNode is true for a node port, and for a host port without a hostIP. ofPod is true for a host port.
	onNode, ofPod bool
	// sources are the allowed sources; nil means all. denied are never allowed.
	sources, denied []netip.Prefix
}

// New returns an oracle for the objects.
func New(o Objects, m Machine) *Oracle {
	r := &Oracle{
		machine: m, claims: map[target]claim{}, inUse: map[netip.Addr]bool{}, affinities: map[string]time.Duration{}, endpoints: map[string][]endpoint{},
		ranges: map[rangePlace][]rangeClaim{}, firstPorts: map[string]string{},
	}
	r.readNode(o.Node)
	for _, c := range o.ServiceCIDRs {
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				r.cidrs = append(r.cidrs, p)
			}
		}
	}
	for _, s := range o.Slices {
		r.readSlice(s)
	}
	for _, s := range o.Services {
		if ours(s) {
			r.services = append(r.services, s)
			r.readService(s)
		}
	}
	for _, p := range o.Pods {
		r.readPod(p)
	}
	r.settleRedirects()
	r.settleClusterIPs()
	r.settleRanges()
	r.settleSinglePorts()
	return r
}

// readNode finds the Node's primary address of each family: the first internal one, else the first external one.
func (r *Oracle) readNode(n *corev1.Node) {
	if n == nil {
		return
	}
	r.zone, r.labels = n.Labels[corev1.LabelTopologyZone], n.Labels
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			known := slices.ContainsFunc(r.primary, func(p netip.Addr) bool { return p.Is4() == addr.Is4() })
			if a.Type == kind && err == nil && !known {
				r.primary = append(r.primary, addr)
			}
		}
	}
}

// Ask returns the possible results for a packet.
func (r *Oracle) Ask(p Packet) Verdict {
	c, found := r.claimed(p)
	if !found {
		return r.unclaimed(p)
	}
	v := Verdict{Port: portName(c.service, c.port), Ranged: c.ranged(), Affinity: affinity(c.service)}
	has := func(s netip.Prefix) bool { return s.Contains(p.From) }
	if c.sources != nil && !slices.ContainsFunc(c.sources, has) || slices.ContainsFunc(c.denied, has) {
		v.Outcome = Dropped
		return v
	}
	all, onNode := r.choose(r.listOf(key(c.service, c.port, p.To.Addr().Is6())))
	if len(all) == 0 {
		if v.Outcome = Refused; r.asleep(c.service) {
			v.Outcome = Dropped
		}
		return v
	}
	if r.local(c, p) {
		all = onNode
	}
	if len(all) == 0 {
		v.Outcome = Dropped
		return v
	}
	v.Outcome = Answered
	v.Maximum, v.AtMaximum = maximum(c.service)
	for _, e := range all {
		v.Endpoints = append(v.Endpoints, Endpoint{c.at(e.addr, p), r.sees(c, p, e), e.weight, r.passes(c, p, e)})
	}
	var a Algorithm
	if a, v.Hashed = algorithm(c.service, len(all), r.hashes(c, p.To.Addr().Is6())); v.Hashed {
		v.Chosen = -1
		if !a.Ports || p.Port != 0 {
			v.Chosen = a.Endpoint(netip.AddrPortFrom(p.From, p.Port), addrs(all), weights(all))
		}
	}
	return v
}

// asleep: a Service that scales to zero holds packets while none of its ports has an endpoint, in any family (docs/scale-to-zero.md). The oracle has
// no clock: after two minutes, the Service refuses them.
func (r *Oracle) asleep(s *corev1.Service) bool {
	value, given := s.Annotations["kube-nftproxy.io/scale-to-zero"]
	if !given {
		value = s.Annotations["service.cilium.io/scale-to-zero"]
	}
	if value != "true" {
		return false
	}
	for i := range s.Spec.Ports {
		for _, a := range clusterIPs(s) {
			if all, _ := r.choose(r.endpoints[key(s, &s.Spec.Ports[i], a.Is6())]); len(all) > 0 {
				return false
			}
		}
	}
	return true
}

// MayGoOn reports whether a UDP client that keeps sending from one port stays with its endpoint: this is so while the endpoint
// belongs to the Service and is ready or serving, regardless of policies and hints. An existing flow may stay.
func (r *Oracle) MayGoOn(p Packet, with netip.AddrPort) bool {
	c, found := r.claimed(p)
	if !found {
		return false
	}
	list := unique(r.listOf(key(c.service, c.port, p.To.Addr().Is6())))
	return slices.ContainsFunc(list, func(e endpoint) bool { return c.at(e.addr, p) == with && (e.ready || e.serving) })
}

// claimed returns the claim for a packet. A single port of an address takes precedence over a range of a cluster IP or
// load-balancer IP, that over a node port, and that over a range of an external IP.
func (r *Oracle) claimed(p Packet) (claim, bool) {
	t := target{p.To.Addr(), p.To.Port(), p.Protocol, p.To.Addr().Is6()}
	if c, ok := r.claims[t]; ok && !r.losesToNodePort(c, t) {
		return c, true
	}
	if c, ok := r.inRange(p); ok && (c.allocated || c.balanced) {
		return c, true
	}
	t.addr = netip.Addr{}
	if c, ok := r.claims[t]; ok && r.servesNodePorts(p.To.Addr()) {
		return c, true
	}
	return r.inRange(p)
}

// unclaimed: a cluster IP rejects unused ports, and packets to unassigned addresses of a ServiceCIDR are dropped.
func (r *Oracle) unclaimed(p Packet) Verdict {
	switch to := p.To.Addr(); {
	case r.echoes(p):
		return Verdict{Outcome: Echoed}
	case r.inUse[to], r.refuses(p):
		return Verdict{Outcome: Refused}
	case slices.ContainsFunc(r.cidrs, func(c netip.Prefix) bool { return c.Contains(to) }):
		return Verdict{Outcome: Dropped}
	}
	return Verdict{Outcome: NotService}
}

// local reports whether the policy keeps the packet on this node. Each kind of address has its policy. The external policy
// applies to traffic that could reach another node instead; pods and processes of this node have no choice, so they reach all
// endpoints.
func (r *Oracle) local(c claim, p Packet) bool {
	if c.internal {
		policy := c.service.Spec.InternalTrafficPolicy
		return policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal
	}
	return externalLocal(c.service) && !r.isLocalPod(p) && !r.isNode(p)
}

// sees returns the source that the endpoint sees. A cluster IP masquerades all clients except local pods, if these can be
// recognised; an external address with policy Cluster masquerades all, one with policy Local only processes of this node. An
// endpoint on this node that reaches itself must see the node, or it would reply to itself. A node does not masquerade packets to
// itself. With direct server return, an endpoint on this node sees all clients except processes of this node. A pod sees all
// clients of its host ports except itself.
func (r *Oracle) sees(c claim, p Packet, e endpoint) netip.Addr {
	masquerade := !externalLocal(c.service) || r.isNode(p)
	switch {
	case c.internal:
		masquerade = r.machine.MasqueradeAll || r.machine.LocalPod != nil && !r.isLocalPod(p)
	case r.direct(c, p.To.Addr()):
		masquerade = r.isNode(p) || !e.local
	case c.ofPod:
		masquerade = false
	}
	toItself := e.addr.Addr() == p.From && !r.isNode(p)
	switch {
	case r.isOwn(e.addr.Addr()) && !r.isNode(p):
		return p.From
	case masquerade || toItself && e.local:
		return r.own(p.From)
	case toItself:
		return netip.Addr{}
	}
	return p.From
}

func (r *Oracle) isLocalPod(p Packet) bool {
	return r.machine.LocalPod != nil && !r.isNode(p) && r.machine.LocalPod(p)
}

func (r *Oracle) isNode(p Packet) bool { return r.isOwn(p.From) }

func (r *Oracle) isOwn(a netip.Addr) bool { return slices.Contains(r.machine.Addresses, a) }

// own returns the node's address for masquerading.
func (r *Oracle) own(like netip.Addr) netip.Addr {
	i := slices.IndexFunc(r.machine.Addresses, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	return r.machine.Addresses[i]
}

// servesNodePorts reports whether an address serves node ports. If the family has no primary address, or no prefix in a given
// list, all addresses serve.
func (r *Oracle) servesNodePorts(a netip.Addr) bool {
	if !r.isOwn(a) {
		return false
	}
	from := r.machine.NodePortAddresses
	if len(from) == 0 {
		for _, p := range r.primary {
			from = append(from, netip.PrefixFrom(p, p.BitLen()))
		}
	}
	family := func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() }
	return !slices.ContainsFunc(from, family) || slices.ContainsFunc(from, func(p netip.Prefix) bool { return p.Contains(a) })
}
