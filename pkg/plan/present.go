package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Present has the frontends of a Service, and the endpoints of all its ports. Both are sorted and free of duplicates.
type Present struct {
	Frontends []model.Key
	Endpoints []netip.AddrPort
}

// Present returns the planned frontends and endpoints of the named Service. planned is false if the plan does not have the Service.
func (p *Planner) Present(name types.NamespacedName) (out Present, planned bool) {
	s := p.services[name]
	if s == nil {
		return out, false
	}
	for _, port := range s.ports {
		for i := range port.Frontends {
			out.Frontends = append(out.Frontends, port.Frontends[i].Key)
		}
		for ls := range lists {
			out.Endpoints = append(out.Endpoints, port.endpoints(ls)...)
		}
	}
	out.tidy()
	return out, true
}

// PresentOf returns the frontends and endpoints of a Service that is not planned yet.
func PresentOf(s *model.Service) (out Present) {
	for _, port := range s.Ports {
		for i := range port.Frontends {
			out.Frontends = append(out.Frontends, port.Frontends[i].Key)
		}
		out.Endpoints = append(append(out.Endpoints, port.Cluster...), port.Local...)
	}
	out.tidy()
	return out
}

func (p *Present) tidy() {
	slices.SortFunc(p.Endpoints, netip.AddrPort.Compare)
	p.Endpoints = slices.Compact(p.Endpoints)
	slices.SortFunc(p.Frontends, compareKeys)
	p.Frontends = slices.Compact(p.Frontends)
}

func compareKeys(a, b model.Key) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Last, b.Last), cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.Family, b.Family))
}

// Services returns the number of planned Services.
func (p *Planner) Services() int { return len(p.services) }
