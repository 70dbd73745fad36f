package plan

import (
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

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
	// regions has the networks of all addresses for which these rules look, see regions.go.
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
