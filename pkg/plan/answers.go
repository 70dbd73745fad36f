package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
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

// Cost returns the cost of all changes of the Service, see [PlannedService.CostOf].
func (s PlannedService) Cost() int { return s.cost }

// CostOf returns the Cost of the Service after [Planner.Set] has replaced it by next: the number of elements that it
// asks for, also of those for which there is no room. nil stands for a deleted Service.
func (s PlannedService) CostOf(next *model.Service) (n int) {
	if next == nil {
		return 0
	}
	const portRange = 6 // the kernel takes six times as long for a port range as for another element
	counted := map[*model.Sources]bool{}
	for _, sp := range next.Ports {
		frontends := len(sp.Frontends)
		elements, direct := s.planner.formsOf(sp)[0].elements(sp)
		n += max(elements+direct, frontends)
		if sp.Ranged() {
			n += (portRange - 1) * frontends
		}
		for i := range sp.Frontends {
			if of := sp.Frontends[i].Sources; of != nil && !counted[of] {
				counted[of] = true
				n += len(of.Allowed) + len(of.Denied)
			}
		}
	}
	return n
}

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

// Totals are numbers of the whole plan.
type Totals struct {
	// Services and Conflicts are the numbers of planned Services, and of frontends that a Service claims and another
	// Service has.
	Services, Conflicts int
	// NoLocal has the numbers of each family's service ports without local endpoints.
	NoLocal [2]NoLocal
	// Next is the number at which a family starts its next search for a free number for service ports that are not
	// affine.
	Next [2]uint32
	// Disputed is true if conflicts may have changed since the last calls of [Conflicts.TakeLosers] and
	// [Conflicts.Settle].
	Disputed bool
	// Freed is true if a Service that waits for room may have room since the last call of [Planner.TakeWaiting].
	Freed bool
}

// NoLocal counts a family's service ports that have endpoints, but none on this node, although their internal or
// external traffic policy is Local (kube-proxy: sync_proxy_rules_no_local_endpoints_total).
type NoLocal struct{ Internal, External int }

// Totals returns the numbers of the plan.
func (p *Planner) Totals() Totals {
	places := &p.claims.places
	t := Totals{
		Services: len(p.services), Conflicts: p.claims.conflicts(), NoLocal: p.noLocal,
		Disputed: len(p.claims.losers)+len(places.unsettled)+len(places.unsettledRanges) > 0, Freed: p.freed && len(p.waiting) > 0,
	}
	for _, f := range p.rules.options.Families {
		t.Next[f] = p.numbers[f].others.next
	}
	return t
}

// Owned is a property of service ports whose Services the planner reports, see [Planner.TakeOwners].
type Owned uint8

const (
	// Holding: the service port holds packets.
	Holding Owned = iota
	// Remembering: the service port remembers clients.
	Remembering
	owned
)

// owners are the Services of the service ports with a property.
type owners struct {
	names map[Number]types.NamespacedName
	// changed are the service ports that may have got or lost their Service since the last call of TakeOwners.
	changed map[Number]struct{}
}

func newOwners() owners {
	return owners{names: map[Number]types.NamespacedName{}, changed: map[Number]struct{}{}}
}

// note records that a service port belongs to a Service, or does not any more.
func (o *owners) note(port Number, service types.NamespacedName, present bool) {
	o.changed[port] = struct{}{}
	if present {
		o.names[port] = service
	} else {
		delete(o.names, port)
	}
}

// TakeOwners returns the service ports that got or lost a property since the last call. The name is that of the
// Service, or the zero name if the service port lost the property.
func (p *Planner) TakeOwners(of Owned) map[Number]types.NamespacedName {
	o := &p.owners[of]
	taken := make(map[Number]types.NamespacedName, len(o.changed))
	for port := range o.changed {
		taken[port] = o.names[port]
	}
	clear(o.changed)
	return taken
}

// NumberOfClient returns the service port of a remembered client, an element of a map [AffinitySet].
func NumberOfClient(e *nft.Element) Number {
	return Number{e.Set.Family, e.Key.AsUint32() & affineBits}
}
