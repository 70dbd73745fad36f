package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// FlowSources returns the sources that may open flows to a frontend, sorted; nil if all may. The caller must not change the list, which is
// shared. exists is false if no Service has the frontend.
func (p *Planner) FlowSources(k model.Key) (allowed []model.AddrRange, exists bool) {
	c := p.claims[k].winner
	if c.service == nil {
		return nil, false
	}
	return c.frontend.AllowedSources, true
}

// touchSources notes the frontends whose allowed sources have changed, unless all sources may open flows now. It includes frontends of all
// protocols: the kernel does not evaluate the rules again for an existing flow without a reply. The restricted frontends of a Service
// and family share one list, so a pair of lists is not compared again for the next frontend.
func (p *Planner) touchSources(contests []contest) {
	var was, is []model.AddrRange // the last pair that was compared; is nil before the first
	same := false
	for i := range contests {
		before, now := contests[i].winner, p.claims[contests[i].key].winner
		if before.service == nil || now.service == nil || now.frontend.AllowedSources == nil {
			continue
		}
		if a, b := before.frontend.AllowedSources, now.frontend.AllowedSources; !identical(a, was) || !identical(b, is) {
			was, is, same = a, b, a != nil && slices.Equal(a, b)
		}
		if !same {
			p.flows[contests[i].key] = struct{}{}
		}
	}
}

// identical reports whether two lists share their memory, or both are nil, or both are empty.
func identical(a, b []model.AddrRange) bool {
	return (a == nil) == (b == nil) && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
