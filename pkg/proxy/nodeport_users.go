package proxy

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// NodePortUsers looks beside the loop for other users of the node ports. Its methods don't wait; it takes over what it is given.
type NodePortUsers interface {
	// Service sets the node ports of a Service; none where there are none, or the Service has gone.
	Service(name types.NamespacedName, ports []model.Key)
	// Addresses sets the addresses of a family on which node ports are served.
	Addresses(f model.Family, addrs []netip.Addr)
}

// tellNodePorts hands over the node ports of a Service, nil where it has gone.
func (p *Proxy) tellNodePorts(name types.NamespacedName, s *model.Service) {
	if p.NodePortUsers != nil {
		p.NodePortUsers.Service(name, p.nodePortsOf(s))
	}
}

func (p *Proxy) nodePortsOf(s *model.Service) (keys []model.Key) {
	if s == nil {
		return nil
	}
	for _, port := range s.Ports {
		if !slices.Contains(p.Families, port.Family) {
			continue
		}
		for i := range port.Frontends {
			if f := &port.Frontends[i]; f.Kind == model.NodePort {
				keys = append(keys, f.Key)
			}
		}
	}
	return keys
}

// tellNodeAddresses hands over where node ports are served.
func (p *Proxy) tellNodeAddresses(f model.Family, addrs []netip.Addr) {
	if p.NodePortUsers != nil {
		p.NodePortUsers.Addresses(f, addrs)
	}
}
