package plan

import (
	"fmt"
	"iter"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// kind is the kind of a class, an index of [kinds].
type kind uint8

const (
	kindReject kind = 1 + iota
	kindDrop
	kindFirewall
	kindExternalLocal
	kindLimited
	kindHold
	kindSources
	kindRangeSources
	kindRange
	kindSingle
	kindTimed
	kindTimeouts
	kindAffinity
	kindDirect
	kindReturn
	kindPass
	kindPick
	kindChoose
	kindEnd
)

// kindRow has everything that is particular to a kind of classes, apart from the rules of its chains, which
// [layout.classChain] and [layout.table] have.
type kindRow struct {
	// each has a part of the name for each route or list that has a class of its own; nil for a kind with one class.
	each []string
	// prefix and suffix are the parts of the chain's name before and after the part in each. random follows the part
	// in each if a random number selects the slot. Otherwise, the name of the selector follows.
	prefix, random, suffix string
	// code is the class in the word of an element, for the first route or list. The codes of the others follow.
	code uint32
	// by is the number in the chain's name.
	by numbering
	// fixed has the steps at which the class can be selected, for each route or list; if there is one entry, it is for
	// all of them. The chain and the elements that lead to it at these steps are in every plan. nil: they are in the
	// plan while a Service uses them.
	fixed [][]step
	// outcome is the outcome of all packets in the chain, or None. If it only refuses, or only drops, the chain needs
	// no rules of its own, see [layout.refusals].
	outcome outcome.Code
	// words describe the chain. nil: the words of the outcome do.
	words func(class) string
}

// numbering is the number that the chains of a kind have in their names.
type numbering uint8

const (
	// unnumbered: there is one chain for each route or list.
	unnumbered numbering = iota
	// byTimeout: one for each timeout of remembered clients. Routes to the same list share the chain.
	byTimeout
	// byTable: one for each size of a table. Routes to the same list share the chain. The cost of an element of a map
	// grows with the number of rules that look up the map.
	byTable
)

// The parts of names for each route, for the list of each route, and for each list.
var (
	routeNames       = []string{"cluster", "cluster-local", "external", "short-circuit", "local"}
	routeLists       = []string{"", "local-", "", "", "local-"}
	listNames        = []string{"", "local-"}
	sourceChains     = []string{"firewall-denied", "firewall-external-ips", "firewall-node-ports"}
	rangeSourceNames = []string{"firewall", "firewall-external-ips"}
)

// afterAll are the steps of a class that any class may lead to, atFirst those of a frontend's class.
var (
	afterAll = [][]step{{stepFirst, stepAllowed, stepLocal, stepFull}}
	atFirst  = [][]step{{stepFirst, stepAllowed}}
)

var kinds = [kindEnd]kindRow{
	kindReject: {prefix: "reject-packet", code: 1, fixed: afterAll, outcome: outcome.NoEndpoints},
	kindDrop:   {prefix: "drop-packet", code: 2, fixed: afterAll, outcome: outcome.NoLocalEndpoints},
	kindFirewall: {
		prefix: "firewall", code: 3, fixed: [][]step{{stepFirst}},
		words: func(class) string { return "loadBalancerSourceRanges" },
	},
	kindExternalLocal: {
		prefix: "external-local", code: 4, fixed: atFirst,
		words: func(class) string { return "externalTrafficPolicy Local" },
	},
	// Picks an endpoint that does not have its connection limit.
	kindLimited: {
		prefix: "limited-", each: routeNames, code: 5,
		fixed: [][]step{{stepFirst}, {stepFirst}, {stepFirst, stepAllowed}, {stepLocal}, {stepLocal}},
		words: func(c class) string { return c.route().words() + "; each has a connection limit" },
	},
	// Drops packets to a Service that scales to zero, so that clients retry.
	kindHold: {prefix: "hold-packet", code: 10, fixed: atFirst, outcome: outcome.Held},
	// Looks up the source of a packet in the source ranges of a Service.
	kindSources: {each: sourceChains, code: 11, words: sourceWords},
	// The same for a port of a range.
	kindRangeSources: {prefix: "range-", each: rangeSourceNames, code: 14, words: sourceWords},
	// Picks the id of an endpoint for a port of a range.
	kindRange: {
		prefix: "range-", each: routeNames, code: 16,
		words: func(c class) string { return c.route().words() + "; the port is kept" },
	},
	// Leads to the only endpoint of an external address, see formSingle. A cluster IP needs no class for it.
	kindSingle: {prefix: "single-external", code: 21, words: func(class) string {
		return routeExternal.words() + "; only one, because there is no room for all"
	}},
	// Sets timeouts, and leads to the class of the route, see timeouts.go.
	kindTimed: {
		prefix: "timed-", each: routeNames, code: 26,
		words: func(c class) string { return c.route().words() + "; with timeouts in connection tracking" },
	},
	// Sets timeouts.
	kindTimeouts: {prefix: "timeouts-", each: timeoutsNames(), code: 31, words: timeoutsWords},
	// Uses the client's earlier endpoint if there is one, and remembers the client with a timeout.
	kindAffinity: {prefix: "affinity-", each: routeLists, suffix: "for", by: byTimeout, words: func(c class) string {
		return fmt.Sprintf("%s; a client stays with its endpoint, and is remembered for %s", c.route().list().words(),
			time.Duration(c.timeout)*time.Second)
	}},
	// Picks an endpoint from a table.
	kindDirect: {each: routeLists, random: "endpoints-", suffix: "of", by: byTable, words: func(c class) string {
		return c.route().list().words() + "; " + c.table.share()
	}},
	// Selects an endpoint with direct server return, see direct.go.
	kindReturn: {prefix: "direct-", suffix: "of", by: byTable, words: func(c class) string {
		return "direct server return: an endpoint on this node, or any endpoint, masqueraded; " + c.table.share()
	}},
	// Passes a packet on to the node of its endpoint, or of the earlier endpoint of an open connection.
	kindPass: {prefix: "pass-", each: chanceNames, suffix: "of", by: byTable, words: func(c class) string {
		return "direct server return: passed on to " + chance(c.of).words() + "; " + c.table.share()
	}},
	// Picks the id of an endpoint for a new client.
	kindPick: {prefix: "pick-", each: listNames, suffix: "of", code: 0, by: byTable, words: func(c class) string {
		return "a new client: " + c.table.share()
	}},
	// Picks the id of an endpoint that is not full, for a Service with a connection limit.
	kindChoose: {prefix: "choose-", each: listNames, suffix: "of", code: 2, by: byTable, words: func(c class) string {
		return "an endpoint that is not full: " + c.table.share()
	}},
}

func sourceWords(c class) string { return sourceTexts[c.sources()].comment }

// classes returns the number of routes or lists for which the kind has a class.
func (k kind) classes() uint8 { return uint8(max(1, len(kinds[k].each))) }

// onDemand reports whether the kind's chains are in the plan only while they are used.
func (k kind) onDemand() bool { return kinds[k].fixed == nil }

// direct reports whether the kind is in plans with [Options.DirectReturn] only.
func (k kind) direct() bool { return k == kindReturn || k == kindPass }

// hasRoute reports whether the routes of the kind have bits of the word for themselves.
func (k kind) hasRoute() bool { return k == kindAffinity || k == kindDirect }

// unnumberedClasses yields the classes whose chains have no number.
func unnumberedClasses() iter.Seq[class] {
	return func(yield func(class) bool) {
		for k := kindReject; k < kindEnd; k++ {
			for of := range k.classes() {
				if kinds[k].by == unnumbered && !yield(class{kind: k, of: of}) {
					return
				}
			}
		}
	}
}

// The names of the sets that the chain services looks up.
const (
	SinglesSet       = "singles"
	ServicesSet      = "services"
	NodePortsSet     = "nodeports"
	NodeAddressesSet = "node-addresses"
)

// DirectSet is the name of the map that the chain prerouting-direct looks up, and DirectNodePortsSet that of the map of
// node ports with direct server return.
const (
	DirectSet          = "direct"
	DirectNodePortsSet = "direct-node-ports"
)

// ChainMeaning describes the chain of a class in words, such as "no endpoints". It returns "" for any other chain.
func ChainMeaning(chain string) string {
	c, constant := classOfConstant(chain)
	if !constant {
		var known bool
		if c, known = classOf(inet.IPv6, chain); !known {
			return ""
		}
	}
	if row := &kinds[c.kind]; row.words != nil {
		return row.words(c)
	}
	return outcome.Rows[kinds[c.kind].outcome].Words
}

// share describes the share of one endpoint in a table.
func (t table) share() string {
	size := t.size
	if t.by != (selector{}) {
		return fmt.Sprintf("one of %d slots by %s", size, t.by.words())
	}
	if filled := surelyFilled(size); filled < size {
		return fmt.Sprintf("one of %d to %d at random", filled+1, size)
	}
	return fmt.Sprintf("one of %d at random", size)
}

// words describes the endpoints of a list.
func (l list) words() string { return [...]string{"any endpoint", "endpoints on this node only"}[l] }

// words describes the traffic of a route and its endpoints.
func (r route) words() string {
	return [...]string{
		"a cluster IP: any endpoint",
		"a cluster IP with internalTrafficPolicy Local: endpoints on this node only",
		"from outside with policy Cluster: any endpoint, masqueraded",
		"policy Local, but from a local pod or this node: any endpoint",
		"policy Local, from outside: endpoints on this node only",
	}[r]
}
