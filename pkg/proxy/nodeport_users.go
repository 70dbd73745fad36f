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

// portUsers passes node ports to NodePortUsers.
type portUsers struct {
	quiet
	to       NodePortUsers
	families []inet.Family
}

func (u portUsers) Service(name types.NamespacedName, s *model.Service) {
	u.to.Service(name, u.portsOf(s))
}

func (u portUsers) portsOf(s *model.Service) (keys []model.Key) {
	if s == nil {
		return nil
	}
	for _, port := range s.Ports {
		if !slices.Contains(u.families, port.Family) {
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

func (u portUsers) Node(n *Node) {
	for _, f := range u.families {
		u.to.Addresses(f, n.Addresses[f])
	}
}
