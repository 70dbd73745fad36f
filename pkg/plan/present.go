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

// PlannedService answers questions about a Service as it is in the plan now. If the plan does not have the Service, the
// answers are those for a Service without ports.
type PlannedService struct {
	*service
	planner *Planner
}

// noService stands for all Services that the plan does not have. Nothing changes it.
var noService = service{}

// Service returns the planned Service with a name.
func (p *Planner) Service(name types.NamespacedName) PlannedService {
	return PlannedService{cmp.Or(p.services[name], &noService), p}
}

// Exists reports whether the plan has the Service.
func (s PlannedService) Exists() bool { return s.service != &noService }

// Age returns the age of the Service.
func (s PlannedService) Age() model.Age { return s.age }

// Releases reports whether the Service gives up a frontend if [Planner.Set] replaces it by next; nil stands for a
// deleted Service.
func (s PlannedService) Releases(next *model.Service) bool {
	kept := map[model.Key]bool{}
	if next != nil {
		for _, port := range next.Ports {
			for i := range port.Frontends {
				kept[port.Frontends[i].Key] = true
			}
		}
	}
	released := false
	s.eachFrontend(func(c claim) { released = released || !kept[c.frontend.Key] })
	return released
}

// Elements returns the number of elements that the Service takes of [Room].
func (s PlannedService) Elements() int { return s.takes[ofElements] }

// Present returns the planned frontends and endpoints of the Service.
func (s PlannedService) Present() Present {
	var out model.Service
	for _, port := range s.ports {
		out.Ports = append(out.Ports, port.ServicePort)
	}
	return PresentOf(&out)
}

// PresentOf returns the frontends and endpoints of a Service that is not planned yet.
func PresentOf(s *model.Service) (out Present) {
	for _, port := range s.Ports {
		for i := range port.Frontends {
			out.Frontends = append(out.Frontends, port.Frontends[i].Key)
		}
		out.Endpoints = append(append(out.Endpoints, port.Cluster...), port.Local...)
	}
	slices.SortFunc(out.Endpoints, netip.AddrPort.Compare)
	slices.SortFunc(out.Frontends, compareKeys)
	out.Endpoints, out.Frontends = slices.Compact(out.Endpoints), slices.Compact(out.Frontends)
	return out
}

func compareKeys(a, b model.Key) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Last, b.Last),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family))
}
