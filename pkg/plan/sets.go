package plan

import (
	"slices"
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// setRow has everything that is particular to a set, apart from its elements and the rules that look it up.
type setRow struct {
	// to is the field of the layout that has the set.
	to **nft.Set
	// absent is true if the options of the plan need no such set.
	absent        bool
	name, comment string
	// key and data are the fields of the elements.
	key, data []nft.Field
	// form has the other properties of the set.
	form nft.Set
	// counts is the meaning of the elements' counters; nil if they have none.
	counts *role
	// past is true if the elements describe the past for the next process, so that the plan does not determine them.
	past bool
	// last is true if a full sync writes the elements last: until all parts are written, the rules must not refuse
	// packets to an address because its Service is missing.
	last bool
	// found describes a packet for which a lookup finds an element. It is empty if the rules have a comment.
	found string
	// oftenMissed is true if the lookups of most packets find no element.
	oftenMissed bool
}

// setRows returns the rows of all sets, in the order of nft's output. Nothing else lists the sets.
func (l *layout) setRows(o *Options) []setRow {
	vip, nodePort := l.vip(), l.nodePort()
	saddr, daddr := nft.SrcAddr(l.family), []nft.Field{nft.DstAddr(l.family)}
	network := []nft.Field{l.networkField()}
	proto, word := []nft.Field{nft.L4Proto()}, []nft.Field{nft.Priority()}
	slot := []nft.Field{nft.Priority(), nft.Index()}
	id, endpoint := []nft.Field{nft.L4Proto(), nft.Priority()}, []nft.Field{daddr[0], nft.DstPort()}

	// hash is the form of the kernel's fixed hash table, which has the fastest lookup.
	hash, ranges := nft.Set{Size: MinimumSize}, nft.Set{Interval: true}
	filled := func(size uint32) nft.Set { return nft.Set{Dynamic: true, Timeouts: true, Size: size} }
	maximum := nft.Set{MaxConnections: model.MostConnections}
	if o.Lacks.Connlimit != "" {
		maximum = nft.Set{}
	}

	byClass, byClassOfPort := &role{of: ofFrontend}, &role{of: ofPort}
	afterSources := &role{of: ofFrontend, also: Allowed}
	toEndpoint := &role{of: ofEndpoint, fixed: ToEndpoint}
	drawn := [lists]string{"draws an endpoint", "draws an endpoint on this node"}

	// Without the networks of the nodes, node ports have no direct server return.
	noDirectNodePorts := len(o.NodeNetworks[l.family]) == 0
	var dispatch, sources []setRow
	for st, s := range stepRows {
		dispatch = append(dispatch, setRow{to: &l.dispatch[st], name: s.set, key: word,
			absent: (step(st) == stepPass || step(st) == stepAgain) && !o.DirectReturn,
			form:   nft.Set{Size: MinimumSize, Verdict: true}, comment: "class -> chain, " + s.when, found: s.found})
	}
	for list, texts := range sourceTexts {
		sources = append(sources, setRow{to: &l.sources[list], name: texts.set,
			key: []nft.Field{nft.NetworkPriority(), saddr}, form: ranges, comment: "Service . " + texts.field})
	}
	// both returns the rows for both lists of endpoints.
	both := func(to *[lists]*nft.Set, row func(prefix string) setRow) (rows []setRow) {
		for ls := range lists {
			r := row(ls.prefix())
			if r.to = &to[ls]; r.found == "" {
				r.found = drawn[ls]
			}
			rows = append(rows, r)
		}
		return rows
	}

	var timed []setRow
	for r := range routes {
		timed = append(timed, setRow{to: &l.timed[r], name: "timed-" + r.String(), key: word, data: word, form: hash,
			comment: "service port with timeouts -> class: " + r.words()})
	}

	return slices.Concat(
		[]setRow{
			{to: &l.state, name: StateSet, key: []nft.Field{nft.Mark()}, past: true,
				comment: "form and digest of the table, for the next start"},
			{to: &l.lease, name: LeaseSet, key: proto, form: nft.Set{Timeout: Lease},
				comment: "renewed while kube-nftproxy runs; without renewal, another proxy is first",
				found:   "the lease is valid", oftenMissed: true},
		},
		dispatch,
		[]setRow{
			{to: &l.singles, name: SinglesSet, key: vip, data: endpoint, form: hash,
				counts:  &role{of: ofFrontend, fixed: outcome.Forwarded},
				comment: "cluster IP -> its only endpoint", oftenMissed: true},
			{to: &l.services, name: ServicesSet, key: vip, data: word, form: hash, counts: byClass,
				comment: "address -> class, service port", found: "is for a Service's address", oftenMissed: true},
			{to: &l.nodePorts, name: NodePortsSet, key: nodePort, data: word, form: hash, counts: byClass,
				comment: "node port -> class, service port", found: "is for a node port", oftenMissed: true},
			{to: &l.ranges, name: RangesSet, key: vip, data: word, form: ranges, counts: byClass,
				comment: "address, ports -> class, service port",
				found:   "is for a port range of a Service", oftenMissed: true},
			{to: &l.restricted, name: "services-restricted", key: vip, data: word, form: hash, counts: afterSources,
				comment: "load-balancer address -> class, service port, for allowed sources",
				found:   "comes from an allowed source"},
			{to: &l.restrictedRanges, name: "ranges-restricted", key: vip, data: word, form: ranges, counts: afterSources,
				comment: "address, ports -> class, service port, for allowed sources",
				found:   "comes from an allowed source"},
			{to: &l.shortCircuit, name: "short-circuit", key: word, data: word, form: hash, counts: byClassOfPort,
				comment: "policy Local: service port -> class for local pods and this node"},
			{to: &l.local, name: "local", key: word, data: word, form: hash, counts: byClassOfPort,
				comment: "policy Local: service port -> class for all other clients"},
		},
		both(&l.endpoints, func(p string) setRow {
			return setRow{name: p + "endpoints", key: append(id, nft.Index()), data: endpoint, form: hash, counts: toEndpoint,
				comment: "service port . index -> endpoint"}
		}),
		both(&l.draw, func(p string) setRow {
			return setRow{name: p + "draw", key: word, data: word, form: hash,
				comment: "service port -> class that picks an endpoint id"}
		}),
		both(&l.slots, func(p string) setRow {
			return setRow{name: p + "slots", key: slot, data: word, form: hash,
				comment: "service port . index -> endpoint id, with session affinity"}
		}),
		both(&l.backends, func(p string) setRow {
			return setRow{name: p + "backends", key: id, data: endpoint, form: hash, counts: toEndpoint,
				comment: "endpoint id -> " + p + "endpoint, with session affinity", found: "the endpoint is known"}
		}),
		both(&l.rangeBackends, func(p string) setRow {
			return setRow{name: p + "range-backends", key: word, data: daddr, form: hash, counts: toEndpoint,
				comment: "endpoint id -> address of the " + p + "endpoint, for port ranges", found: "the endpoint is known"}
		}),
		both(&l.limitedSlots, func(p string) setRow {
			return setRow{name: p + "limited-slots", key: slot, data: word, form: hash,
				comment: "service port . index -> endpoint id, with a connection limit"}
		}),
		[]setRow{
			{to: &l.externalSingles, name: "external-singles", key: vip, data: endpoint, form: hash,
				comment: "external address without room for more endpoints -> one endpoint", found: "has one endpoint"},
			{to: &l.timeouts, name: "timeouts", key: word, data: word, form: hash,
				comment: "service port -> class of its timeouts in connection tracking"},
		},
		timed,
		[]setRow{
			{to: &l.affinity, name: AffinitySet, key: []nft.Field{word[0], saddr}, data: word,
				form: filled(affinityClients), comment: "service port . client -> endpoint id", oftenMissed: true},
			{to: &l.crowded, name: "crowded", key: word, form: hash,
				comment: "service ports of namespaces with too many remembered clients",
				found:   "the namespace of the Service may have more clients", oftenMissed: true},
			{to: &l.limited, name: "limited", key: id, data: endpoint, form: maximum, counts: toEndpoint,
				comment: "endpoint id -> endpoint, unless it has reached its connection limit"},
			{to: &l.full, name: "full", key: word, form: filled(fullEndpoints),
				comment: "ids of endpoints that had reached their connection limit",
				found:   "the endpoint is not full", oftenMissed: true},
			{to: &l.tried, name: "tried", key: word, form: filled(fullEndpoints),
				comment: "ids of full endpoints that a packet has just tried", oftenMissed: true},
			{to: &l.atMaximum, name: "at-maximum", key: word, data: word, form: hash,
				counts:  &role{of: ofPort, fixed: outcome.AtMaximum},
				comment: "service port -> class if all endpoints are full", found: "all endpoints are full"},
			{to: &l.held, name: HeldSet, key: word, form: filled(heldPorts),
				comment: "service ports without endpoints that clients want", oftenMissed: true},
			{to: &l.holding, name: "holding", key: word, form: filled(heldPorts),
				comment: "service ports without endpoints whose packets are not refused yet"},
			{to: &l.restrictedNodePorts, name: "nodeports-restricted", key: nodePort, data: word, form: hash,
				counts: afterSources, comment: "node port -> class, service port, for allowed sources"},
		},
		sources,
		[]setRow{
			{to: &l.hairpin, name: "hairpin", key: []nft.Field{saddr, daddr[0]}, form: hash,
				comment: "local endpoints that may reach themselves", oftenMissed: true},
			{to: &l.clusterIPs, name: "cluster-ips", key: daddr, form: hash, last: true,
				comment: "for ports that no service has", oftenMissed: true},
			{to: &l.networks, name: "networks", key: network, form: hash,
				comment: "networks of cluster IPs and of the endpoints in hairpin",
				found:   "is for a network with cluster IPs or local endpoints", oftenMissed: true},
			{to: &l.unusedPorts, name: "unused-ports", key: daddr, form: nft.Set{Dynamic: true, Size: unusedPortAddresses},
				counts:  &role{fixed: outcome.UnusedPort},
				comment: "cluster IPs with connections to a port that no service has"},
			{to: &l.deletedUDP, name: DeletedUDPSet, key: append(vip, nft.DstPort()), form: hash, past: true,
				comment: "UDP ports that no service has any more, and whose flows may not be deleted yet"},
			{to: &l.dsr.vips.sent, name: DirectSet, absent: !o.DirectReturn, key: vip, data: word, form: hash,
				comment: "direct server return: address -> class, service port",
				found:   "is for an address with direct server return", oftenMissed: true},
			{to: &l.dsr.vips.quoted, name: "direct-quoted", absent: !o.DirectReturn,
				key: quotedForms(l.family)[0].frontend(), data: word, form: hash,
				comment: "the same for packets in ICMP errors", oftenMissed: true},
			{to: &l.dsr.nodePorts.sent, name: DirectNodePortsSet, absent: noDirectNodePorts, key: nodePort, data: word,
				form: hash, comment: "direct server return: node port -> class, service port",
				found: "is for a node port with direct server return", oftenMissed: true},
			{to: &l.dsr.nodePorts.quoted, name: "direct-quoted-node-ports", absent: noDirectNodePorts,
				key: quotedForms(l.family)[0].nodePort(), data: word, form: hash,
				comment: "the same for packets in ICMP errors", oftenMissed: true},
			{to: &l.dsr.nodes, name: "direct-nodes", absent: noDirectNodePorts, key: daddr, form: ranges,
				comment: "the networks of all nodes", found: "is in a network of nodes", oftenMissed: true},
			{to: &l.dsr.here, name: "direct-here", absent: !o.DirectReturn, key: append(id, nft.Index()), data: endpoint,
				form: hash, comment: "service port . slot -> endpoint on this node", oftenMissed: true},
			{to: &l.dsr.passed[firstChance], name: "direct-passed", absent: !o.DirectReturn, key: slot, form: hash,
				comment: "service port . slot, with an endpoint on another node",
				found:   "the endpoint is on another node", oftenMissed: true},
			{to: &l.dsr.elsewhere[firstChance], name: "direct-elsewhere", absent: !o.DirectReturn, key: slot, data: daddr,
				form: hash, comment: "service port . slot -> address of an endpoint on another node",
				found: "the endpoint is on another node", oftenMissed: true},
			{to: &l.dsr.passed[secondChance], name: "direct-again", absent: !o.DirectReturn, key: slot, form: hash,
				comment: "service port . slot, with an earlier endpoint on another node",
				found:   "the earlier endpoint is on another node", oftenMissed: true},
			{to: &l.dsr.elsewhere[secondChance], name: "direct-earlier", absent: !o.DirectReturn, key: slot, data: daddr,
				form: hash, comment: "service port . slot -> address of an earlier endpoint on another node",
				found: "the earlier endpoint is on another node", oftenMissed: true},
			{to: &l.refused, name: "refused", absent: !o.RefuseUnused, key: daddr, form: hash, last: true,
				comment: "load-balancer and external IPs, for ports that no service has", oftenMissed: true},
			{to: &l.pinged, name: "pinged", absent: !o.AnswerPing, key: daddr, form: hash,
				comment: "addresses that answer echo requests", oftenMissed: true},
			{to: &l.pingHost, name: "ping-host", absent: !o.AnswerPing, key: proto, data: daddr, form: hash,
				comment: "the address of this node that answers them"},
			{to: &l.serviceCIDRs, name: "service-cidrs", key: daddr, form: ranges,
				counts: &role{fixed: outcome.UnusedAddress}, comment: "for addresses that no service has",
				found: "is for an address of a ServiceCIDR", oftenMissed: true},
			{to: &l.rangeAddresses, name: "range-addresses", key: daddr, form: hash, last: true, comment: "with port ranges",
				found: "is for an address with port ranges", oftenMissed: true},
			{to: &l.allocatedRanges, name: "allocated-ranges", key: daddr, form: hash, last: true,
				comment: "with port ranges that take precedence over node ports",
				found:   "is for an address whose port ranges take precedence over node ports", oftenMissed: true},
			{to: &l.nodeAddresses, name: NodeAddressesSet, key: daddr, form: hash, comment: "where node ports are served",
				found: "is for an address of this node", oftenMissed: true},
			{to: &l.regions, name: RegionsSet, key: network, form: hash,
				comment: "networks of service addresses, and of the node's own addresses",
				found:   "is for a network with addresses of Services or of this node", oftenMissed: true},
		})
}

// namedRows returns the row of each set by its name. The properties that depend on the family and the options are those
// of an IPv4 table without options.
var namedRows = sync.OnceValue(func() map[string]setRow {
	rows := map[string]setRow{}
	for _, r := range (&layout{}).setRows(&Options{}) {
		rows[r.name] = r
	}
	return rows
})

// SetsNamed returns the sets with a name in tables, one for each family.
func SetsNamed(tables []*nft.Table, name string) (sets []*nft.Set) {
	for _, t := range tables {
		for _, s := range t.Sets {
			if s.Name == name {
				sets = append(sets, s)
			}
		}
	}
	return sets
}

// LeaseElements returns the elements of a set [LeaseSet]: one for each protocol that Services can have. Renew them
// within [Lease].
func LeaseElements(lease *nft.Set) (list []nft.Element) {
	for _, proto := range inet.Protocols {
		list = append(list, nft.Element{Set: lease, Key: nft.Value{}.OnlyProto(proto)})
	}
	return list
}

// Planned reports whether the elements of a set must be those of the plan at each moment. Packets add the elements of
// some other sets, and some sets describe the past for the next process.
func Planned(s *nft.Set) bool { return !s.Dynamic && !namedRows()[s.Name].past }

// FilledByPackets reports whether packets add the elements of the set with this name.
func FilledByPackets(set string) bool { return namedRows()[set].form.Dynamic }

// Remembers reports whether the set with this name has the remembered clients.
func Remembers(set string) bool { return set == AffinitySet }

// Found describes a packet for which a lookup in the set with this name finds an element. It is empty if the rules that
// look up the set have a comment.
func Found(set string) string { return namedRows()[set].found }

// OftenMissed reports whether the lookups of most packets in the set with this name find no element.
func OftenMissed(set string) bool { return namedRows()[set].oftenMissed }

// layout has the sets and maps of one family's table.
type layout struct {
	family inet.Family
	// anyNodeAddress and routeUnused are the options with these names.
	anyNodeAddress, routeUnused bool
	// rows are the rows of the existing sets, in the order of nft's output.
	rows []setRow

	dispatch [steps]*nft.Set
	// services and nodePorts have the class and number of a destination. restricted has them for packets that source
	// ranges allow. shortCircuit and local have them for the two origins of packets to a frontend with policy Local.
	services, nodePorts, restricted, shortCircuit, local *nft.Set
	// restrictedNodePorts has the same for node ports.
	restrictedNodePorts *nft.Set
	// endpoints has the endpoint of each slot, without affinity. With affinity, draw has the size of the table, slots
	// the endpoint id of each slot, and backends the endpoint of each id.
	endpoints, slots, draw, backends [lists]*nft.Set
	affinity                         *nft.Set
	// crowded has the service ports whose new clients are not remembered, see [Planner.SetCrowded].
	crowded *nft.Set
	// With a connection limit, limitedSlots has the endpoint id of each slot, and limited the endpoint of each
	// id, which counts its connections. full has the ids of endpoints that had their maximum a while ago. tried has the
	// ids of full endpoints that a packet has just tried. atMaximum has the class for packets that find all endpoints
	// full.
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
	// singles has the endpoint of each cluster IP of a service port in formSingle, and externalSingles has that of each
	// external address.
	singles, externalSingles *nft.Set
	// timeouts has the class of the timeouts of a service port, and timed the class of each route after these are set.
	timeouts *nft.Set
	timed    [routes]*nft.Set
	// networks has the network of each address in hairpin and clusterIPs, so that most packets need one lookup instead
	// of two.
	networks    *nft.Set
	unusedPorts *nft.Set
	// deletedUDP has the UDP frontends that no Service has any more, see flows.go.
	deletedUDP *nft.Set
	// refused has the load-balancer and external IPs that refuse connections to unused ports. pinged has the addresses
	// that answer echo requests, and pingHost has the address of this node that answers. They are nil without the
	// options for them.
	refused, pinged, pingHost *nft.Set
	serviceCIDRs              *nft.Set
	nodeAddresses             *nft.Set
	// dsr are the sets of direct server return; each is nil without the option for it.
	dsr directSets
	// regions has the networks of all addresses for which these rules look, see node.go.
	regions *nft.Set
	lease   *nft.Set
	state   *nft.Set
}

// Sizes of sets.
const (
	// MinimumSize is the least size of each set that grows. pkg/apply raises it to at least twice the number of
	// elements.
	MinimumSize = 1 << 10
	// affinityClients is the greatest number of remembered clients. Each takes up to 115 bytes of the kernel's memory.
	// The kernel searches the map for expired clients, which takes 100 ns of CPU time per second for each client.
	affinityClients = 1 << 20
	// fullEndpoints is the greatest number of endpoints that are skipped because they are full. Above this number, each
	// packet tries its endpoint.
	fullEndpoints = 1 << 16
	// unusedPortAddresses is the number of cluster IPs for which connections to unused ports are counted.
	unusedPortAddresses = 1 << 16
)

// Lease is the timeout of the lease. While the lease lasts, Services are found before the DNAT rules of other programs.
// After it has expired, they are found behind the DNAT rules of a proxy that has taken over. LeaseAtExit is the rest of
// the lease after an orderly exit. It is longer than the time between two renewals, so that another process of the
// program can renew the lease before it expires. LeaseSet is the name of its set.
const (
	Lease       = 2 * time.Minute
	LeaseAtExit = 15 * time.Second
	LeaseSet    = "lease"
)

// The names of sets that other packages read.
const (
	// StateSet has one element, which describes the table for a later process.
	StateSet = "state"
	// AffinitySet has the remembered clients.
	AffinitySet = "affinity"
	// DeletedUDPSet has the deleted UDP frontends, see [Planner.Resume].
	DeletedUDPSet = "deleted-udp"
)

func newLayout(family inet.Family, o *Options) *layout {
	l := &layout{family: family, anyNodeAddress: o.AnyNodeAddress[family], routeUnused: o.RouteUnused}
	for _, r := range l.setRows(o) {
		if r.absent {
			continue
		}
		s := r.form
		s.Family, s.Table, s.Name, s.Comment = family, Table(o.ServiceProxyName), r.name, r.comment
		s.Key, s.Data, s.Counter = r.key, r.data, r.counts.isCounted(o)
		*r.to = &s
		l.rows = append(l.rows, r)
	}
	return l
}

// vip returns the fields of a key with address, protocol and port. nodePort returns the fields of a key of a node port.
func (l *layout) vip() []nft.Field {
	return []nft.Field{nft.DstAddr(l.family), nft.L4Proto(), nft.DstPort()}
}

func (l *layout) nodePort() []nft.Field { return []nft.Field{nft.L4Proto(), nft.DstPort()} }

// sets returns the sets in the order of nft's output.
func (l *layout) sets() (list []*nft.Set) {
	for i := range l.rows {
		list = append(list, *l.rows[i].to)
	}
	return list
}
