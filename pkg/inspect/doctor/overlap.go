package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// ServiceNetworks are the networks of cluster IPs, and other networks of the cluster that must not be inside of them.
type ServiceNetworks struct {
	// CIDRs are the prefixes of the ServiceCIDRs. RouteUnused is true if packets to their unused addresses follow the
	// routes.
	CIDRs       []netip.Prefix
	RouteUnused bool
	// Pods are the prefixes of pods. Nodes are the addresses of the Node object.
	Pods  []netip.Prefix
	Nodes []netip.Addr
	// IsService reports whether an address is the cluster IP of a Service. Some programs route single cluster IPs.
	IsService func(netip.Addr) bool
}

// overlap is a network that has addresses of a ServiceCIDR.
type overlap struct {
	cidr netip.Prefix
	name string
	kind overlapKind
}

type overlapKind uint8

const (
	// ofCluster: pods, or nodes. inside: another network, as a whole or in part. around: a route to more than the
	// ServiceCIDR, which may be meant for addresses outside of it, or a route to exactly the ServiceCIDR, which a node
	// without a default route needs.
	ofCluster overlapKind = iota
	inside
	around
)

// overlaps returns a finding for each ServiceCIDR and each kind of overlap.
func (c *Config) overlaps(n *host.Networks) (list view.Findings) {
	type group struct {
		cidr netip.Prefix
		kind overlapKind
	}
	names := map[group][]string{}
	var order []group
	for _, o := range c.Services.find(n) {
		g := group{o.cidr, o.kind}
		if names[g] == nil {
			order = append(order, g)
		}
		if !slices.Contains(names[g], o.name) {
			names[g] = append(names[g], o.name)
		}
	}
	for _, g := range order {
		list = append(list, c.overlapping(g.cidr, g.kind, names[g]))
	}
	return list
}

// find returns the networks of this node and of the cluster with addresses of ServiceCIDRs.
func (s *ServiceNetworks) find(n *host.Networks) (list []overlap) {
	for _, cidr := range s.CIDRs {
		for _, p := range s.Pods {
			if p.IsValid() && cidr.Overlaps(p) {
				list = append(list, overlap{cidr, "pods " + p.String(), ofCluster})
			}
		}
		for _, a := range slices.Concat(s.Nodes, n.Addresses) {
			if cidr.Contains(a) && !s.serves(a) {
				list = append(list, overlap{cidr, "node address " + a.String(), ofCluster})
			}
		}
		for i := range n.Routes {
			r := &n.Routes[i]
			if r.Prefix.Bits() == 0 || !cidr.Overlaps(r.Prefix) || r.Prefix.IsSingleIP() && s.serves(r.Prefix.Addr()) {
				continue
			}
			kind := inside
			if r.Prefix.Bits() <= cidr.Bits() {
				kind = around
			}
			list = append(list, overlap{cidr, fmt.Sprintf("%s by %s", r.Prefix, strings.Join(r.Devices, " and ")), kind})
		}
	}
	return list
}

func (s *ServiceNetworks) serves(a netip.Addr) bool { return s.IsService != nil && s.IsService(a) }

// overlapping returns the finding about the networks of one kind that overlap with a ServiceCIDR.
func (c *Config) overlapping(cidr netip.Prefix, kind overlapKind, names []string) view.Finding {
	const move = "use a ServiceCIDR outside of these networks (kubectl get servicecidrs,ipaddresses shows the " +
		"ServiceCIDRs and their used addresses), or other addresses for the hosts"
	f := view.NewFinding(view.Warning, view.ServiceCIDROverlap, "ServiceCIDR "+cidr.String(),
		fmt.Sprintf("networks have addresses of the ServiceCIDR %s: %s", cidr, view.Names(names, 0)),
		"none, until a Service gets the address of a host in these networks as its cluster IP: then this node sends "+
			"all packets to the address to the Service",
		move,
		"a Service keeps its cluster IP until it is deleted and created again")
	if !c.Services.RouteUnused {
		f.Impact = "pods and processes of this node cannot open connections to the hosts in these networks, because " +
			"packets to addresses that no Service has are dropped"
		f.Fix = "set mode: iptables in the configuration: then packets to unused addresses follow the routes. Or " +
			"" + move
		f.Affects = "all nodes with this configuration: the mode also selects the sync periods, the section with the masquerading and, without nodePortAddresses, the addresses of " +
			"node ports. A Service keeps its cluster IP until it is deleted and created again"
	}
	switch {
	case kind == around:
		f.Severity = view.Note
		f.What = fmt.Sprintf("routes lead to the ServiceCIDR %s and beyond it: %s", cidr, view.Names(names, 0))
		f.Impact = "if hosts behind these routes have addresses of the ServiceCIDR: " + f.Impact + ". Otherwise, none"
	case kind == ofCluster && !c.Services.RouteUnused:
		f.Severity = view.Wrong
		f.Impact = "connections to pods and nodes with these addresses fail, unless they go through a Service: " +
			"packets to addresses that no Service has are dropped"
	}
	return f
}
