package plan

import (
	"fmt"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// FilledByPackets reports whether packets add the elements of the set of that name: what is in it is nobody's mistake.
func FilledByPackets(set string) bool { return Remembers(set) || set == unusedPortsSet }

// Remembers reports whether clients are remembered in the set of that name.
func Remembers(set string) bool { return set == affinitySet }

// ElementDigest is what an element adds to the digest in [Planner.State]; sums may overflow. Elements of the set of states, and
// those that packets add, add nothing and must not be given.
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
