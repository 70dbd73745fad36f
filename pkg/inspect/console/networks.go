package console

import (
	"net/netip"
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// serviceNetworks returns the ServiceCIDRs, and the other networks of the cluster.
func (c *Console) serviceNetworks() doctor.ServiceNetworks {
	cidrs, pods := c.Loop.Facts().ServiceCIDRs, c.podPrefixes()
	n := doctor.ServiceNetworks{CIDRs: slices.Concat(cidrs[:]...), RouteUnused: c.Tables.RouteUnused, Pods: pods[:], IsService: c.isClusterIP}
	if node := c.Source.Node(); node != nil {
		n.Nodes = model.InternalIPs(node)
		ofNode, _ := model.PodCIDRs(node)
		n.Pods = append(n.Pods, ofNode[:]...)
	}
	return n
}

// isClusterIP reports whether a Service has an address as its cluster IP.
func (c *Console) isClusterIP(addr netip.Addr) bool {
	for _, name := range c.Source.Services() {
		of := c.Source.Get(name)
		if of.Service != nil && of.Pod == nil && slices.Contains(of.Service.Spec.ClusterIPs, addr.String()) {
			return true
		}
	}
	return false
}
