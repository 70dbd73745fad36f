package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// The scratch register (meta priority) carries one of two words between the rules. Both have the top bit set. The rules in input and
// postrouting recognise the register by this bit, and clear it.
//
//	number | class         after a rule has found a destination: the class selects a chain, the number stands for the service port or its source ranges
//	number | endpoint id   of a service port with endpoint ids, whose numbers use only the upper half
const (
	topBit       = 0x8000_0000 // of all words
	classBits    = 0x0000_07ff
	routeBits    = 0x0000_0700        // of a direct class
	tableBits    = 0x0000_00ff        // of a direct class
	wordBits     = topBit | classBits // of a word that has a class
	portBits     = 0xffff_f800        // a number
	affineBits   = 0xffff_0000        // a number of a service port with endpoint ids
	endpointBits = 0x0000_ffff
	portShift    = 11
	affineShift  = 16
	// affinityBit distinguishes the classes of the affinity kinds from direct classes, whose tables have lower indexes.
	affinityBit = 0x0000_0080
)

// A class selects the next chain of a packet. The large maps hold classes as plain numbers, and one small map for each step turns a class into a
// chain. Verdicts in the large maps would be slow: at each commit, the kernel walks every map whose elements have verdicts.
//
// The register has room for all classes, regardless of the objects in the API. Sizes of tables and timeouts are rounded up to a fixed list, so no
// Service can use up the classes or chains of other Services.
type class struct {
	kind kind
	// table is the table of a direct or pick class.
	table table
	// timeout is the timeout of an affinity class in seconds, one of timeouts.
	timeout uint32
}

// number is the key of the class in the map of a step.
func (c class) number() uint32 {
	switch {
	case c.kind >= kindPick:
		return uint32(c.kind-kindPick)<<8 | c.table.index()
	case c.kind >= kindDirect:
		return topBit | c.kind.route().bits() | c.table.index()
	case c.kind >= kindAffinity:
		at, _ := slices.BinarySearch(timeouts[:], c.timeout)
		return topBit | c.kind.route().bits() | affinityBit | uint32(at)
	}
	return topBit | uint32(c.kind)
}

// word is the class together with the number of a service port or of source ranges: the data of an element.
func (c class) word(number uint32) nft.Value { return nft.Value{}.Uint32(number | c.number()) }

// kindOf returns the kind of the class in a word. The word must not be of a pick or choose class: these have no kind in
// the word.
func kindOf(word uint32) kind {
	code := word & classBits
	switch route := kind(code >> 8); {
	case route == 0:
		return kind(code)
	case code&affinityBit != 0:
		return kindAffinity + route - 1
	default:
		return kindDirect + route - 1
	}
}

// chain is the name of the chain of the class. Several classes can share a chain.
func (c class) chain() string {
	name := c.kind.name(c.table.by)
	if c.kind.numbered() {
		return fmt.Sprintf("%s-%d", name, c.table.size+c.timeout) // the other number is 0
	}
	return name
}

// kind is the kind of a class.
type kind uint8

const (
	// Kinds before kindSources have exactly one chain, which is in every plan.
	kindReject kind = 1 + iota
	kindDrop
	kindFirewall
	kindExternalLocal
	// kindLimited draws an endpoint that does not have its maximum of connections. This is the kind of the first route; the other routes follow.
	kindLimited
	// kindHold drops packets to a Service that scales to zero, so that clients retry.
	kindHold = kindLimited + kind(routes)
	// kindSources looks up the source of a packet in the source ranges of a Service. This is the kind of the first sourceList; the kinds of the other
	// lists with frontends follow. Each has a single chain, which is in the plan while a Service uses it.
	kindSources = kindHold + 1
	// kindRangeSources does the same for a port of a range. It is the kind of balancerSources; the kind of externalIPSources follows.
	kindRangeSources = kindSources + kind(deniedSources)
	// kindRange draws the id of an endpoint for a port of a range. This is the kind of the first route; the other routes follow. Each has a single
	// chain, which is in the plan while a Service uses it.
	kindRange = kindRangeSources + kind(nodePortSources)
	// kindSingle leads to the only endpoint of a frontend, see formSingle. This is the kind of the first route; the
	// other routes follow. Each has a single chain, which is in the plan while a Service uses it.
	kindSingle = kindRange + kind(routes)
	// kindAffinity uses the client's earlier endpoint if there is one, and remembers the client with a timeout. This is
	// the kind of the first route; the other routes follow. Routes to the same list share one chain for each timeout.
	kindAffinity = kindSingle + kind(routes)
	// kindDirect draws an endpoint from a table of a size. This is the kind of the first route; the other routes follow. Routes to the same list
	// share one chain for each size. The cost of an element of a map grows with the number of rules that look up the map.
	kindDirect = kindAffinity + kind(routes)
	// kindPick draws an endpoint id for a new client from listCluster. The kind for listLocal follows.
	kindPick = kindDirect + kind(routes)
	// kindChoose draws the id of an endpoint of listCluster that is not full, for a Service with a maximum of connections. The kind for
	// listLocal follows.
	kindChoose = kindPick + kind(lists)
	kindEnd    = kindChoose + kind(lists)
)

// route is a combination of destination, traffic policy and origin. It determines the list of endpoints and masquerading.
type route uint8

const (
	// routeCluster: a cluster IP. [Planner.LocalPods] and MasqueradeAll determine masquerading, see [layout.masqueradeRoute].
	routeCluster route = iota
	// routeClusterLocal: the same with internalTrafficPolicy Local, to local endpoints only.
	routeClusterLocal
	// routeExternal: an external address or node port with policy Cluster, to any endpoint. Always masqueraded, so that replies return by this
	// node.
	routeExternal
	// routeShortCircuit: an external address or node port with policy Local, from a local pod or this node. All endpoints serve it.
	routeShortCircuit
	// routeLocal: an external address or node port with policy Local, from all other clients, to local endpoints only. Packets keep the client's
	// address.
	routeLocal
	routes
)

func (r route) String() string {
	return [...]string{"cluster", "cluster-local", "external", "short-circuit", "local"}[r]
}

// list is the list of endpoints that the route uses.
func (r route) list() list {
	if r == routeClusterLocal || r == routeLocal {
		return listLocal
	}
	return listCluster
}

// bits are the bits that stand for the route in a direct class.
func (r route) bits() uint32 { return uint32(r+1) << 8 }

// list is one of the two lists of endpoints of a service port: for policy Cluster, or for policy Local.
type list uint8

const (
	listCluster list = iota
	listLocal
	lists
)

func (l list) prefix() string { return [...]string{"", "local-"}[l] }

// route is the first route to the list.
func (l list) route() route { return [...]route{routeCluster, routeClusterLocal}[l] }

func directKind(r route) kind   { return kindDirect + kind(r) }
func affinityKind(r route) kind { return kindAffinity + kind(r) }
func limitedKind(r route) kind  { return kindLimited + kind(r) }
func rangeKind(r route) kind    { return kindRange + kind(r) }
func singleKind(r route) kind   { return kindSingle + kind(r) }
func pickKind(l list) kind      { return kindPick + kind(l) }
func chooseKind(l list) kind    { return kindChoose + kind(l) }

// onDemand reports whether the kind's chains are in the plan only while they are used.
func (k kind) onDemand() bool { return k >= kindSources }

// numbered reports whether the kind has one chain for each size or timeout in use, instead of a single chain.
func (k kind) numbered() bool { return k >= kindAffinity }

// route is the route of a direct, affinity, single, range or limited kind.
func (k kind) route() route {
	switch {
	case k >= kindDirect:
		return route(k - kindDirect)
	case k >= kindAffinity:
		return route(k - kindAffinity)
	case k >= kindSingle:
		return route(k - kindSingle)
	case k >= kindRange:
		return route(k - kindRange)
	}
	return route(k - kindLimited)
}

// list is the list of a pick or choose kind.
func (k kind) list() list { return list(k-kindPick) % lists }

// name is the name of the kind's chain, or of its chains for a selector without their numbers.
func (k kind) name(by selector) string {
	switch {
	case k >= kindPick:
		name := "pick-"
		if k >= kindChoose {
			name = "choose-"
		}
		if name += k.list().prefix(); by != (selector{}) {
			name += by.name() + "-"
		}
		return name + "of"
	case k >= kindDirect && by != selector{}:
		return k.route().list().prefix() + by.name() + "-of"
	case k >= kindDirect:
		return k.route().list().prefix() + "endpoints-of"
	case k >= kindAffinity:
		return "affinity-" + k.route().list().prefix() + "for"
	case k >= kindSingle:
		return "single-" + k.route().String()
	case k >= kindRange:
		return "range-" + k.route().String()
	case k >= kindRangeSources:
		return sourceTexts[k-kindRangeSources].rangeChain
	case k >= kindSources:
		return sourceTexts[k-kindSources].chain
	case k == kindHold:
		return "hold-packet"
	case k >= kindLimited:
		return "limited-" + k.route().String()
	}
	return [...]string{"", "reject-packet", "drop-packet", "firewall", "external-local"}[k]
}

// step is a point on a packet's path at which its class selects a chain. Each step has its own map, and leads to later steps only: the kernel
// refuses a table in which chains could form a cycle.
type step uint8

const (
	// stepFirst: a rule has found the destination in services or nodeports.
	stepFirst step = iota
	// stepRange: a rule has found the destination in ranges.
	stepRange
	// stepAllowed: the source has passed the source ranges.
	stepAllowed
	// stepLocal: external-local has looked up the class for the origin of the packet.
	stepLocal
	// stepFull: all endpoints have their maximum of connections.
	stepFull
	// stepPick: a client needs an endpoint id of listCluster. A jump: the chain returns. The step for listLocal follows.
	stepPick
	stepPickLocal
	// stepChoose: a packet needs the id of an endpoint of listCluster that is not full. A jump: the chain returns. The step for listLocal follows.
	stepChoose
	stepChooseLocal
	steps
)

func (s step) mapName() string {
	return "dispatch" + [...]string{"", "-range", "-allowed", "-local", "-full", "-pick", "-pick-local", "-choose", "-choose-local"}[s]
}

func (s step) when() string {
	return [...]string{"at first", "for a port of a range", "after the firewall", "after external-local", "if all endpoints are full", "for a new client",
		"for a new client, of local endpoints", "for an endpoint that is not full", "for a local endpoint that is not full"}[s]
}

// fixedDispatch returns the steps at which a kind with a constant chain can be selected. The elements of these steps are in every plan, too.
func fixedDispatch(k kind) []step {
	switch k {
	case kindReject, kindDrop:
		return []step{stepFirst, stepAllowed, stepLocal, stepFull}
	case kindFirewall, limitedKind(routeCluster), limitedKind(routeClusterLocal):
		return []step{stepFirst}
	case limitedKind(routeShortCircuit), limitedKind(routeLocal):
		return []step{stepLocal}
	}
	return []step{stepFirst, stepAllowed}
}

// isFixed reports whether the element that leads to a class at a step is in every plan.
func (c class) isFixed(st step) bool { return !c.kind.onDemand() && st != stepRange }

// classOf returns the class of a family's chain by its name, that of the first route if several classes share the chain. It reports false for the chains that every plan has.
func classOf(f inet.Family, name string) (class, bool) {
	for k := kindSources; !k.numbered(); k++ {
		if name == k.name(selector{}) {
			return class{kind: k}, true
		}
	}
	at := strings.LastIndex(name, "-")
	if at < 0 {
		return class{}, false
	}
	n, err := strconv.ParseUint(name[at+1:], 10, 24)
	if err != nil {
		return class{}, false
	}
	for k := kindAffinity; k < kindDirect; k++ {
		if c := (class{kind: k, timeout: uint32(n)}); c.chain() == name {
			return c, timeoutClass(c.timeout) == c.timeout
		}
	}
	for k := kindDirect; k < kindEnd; k++ {
		for _, by := range append(selectors[:], selector{}) {
			if c := (class{kind: k, table: table{uint32(n), by}}); strings.HasPrefix(name, k.name(by)) && c.chain() == name {
				return c, c.table.exists(f)
			}
		}
	}
	return class{}, false
}

// classOfConstant returns the class of a chain that every plan has, by its name. It reports false for all other chains.
func classOfConstant(name string) (class, bool) {
	for k := kindReject; k < kindSources; k++ {
		if name == k.name(selector{}) {
			return class{kind: k}, true
		}
	}
	return class{}, false
}

// timeouts are the timeouts of remembered clients, in seconds. Each timeout in use needs a chain, so all other timeouts are rounded up to one of
// these. 125 is in the list because upstream's e2e tests use a timeout of 125 s, and expect that clients are forgotten within 130 s.
var timeouts = [...]uint32{
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 45, 60, 75, 90, 120, 125, 150, 180, 240, 300, 360, 420, 480, 600, 750, 900, 1200, 1500,
	1800, 2400, 2700, 3600, 4500, 5400, 7200, 9000, 10800, 14400, 18000, 21600, 28800, 36000, 43200, 57600, 72000, 86400,
}

func timeoutClass(seconds uint32) uint32 {
	at, _ := slices.BinarySearch(timeouts[:], seconds)
	return timeouts[min(at, len(timeouts)-1)]
}

func (c class) compare(d class) int {
	return cmp.Or(cmp.Compare(c.kind, d.kind), cmp.Compare(c.table.index(), d.table.index()), cmp.Compare(c.timeout, d.timeout))
}
