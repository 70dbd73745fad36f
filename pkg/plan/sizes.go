package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// grow notes that a set is about to fill up.
func (p *Planner) grow(s *nft.Set) {
	full := s.Size > 0 && !s.Dynamic && p.counts[s] > int(s.Size/4*3)
	if full && !slices.Contains(p.delta.grown, s) {
		p.delta.grown = append(p.delta.grown, s)
	}
}

// Fit sets the size of every set to what its elements need, with room for as many again; for a kernel that is about to
// make them anew.
func (p *Planner) Fit() {
	for s, n := range p.counts {
		if s.Size == 0 || s.Dynamic {
			continue
		}
		s.Size = sizeFor(n)
	}
}

// largeSet is the number of elements from which a set is large, largeSize the least size of a large set. The kernel takes 32 MB for its buckets.
// A large set is not deleted and added again before several namespaces have filled their room.
const largeSet, largeSize = 1 << 16, 1 << 21

// sizeFor returns the size of a set for n elements: at least room for as many again.
func sizeFor(n int) uint32 {
	size := uint32(minimumSize)
	if n > largeSet {
		size = largeSize
	}
	for int(size) < 2*n {
		size *= 2
	}
	return size
}

// Count returns the number of elements that a set should have.
func (p *Planner) Count(s *nft.Set) int { return p.counts[s] }

// EachCount calls f with the number of elements of each of a family's sets that holds what the cluster asks for.
func (p *Planner) EachCount(f model.Family, each func(s *nft.Set, n int)) {
	for _, s := range p.tables[f].Sets {
		if !s.Dynamic && s.Timeout == 0 && s.Name != StateSet {
			each(s, p.counts[s])
		}
	}
}

// NoLocalEndpoints returns the number of a family's service ports that have endpoints, but none on this node for frontends
// whose internal or external traffic policy is Local (kube-proxy: sync_proxy_rules_no_local_endpoints_total).
func (p *Planner) NoLocalEndpoints(f model.Family) (internal, external int) {
	return p.noLocal[f].internal, p.noLocal[f].external
}

// countNoLocal counts a Service that comes, n = 1, or goes, n = -1.
func (p *Planner) countNoLocal(s *service, n int) {
	if s == nil {
		return
	}
	for _, port := range s.ports {
		if !port.hasEndpoints || len(port.lists[listLocal]) > 0 {
			continue
		}
		internal, external := port.localPolicies()
		if internal {
			p.noLocal[port.family].internal += n
		}
		if external {
			p.noLocal[port.family].external += n
		}
	}
}

// localPolicies tells whether the internal and the external traffic policy of a port's frontends are Local.
func (p *port) localPolicies() (internal, external bool) {
	for i := range p.frontends {
		f := &p.frontends[i]
		internal = internal || f.Local && f.Kind == model.ClusterIP
		external = external || f.Local && f.Kind != model.ClusterIP
	}
	return internal, external
}
