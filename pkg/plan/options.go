package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// TableName is the name of the tables of the default instance, in both families.
const TableName = "kube-nftproxy"

// Table returns the name of the tables of the instance with a service-proxy name, in both families. The default
// instance has the empty name.
func Table(serviceProxyName string) string {
	if serviceProxyName == "" {
		return TableName
	}
	return TableName + "-" + serviceProxyName
}

// Options determine the constant rules. After [New], only LocalPods can change.
type Options struct {
	// Families are the IP families to serve.
	Families []inet.Family
	// ServiceProxyName is the name of an instance that serves some Services beside another proxy. It is empty for the
	// default instance.
	ServiceProxyName string
	// MasqueradeMark is the bit of the packet mark by which the DNAT chains request masquerading from the postrouting
	// chain.
	MasqueradeMark uint32
	// MasqueradeAll masquerades all traffic to cluster IPs, from any source.
	MasqueradeAll bool
	// LocalPods is the property of traffic from this node's pods, for each family; see [Rules.SetLocalPods].
	LocalPods [2]LocalPods
	// AnyNodeAddress serves node ports on every local address of the family except loopback, instead of the addresses
	// of [Planner.SetNodeAddresses].
	AnyNodeAddress [2]bool
	// RefuseUnused refuses connections to unused ports of load-balancer and external IPs whose model.Vote allows
	// this. With RefuseLoops, it refuses only packets that would leave by the interface by which they arrived.
	RefuseUnused, RefuseLoops bool
	// AnswerPing answers echo requests to addresses whose model.Vote allows this.
	AnswerPing bool
	// DirectReturn permits direct server return.
	DirectReturn bool
	// RouteUnused sends packets to unused addresses of a ServiceCIDR along the routes of this node. Without it, they
	// are dropped.
	RouteUnused bool
	// Uncounted omits the counters of elements. CountEndpoints adds counters to the elements of endpoints.
	Uncounted, CountEndpoints bool
	// WithoutMaximum ignores connection limits, because the kernel lacks connlimit.
	WithoutMaximum bool
	// WithoutHash makes all choices of endpoints random, because the kernel lacks jhash.
	WithoutHash bool
	// WithoutTimeouts ignores timeouts in connection tracking, because the kernel lacks their objects.
	WithoutTimeouts bool
	// Room limits all Services together. A field that is 0 has the value of [DefaultRoom].
	Room Room
}

// LocalPods recognises traffic from pods of this node (kube-proxy: detect-local-mode). The zero value recognises none.
type LocalPods struct {
	// Prefix matches by source address (modes ClusterCIDR and NodeCIDR).
	Prefix netip.Prefix
	// Interface matches by the name of a packet's input interface (mode BridgeInterface). With InterfacePrefix, it is a
	// prefix of that name (mode InterfaceNamePrefix).
	Interface       string
	InterfacePrefix bool
}

func (l LocalPods) known() bool { return l.Prefix.IsValid() || l.Interface != "" }
