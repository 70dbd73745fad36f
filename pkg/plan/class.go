package plan

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// The scratch register (meta priority) carries one of two words between the rules. Both have the top bit set. The rules
// in input and postrouting recognise the register by this bit, and clear it.
//
//	number | class         after a rule has found a destination: the class selects a chain, the number stands for the
//	                       service port or its source ranges
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
	// returnBits and passBits stand in place of a route in the classes of direct server return.
	returnBits = 0x0000_0600
	passBits   = 0x0000_0700
)

// A class selects the next chain of a packet. The large maps hold classes as plain numbers, and one small map for each
// step turns a class into a chain. Verdicts in the large maps would be slow: at each commit, the kernel walks every map
// whose elements have verdicts.
//
// The register has room for all classes, regardless of the objects in the API. Sizes of tables and timeouts are rounded
// up to a fixed list, so no Service can use up the classes or chains of other Services.
type class struct {
	kind kind
	// of is the route, the list of endpoints or the list of sources of the class, whichever its kind has.
	of uint8
	// table is the table of a class whose chain is numbered by a table.
	table table
	// timeout is the timeout of an affinity class in seconds, one of timeouts.
	timeout uint32
}

func (c class) route() route        { return route(c.of) }
func (c class) list() list          { return list(c.of) }
func (c class) sources() sourceList { return sourceList(c.of) }

// code is the number of the class among those of kinds with similar chains.
func (c class) code() uint32 { return kinds[c.kind].code + uint32(c.of) }

// number is the key of the class in the map of a step.
func (c class) number() uint32 {
	switch {
	case c.kind == kindAffinity:
		at, _ := slices.BinarySearch(timeouts[:], c.timeout)
		return topBit | route(c.of).bits() | affinityBit | uint32(at)
	case c.kind == kindDirect:
		return topBit | route(c.of).bits() | c.table.index()
	case c.kind == kindReturn:
		return topBit | returnBits | c.table.index()
	case c.kind == kindPass:
		return topBit | passBits | c.table.index()
	case kinds[c.kind].by == byTable:
		return c.code()<<8 | c.table.index()
	}
	return topBit | c.code()
}

// kindOf returns the kind of the class in a word. The word must not be of a pick or choose class: these have no kind in
// the word.
func kindOf(word uint32) kind {
	code := word & classBits
	switch {
	case code&routeBits == returnBits:
		return kindReturn
	case code&routeBits == passBits:
		return kindPass
	case code&routeBits != 0 && code&affinityBit != 0:
		return kindAffinity
	case code&routeBits != 0:
		return kindDirect
	}
	for k := kindReject; k < kindEnd; k++ {
		if first := kinds[k].code; kinds[k].by == unnumbered && code >= first && code < first+uint32(k.classes()) {
			return k
		}
	}
	return 0
}

// name is the name of the class's chain, without a number.
func (c class) name() string {
	r := &kinds[c.kind]
	of, selection := "", r.random
	if r.each != nil {
		of = r.each[c.of]
	}
	if c.table.by != (selector{}) {
		selection = c.table.by.name() + "-"
	}
	return r.prefix + of + selection + r.suffix
}

// chain is the name of the chain of the class. Several classes can share a chain.
func (c class) chain() string {
	if kinds[c.kind].by == unnumbered {
		return c.name()
	}
	return c.name() + "-" + strconv.Itoa(int(c.table.size+c.timeout)) // the other number is 0
}

// route is a combination of destination, traffic policy and origin. It determines the list of endpoints and
// masquerading.
type route uint8

const (
	// routeCluster: a cluster IP. [Options.LocalPods] and MasqueradeAll determine masquerading, see
	// [layout.masqueradeRoute].
	routeCluster route = iota
	// routeClusterLocal: the same with internalTrafficPolicy Local, to local endpoints only.
	routeClusterLocal
	// routeExternal: an external address or node port with policy Cluster, to any endpoint. Always masqueraded, so that
	// replies return by this node.
	routeExternal
	// routeShortCircuit: an external address or node port with policy Local, from a local pod or this node. All
	// endpoints serve it. A host port has this route for all clients: its pod is on this node.
	routeShortCircuit
	// routeLocal: an external address or node port with policy Local, from all other clients, to local endpoints only.
	// Packets keep the client's address.
	routeLocal
	routes
)

func (r route) String() string {
	return routeNames[r]
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

func (l list) prefix() string { return listNames[l] }

// step is a point on a packet's path at which its class selects a chain. Each step has its own map, and leads to later
// steps only: the kernel refuses a table in which chains could form a cycle.
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
	// stepTimed: the packet has its timeouts in connection tracking.
	stepTimed
	// stepFull: all endpoints have their connection limit.
	stepFull
	// stepPass: before conntrack, a rule has found a frontend with direct server return.
	stepPass
	// stepAgain: after conntrack, a rule has found a frontend with direct server return, and no connection.
	stepAgain
	// stepTimeouts: a packet needs timeouts in connection tracking.
	stepTimeouts
	// stepPick: a client needs an endpoint id of listCluster, stepPickLocal: of listLocal.
	stepPick
	stepPickLocal
	// stepChoose: a packet needs the id of an endpoint of listCluster that is not full, stepChooseLocal: of listLocal.
	stepChoose
	stepChooseLocal
	steps
)

// stepRows has the map of each step.
var stepRows = [steps]struct {
	// set is the name of the map. when describes the packets that look it up, and found has the meaning of
	// setRow.found.
	set, when, found string
	// jumps is true if the chains of the step return.
	jumps bool
}{
	stepFirst:   {set: "dispatch", when: "at first", found: "is for a Service"},
	stepRange:   {set: "dispatch-range", when: "for a port of a range", found: "is for a port range of a Service"},
	stepAllowed: {set: "dispatch-allowed", when: "after the firewall", found: "is allowed"},
	stepLocal: {set: "dispatch-local", when: "after external-local",
		found: "policy Local depends on its source"},
	stepTimed: {set: "dispatch-timed", when: "after its timeouts are set", found: "has its timeouts"},
	stepFull:  {set: "dispatch-full", when: "if all endpoints are full"},
	stepPass:  {set: "dispatch-pass", when: "to pass packets on to the endpoint's node", found: "may be passed on"},
	stepAgain: {set: "dispatch-again", when: "to pass open connections on", found: "may be an open connection"},
	stepTimeouts: {set: "dispatch-timeouts", when: "for timeouts in connection tracking",
		found: "gets the timeouts of the Service", jumps: true},
	stepPick:      {set: "dispatch-pick", when: "for a new client", found: "needs an endpoint", jumps: true},
	stepPickLocal: {set: "dispatch-pick-local", when: "for a new client, of local endpoints", jumps: true},
	stepChoose: {set: "dispatch-choose", when: "for an endpoint that is not full",
		found: "needs an endpoint that is not full", jumps: true},
	stepChooseLocal: {set: "dispatch-choose-local", when: "for a local endpoint that is not full",
		found: "needs an endpoint on this node that is not full", jumps: true},
}

// pick and choose are the steps at which a packet needs an endpoint of the list.
func (l list) pick() step   { return [lists]step{stepPick, stepPickLocal}[l] }
func (l list) choose() step { return [lists]step{stepChoose, stepChooseLocal}[l] }

// fixedSteps returns the steps at which a class can be selected whose chain is in every plan. The elements of these
// steps are in every plan, too.
func (c class) fixedSteps() []step {
	fixed := kinds[c.kind].fixed
	return fixed[min(int(c.of), len(fixed)-1)]
}

// isFixed reports whether the element that leads to a class at a step is in every plan.
func (c class) isFixed(st step) bool {
	return kinds[c.kind].fixed != nil && st != stepRange && st != stepTimed
}

// classOf returns the class of a family's chain by its name; that of the first route if several classes share the
// chain. It reports false for the chains that every plan has.
func classOf(f inet.Family, name string) (class, bool) {
	for c := range unnumberedClasses() {
		if c.kind.onDemand() && strings.HasPrefix(name, kinds[c.kind].prefix) && c.name() == name {
			return c, true
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
	for k := kindReject; k < kindEnd; k++ {
		for of := range k.classes() {
			switch c := (class{kind: k, of: of}); kinds[k].by {
			case byTimeout:
				if c.timeout = uint32(n); c.chain() == name {
					return c, timeoutClass(c.timeout) == c.timeout
				}
			case byTable:
				for _, by := range append(selectors[:], selector{}) {
					if c.table = (table{uint32(n), by}); c.chain() == name {
						return c, c.table.exists(f)
					}
				}
			}
		}
	}
	return class{}, false
}

// classOfConstant returns the class of a chain that every plan has, by its name. It reports false for all other chains.
func classOfConstant(name string) (class, bool) {
	for c := range unnumberedClasses() {
		if !c.kind.onDemand() && c.name() == name {
			return c, true
		}
	}
	return class{}, false
}

// timeouts are the timeouts of remembered clients, in seconds. Each timeout in use needs a chain, so all other timeouts
// are rounded up to one of these. 125 is in the list because upstream's e2e tests use a timeout of 125 s, and expect
// that clients are forgotten within 130 s.
var timeouts = [...]uint32{
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 45, 60, 75, 90, 120, 125, 150, 180, 240, 300, 360, 420, 480,
	600, 750, 900, 1200, 1500, 1800, 2400, 2700, 3600, 4500, 5400, 7200, 9000, 10800, 14400, 18000, 21600, 28800, 36000,
	43200, 57600, 72000, 86400,
}

func timeoutClass(seconds uint32) uint32 {
	at, _ := slices.BinarySearch(timeouts[:], seconds)
	return timeouts[min(at, len(timeouts)-1)]
}

func (c class) compare(d class) int {
	return cmp.Or(cmp.Compare(c.kind, d.kind), cmp.Compare(c.of, d.of),
		cmp.Compare(c.table.index(), d.table.index()), cmp.Compare(c.timeout, d.timeout))
}
