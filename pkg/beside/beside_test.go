package beside

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestKindsOf(t *testing.T) {
	port := func(change func(*model.ServicePort)) *model.Service {
		at := model.Key{Addr: netip.MustParseAddr("10.96.0.10")}
		p := &model.ServicePort{Frontends: []model.Frontend{{Key: at, Kind: model.ClusterIP}}}
		change(p)
		return &model.Service{Ports: []*model.ServicePort{p}}
	}
	for name, c := range map[string]struct {
		service *model.Service
		want    Kinds
	}{
		"no Service":        {nil, 0},
		"plain":             {port(func(*model.ServicePort) {}), 0},
		"health check":      {&model.Service{HealthCheckNodePort: 1}, HealthChecks},
		"terminates":        {&model.Service{TerminateGone: true}, Terminating},
		"spreads":           {&model.Service{SpreadSilent: time.Second}, Spreading},
		"scales to zero":    {&model.Service{Switches: model.Switches{ScaleToZero: true}}, Holding},
		"session affinity":  {port(func(p *model.ServicePort) { p.Affinity = time.Second }), Remembering},
		"node port as well": {port(func(p *model.ServicePort) { p.Frontends = append(p.Frontends, model.Frontend{Kind: model.NodePort}) }), NodePorts},
	} {
		lab.Same(t, c.want, KindsOf(c.service), name)
	}
}
