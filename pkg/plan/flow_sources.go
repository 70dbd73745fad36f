package plan

import (
	"slices"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// FlowSources returns the only sources that may open flows to a frontend, sorted; nil where all may. The list is shared and must not
// be changed. It reports false if there is no such frontend.
func (p *Planner) FlowSources(k model.Key) (allowed []model.AddrRange, exists bool) {
	c := p.claims[k].winner
	if c.service == nil {
		return nil, false
	}
	return c.frontend.AllowedSources, true
}

// touchSources notes the frontends of a change that other sources may open flows to now than before, whatever their protocol:
// a flow that nobody has answered meets the rules no more. All frontends of a Service have the same few lists, so that each pair
// of them is compared once.
func (p *Planner) touchSources(contests []contest) {
	var was, is []model.AddrRange // the pair that was compared last: is isn't nil then
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

// identical reports whether two lists are the same memory.
func identical(a, b []model.AddrRange) bool {
	return (a == nil) == (b == nil) && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
