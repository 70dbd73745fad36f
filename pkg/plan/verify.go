package plan

import (
	"fmt"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// Remembers reports whether packets add the elements of the set of that name, whose clients are remembered in it.
func Remembers(set string) bool { return set == affinitySet }

// ElementDigest is what an element adds to the digest in [Planner.State]; sums may overflow. Elements of the set of states, and
// of remembered clients, add nothing and must not be given.
func ElementDigest(e *nft.Element) uint64 { return digest(e) }

// StateDigest returns the digest in an element that [Planner.State] has returned.
func StateDigest(e *nft.Element) (sum uint64, err error) {
	var layout uint64
	if _, err := fmt.Sscanf(e.Comment, stateComment, &layout, &sum); err != nil {
		return 0, fmt.Errorf("read digest in %q: %w", e.Comment, err)
	}
	return sum, nil
}

// stateComment is the comment of the element that says what a table holds.
const stateComment = "layout %016x digest %016x"
