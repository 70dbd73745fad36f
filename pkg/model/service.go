package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// Kind is the kind of a frontend: the field of the Service or pod that has its address or its port of the node.
type Kind uint8

// The kinds of frontends.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancer
	NodePort
	HostPort // of a pod: a port of the node
)

// String returns the kind for messages, such as "externalIP".
func (k Kind) String() string {
	return [...]string{"ClusterIP", "externalIP", "load-balancer IP", "node port", "host port"}[k]
}

// PortName names one port of one Service. Port is empty if the Service has a single unnamed port. Together with a
// Protocol it identifies a service port (kube-proxy: ServicePortName).
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

// Key holds the fields of a packet that select a frontend. For a node port, Addr is the zero Addr: the key stands for
// all node addresses of Family. The same applies to a host port without a hostIP.
type Key struct {
	Addr netip.Addr
	Port uint16
	// Last is the last port if the key has the ports from Port to Last; 0 if Port is the only one.
	Last     uint16
	Protocol inet.Protocol
	Family   inet.Family
}

// AddrProtocol is an address and a protocol, without a port.
type AddrProtocol struct {
	Addr     netip.Addr
	Protocol inet.Protocol
}

// NodePort returns the key of the node port with the same number.
func (k Key) NodePort() Key {
	return Key{Port: k.Port, Protocol: k.Protocol, Family: k.Family}
}

// AddrProtocol returns the address and the protocol of a key.
func (k Key) AddrProtocol() AddrProtocol { return AddrProtocol{k.Addr, k.Protocol} }

// Frontend is one way to reach a service port.
type Frontend struct {
	Key
	Kind Kind
	// Local is true if the traffic policy of this frontend is Local. The internal policy applies to a cluster IP, the
	// external policy to all other kinds.
	Local bool
	// ReplacesClusterIP is true if this frontend is a load-balancer IP or external IP that equals the cluster IP. As in
	// kube-proxy, it replaces the frontend of kind ClusterIP: the external traffic policy and the source ranges apply.
	ReplacesClusterIP bool
	// OnNode is true if the address is the primary address of this node.
	OnNode bool
	// OnAllNodes is true for a node port that may have direct server return: the program knows the networks of all
	// nodes.
	OnAllNodes bool
	// RefuseUnused is the vote on refusing connections to unused ports of the address, Ping on answering echo requests.
	RefuseUnused, Ping Vote
	// Sources restricts the clients of this frontend; nil admits all. All frontends of a Service, family and kind share
	// it.
	Sources *Sources
}

// AtClusterIP reports whether the frontend's address is the cluster IP that the API server allocated to its Service.
func (f *Frontend) AtClusterIP() bool { return f.Kind == ClusterIP || f.ReplacesClusterIP }

// ServicePort is one port of a Service in one family. It is immutable.
type ServicePort struct {
	Name     PortName
	Protocol inet.Protocol
	Family   inet.Family
	// Switches are those of the Service.
	Switches
	// Affinity is the timeout of ClientIP session affinity; 0 means none.
	Affinity time.Duration
	// Method is the algorithm that chooses an endpoint. With session affinity, it applies to new clients.
	Method balance.Method
	// MaxConnections is the connection limit of each endpoint through this node; 0 means none. AtMaximum applies
	// while all endpoints are at this limit. With session affinity, the limit does not apply, see
	// [ServicePort.Limited].
	MaxConnections uint16
	AtMaximum      AtMaximum
	// Timeouts are the timeouts of its connections in connection tracking.
	Timeouts Timeouts
	// Cluster and Local are the endpoints for policy Cluster and for policy Local. Both lists are sorted and free of
	// duplicates. A list is nil if no frontend needs it. A frontend with the external policy Local also needs Cluster,
	// for local pods and this node.
	Cluster, Local []netip.AddrPort
	// Idle holds, for a port with MaxConnections only, all other endpoints in the EndpointSlices, such as those that
	// are not ready. They may still have connections. It is sorted and free of duplicates.
	Idle []netip.AddrPort
	// ClusterWeights and LocalWeights are the reduced weights (see [balance.Reduce]) of the endpoints with the same
	// indexes; nil if all weights are equal. With slow start and the random algorithm, they are not nil: each unit of
	// weight has [fullShare] slots, or fewer for a starting endpoint. Endpoints of weight 0 are in neither list.
	ClusterWeights, LocalWeights []uint16
	// Rising is the number of slots that the tables do not have yet, because endpoints are starting.
	Rising int
	// Hairpin holds the endpoints of Cluster and Local that are pods of this node. These pods may reach themselves.
	Hairpin []netip.AddrPort
	// Serving holds every endpoint that may continue an existing flow: ready or serving, regardless of termination,
	// policies and topology. It is sorted and free of duplicates.
	Serving []netip.AddrPort
	// Direct has the places of endpoints, with direct server return; otherwise nil.
	Direct *Direct
	// HasEndpoints is true if policy Cluster has an endpoint. A frontend without endpoints for its own policy then
	// drops packets. If HasEndpoints is false, the frontend rejects them.
	HasEndpoints bool
	// Frontends lists the frontends of this port, the cluster IP first.
	Frontends []Frontend
}

// Limited reports whether the connection limit applies.
func (sp *ServicePort) Limited() bool { return sp.MaxConnections > 0 && sp.Affinity == 0 }

// Ranged reports whether the frontends are ranges of ports. A packet keeps its port: the endpoints have port 0.
func (sp *ServicePort) Ranged() bool { return sp.Name.Port == RangesPort }

// Slots returns the number of slots of the tables of Cluster and Local after all endpoints have started.
func (sp *ServicePort) Slots() int {
	return sp.Method.Slots(len(sp.Cluster), sp.ClusterWeights) +
		sp.Method.Slots(len(sp.Local), sp.LocalWeights) + sp.Rising
}

// Switches are the boolean annotations of a Service. Each is false without the annotation.
type Switches struct {
	// ScaleToZero is true if the Service holds packets while it has no endpoint, so that demand can wake it.
	ScaleToZero bool
}

// Service is one Service, or one pod with host ports, as this node sees it. It is immutable.
type Service struct {
	Name types.NamespacedName
	// Created is the time of creation. In a conflict, the older Service gets the frontend.
	Created time.Time
	// UID is metadata.uid.
	UID   string
	Ports []*ServicePort
	// Reserved is the cluster IP of each family at which the Service has no frontend, because of an annotation. It
	// refuses connections.
	Reserved [2]netip.Addr
	// HealthCheckNodePort is the port on which load balancers query the number of local endpoints; 0 means none.
	HealthCheckNodePort uint16
	// LocalReady is the number of distinct addresses of ready endpoints on this node, by family. It is 0 without
	// HealthCheckNodePort.
	LocalReady [2]int
	Switches
	// TerminateGone is true if TCP connections to endpoints that leave Listed are to be terminated. Listed then has the
	// addresses of all endpoints in the EndpointSlices, ready or not, regardless of their ports. It is sorted and free
	// of duplicates. Without TerminateGone, it is nil.
	TerminateGone bool
	Listed        []netip.Addr
	// SpreadSilent is the time without a segment after which a TCP connection may end after the Service has got more
	// endpoints; 0 means that no connection may. It is 0 without TerminateGone.
	SpreadSilent time.Duration
	// Starts are the starting endpoints, with slow start; otherwise nil.
	Starts *Starts
	// Problems are the parts of the Service or of its EndpointSlices that are not programmed.
	Problems []Problem
}

// Age orders Services. The author of a Service cannot choose it. Created is metadata.creationTimestamp in seconds since
// 1970. Of two Services with the same time, the one with the lower UID counts as the older one.
type Age struct {
	Created int64
	UID     string
}

// Compare returns a negative number if a is the age of the older Service.
func (a Age) Compare(b Age) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), cmp.Compare(a.UID, b.UID))
}

// Age returns the age of a Service; the zero Age for nil.
func (s *Service) Age() (a Age) {
	if s != nil {
		a = Age{s.Created.Unix(), s.UID}
	}
	return a
}

// Asleep reports whether the Service scales to zero and has no endpoint: no port of any family has one.
func (s *Service) Asleep() bool {
	return s.ScaleToZero && !slices.ContainsFunc(s.Ports, func(p *ServicePort) bool { return p.HasEndpoints })
}

// Serves reports whether the Service has a port in a family.
func (s *Service) Serves(f inet.Family) bool {
	return slices.ContainsFunc(s.Ports, func(p *ServicePort) bool { return p.Family == f })
}

// Node holds the fields of this Node that affect the selection of endpoints.
type Node struct {
	Name string
	// Zone is the label topology.kubernetes.io/zone; empty means unknown.
	Zone string
	// Labels has all labels, in the form key=value with commas, so that two Nodes are comparable.
	Labels string
	// IPs holds the node's primary address of each family, or the zero Addr.
	IPs [2]netip.Addr
}

// Problem is a part of an API object that is not programmed, and the reason. It does not affect other objects.
type Problem struct {
	// Kind and Name are the Kubernetes kind and the name of the invalid object.
	Kind string
	Name types.NamespacedName
	// Field is the path of the offending field, such as "spec.externalIPs[1]".
	Field string
	// Reason states the fact, Impact its effect, and Fix the remedy. Impact and Fix may be empty.
	Reason, Impact, Fix string
	// EventReason replaces Reason in the Event, if it is not empty: the users of a namespace may read its Events, and
	// Reason names an object of another namespace.
	EventReason string
	// Limit is the limit that the object exceeds, or empty.
	Limit Limit
	// Event and Action are the reason and action of the Event. Empty stands for "NotProgrammed" and "Sync".
	Event, Action string
}

// OfAnnotation reports whether the problem is an invalid annotation. Its reason has the effect.
func (p Problem) OfAnnotation() bool { return strings.HasPrefix(p.Field, inAnnotations) }

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
