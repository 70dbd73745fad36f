package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Planner holds the plan: the tables and elements that the kernel should hold. It reports each difference as it
// happens, see [Planner.ReportTo]. Only one goroutine at a time may use it.
type Planner struct {
	rules    Rules
	services map[types.NamespacedName]*service
	// claims decide which Service has each frontend.
	claims *claims
	// noLocal counts the service ports of each family that have endpoints, but none for a frontend with the internal or
	// external policy Local.
	noLocal [2]NoLocal
	// shared and leads have the votes of all owners, see [wants].
	shared  votes[nft.ID]
	leads   votes[lead]
	numbers [2]*numbers
	rooms   rooms
	// waiting has the Services with parts that are left out for lack of room. freed is true if one of them may have
	// room now.
	waiting map[types.NamespacedName]struct{}
	freed   bool
	// owners have the service ports that hold packets, and those that remember clients.
	owners [owned]owners
	// keeping are the Services with endpoints that keep their counts of connections after they left. round is the
	// number of calls of [Planner.Age].
	keeping map[types.NamespacedName]struct{}
	round   int
	// nodes has what the plan depends on apart from Services.
	nodes [2]node

	// recalled has the numbers of an earlier process or planner; nil after [Planner.Begin]. orphans has those of source
	// ranges.
	recalled *recalled
	orphans  [2]orphans

	// flows are the frontends whose flows may be stale, since the last [Flows.Take].
	flows map[model.Key]string
	// deleted are the frontends of the sets deleted-udp. begun is true after [Planner.Begin].
	deleted map[model.Key]struct{}
	begun   bool

	// sink receives the differences.
	sink Sink
	// was and is are memory for [Planner.change].
	was, is wants
}

// claim is the claim of a service port to the key of one of its frontends. Of all claims to a key, one wins. A cluster
// IP wins over all other addresses, because the API server allocates it. A load-balancer IP, which a controller
// allocates, wins over an external IP or a hostIP, which a user writes into the object. Among equals, the older object
// wins.
type claim struct {
	service  *service
	port     *port
	frontend *model.Frontend
}

func (c claim) compare(d claim) int {
	return cmp.Or(cmp.Compare(c.rank(), d.rank()), c.service.compareAge(d.service))
}

func (c claim) rank() int {
	switch {
	case c.frontend.AtClusterIP():
		return 0
	case isAllocated(c.frontend):
		return 1
	}
	return 2
}

// isAllocated reports whether the API server or a load balancer has allocated the address or node port of a frontend to
// its Service. The author of a Service can write any address into its external IPs. A host port without a hostIP
// competes with node ports only.
func isAllocated(f *model.Frontend) bool {
	return f.Kind != model.ExternalIP && !atHostIP(f) || f.ReplacesClusterIP
}

// atHostIP reports whether a frontend is a host port with a hostIP.
func atHostIP(f *model.Frontend) bool { return f.Kind == model.HostPort && f.Addr.IsValid() }

// precedesNodePorts reports whether a claim is to a range that takes precedence over node ports.
func (c *claim) precedesNodePorts() bool { return c.frontend.Last != 0 && isAllocated(c.frontend) }

// New returns a planner for an empty cluster. It reports nothing before [Planner.ReportTo].
func New(o Options) *Planner {
	if o.Room = o.Room.orDefault(); !o.DirectReturn {
		o.NodeNetworks = [2][]netip.Prefix{}
	}
	p := &Planner{
		rules:    Rules{options: o},
		services: map[types.NamespacedName]*service{},
		shared:   votes[nft.ID]{},
		leads:    votes[lead]{},
		rooms:    newRooms(o.Room),
		waiting:  map[types.NamespacedName]struct{}{},
		owners:   [owned]owners{newOwners(), newOwners()},
		keeping:  map[types.NamespacedName]struct{}{},
		flows:    map[model.Key]string{},
		deleted:  map[model.Key]struct{}{},
		sink:     noSink{},
	}
	p.rules.changed = func() { p.sink.ChangeRules() }
	p.claims = newClaims(func(f inet.Family, a netip.Addr) bool {
		return p.shared[nft.ID{Set: p.rules.layouts[f].clusterIPs, Key: nft.Value{}.Addr(a)}].wanted()
	})
	for _, f := range o.Families {
		p.rules.layouts[f], p.numbers[f] = newLayout(f, &p.rules.options), newNumbers()
		p.rules.build(f)
		p.setNode(f, func(n *node) { n.networks = o.NodeNetworks[f] })
	}
	return p
}

// fixed returns the elements that every plan has.
func (l *layout) fixed() []nft.Element {
	out := LeaseElements(l.lease)
	for c := range unnumberedClasses() {
		if c.kind.onDemand() {
			continue
		}
		for _, st := range c.fixedSteps() {
			out = append(out, l.dispatchElement(st, c))
		}
	}
	return out
}

func (l *layout) dispatchElement(st step, c class) nft.Element {
	return nft.Element{
		Set: l.dispatch[st], Key: nft.Value{}.Uint32(c.number()), Chain: c.chain(), Jump: stepRows[st].jumps,
	}
}

// Set adds a Service to the plan, or replaces its earlier version. If s is nil, Set removes the Service: it is then
// planned without ports. The elements of a frontend depend on the winner of its key. So Set replaces the claims of the
// Service, then its elements, and those of each key that has another winner now. It reports whether parts of the
// Service are left out, see [PlannedService.Excess].
func (p *Planner) Set(name types.NamespacedName, s *model.Service) (excess bool) {
	planned := p.Service(name)
	old, now := planned.service, p.newService(name, s, planned.service)
	now.cost = planned.CostOf(s)
	if p.services[name] = now; s == nil {
		delete(p.services, name)
	}
	p.change(old, now, p.claims.replace(old, now))
	p.giveBack(old, now)
	p.enlist(old, -1)
	p.enlist(now, 1)
	if len(p.owners[Holding].changed) > 0 {
		p.forgetHeld(old)
	}
	return now.lacks != nil
}

// enlist adds a Service to the lists and counts of Services with a property, or removes it if n is -1.
func (p *Planner) enlist(s *service, n int) {
	keeps := false
	for _, port := range s.ports {
		number := Number{port.Family, port.number}
		if port.holds {
			p.owners[Holding].note(number, s.name, n > 0)
		}
		if port.timeout > 0 {
			p.owners[Remembering].note(number, s.name, n > 0)
		}
		keeps = keeps || port.counted != nil && port.counted.left != nil
		if count := &p.noLocal[port.Family]; port.HasEndpoints && len(port.slots[listLocal]) == 0 {
			if port.localInternal {
				count.Internal += n
			}
			if port.localExternal {
				count.External += n
			}
		}
	}
	if keeps {
		enlist(p.keeping, s.name, n > 0)
	}
	if s.lacks != nil && s.lacks.parts+len(s.lacks.nat) > 0 {
		enlist(p.waiting, s.name, n > 0)
	}
}

func enlist(list map[types.NamespacedName]struct{}, name types.NamespacedName, present bool) {
	if present {
		list[name] = struct{}{}
	} else {
		delete(list, name)
	}
}

// change replaces the elements of a Service, and those of each key with another winner. Then it records the frontends
// whose flows may be stale.
func (p *Planner) change(old, now *service, contests []contest) {
	was, is := p.was.empty(), p.is.empty()
	p.serviceElements(old, now, was)
	p.serviceElements(now, old, is)
	for _, c := range contests {
		if c.was != c.is { // otherwise another Service has the frontend, before and after the change
			p.frontendElements(c.was, was)
			p.frontendElements(c.is, is)
		}
	}
	p.replace(was, is)
	for _, c := range contests {
		if c.was != c.is {
			p.noteFlows(c, now.name.Namespace)
		}
	}
}

// newService prepares a Service for the plan. It keeps the numbers and ids of the earlier version.
func (p *Planner) newService(name types.NamespacedName, s *model.Service, old *service) *service {
	out := &service{name: name, takes: old.takes}
	if s == nil {
		return out
	}
	out.age, out.reserved = s.Age(), s.Reserved
	holds, restricted := s.Asleep() && p.assignHolders(out, s), false
	ranges := slices.ContainsFunc(s.Ports, (*model.ServicePort).Ranged) && p.assignRanges(out, s)
	for _, sp := range s.Ports {
		if p.rules.layouts[sp.Family] == nil || sp.Ranged() && !ranges {
			continue
		}
		if p.rules.options.Lacks != (Lacks{}) || sp.Direct != nil {
			sp = p.supported(out, sp)
		}
		n := &port{ServicePort: sp, comment: sp.Name.String()}
		before := old.port(n.id())
		if !p.admit(out, n, before) {
			continue
		}
		if n.fill(); n.ids != nil {
			p.giveIDs(n)
		}
		restricted = restricted || n.restricted
		n.holds = holds && n.number != 0
		out.ports = append(out.ports, n)
	}
	if restricted {
		p.assignSources(out, old)
	}
	if len(out.ports) >= manyPorts {
		out.index = make(map[portID]*port, len(out.ports))
		for _, port := range out.ports {
			out.index[port.id()] = port
		}
	}
	return out
}

// giveIDs gives ids to the endpoints of an affine service port.
func (p *Planner) giveIDs(n *port) {
	known := p.recallIDs(n.id())
	for _, e := range n.identified() {
		n.ids.add(e, known)
	}
}

// TableName is the name of the tables of the default instance, in both families.
const TableName = "kube-nftproxy"

// Table returns the name of the tables of the instance with a service-proxy name, in both families. The default
// instance has the empty name.
func Table(serviceProxyName string) string {
	if serviceProxyName == "" {
		return TableName
	}
	return TableName + "-" + serviceProxyName
}

// Options determine the constant rules. After [New], only LocalPods can change.
type Options struct {
	// Families are the IP families to serve.
	Families []inet.Family
	// ServiceProxyName is the name of an instance that serves some Services beside another proxy. It is empty for the
	// default instance.
	ServiceProxyName string
	// MasqueradeMark is the bit of the packet mark by which the DNAT chains request masquerading from the postrouting
	// chain.
	MasqueradeMark uint32
	// MasqueradeAll masquerades all traffic to cluster IPs, from any source.
	MasqueradeAll bool
	// LocalPods is the property of traffic from this node's pods, for each family; see [Rules.SetLocalPods].
	LocalPods [2]LocalPods
	// AnyNodeAddress serves node ports on every local address of the family except loopback, instead of the addresses
	// of [Planner.SetNodeAddresses].
	AnyNodeAddress [2]bool
	// RefuseUnused refuses connections to unused ports of load-balancer and external IPs whose model.Vote allows
	// this. With RefuseLoops, it refuses only packets that would leave by the interface by which they arrived.
	RefuseUnused, RefuseLoops bool
	// AnswerPing answers echo requests to addresses whose model.Vote allows this.
	AnswerPing bool
	// DirectReturn permits direct server return. NodeNetworks are the networks of all nodes; without those of a family,
	// its node ports use NAT. No prefix may contain another one.
	DirectReturn bool
	NodeNetworks [2][]netip.Prefix
	// RouteUnused sends packets to unused addresses of a ServiceCIDR along the routes of this node. Without it, they
	// are dropped.
	RouteUnused bool
	// Uncounted omits the counters of elements. CountEndpoints adds counters to the elements of endpoints.
	Uncounted, CountEndpoints bool
	// Lacks has the features that the kernel lacks.
	Lacks Lacks
	// Room limits all Services together. A field that is 0 has the value of [DefaultRoom].
	Room Room
}

// Lacks has sentences about features that the kernel lacks, for problems of Services. An empty field stands for a
// feature that the kernel has.
type Lacks struct {
	// Hash is jhash. Without it, all choices of endpoints are random.
	Hash string
	// Connlimit counts connections. Without it, there are no connection limits.
	Connlimit string
	// Timeouts sets timeouts in connection tracking. Without it, connections have the timeouts of the node.
	Timeouts string
	// Dup copies packets. Without it, there is no direct server return.
	Dup string
}

// LocalPods recognises traffic from pods of this node (kube-proxy: detect-local-mode). The zero value recognises none.
type LocalPods struct {
	// Prefix matches by source address (modes ClusterCIDR and NodeCIDR).
	Prefix netip.Prefix
	// Interface matches by the name of a packet's input interface (mode BridgeInterface). With InterfacePrefix, it is a
	// prefix of that name (mode InterfaceNamePrefix).
	Interface       string
	InterfacePrefix bool
}

func (l LocalPods) known() bool { return l.Prefix.IsValid() || l.Interface != "" }
