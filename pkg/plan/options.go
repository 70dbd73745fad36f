package plan

import (
	"net/netip"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// TableName is the name of our table in both families, unless the options have the name of a service proxy.
const TableName = "kube-nftproxy"

// Table returns the name of the table, in both families, of the instance with a service-proxy name, or of the default instance for an empty one.
func Table(serviceProxyName string) string {
	if serviceProxyName == "" {
		return TableName
	}
	return TableName + "-" + serviceProxyName
}

// Options shape the constant rules. All but LocalPods stay as they are for the life of a process.
type Options struct {
	// Families are the IP families to serve.
	Families []inet.Family
	// ServiceProxyName makes the tables those of an instance that serves some Services beside another proxy.
	ServiceProxyName string
	// MasqueradeMark is the bit of the packet mark that asks for masquerading between two of our hooks.
	MasqueradeMark uint32
	// MasqueradeAll masquerades all traffic to cluster IPs, whatever its source.
	MasqueradeAll bool
	// LocalPods tells, for each family, how traffic of this node's pods is recognised; see [Planner.SetLocalPods].
	LocalPods [2]LocalPods
	// AnyNodeAddress accepts node ports on every local address of the family but loopback, instead of those given to
	// [Planner.SetNodeAddresses].
	AnyNodeAddress [2]bool
	// Uncounted leaves connections uncounted.
	Uncounted bool
	// Room bounds all Services together; a field that is 0 stands for that of [DefaultRoom].
	Room Room
}

// LocalPods recognises traffic from pods, kube-proxy's detect-local-mode. The zero value recognises none.
type LocalPods struct {
	// Prefix matches by source address (modes ClusterCIDR and NodeCIDR).
	Prefix netip.Prefix
	// Interface matches by the interface a packet came in on (mode BridgeInterface), or, with InterfacePrefix, by how
	// that interface's name begins (mode InterfaceNamePrefix).
	Interface       string
	InterfacePrefix bool
}

func (l LocalPods) known() bool { return l.Prefix.IsValid() || l.Interface != "" }
