package plan

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// FrontendsOf calls f for each frontend of a protocol that a Service has. It skips claimed frontends that another Service has.
func (p *Planner) FrontendsOf(name types.NamespacedName, protocol inet.Protocol, f func(model.Key)) {
	s := p.services[name]
	if s == nil {
		return
	}
	for _, port := range s.ports {
		if port.protocol != protocol {
			continue
		}
		for i := range port.frontends {
			if k := port.frontends[i].Key; p.winner(k).service == s {
				f(k)
			}
		}
	}
}
