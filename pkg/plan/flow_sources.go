package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// touchSources records the frontends whose source ranges have changed, unless all sources may open flows now. It includes frontends of all protocols:
// the kernel does not evaluate the rules again for an existing flow without a reply. The frontends of a Service, family and kind share their sources,
// so touchSources reuses the last comparison.
func (p *Planner) touchSources(contests []contest) {
	var was, is *model.Sources
	differ := false
	for i := range contests {
		before, now := contests[i].winner, p.winner(contests[i].key)
		if before.service == nil || now.service == nil || now.frontend.Sources == nil {
			continue
		}
		if before.frontend.Sources != was || now.frontend.Sources != is {
			was, is = before.frontend.Sources, now.frontend.Sources
			differ = was == nil || differs(was.Allowed, is.Allowed) || differs(was.Denied, is.Denied)
		}
		if differ {
			p.flows[contests[i].key] = struct{}{}
		}
	}
}

// differs reports whether two lists have different ranges. A nil list differs from an empty one.
func differs(a, b []model.AddrRange) bool { return (a == nil) != (b == nil) || !slices.Equal(a, b) }
