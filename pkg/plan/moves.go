package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Moves returns the frontends that the Service gives up and takes if [Planner.Set] replaces it by next; nil stands for a
// deleted Service. It returns none for a new Service.
func (s PlannedService) Moves(next *model.Service) (given, taken []model.Frontend) {
	if !s.Exists() {
		return nil, nil
	}
	was := s.ports
	var is []*model.ServicePort
	if next != nil {
		for _, port := range next.Ports {
			if s.planner.rules.layouts[port.Family] != nil {
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
