package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Moves returns the frontends that the named Service gives up and takes if [Planner.Set] replaces it by s; nil stands for a deleted Service. It
// returns none for a new Service.
func (p *Planner) Moves(name types.NamespacedName, s *model.Service) (given, taken []model.Frontend) {
	old := p.services[name]
	if old == nil {
		return nil, nil
	}
	was := old.ports
	var is []*model.ServicePort
	if s != nil {
		for _, port := range s.Ports {
			if p.rules.layouts[port.Family] != nil {
				is = append(is, port)
			}
		}
	}
	if slices.EqualFunc(was, is, func(a *port, b *model.ServicePort) bool { return sameKeys(a.Frontends, b.Frontends) }) {
		return nil, nil
	}
	had := map[model.Key]bool{}
	for _, port := range was {
		for i := range port.Frontends {
			had[port.Frontends[i].Key] = true
		}
	}
	for _, port := range is {
		for i := range port.Frontends {
			f := &port.Frontends[i]
			if !had[f.Key] {
				taken = append(taken, *f)
			}
			delete(had, f.Key)
		}
	}
	for _, port := range was {
		for i := range port.Frontends {
			if f := &port.Frontends[i]; had[f.Key] {
				given = append(given, *f)
			}
		}
	}
	return given, taken
}

// AgeOf returns the age of a planned Service; the zero Age if the plan does not have the Service.
func (p *Planner) AgeOf(name types.NamespacedName) (a model.Age) {
	if s := p.services[name]; s != nil {
		a = s.age
	}
	return a
}

func sameKeys(a, b []model.Frontend) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Key != b[i].Key {
			return false
		}
	}
	return true
}
