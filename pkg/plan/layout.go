package plan

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// layout has the sets and maps of one family's table.
type layout struct {
	family inet.Family

	dispatch [steps]*nft.Set
	// services and nodePorts have the class and number of a destination. restricted has them for packets that source ranges allow.
	// shortCircuit and local have them for the two origins of packets to a frontend with policy Local.
	services, nodePorts, restricted, shortCircuit, local *nft.Set
	// restrictedNodePorts has the same for node ports.
	restrictedNodePorts *nft.Set
	// endpoints has the endpoint of each slot, without affinity. With affinity, draw has the size of the table, slots the endpoint id of
	// each slot, and backends the endpoint of each id.
	endpoints, slots, draw, backends [lists]*nft.Set
	affinity                         *nft.Set
	// crowded has the service ports whose new clients are not remembered, see [Planner.SetCrowded].
	crowded *nft.Set
	// With a maximum of connections, limitedSlots has the endpoint id of each slot, and limited the endpoint of each id, which counts its
	// connections. full has the ids of endpoints that had their maximum a while ago. tried has the ids of full endpoints that a packet has just
	// tried. atMaximum has the class for packets that find all endpoints full.
	limitedSlots                    [lists]*nft.Set
	limited, full, tried, atMaximum *nft.Set
	// held and holding have the numbers of service ports whose packets were held, see hold.go.
	held, holding *nft.Set
	// ranges and restrictedRanges are services and restricted for ranges of ports. rangeBackends has the address of
	// each endpoint id for ranges. rangeAddresses has the addresses of ranges. allocatedRanges has those whose ranges
	// take precedence over node ports.
	ranges, restrictedRanges, rangeAddresses, allocatedRanges *nft.Set
	rangeBackends                                             [lists]*nft.Set
	sources                                                   [sourceLists]*nft.Set
	hairpin                                                   *nft.Set
	clusterIPs                                                *nft.Set
	// singles has the endpoint of each frontend with a single endpoint.
	singles *nft.Set
	// networks has the network of each address in hairpin and clusterIPs, so that most packets need one lookup instead of two.
	networks    *nft.Set
	unusedPorts *nft.Set
	// deletedUDP has the UDP frontends that no Service has any more, see flow_deleted.go.
	deletedUDP *nft.Set
	// refused has the load-balancer and external IPs that refuse connections to unused ports. pinged has the addresses that answer echo requests,
	// and pingHost has the address of this node that answers. They are nil without the options for them.
	refused, pinged, pingHost *nft.Set
	serviceCIDRs              *nft.Set
	nodeAddresses             *nft.Set
	// regions has the networks of all addresses for which these rules look, see regions.go.
	regions *nft.Set
	lease   *nft.Set
	state   *nft.Set
}

// Sizes of sets.
const (
	// MinimumSize is the least size of each set that grows. pkg/apply raises it to at least twice the number of elements.
	MinimumSize = 1 << 10
	// affinityClients is the greatest number of remembered clients. Each takes up to 115 bytes of the kernel's memory. The kernel searches the
	// map for expired clients, which takes 100 ns of CPU time per second for each client.
	affinityClients = 1 << 20
	// fullEndpoints is the greatest number of endpoints that are skipped because they are full. Above this number, each packet tries its endpoint.
	fullEndpoints = 1 << 16
	// unusedPortAddresses is the number of cluster IPs for which connections to unused ports are counted.
	unusedPortAddresses = 1 << 16
)

// Lease is the timeout of the lease. While the lease lasts, Services are found before the DNAT rules of other programs. After it has expired, they are
// found behind the DNAT rules of a proxy that has taken over. LeaseAtExit is the rest of the lease after an orderly exit. It is longer than the time
// between two renewals, so that another process of the program can renew the lease before it expires. LeaseSet is the name of its set.
const (
	Lease       = 2 * time.Minute
	LeaseAtExit = 15 * time.Second
	LeaseSet    = "lease"
)

// StateSet is the name of the set with one element, which describes the table for a later process.
const StateSet = "state"

// affinitySet is the name of the map of remembered clients. unusedPortsSet is the name of the set of cluster IPs with connections to unused ports.
const (
	affinitySet    = "affinity"
	unusedPortsSet = "unused-ports"
	// fullSet is the name of the set of full endpoints, and triedSet of the set of full endpoints that a packet has just tried.
	fullSet  = "full"
	triedSet = "tried"
)

func newLayout(family inet.Family, o *Options) *layout {
	l := &layout{family: family}
	daddr, saddr, proto, port, prio := nft.DstAddr(family), nft.SrcAddr(family), nft.L4Proto(), nft.DstPort(), nft.Priority()
	word, endpoint := []nft.Field{prio}, []nft.Field{daddr, port}

	l.services = l.hash(ServicesSet, "address -> class, service port", l.vip(), word)
	l.nodePorts = l.hash(NodePortsSet, "node port -> class, service port", l.nodePort(), word)
	l.restricted = l.hash("services-restricted", "load-balancer address -> class, service port, for allowed sources", l.vip(), word)
	l.shortCircuit = l.hash("short-circuit", "policy Local: service port -> class for local pods and this node", word, word)
	l.local = l.hash("local", "policy Local: service port -> class for all other clients", word, word)
	for st := range steps {
		l.dispatch[st] = l.hash(st.mapName(), "class -> chain, "+st.when(), word, nil)
		l.dispatch[st].Verdict = true
	}
	for ls := range lists {
		p := ls.prefix()
		l.endpoints[ls] = l.hash(p+"endpoints", "service port . index -> endpoint", []nft.Field{proto, prio, nft.Index()}, endpoint)
		l.draw[ls] = l.hash(p+"draw", "service port -> class that picks an endpoint id", word, word)
		l.slots[ls] = l.hash(p+"slots", "service port . index -> endpoint id, with session affinity", []nft.Field{prio, nft.Index()}, word)
		l.limitedSlots[ls] = l.hash(p+"limited-slots", "service port . index -> endpoint id, with a maximum of connections", []nft.Field{prio, nft.Index()}, word)
		l.rangeBackends[ls] = l.hash(p+"range-backends", "endpoint id -> address of the "+p+"endpoint, for port ranges", word, []nft.Field{daddr})
		l.backends[ls] = l.hash(p+"backends", "endpoint id -> "+p+"endpoint, with session affinity", []nft.Field{proto, prio}, endpoint)
	}
	l.affinity = &nft.Set{Name: affinitySet, Key: []nft.Field{prio, saddr}, Data: word, Dynamic: true, Timeouts: true,
		Size: affinityClients, Comment: "service port . client -> endpoint id"}
	l.crowded = l.hash("crowded", "service ports of namespaces with too many remembered clients", word, nil)
	l.limited = &nft.Set{Name: "limited", Key: []nft.Field{proto, prio}, Data: endpoint, MaxConnections: model.MostConnections,
		Comment: "endpoint id -> endpoint, unless it has its maximum of connections"}
	if o.WithoutMaximum {
		l.limited.MaxConnections = 0
	}
	l.full = &nft.Set{Name: fullSet, Key: word, Dynamic: true, Timeouts: true, Size: fullEndpoints, Comment: "ids of endpoints that had their maximum of connections"}
	l.tried = &nft.Set{Name: triedSet, Key: word, Dynamic: true, Timeouts: true, Size: fullEndpoints, Comment: "ids of full endpoints that a packet has just tried"}
	l.atMaximum = l.hash("at-maximum", "service port -> class if all endpoints are full", word, word)
	l.held = &nft.Set{Name: HeldSet, Key: word, Dynamic: true, Timeouts: true, Size: heldPorts, Comment: "service ports without endpoints that clients want"}
	l.holding = &nft.Set{Name: holdingSet, Key: word, Dynamic: true, Timeouts: true, Size: heldPorts, Comment: "service ports without endpoints whose packets are not refused yet"}
	l.restrictedNodePorts = l.hash("nodeports-restricted", "node port -> class, service port, for allowed sources", l.nodePort(), word)
	l.ranges = &nft.Set{Name: RangesSet, Key: l.vip(), Data: word, Interval: true, Comment: "address, ports -> class, service port"}
	l.restrictedRanges = &nft.Set{Name: "ranges-restricted", Key: l.vip(), Data: word, Interval: true,
		Comment: "address, ports -> class, service port, for allowed sources"}
	l.singles = l.hash("singles", "address -> its only endpoint", l.vip(), endpoint)
	l.rangeAddresses = l.hash("range-addresses", "with port ranges", []nft.Field{daddr}, nil)
	l.allocatedRanges = l.hash("allocated-ranges", "with port ranges that take precedence over node ports", []nft.Field{daddr}, nil)
	for list := range sourceLists {
		l.sources[list] = &nft.Set{Name: sourceTexts[list].set, Key: []nft.Field{nft.NetworkPriority(), saddr}, Interval: true, Comment: "Service . " + sourceTexts[list].field}
	}
	l.hairpin = l.hash("hairpin", "local endpoints that may reach themselves", []nft.Field{saddr, daddr}, nil)
	l.clusterIPs = l.hash("cluster-ips", "for ports that no service has", []nft.Field{daddr}, nil)
	l.networks = l.hash("networks", "networks of cluster IPs and of the endpoints in hairpin", []nft.Field{daddr}, nil)
	l.unusedPorts = &nft.Set{Name: unusedPortsSet, Key: []nft.Field{daddr}, Dynamic: true, Size: unusedPortAddresses,
		Comment: "cluster IPs with connections to a port that no service has"}
	l.deletedUDP = l.hash(deletedUDPSet, "UDP ports that no service has any more, and whose flows may not be deleted yet",
		append(l.vip(), port), nil)
	l.vips(o)
	l.serviceCIDRs = &nft.Set{Name: "service-cidrs", Key: []nft.Field{daddr}, Interval: true,
		Comment: "for addresses that no service has"}
	l.nodeAddresses = l.hash(NodeAddressesSet, "where node ports are served", []nft.Field{daddr}, nil)
	l.regions = l.hash(RegionsSet, "networks of service addresses, and of the node's own addresses", []nft.Field{daddr}, nil)
	l.lease = &nft.Set{Name: LeaseSet, Key: []nft.Field{proto}, Timeout: Lease,
		Comment: "renewed while kube-nftproxy runs; without renewal, another proxy is first"}
	l.state = &nft.Set{Name: StateSet, Key: []nft.Field{nft.Mark()}, Comment: "form and digest of the table, for the next start"}
	for _, s := range l.sets() {
		s.Family, s.Table = family, Table(o.ServiceProxyName)
	}
	l.counted(func(s *nft.Set, _ role) { s.Counter = !o.Uncounted })
	if o.CountEndpoints {
		l.countedEndpoints(func(s *nft.Set, _ role) { s.Counter = true })
	}
	return l
}

// vip returns the fields of a key with address, protocol and port. nodePort returns the fields of a key of a node port.
func (l *layout) vip() []nft.Field {
	return []nft.Field{nft.DstAddr(l.family), nft.L4Proto(), nft.DstPort()}
}

func (l *layout) nodePort() []nft.Field { return []nft.Field{nft.L4Proto(), nft.DstPort()} }

// hash returns a set that the kernel keeps in its fixed hash table, which has the fastest lookup.
func (l *layout) hash(name, comment string, key, data []nft.Field) *nft.Set {
	return &nft.Set{Name: name, Comment: comment, Key: key, Data: data, Size: MinimumSize}
}

// sets returns the sets in the order of nft's output.
func (l *layout) sets() []*nft.Set {
	list := append([]*nft.Set{l.state, l.lease}, l.dispatch[:]...)
	list = append(list, l.services, l.nodePorts, l.ranges, l.restricted, l.restrictedRanges, l.shortCircuit, l.local)
	for _, s := range [][lists]*nft.Set{l.endpoints, l.draw, l.slots, l.backends, l.rangeBackends, l.limitedSlots} {
		list = append(list, s[:]...)
	}
	list = append(list, l.singles, l.affinity, l.crowded, l.limited, l.full, l.tried, l.atMaximum, l.held, l.holding, l.restrictedNodePorts)
	list = append(append(list, l.sources[:]...), l.hairpin, l.clusterIPs, l.networks, l.unusedPorts, l.deletedUDP)
	return append(append(list, l.vipSets()...), l.serviceCIDRs, l.rangeAddresses, l.allocatedRanges, l.nodeAddresses, l.regions)
}
