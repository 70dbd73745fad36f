package plan

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// layout are the sets and maps of one family's table.
type layout struct {
	family model.Family
	nf     nft.Family
	scopes [scopes]scopeSets

	dispatch       [steps]*nft.Set
	affinity       *nft.Set
	backends       [lists]*nft.Set
	allowedSources *nft.Set
	hairpin        *nft.Set
	clusterIPs     *nft.Set
	unusedPorts    *nft.Set
	serviceCIDRs   *nft.Set
	nodeAddresses  *nft.Set
	lease          *nft.Set
	state          *nft.Set
}

// scopeSets are the maps that exist once for frontends matched by address and once for node ports.
type scopeSets struct {
	// key are the fields by which a frontend is matched.
	key []nft.Field
	// classes gives what to do at first sight; the others the class of a later step.
	classes, shortCircuit, local, restricted *nft.Set
	// endpoints holds the numbered endpoints of each list, slots their ids where there is affinity.
	endpoints, slots, draw [lists]*nft.Set
	affinity               *nft.Set
}

// Sizes of sets. A set that is made for too few elements is made anew with room for more before it fills up.
const (
	minimumSize = 1 << 10
	// affinityClients bounds what remembered clients can cost. Each takes up to 115 bytes of the kernel's memory once it has
	// come, and 100 ns of a processor in every second, because the kernel looks through the map for expired ones so often.
	affinityClients = 1 << 20
	// unusedPortAddresses bounds for how many cluster IPs connections to unused ports are counted.
	unusedPortAddresses = 1 << 16
)

// Lease is how long Services are found before other software's rules have translated a packet, unless the lease is renewed;
// afterwards they are found among what nobody else has translated. LeaseSet is the name of the set that has it.
const (
	Lease    = 2 * time.Minute
	LeaseSet = "lease"
)

// StateSet is the name of the set whose one element says what the table holds.
const StateSet = "state"

// affinitySet is the name of the map of remembered clients, unusedPortsSet that of the set of cluster IPs that were asked for ports
// that nobody has.
const (
	affinitySet    = "affinity"
	unusedPortsSet = "unused-ports"
)

func newLayout(family model.Family) *layout {
	nf := NFT(family)
	l := &layout{family: family, nf: nf}
	daddr, saddr, proto, port := nft.DstAddr(nf), nft.SrcAddr(nf), nft.L4Proto(), nft.DstPort()
	prio := []nft.Field{nft.Priority()}
	endpoint := []nft.Field{daddr, port}

	l.scopes[scopeVIP] = l.newScope("services", "", []nft.Field{daddr, proto, port})
	l.scopes[scopeNodePort] = l.newScope("nodeports", "nodeport-", []nft.Field{proto, port})
	l.scopes[scopeVIP].restricted = l.hash("services-restricted", "load-balancer address -> class for allowed sources",
		[]nft.Field{daddr, proto, port}, prio)

	for st := range steps {
		l.dispatch[st] = l.hash(st.mapName(), "class -> chain, "+st.when(), prio, nil)
		l.dispatch[st].Verdict = true
	}
	l.affinity = &nft.Set{Name: affinitySet, Key: []nft.Field{nft.Priority(), saddr}, Data: prio, Dynamic: true, Timeouts: true,
		Size: affinityClients, Comment: "service id . client -> endpoint id"}
	for ls := range lists {
		l.backends[ls] = l.hash(ls.prefix()+"backends", "endpoint id -> "+ls.prefix()+"endpoint, where there is affinity",
			[]nft.Field{proto, nft.Priority()}, endpoint)
	}
	l.allowedSources = &nft.Set{Name: "allowed-sources", Key: []nft.Field{daddr, proto, port, saddr}, Interval: true,
		Comment: "loadBalancerSourceRanges"}
	l.hairpin = l.hash("hairpin", "local endpoints that may reach themselves", []nft.Field{saddr, daddr}, nil)
	l.clusterIPs = l.hash("cluster-ips", "for ports that no service has", []nft.Field{daddr}, nil)
	l.unusedPorts = &nft.Set{Name: unusedPortsSet, Key: []nft.Field{daddr}, Dynamic: true, Size: unusedPortAddresses,
		Comment: "cluster IPs that were asked for a port that no service has"}
	l.serviceCIDRs = &nft.Set{Name: "service-cidrs", Key: []nft.Field{daddr}, Interval: true,
		Comment: "for addresses that no service has"}
	l.nodeAddresses = l.hash("node-addresses", "where node ports are served", []nft.Field{daddr}, nil)
	l.lease = &nft.Set{Name: LeaseSet, Key: []nft.Field{nft.L4Proto()}, Timeout: Lease,
		Comment: "renewed while kube-nftproxy runs; without, others come first"}
	l.state = &nft.Set{Name: StateSet, Key: []nft.Field{nft.Mark()}, Comment: "what the last commit left here"}
	for _, s := range l.sets() {
		s.Family, s.Table = nf, TableName
	}
	l.counted(func(s *nft.Set, _ role) { s.Counter = true })
	return l
}

func (l *layout) newScope(name, prefix string, key []nft.Field) scopeSets {
	prio := []nft.Field{nft.Priority()}
	endpoint := []nft.Field{nft.DstAddr(l.nf), nft.DstPort()}
	indexed := append(append([]nft.Field{}, key...), nft.Index())
	s := scopeSets{
		key:          key,
		classes:      l.hash(name, "frontend -> class", key, prio),
		shortCircuit: l.hash(name+"-short-circuit", "policy Local: class for local pods and this node", key, prio),
		local:        l.hash(name+"-local", "policy Local: class for everybody else", key, prio),
		affinity:     l.hash("affinity-"+name, "frontend -> service id", key, prio),
	}
	for ls := range lists {
		p := prefix + ls.prefix()
		s.endpoints[ls] = l.hash(p+"endpoints", "frontend . index -> endpoint", indexed, endpoint)
		s.slots[ls] = l.hash(p+"slots", "frontend . index -> endpoint id, where there is affinity", indexed, prio)
		s.draw[ls] = l.hash(p+"draw", "frontend -> class that picks an endpoint id", key, prio)
	}
	return s
}

// hash is a set of the kernel's fixed hash table, in which looking is fastest.
func (l *layout) hash(name, comment string, key, data []nft.Field) *nft.Set {
	return &nft.Set{Name: name, Comment: comment, Key: key, Data: data, Size: minimumSize}
}

// sets lists the sets in the order in which nft shows them.
func (l *layout) sets() []*nft.Set {
	list := append([]*nft.Set{l.state, l.lease}, l.dispatch[:]...)
	for i := range l.scopes {
		s := &l.scopes[i]
		list = append(list, s.classes, s.shortCircuit, s.local)
		if s.restricted != nil {
			list = append(list, s.restricted)
		}
		list = append(list, s.endpoints[:]...)
		list = append(list, s.affinity)
		list = append(list, s.draw[:]...)
		list = append(list, s.slots[:]...)
	}
	list = append(list, l.backends[:]...)
	return append(list, l.affinity, l.allowedSources, l.hairpin, l.clusterIPs, l.unusedPorts, l.serviceCIDRs, l.nodeAddresses)
}
