package nodeport

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Find searches once for collisions, and returns all problems, whether [Watcher.Run] has reported them or not. There
// are two differences from Run: a socket whose port the kernel may have assigned counts immediately, and the
// ephemeral range is only a problem of the node, not of each Service. Find is safe for concurrent use.
func (w *Watcher) Find() ([]model.Problem, error) {
	s, ports := w.served()
	if len(s.services) == 0 {
		return nil, nil
	}
	e, rangeErr := w.Ephemeral()
	listeners, err := w.listeners(s, ports, func(*Socket) bool { return true })
	var problems []model.Problem
	for _, of := range byService(listeners) {
		problems = append(problems, listenerProblem(w.NodeName, of))
	}
	if overlap := s.ephemeral(e); rangeErr == nil && len(overlap) > 0 {
		problems = append(problems, nodeProblem(w.NodeName, e, overlap))
	}
	return problems, errors.Join(rangeErr, err)
}

// served returns a copy of the current node ports, and the range that contains all of them.
func (w *Watcher) served() (*served, Range) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &served{services: make(map[model.Key][]types.NamespacedName, len(w.ports)), addrs: w.addrs}
	all := Range{First: ^uint16(0)}
	for name, keys := range w.ports {
		for _, k := range keys {
			s.services[k] = append(s.services[k], name)
			all = Range{min(all.First, k.Port), max(all.Last, k.Port)}
		}
	}
	return s, all
}
