package oracle

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Objects are what the API server holds.
type Objects struct {
	Services     []*corev1.Service
	Slices       []*discoveryv1.EndpointSlice
	Node         *corev1.Node
	ServiceCIDRs []*networkingv1.ServiceCIDR
}

// Machine is the node on which the program runs, and how it was started.
type Machine struct {
	// Name is that of its Node.
	Name string
	// Addresses are those of its interfaces but loopback. The first of a family is the one that masquerading gives.
	Addresses []netip.Addr
	// LocalPod tells whether a packet is taken for one of a pod on this node; nil where nothing was said that could tell.
	LocalPod func(Packet) bool
	// MasqueradeAll masquerades everything to cluster IPs.
	MasqueradeAll bool
	// IgnoreExternalIPs is the feature gate AllowServiceExternalIPs=false.
	IgnoreExternalIPs bool
	// NodePortAddresses are prefixes; none means the Node's primary addresses.
	NodePortAddresses []netip.Prefix
}

// Packet is the first of a connection.
type Packet struct {
	From netip.Addr
	// Device is the interface of this node by which it comes; empty for a packet of the node's own.
	Device string
	To     netip.AddrPort
	// Protocol is empty for an ICMP echo request, which has no port.
	Protocol corev1.Protocol
}

// Outcome is what becomes of a packet.
type Outcome string

// The outcomes.
const (
	NotService Outcome = "not a service"
	Refused    Outcome = "refused"
	Dropped    Outcome = "dropped"
	Answered   Outcome = "answered"
)

// Verdict is all that may come of a packet.
type Verdict struct {
	Outcome Outcome
	// Port names the service port whose packet it is, "" if it is none's.
	Port string
	// Endpoints are those of which one gets the packet, all with the same chance, sorted; for Answered only.
	Endpoints []Endpoint
	// Affinity is for how long after its last packet a client stays with its endpoint; 0 without affinity.
	Affinity time.Duration
}

// Endpoint is one that may get a packet.
type Endpoint struct {
	netip.AddrPort
	// Sees is the address that the packet seems to come from. It is invalid where the endpoint will not have the packet,
	// because it seems to come from the endpoint itself.
	Sees netip.Addr
}

// Oracle knows the cluster.
type Oracle struct {
	machine Machine
	primary []netip.Addr // of the Node
	zone    string
	cidrs   []netip.Prefix
	claims  map[target]claim
	// affinities are the timeouts of service ports by family.
	affinities map[string]time.Duration
	inUse      map[netip.Addr]bool // cluster IPs
	endpoints  map[string][]endpoint
}

// target is a destination; it has no address if it is a node port.
type target struct {
	addr     netip.Addr
	port     uint16
	protocol corev1.Protocol
	six      bool
}

// claim is what a Service wants done with the packets to a target.
type claim struct {
	service  *corev1.Service
	port     *corev1.ServicePort
	internal bool // it is the cluster IP
	// allocated says that the address is the Service's cluster IP, whatever else it is.
	allocated bool
	// balanced says that a load balancer has the address.
	balanced bool
	sources  []netip.Prefix // those that may send; nil means all
}

// New reads the objects.
func New(o Objects, m Machine) *Oracle {
	r := &Oracle{machine: m, claims: map[target]claim{}, inUse: map[netip.Addr]bool{}, affinities: map[string]time.Duration{}, endpoints: map[string][]endpoint{}}
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
			r.readService(s)
		}
	}
	return r
}

// readNode finds the Node's primary address of each family: the first internal one, else the first external one.
func (r *Oracle) readNode(n *corev1.Node) {
	if n == nil {
		return
	}
	r.zone = n.Labels[corev1.LabelTopologyZone]
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

// Ask tells what may come of a packet.
func (r *Oracle) Ask(p Packet) Verdict {
	c, found := r.claimed(p)
	if !found {
		return r.unclaimed(p)
	}
	v := Verdict{Port: portName(c.service, c.port), Affinity: affinity(c.service)}
	if c.sources != nil && !slices.ContainsFunc(c.sources, func(s netip.Prefix) bool { return s.Contains(p.From) }) {
		v.Outcome = Dropped
		return v
	}
	all, onNode := r.choose(r.endpoints[key(c.service, c.port, p.To.Addr().Is6())])
	if len(all) == 0 {
		v.Outcome = Refused
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
	for _, e := range all {
		v.Endpoints = append(v.Endpoints, Endpoint{e.addr, r.sees(c, p, e)})
	}
	return v
}

// MayGoOn tells whether a UDP client that goes on sending from one port stays with the endpoint that it has: as long as that is
// one of the Service's that is ready or still serves, whatever policies and hints say by now. What has begun may end where it is.
func (r *Oracle) MayGoOn(p Packet, with netip.AddrPort) bool {
	c, found := r.claimed(p)
	if !found {
		return false
	}
	list := unique(r.endpoints[key(c.service, c.port, p.To.Addr().Is6())])
	return slices.ContainsFunc(list, func(e endpoint) bool { return e.addr == with && (e.ready || e.serving) })
}

// claimed finds whose packet it is. An address goes before a node port.
func (r *Oracle) claimed(p Packet) (claim, bool) {
	t := target{p.To.Addr(), p.To.Port(), p.Protocol, p.To.Addr().Is6()}
	if c, ok := r.claims[t]; ok {
		return c, true
	}
	t.addr = netip.Addr{}
	c, ok := r.claims[t]
	return c, ok && r.servesNodePorts(p.To.Addr())
}

// unclaimed: a cluster IP refuses the ports that its Service doesn't have, and what a Service may get one day is dropped.
func (r *Oracle) unclaimed(p Packet) Verdict {
	switch to := p.To.Addr(); {
	case r.inUse[to]:
		return Verdict{Outcome: Refused}
	case slices.ContainsFunc(r.cidrs, func(c netip.Prefix) bool { return c.Contains(to) }):
		return Verdict{Outcome: Dropped}
	}
	return Verdict{Outcome: NotService}
}

// local: does the policy keep the packet on this node? Each kind of address has its policy. The external one is about
// traffic that another node could have got instead; pods and processes of this node have no choice, so they reach all.
func (r *Oracle) local(c claim, p Packet) bool {
	if c.internal {
		policy := c.service.Spec.InternalTrafficPolicy
		return policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal
	}
	return externalLocal(c.service) && !r.isLocalPod(p) && !r.isNode(p)
}

// sees: a cluster IP masquerades everybody but local pods, provided that these can be told from others; an external
// address with policy Cluster everybody, one with policy Local only processes of this node. An endpoint on this node that
// reaches itself has to see the node, or it would answer itself. A node doesn't masquerade what it takes in for itself.
func (r *Oracle) sees(c claim, p Packet, e endpoint) netip.Addr {
	masquerade := !externalLocal(c.service) || r.isNode(p)
	if c.internal {
		masquerade = r.machine.MasqueradeAll || r.machine.LocalPod != nil && !r.isLocalPod(p)
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

// own is the node's address that masquerading gives.
func (r *Oracle) own(like netip.Addr) netip.Addr {
	i := slices.IndexFunc(r.machine.Addresses, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	return r.machine.Addresses[i]
}

// servesNodePorts tells whether node ports are served at an address. Without a primary address of the family, or a prefix
// of it where prefixes were given, all addresses serve.
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
