package model

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// selection has the endpoints of one service port, with the reasons why policies do not use them.
type selection struct {
	// endpoints are those among which the service port selects: sorted, and without duplicates. unused are duplicates,
	// and endpoints above the limit.
	endpoints, unused []endpoint
	// forCluster and forLocal are the traits that an endpoint needs for policy Cluster and for policy Local.
	forCluster, forLocal traits
}

// selectEndpoints selects the endpoints of each service port, and counts those on this node.
func (b *builder) selectEndpoints() {
	if hasTables := b.method.Key != balance.Chance || b.weighted || b.slow > 0; hasTables && b.applySlotLimit() {
		for _, sp := range b.out.Ports {
			sp.Method = balance.Method{}
		}
		for _, g := range b.groups {
			for i := range g.endpoints {
				g.endpoints[i].weight = 1
			}
		}
	}
	if b.slow > 0 {
		b.setStarts()
	}
	most, excess, ports, prevents := b.limits.PortEndpoints, 0, 0, ""
	for i, sp := range b.out.Ports {
		g := b.groupOf(i)
		s := selection{endpoints: g.endpoints, unused: g.duplicates}
		if n := len(g.endpoints); n > most {
			excess, ports = max(excess, n), ports+1
			var others []endpoint
			s.endpoints, others = best(g.endpoints, most)
			s.unused = slices.Concat(g.duplicates, others)
		}
		if sp.Ranged() {
			s.withoutPorts()
		}
		b.choose(sp, &s)
		if b.direct {
			if reason := b.locate(sp, &s); reason != "" && prevents == "" {
				prevents = fmt.Sprintf("port %q: %s; ports of this kind use NAT", sp.Name.Port, reason)
			}
		}
		b.selections = append(b.selections, s)
	}
	if prevents != "" {
		b.problem(ForwardingField, quoted(forwardDirect, prevents))
	}
	if ports > 0 {
		b.reportExcess(limitPortEndpoints, "EndpointSlices", excess, most,
			fmt.Sprintf("%d ports do not use all of their endpoints", ports),
			"ready ones are kept before others, and lower addresses before higher ones; divide the Service")
	}
	if b.out.HealthCheckNodePort != 0 {
		b.countLocal()
	}
	if b.out.TerminateGone {
		b.setListed()
	}
}

// choose selects the endpoints of a service port. It follows kube-proxy's CategorizeEndpoints: ready endpoints, or if
// there are none, endpoints that still serve while they terminate. Cluster and Local are selected independently.
//
// The list Cluster is needed even if all external frontends have policy Local: through these frontends, pods and the
// node itself reach every endpoint.
func (b *builder) choose(sp *ServicePort, s *selection) {
	usesCluster, usesLocal := sp.policies()
	s.forCluster, s.forLocal = demands(s.endpoints)
	sp.HasEndpoints = slices.ContainsFunc(s.endpoints, func(e endpoint) bool { return e.has(s.forCluster) })
	inCluster := func(e *endpoint) bool { return usesCluster && e.has(s.forCluster) }
	inLocal := func(e *endpoint) bool { return usesLocal && e.has(s.forLocal) }
	isUsed := func(e *endpoint) bool { return inCluster(e) || inLocal(e) }
	hairpin := func(e *endpoint) bool { return e.has(local) && isUsed(e) }
	serves := func(e *endpoint) bool { return e.has(ready) || e.has(serving) }

	sp.Cluster = pick(s.endpoints, inCluster)
	sp.Local = pick(s.endpoints, inLocal, sp.Cluster)
	if b.weighted || b.slow > 0 {
		sp.ClusterWeights = sp.weightsOf(s.endpoints, inCluster, b.slow > 0)
		sp.LocalWeights = sp.weightsOf(s.endpoints, inLocal, b.slow > 0)
	}
	sp.Hairpin = pick(s.endpoints, hairpin, sp.Cluster, sp.Local)
	sp.Serving = pick(s.endpoints, serves, sp.Cluster, sp.Local)
	if sp.MaxConnections > 0 {
		sp.Idle = pick(s.endpoints, func(e *endpoint) bool { return !isUsed(e) })
	}
}

// policies reports whether any frontend needs endpoints of policy Cluster, and of policy Local.
func (sp *ServicePort) policies() (cluster, local bool) {
	for i := range sp.Frontends {
		f := &sp.Frontends[i]
		cluster = cluster || !f.Local || f.Kind != ClusterIP
		local = local || f.Local
	}
	return cluster, local
}

// demands returns the traits that an endpoint needs for policy Cluster and for policy Local.
//
// For policy Cluster, it may need a hint for this node. Hints of one kind (node or zone) apply only if every ready
// endpoint has such a hint, and at least one of these hints matches this node. Hints for nodes precede those for zones
// (KEP-3015). Fields such as trafficDistribution are not read: controllers turn them into hints.
func demands(list []endpoint) (forCluster, forLocal traits) {
	common, seen := anyNodeHint|anyZoneHint, traits(0)
	forCluster, forLocal = serving|terminating, local|serving|terminating
	for i := range list {
		t := list[i].traits
		if t.has(ready) {
			common &= t
			seen |= t
			forCluster = ready
		}
		if t.has(ready | local) {
			forLocal = ready | local
		}
	}
	switch {
	case common&anyNodeHint != 0 && seen&thisNodeHint != 0:
		forCluster |= thisNodeHint
	case common&anyZoneHint != 0 && seen&thisZoneHint != 0:
		forCluster |= thisZoneHint
	}
	return forCluster, forLocal
}

// pick returns the chosen endpoints, or nil if there are none. To save memory, it returns one of the given lists if it
// is equal.
func pick(list []endpoint, chosen func(*endpoint) bool, existing ...[]netip.AddrPort) (picked []netip.AddrPort) {
	for i := range list {
		if chosen(&list[i]) {
			if picked == nil {
				picked = make([]netip.AddrPort, 0, len(list)-i)
			}
			picked = append(picked, list[i].AddrPort)
		}
	}
	for _, e := range existing {
		if slices.Equal(e, picked) {
			return e
		}
	}
	if len(picked) < cap(picked) {
		return slices.Clone(picked) // without the capacity that it does not use
	}
	return picked
}

// weightsOf returns the weights of the chosen endpoints; nil if they are equal. They are reduced, unless the Service
// has both slow start and the random algorithm, see slowed.
func (sp *ServicePort) weightsOf(list []endpoint, chosen func(*endpoint) bool, slow bool) []uint16 {
	var weights []uint16
	var shares []uint8
	for i := range list {
		if e := &list[i]; chosen(e) {
			weights, shares = append(weights, e.weight), append(shares, fullShare-e.missing)
		}
	}
	weights = balance.Reduce(weights)
	if !slow || len(shares) == 0 {
		return weights
	}
	if sp.Method.Key == balance.Chance {
		for i, share := range shares {
			sp.Rising += weightAt(weights, i) * (fullShare - int(share))
		}
	}
	return slowed(weights, shares, sp.Method.Key)
}

// countLocal sets Service.LocalReady. As in kube-proxy, it includes endpoints that no port of the Service uses.
func (b *builder) countLocal() {
	var addrs []netip.Addr
	for _, g := range b.groups {
		for i := range g.endpoints {
			if e := &g.endpoints[i]; e.has(ready | local) {
				addrs = append(addrs, e.Addr())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, addr := range slices.Compact(addrs) {
		b.out.LocalReady[inet.FamilyOf(addr)]++
	}
}
