package plan

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// layout has the sets and maps of one family's table.
type layout struct {
	family inet.Family

	dispatch [steps]*nft.Set
	// services and nodePorts have the class and number of a destination. restricted has them for packets that source ranges allow.
	// shortCircuit and local have them for the two origins of packets to a frontend with policy Local.
	services, nodePorts, restricted, shortCircuit, local *nft.Set
	// endpoints has the endpoint of each slot, without affinity. With affinity, draw has the size of the table, slots the endpoint id of
	// each slot, and backends the endpoint of each id.
	endpoints, slots, draw, backends [lists]*nft.Set
	affinity                         *nft.Set
	allowedSources                   *nft.Set
	hairpin                          *nft.Set
	clusterIPs                       *nft.Set
	unusedPorts                      *nft.Set
	serviceCIDRs                     *nft.Set
	nodeAddresses                    *nft.Set
	lease                            *nft.Set
	state                            *nft.Set
}

// Sizes of sets.
const (
	// MinimumSize is the least size of each set that grows. pkg/apply raises it to at least twice the number of elements.
	MinimumSize = 1 << 10
	// affinityClients is the greatest number of remembered clients. Each takes up to 115 bytes of the kernel's memory. The kernel searches the
	// map for expired clients, which takes 100 ns of CPU time per second for each client.
	affinityClients = 1 << 20
	// unusedPortAddresses is the number of cluster IPs for which connections to unused ports are counted.
	unusedPortAddresses = 1 << 16
)

// Lease is the timeout of the lease. While the lease lasts, the DNAT rules of this program are evaluated before the rules of other programs.
// After it has expired, they translate only packets that no other program has translated. LeaseSet is the name of its set.
const (
	Lease    = 2 * time.Minute
	LeaseSet = "lease"
)

// StateSet is the name of the set with one element, which describes the table for a later process.
const StateSet = "state"

// affinitySet is the name of the map of remembered clients. unusedPortsSet is the name of the set of cluster IPs with connections to unused ports.
const (
	affinitySet    = "affinity"
	unusedPortsSet = "unused-ports"
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
		l.backends[ls] = l.hash(p+"backends", "endpoint id -> "+p+"endpoint, with session affinity", []nft.Field{proto, prio}, endpoint)
	}
	l.affinity = &nft.Set{Name: affinitySet, Key: []nft.Field{prio, saddr}, Data: word, Dynamic: true, Timeouts: true,
		Size: affinityClients, Comment: "service port . client -> endpoint id"}
	l.allowedSources = &nft.Set{Name: "allowed-sources", Key: []nft.Field{nft.NetworkPriority(), saddr}, Interval: true,
		Comment: "Service . loadBalancerSourceRanges"}
	l.hairpin = l.hash("hairpin", "local endpoints that may reach themselves", []nft.Field{saddr, daddr}, nil)
	l.clusterIPs = l.hash("cluster-ips", "for ports that no service has", []nft.Field{daddr}, nil)
	l.unusedPorts = &nft.Set{Name: unusedPortsSet, Key: []nft.Field{daddr}, Dynamic: true, Size: unusedPortAddresses,
		Comment: "cluster IPs with connections to a port that no service has"}
	l.serviceCIDRs = &nft.Set{Name: "service-cidrs", Key: []nft.Field{daddr}, Interval: true,
		Comment: "for addresses that no service has"}
	l.nodeAddresses = l.hash(NodeAddressesSet, "where node ports are served", []nft.Field{daddr}, nil)
	l.lease = &nft.Set{Name: LeaseSet, Key: []nft.Field{proto}, Timeout: Lease,
		Comment: "renewed while kube-nftproxy runs; without renewal, other DNAT rules are first"}
	l.state = &nft.Set{Name: StateSet, Key: []nft.Field{nft.Mark()}, Comment: "form and digest of the table, for the next start"}
	for _, s := range l.sets() {
		s.Family, s.Table = family, Table(o.ServiceProxyName)
	}
	l.counted(func(s *nft.Set, _ role) { s.Counter = !o.Uncounted })
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
	list = append(list, l.services, l.nodePorts, l.restricted, l.shortCircuit, l.local)
	for _, s := range [][lists]*nft.Set{l.endpoints, l.draw, l.slots, l.backends} {
		list = append(list, s[:]...)
	}
	return append(list, l.affinity, l.allowedSources, l.hairpin, l.clusterIPs, l.unusedPorts, l.serviceCIDRs, l.nodeAddresses)
}
