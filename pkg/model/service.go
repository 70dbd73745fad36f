package model

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Family is an IP family; its number is an index into a pair.
type Family uint8

// The two IP families.
const (
	IPv4 Family = iota
	IPv6
)

// Families lists both families in the order in which they are handled.
var Families = [...]Family{IPv4, IPv6}

// FamilyOf returns the family of a valid address; an IPv4-mapped IPv6 address counts as IPv6.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6", the values of kube-proxy's ip_family metric label.
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that a Service can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the protocol's lower-case name, as nft prints it.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "unknown"
}

// Kind says which field of a Service an address or port comes from.
type Kind uint8

// The kinds of frontends.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "externalIP", "load-balancer IP", "node port"}[k]
}

// PortName names one port of one Service; the port's own name is empty where the Service has a single unnamed port.
// Together with a Protocol it identifies a service port (kube-proxy: ServicePortName).
type PortName struct {
	types.NamespacedName
	Port string
}

// String returns namespace/name or namespace/name:port.
func (p PortName) String() string {
	if p.Port == "" {
		return p.NamespacedName.String()
	}
	return p.Namespace + "/" + p.Name + ":" + p.Port
}

// Key is what a packet is matched by. A node port has no address of its own: Addr is the zero Addr, and Family says
// which family's node addresses are meant.
type Key struct {
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
	Family   Family
}

// Frontend is one way to reach a service port.
type Frontend struct {
	Key
	Kind Kind
	// Local is set where the traffic policy that governs this frontend is Local: the internal one for a cluster IP,
	// the external one for all others.
	Local bool
	// ReplacesClusterIP is set where a load-balancer IP or an external IP is the Service's own cluster IP. As in kube-proxy, it takes
	// the place of the cluster IP: the external traffic policy and the source ranges hold.
	ReplacesClusterIP bool
	// AllowedSources, if not nil, are the only addresses that may reach this frontend (loadBalancerSourceRanges); none may if it is
	// empty. They are of the frontend's family and sorted, and have gaps between them. All frontends of a Service and family that
	// are restricted share one list.
	AllowedSources []AddrRange
}

// AtClusterIP reports whether the frontend's address is the cluster IP of its Service, which the API server has allocated.
func (f *Frontend) AtClusterIP() bool { return f.Kind == ClusterIP || f.ReplacesClusterIP }

// ServicePort is one port of a Service in one family. It is immutable.
type ServicePort struct {
	Name     PortName
	Protocol Protocol
	Family   Family
	// Affinity is the timeout of ClientIP session affinity; 0 means none.
	Affinity time.Duration
	// Cluster holds the endpoints for policy Cluster, which a frontend with the external policy Local needs too: for
	// local pods and this node. Local holds those for policy Local. Each is sorted and free of duplicates, and nil where no
	// frontend needs it.
	Cluster, Local []netip.AddrPort
	// Hairpin holds the endpoints of Cluster and Local that are pods of this node: these may reach themselves.
	Hairpin []netip.AddrPort
	// Serving holds, for UDP only, every endpoint with which a flow that has begun may go on: ready or serving,
	// terminating or not, whatever policies and topology say; sorted and free of duplicates.
	Serving []netip.AddrPort
	// HasEndpoints says that some endpoint is usable somewhere in the cluster: where it is set, a frontend without
	// endpoints for its policy drops; where it is not, it rejects.
	HasEndpoints bool
	// Frontends are the ways to reach this port, cluster IP first.
	Frontends []Frontend
}

// Service is one Service as this node sees it. It is immutable.
type Service struct {
	Name types.NamespacedName
	// Created decides between two Services that claim one frontend: the older one wins.
	Created time.Time
	Ports   []*ServicePort
	// HealthCheckNodePort is the port on which a load balancer asks for local endpoints; 0 means none.
	HealthCheckNodePort uint16
	// LocalReady is the number of distinct addresses of ready endpoints on this node, by family.
	LocalReady [2]int
	// Problems are the parts of the Service or its EndpointSlices that had to be left out.
	Problems []Problem
}

// Serves reports whether the Service has a port in a family.
func (s *Service) Serves(f Family) bool {
	return slices.ContainsFunc(s.Ports, func(p *ServicePort) bool { return p.Family == f })
}

// Node is what the proxy needs to know of its own Node.
type Node struct {
	Name string
	// Zone is the label topology.kubernetes.io/zone; empty means unknown.
	Zone string
	// IPs holds the node's primary address of each family; the zero Addr where there is none.
	IPs [2]netip.Addr
}

// Problem is a part of an API object that could not be used, and why. It never stops anything else.
type Problem struct {
	// Kind and Name are the Kubernetes kind and name of the object that should be fixed.
	Kind string
	Name types.NamespacedName
	// Field is the path of the offending field, such as "spec.externalIPs[1]".
	Field string
	// Reason is the fact. Where they are known, Impact is its effect and Fix is the remedy.
	Reason, Impact, Fix string
	// Limit is the limit that the object exceeds; empty for any other problem.
	Limit Limit
	// Event and Action are the reason and action of the Event that tells of it; empty for "NotProgrammed" and "Sync".
	Event, Action string
}

// Text returns the reason with its impact and fix, in one line.
func (p Problem) Text() string {
	text := p.Reason
	if p.Impact != "" {
		text += ": " + p.Impact
	}
	if p.Fix != "" {
		text += "; " + p.Fix
	}
	return text
}
