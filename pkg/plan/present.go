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

// PlannedService answers questions about a Service as it is in the plan now. If the plan does not have the Service, the answers
// are those for a Service without ports.
type PlannedService struct {
	*service
	planner *Planner
}

// Service returns the planned Service with a name.
func (p *Planner) Service(name types.NamespacedName) PlannedService {
	return PlannedService{p.services[name], p}
}

// Exists reports whether the plan has the Service.
func (s PlannedService) Exists() bool { return s.service != nil }

// Age returns the age of the Service.
func (s PlannedService) Age() (a model.Age) {
	if s.Exists() {
		a = s.age
	}
	return a
}

// Elements returns the number of elements that the Service takes of [Room].
func (s PlannedService) Elements() (n int) {
	if s.Exists() {
		n = s.takes[ofElements]
	}
	return n
}

// Present returns the planned frontends and endpoints of the Service.
func (s PlannedService) Present() (out Present) {
	if !s.Exists() {
		return out
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
	return out
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
