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
		s.Size = minimumSize
		for int(s.Size) < 2*n {
			s.Size *= 2
		}
	}
}

// Count returns the number of elements that a set should have.
func (p *Planner) Count(s *nft.Set) int { return p.counts[s] }

// EachCount calls f with the number of elements of each of a family's sets that is not filled by rules.
func (p *Planner) EachCount(f model.Family, each func(s *nft.Set, n int)) {
	for _, s := range p.tables[f].Sets {
		if !s.Dynamic && s.Name != StateSet {
			each(s, p.counts[s])
		}
	}
}
