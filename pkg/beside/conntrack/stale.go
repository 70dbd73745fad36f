package conntrack

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Flow has the fields of an entry of the kernel's table that determine whether the flow is stale.
type Flow struct {
	Protocol inet.Protocol
	// Zone is the conntrack zone of either direction; 0 is the default zone.
	Zone uint16
	// ID is the kernel's number of the entry.
	ID uint32
	// Source and Destination are the addresses of the first packet, before any translation.
	Source, Destination netip.AddrPort
	// Server is the source of replies: the destination of packets after translation. Client is their destination: the
	// source of packets, unless they are masqueraded.
	Server, Client netip.AddrPort
	// Replied is true after the first reply.
	Replied bool
	// Unconfirmed is true for a TCP connection whose server has answered, until the client confirms the answer.
	Unconfirmed bool
	// Established is true for a TCP connection after the handshake, until one side closes it.
	Established bool
	// Closed is true for a TCP connection that both sides have closed, or one has reset.
	Closed bool
	// Unacknowledged is true for a TCP connection in which data of either side is not acknowledged yet.
	Unacknowledged bool
	// Expires is the number of seconds until the kernel deletes the entry, if no further packet of the flow follows; 0
	// if this is unknown.
	Expires uint32
	// DNAT is the kernel's flag IPS_DST_NAT. ipvs translates packets without setting it.
	DNAT bool
}

// translated reports whether the destination of the flow's packets is translated.
func (f *Flow) translated() bool { return f.DNAT || f.Server != f.Destination }

// Desired is the wanted state of some frontends: the frontends that have changed since the last pass, or all
// frontends. Flows to other destinations are never stale. With a range of ports, a Desired must also have all single
// ports of the same address and protocol: these take precedence. Do not change a Desired after passing it to a
// [Reconciler].
type Desired struct {
	// Urgent is true for a pass that must be made soon, also if it is made only for flows without replies of
	// protocols other than UDP. Set it with all frontends after the first sync and after a time without rules. Set it
	// with all node ports when an address starts to serve node ports. If a flow began without rules, the kernel does
	// not evaluate the rules for its later packets. A UDP flow stays untranslated while the client sends, and a TCP
	// flow while the client repeats its SYN. See kubernetes issue 126468.
	Urgent bool
	// Nodes are the addresses of this node that serve node ports, sorted. A flow to another address does not belong to
	// a node port, even if its port is the same. (kube-proxy compares only the port.) Networks are those of all nodes,
	// whose node ports may have direct server return, see [plan.Flows.NodeNetworks].
	Nodes    [2][]netip.Addr
	Networks [2][]netip.Prefix

	frontends map[model.Key]frontend
	// namespaces are the namespaces of the request; "" stands for none.
	namespaces map[string]struct{}
	// count is the number of frontends by family, others the number of frontends of protocols other than UDP, gone
	// the number of deleted frontends.
	count        [2]int
	others, gone int
	// terminates is true if a frontend may have departed endpoints.
	terminates bool
	// ranges is the number of frontends that are ranges of ports. The first search makes index, and the first search
	// after a change makes it again.
	ranges int
	index  *rangeIndex
}

type frontend struct {
	endpoints []netip.AddrPort
	// sources restricts the clients that may open flows; nil admits all.
	sources *model.Sources
	// departed are the endpoints to which TCP connections may not continue; nil for none.
	departed *Departed
	gone     bool
	// exempt is true if the state only excludes this frontend from a range.
	exempt bool
	// ranged is true for a range of ports: all endpoints have port 0, and flows keep their port. A range that is
	// preferred takes precedence over node ports.
	ranged, preferred bool
}

// serves reports whether a flow with an original destination may continue to an endpoint.
func (f *frontend) serves(to, e netip.AddrPort) bool {
	if f.ranged {
		if e.Port() != to.Port() {
			return false
		}
		e = netip.AddrPortFrom(e.Addr(), 0)
	}
	_, found := slices.BinarySearchFunc(f.endpoints, e, netip.AddrPort.Compare)
	return found
}

// For adds a namespace to those for which the pass is made. Each namespace pays for its passes, see [Reconciler].
func (d *Desired) For(namespace string) {
	if d.namespaces == nil {
		d.namespaces = map[string]struct{}{}
	}
	d.namespaces[namespace] = struct{}{}
}

// Frontend sets the policy of flows to a frontend. Its endpoints are those with which flows may continue: all that are
// ready or serving, including terminating ones, regardless of traffic policy and topology. For protocols other than
// UDP, they apply only to flows without replies. The sources apply to all protocols.
//
// kube-proxy (pkg/proxy/conntrack/cleanup.go) keeps only flows to serving endpoints. So it deletes flows to endpoints
// that are ready but not serving, as with spec.publishNotReadyAddresses.
func (d *Desired) Frontend(k model.Key, p plan.FlowPolicy) {
	d.set(k, frontend{endpoints: p.Endpoints, sources: p.Sources, preferred: p.BeforeNodePorts})
}

// Gone records that a frontend was deleted: its Service was deleted, or the Service lost this port, node port or
// address. Only the next pass uses it.
func (d *Desired) Gone(k model.Key) {
	d.set(k, frontend{gone: true})
}

func (d *Desired) set(k model.Key, f frontend) {
	if d.frontends == nil {
		d.frontends = map[model.Key]frontend{}
	}
	f.ranged, d.index = k.Last != 0, nil
	d.Urgent = d.Urgent || k.Protocol == inet.UDP || f.sources != nil || f.departed != nil
	old, known := d.frontends[k]
	if old.gone {
		d.gone--
	}
	if f.gone {
		d.gone++
	}
	if d.frontends[k] = f; known {
		return
	}
	d.count[k.Family]++
	if k.Last != 0 {
		d.ranges++
	}
	if k.Protocol != inet.UDP {
		d.others++
	}
}

// servesNodePorts reports whether a flow can be to a node port: at an address of this node, or translated at the
// address of another node, which has passed its packets on. This node only forwards other flows to such an address.
func (d *Desired) servesNodePorts(flow *Flow) bool {
	addr := flow.Destination.Addr()
	family := inet.FamilyOf(addr)
	_, local := slices.BinarySearchFunc(d.Nodes[family], addr, netip.Addr.Compare)
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	return local || flow.translated() && slices.ContainsFunc(d.Networks[family], contains)
}

// families returns the families with frontends.
func (d *Desired) families() (list []inet.Family) {
	for _, f := range inet.Families {
		if d.count[f] > 0 {
			list = append(list, f)
		}
	}
	return list
}

// selections returns the parts of the table that may have stale flows.
func (d *Desired) selections() (list []Selection) {
	if d.terminates {
		return []Selection{All}
	}
	if d.count[inet.IPv4]+d.count[inet.IPv6] > d.others {
		list = append(list, UDP)
	}
	if d.others > 0 {
		list = append(list, Unreplied)
	}
	return list
}

// merge adds the state of a later request, which overrides this state.
func (d *Desired) merge(later *Desired) {
	d.terminates, d.Urgent = d.terminates || later.terminates, d.Urgent || later.Urgent
	for namespace := range later.namespaces {
		d.For(namespace)
	}
	for k, f := range later.frontends {
		if f.exempt {
			d.Exempt(k)
		} else {
			d.set(k, f)
		}
	}
	for f, addrs := range later.Nodes {
		if addrs != nil {
			d.Nodes[f] = addrs
		}
	}
	d.Networks = later.Networks
}

// forgetGone removes the deleted frontends from the state.
func (d *Desired) forgetGone() {
	rest := Desired{
		Urgent: d.Urgent, namespaces: d.namespaces, Nodes: d.Nodes, Networks: d.Networks, terminates: d.terminates,
	}
	for k, f := range d.frontends {
		if !f.gone {
			rest.set(k, f)
		}
	}
	*d = rest
}

// Stale reports whether the entry of a flow must be deleted, so that the kernel evaluates the rules for the client's
// next packet.
//
//	UDP flow to a frontend                        stale if
//	no reply, source not allowed, translated      always
//	no reply, source not allowed, not translated  in zone 0
//	translated to an endpoint in the list         never
//	translated to another address                 always
//	not translated, endpoints in the list         in zone 0
//	not translated, no endpoints, no reply        in zone 0
//	not translated, no endpoints, reply           never
//	translated, frontend deleted                  always
//	not translated, frontend deleted              never
//
// As in kube-proxy, a flow with a reply continues even if its source is no longer allowed: kube-proxy's rules drop
// only packets in state new. All packets of a flow before the first reply have this state.
//
// If a frontend has no endpoints, the rules reject packets of new flows. An untranslated flow to such a frontend may
// have replies, for example if a process on a node owns the address. Such a flow works and is not stale. A flow
// without replies is stale, so that the rules can reject it. kube-proxy keeps both kinds of flows, and flows to
// deleted Services.
//
// A flow of another protocol can be stale only without a reply. For such a flow, the table applies to all protocols:
// while a client repeats its first segment, the kernel does not evaluate the rules again. So no established
// connection is deleted, except for TCP connections to endpoints that [Desired.Terminate] names. Untranslated entries
// in zones other than 0 are intended: the virtual switch of a network plugin tracks the same packet in its own zone,
// before or after the rules.
func (d *Desired) Stale(f *Flow) bool {
	if d.departed(f) {
		return true
	}
	if f.Protocol != inet.UDP && f.Replied {
		return false
	}
	to, known := d.find(f)
	switch {
	case !known:
		return false
	case to.gone:
		return f.translated()
	case !f.Replied && !to.sources.Admits(f.Source.Addr()):
		return f.translated() || f.Zone == 0
	case to.serves(f.Destination, f.Server), to.exempt, to.departed != nil:
		return false
	case f.translated():
		return true
	case f.Zone != 0:
		return false
	}
	return !f.Replied || len(to.endpoints) > 0
}

// welcomes reports whether this state permits the flow: its source is allowed, and a UDP flow goes to one of the
// endpoints. A flow of another protocol only needs to be translated.
func (d *Desired) welcomes(f *Flow) bool {
	to, known := d.find(f)
	switch {
	case !known, to.gone, !f.Replied && !to.sources.Admits(f.Source.Addr()):
		return false
	case f.Protocol != inet.UDP:
		return f.translated() && !d.departed(f)
	}
	return to.serves(f.Destination, f.Server)
}

// find returns the state of the frontend to which a flow leads, and whether it is known.
func (d *Desired) find(flow *Flow) (frontend, bool) {
	k, known := d.FrontendOf(flow)
	f, exact := d.frontends[k]
	f.gone = f.gone || known && !exact // several deleted ranges that overlap
	return f, known
}

// FrontendOf returns the frontend to which a flow leads. It prefers a present frontend to a deleted one: after the
// deletion of a single port, a node port or a range with the same port serves its clients.
func (d *Desired) FrontendOf(flow *Flow) (k model.Key, known bool) {
	at, p := flow.Destination, flow.Protocol
	addr := at.Addr()
	single := model.Key{Addr: addr, Port: at.Port(), Protocol: p, Family: inet.FamilyOf(addr)}
	f, known := d.frontends[single]
	if known && !f.gone {
		return single, true
	}
	ranged, inRange := d.findRange(at, p)
	if inRange && d.frontends[ranged].preferred {
		return ranged, true
	}
	if d.servesNodePorts(flow) {
		nodePort := single
		nodePort.Addr = netip.Addr{}
		if f, claimed := d.frontends[nodePort]; claimed && (!known || !f.gone) {
			if !f.gone {
				return nodePort, true
			}
			single, known = nodePort, true
		}
	}
	if inRange {
		if f, exists := d.frontends[ranged]; !known || exists && !f.gone {
			return ranged, true
		}
	}
	return single, known
}
