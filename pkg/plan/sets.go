package plan

import (
	"slices"
	"sync"

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
	if o.WithoutMaximum {
		maximum = nft.Set{}
	}

	byClass, byClassOfPort := &role{of: ofFrontend}, &role{of: ofPort}
	afterSources := &role{of: ofFrontend, also: Allowed}
	toEndpoint := &role{of: ofEndpoint, fixed: ToEndpoint}
	drawn := [lists]string{"draws an endpoint", "draws an endpoint on this node"}

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
			{to: &l.dsr.frontends, name: DirectSet, absent: !o.DirectReturn, key: vip, data: word, form: hash,
				comment: "direct server return: address -> class, service port",
				found:   "is for an address with direct server return", oftenMissed: true},
			{to: &l.dsr.quoted, name: "direct-quoted", absent: !o.DirectReturn, key: quotedOf(l.family).frontend(),
				data: word, form: hash, comment: "the same for packets in ICMP errors", oftenMissed: true},
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
