package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// touchSources records the frontends whose source ranges have changed, unless all sources may open flows now. It includes frontends of all protocols:
// the kernel does not evaluate the rules again for an existing flow without a reply. The frontends of a Service, family and kind share their lists,
// so touchSources compares equal pairs of lists only once.
func (p *Planner) touchSources(contests []contest) {
	var allowed, denied comparison
	for i := range contests {
		before, now := contests[i].winner, p.winner(contests[i].key)
		if before.service == nil || now.service == nil || !now.frontend.Restricted() {
			continue
		}
		a, d := allowed.same(before.frontend.AllowedSources, now.frontend.AllowedSources), denied.same(before.frontend.DeniedSources, now.frontend.DeniedSources)
		if !a || !d {
			p.flows[contests[i].key] = struct{}{}
		}
	}
}

// comparison is the last pair of lists that was compared. Two nil lists are equal.
type comparison struct {
	was, is []model.AddrRange
	differ  bool
}

// same reports whether two lists have the same ranges. A nil list differs from an empty one.
func (c *comparison) same(was, is []model.AddrRange) bool {
	if !identical(was, c.was) || !identical(is, c.is) {
		*c = comparison{was, is, (was == nil) != (is == nil) || !slices.Equal(was, is)}
	}
	return !c.differ
}

// identical reports whether two lists share their memory, or both are nil, or both are empty.
func identical(a, b []model.AddrRange) bool {
	return (a == nil) == (b == nil) && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
