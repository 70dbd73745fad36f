package proxy

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// NodePortUsers searches for processes that use a node port. It works beside the loop. Its methods do not block. It takes
// ownership of its arguments.
type NodePortUsers interface {
	// Service sets the node ports of a Service. The list is empty if the Service has none or was deleted.
	Service(name types.NamespacedName, ports []model.Key)
	// Addresses sets the addresses of a family on which node ports are served.
	Addresses(f inet.Family, addrs []netip.Addr)
}

// Loopback serves TCP node ports on loopback, beside the loop. Its methods do not wait. It keeps parts of the Services, which are immutable.
type Loopback interface {
	// Service sets a Service. s is nil if the Service was deleted.
	Service(name types.NamespacedName, s *model.Service)
	// Serve starts or stops listening: another instance of the program may serve instead.
	Serve(bool)
}

// setNodePorts passes the node ports of a Service to Loopback and NodePortUsers. s is nil if the Service was deleted.
func (p *Proxy) setNodePorts(name types.NamespacedName, s *model.Service) {
	if p.Loopback != nil {
		p.Loopback.Service(name, s)
	}
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

// setNodeAddresses passes the addresses that serve node ports to NodePortUsers.
func (p *Proxy) setNodeAddresses(f inet.Family, addrs []netip.Addr) {
	if p.NodePortUsers != nil {
		p.NodePortUsers.Addresses(f, addrs)
	}
}
