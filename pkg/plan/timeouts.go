package plan

import (
	"slices"
	"strings"

	"github.com/google/nftables/expr"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// A service port can have its own timeouts in connection tracking. Instead of the class of a route that leads to an
// endpoint, it has the class of kindTimed, whose chain sets the timeouts first:
//
//	timeouts     number -> class of the timeouts: a chain with one rule, which sets the object with its own name
//	timed-ROUTE  number -> class of the route, as without timeouts
//
// The kernel evaluates the rules for the first packet of a connection, before it stores the connection. So a change
// affects only later connections. The kernel walks all paths through the chains when a batch adds a chain. So the chain
// of the timeouts returns: their number adds to the number of paths, and does not multiply it.

// timeoutsNames returns the names of the timeouts in the order of [model.AllTimeouts], such as udp-5s-30s.
func timeoutsNames() (names []string) {
	for _, t := range model.AllTimeouts() {
		names = append(names, strings.NewReplacer("=", "-", "/", "-").Replace(t.Text))
	}
	return names
}

// timeoutsWords describe the class of timeouts.
func timeoutsWords(c class) string {
	return "conntrack-timeouts: " + model.AllTimeouts()[c.of].Text
}

// timeoutsClass returns the class of timeouts.
func timeoutsClass(t model.Timeouts) class {
	is := func(item model.TimeoutsItem) bool { return item.Timeouts == t }
	return class{kind: kindTimeouts, of: uint8(slices.IndexFunc(model.AllTimeouts(), is))}
}

// timeoutsElements adds the elements of the timeouts of a service port: those of all routes to its endpoints.
func (l *layout) timeoutsElements(p *port, to *wants) {
	c := timeoutsClass(p.Timeouts)
	l.numberElement(p, l.timeouts, nft.Value{}.Uint32(p.number|c.number()), c, stepTimeouts, to)
	for r := range routes {
		if len(p.slots[r.list()]) > 0 {
			c := p.routeClass(r, false)
			l.numberElement(p, l.timed[r], nft.Value{}.Uint32(p.number|c.number()), c, stepTimed, to)
		}
	}
}

// mostTimeoutsElements is the greatest number of these elements.
const mostTimeoutsElements = 1 + int(routes)

// timedRules returns the rules of the chain for a route of service ports with timeouts.
func (l *layout) timedRules(r route) []nft.Rule {
	number := key(nft.Priority())
	return []nft.Rule{
		rule("the timeouts of the Service", keepBits(portBits), setPriority(number, l.timeouts),
			dispatch(wordBits, l.dispatch[stepTimeouts])),
		rule("", keepBits(portBits), setPriority(number, l.timed[r]), dispatch(wordBits, l.dispatch[stepTimed])),
		rule(undone, setPriorityTo(0)),
	}
}

// timeoutsChain returns the chain of timeouts: ct timeout set "NAME"
func timeoutsChain(c class) *nft.Chain {
	return &nft.Chain{
		Name: c.chain(), Timeouts: nft.Timeouts(model.AllTimeouts()[c.of].Timeouts),
		Rules: []nft.Rule{rule("", []expr.Any{nft.SetTimeouts(c.chain())})},
	}
}
