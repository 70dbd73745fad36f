package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// The scratch register (meta priority) carries one of two words between the rules. Both have the top bit set, and nothing else on a
// node uses such priorities: the rules clear the register in postrouting by that bit.
//
//	number | class         once a destination has been found: the class chooses a chain, the number names the service port
//	number | endpoint id   with session affinity, where numbers have upper halves only
const (
	ourBit       = 0x8000_0000
	classBits    = 0x0000_07ff
	routeBits    = 0x0000_0700        // of a direct class
	wordBits     = ourBit | classBits // of a word that has a class
	portBits     = 0xffff_f800        // a number
	affineBits   = 0xffff_0000        // a number of a service port with session affinity
	endpointBits = 0x0000_ffff
	blockBits    = 0xff00_0000
	portShift    = 11
	affineShift  = 16
	blockShift   = 24
)

// A class says what happens to a packet next. Maps hold classes as plain numbers, and one small map turns a class into a chain: an
// element that carries a verdict makes the kernel walk its whole map again on every commit, one that carries a number doesn't.
//
// There are fewer classes than the register has room for, whatever Services ask for: numbers of endpoints and timeouts are rounded up
// to those of tables. So no Service can use up the classes, or the chains, of others.
type class struct {
	kind kind
	// n is the size of the table of a direct or pick class, the timeout in seconds of a remember class.
	n uint32
	// block is the block of numbers of a remember class.
	block uint8
}

// number is the key of the class in the map of a step.
func (c class) number() uint32 {
	switch {
	case c.kind >= kindRemember:
		return uint32(c.block) << blockShift
	case c.kind >= kindPick:
		return uint32(c.kind-kindPick)<<8 | sizeIndex(c.n)
	case c.kind >= kindDirect:
		return ourBit | c.kind.route().bits() | sizeIndex(c.n)
	}
	return ourBit | uint32(c.kind)
}

// word is the class with the number of a service port, as maps hold them.
func (c class) word(number uint32) nft.Value { return nft.Value{}.Uint32(number | c.number()) }

// kindOf returns the kind of the class in a word.
func kindOf(word uint32) kind {
	code := word & classBits
	if route := code >> 8; route > 0 {
		return kindDirect + kind(route-1)
	}
	return kind(code)
}

// chain is the name of the chain of the class.
func (c class) chain() string {
	name := c.kind.name()
	if c.kind.numbered() {
		return fmt.Sprintf("%s-%d", name, c.n)
	}
	return name
}

// ofChain is the class without the parts on which its chain does not depend: the block of numbers, and the route beyond its list.
func (c class) ofChain() class {
	if c.kind >= kindDirect && c.kind < kindPick {
		c.kind = directKind(c.kind.route().list().route())
	}
	return class{kind: c.kind, n: c.n}
}

// kind is the kind of a class.
type kind uint8

const (
	// The kinds with exactly one chain, which is always there.
	kindReject kind = 1 + iota
	kindDrop
	kindFirewall
	kindExternalLocal
	// kindAffinity looks for the client's endpoint first; the kinds of the other routes follow.
	kindAffinity
	// kindDirect chooses an endpoint at random, from a table of some size; the kinds of the other routes follow. Routes to the same list
	// share a chain for each size: the cost of each element of a map grows with the number of rules that look up the map.
	kindDirect = kindAffinity + kind(routes)
	// kindPick chooses an endpoint's id for a new client; that of the other list follows.
	kindPick = kindDirect + kind(routes)
	// kindRemember remembers a client's endpoint for some time.
	kindRemember = kindPick + kind(lists)
	kindEnd      = kindRemember + 1
)

// route says which endpoints a packet may go to, and whether it is masqueraded.
type route uint8

const (
	// routeCluster: a cluster IP; masqueraded unless the packet comes from a local pod.
	routeCluster route = iota
	// routeClusterLocal: the same, to local endpoints only (internalTrafficPolicy Local).
	routeClusterLocal
	// routeExternal: from outside to any endpoint; always masqueraded, so that the answer comes back this way.
	routeExternal
	// routeShortCircuit: a local pod or this node uses an external address with policy Local: any endpoint will do.
	routeShortCircuit
	// routeLocal: from outside to local endpoints only; the client's address is kept.
	routeLocal
	routes
)

func (r route) String() string {
	return [...]string{"cluster", "cluster-local", "external", "short-circuit", "local"}[r]
}

// list says which of a service port's two lists of endpoints the route uses.
func (r route) list() list {
	if r == routeClusterLocal || r == routeLocal {
		return listLocal
	}
	return listCluster
}

// bits are those of the route in a class.
func (r route) bits() uint32 { return uint32(r+1) << 8 }

// list is one of the two lists of endpoints of a service port.
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
func pickKind(l list) kind      { return kindPick + kind(l) }

// numbered reports whether the kind has a chain for every number in use.
func (k kind) numbered() bool { return k >= kindDirect }

// route is that of a direct or affinity kind.
func (k kind) route() route {
	if k >= kindDirect {
		return route(k - kindDirect)
	}
	return route(k - kindAffinity)
}

// list is that of a pick kind.
func (k kind) list() list { return list(k - kindPick) }

func (k kind) name() string {
	switch {
	case k >= kindRemember:
		return "remember"
	case k >= kindPick:
		return "pick-" + k.list().prefix() + "of"
	case k >= kindDirect:
		return k.route().list().prefix() + "endpoints-of"
	case k >= kindAffinity:
		return "affinity-" + k.route().String()
	}
	return [...]string{"", "reject-packet", "drop-packet", "firewall", "external-local"}[k]
}

// step is a point on a packet's way at which its class chooses a chain. Every step has a map of its own, and leads to later
// steps only: the kernel refuses a table in which chains could lead back to themselves.
type step uint8

const (
	// stepFirst: the destination has been found in services or nodeports.
	stepFirst step = iota
	// stepAllowed: the source has passed loadBalancerSourceRanges.
	stepAllowed
	// stepLocal: traffic to a frontend with policy Local has been told apart by where it comes from.
	stepLocal
	// stepPick: a client needs an endpoint; the chain comes back. The step for the other list follows.
	stepPick
	stepPickLocal
	// stepRemember: a client's endpoint is known; the chain comes back.
	stepRemember
	steps
)

func (s step) mapName() string {
	return "dispatch" + [...]string{"", "-allowed", "-local", "-pick", "-pick-local", "-remember"}[s]
}

func (s step) when() string {
	return [...]string{"at first", "after the firewall", "after external-local", "for a new client", "for a new client, of local endpoints", "once its endpoint is known"}[s]
}

// fixedDispatch are the steps at which each of the kinds with one chain can be chosen.
func fixedDispatch(k kind) []step {
	switch k {
	case kindReject, kindDrop:
		return []step{stepFirst, stepAllowed, stepLocal}
	case kindFirewall, affinityKind(routeCluster), affinityKind(routeClusterLocal):
		return []step{stepFirst}
	case affinityKind(routeShortCircuit), affinityKind(routeLocal):
		return []step{stepLocal}
	}
	return []step{stepFirst, stepAllowed}
}

// use is a class at a step in one family's table.
type use struct {
	family inet.Family
	step   step
	class
}

// classOf finds the class whose chain has the given name.
func classOf(name string) (class, bool) {
	at := strings.LastIndex(name, "-")
	if at < 0 {
		return class{}, false
	}
	n, err := strconv.ParseUint(name[at+1:], 10, 24)
	if err != nil {
		return class{}, false
	}
	for k := kindDirect; k < kindEnd; k++ {
		if c := (class{kind: k, n: uint32(n)}); c.chain() == name {
			return c, k == kindRemember && timeoutClass(c.n) == c.n || k < kindRemember && n > 0 && n <= mostSlots && tableSize(c.n) == c.n
		}
	}
	return class{}, false
}

// A table has a slot for each endpoint, up to exactSlots; above, its size is rounded up to the next of four in every octave. A rule
// that draws an empty slot draws again. There are few sizes because each one in use costs every element of the map some 20 ns or more in a
// commit: the kernel checks the data of an element for each rule that looks up the map.
const (
	exactSlots = 16
	perOctave  = 4
	exactBits  = 4 // exactSlots = 1 << exactBits
	// mostSlots is the size of the largest table.
	mostSlots = 1 << 16
)

// sizeIndex numbers the sizes of tables from 1; it returns that of the smallest table for n endpoints, n from 1 to mostSlots.
func sizeIndex(n uint32) uint32 {
	if n <= exactSlots {
		return n
	}
	octave := uint32(bits.Len32(n-1)) - 1 // n is above 1 << octave, and at most twice that
	step := uint32(1) << octave / perOctave
	return exactSlots + (octave-exactBits)*perOctave + (n-1<<octave+step-1)/step
}

// sizeAt is the size with an index.
func sizeAt(index uint32) uint32 {
	if index <= exactSlots {
		return index
	}
	octave, part := (index-exactSlots-1)/perOctave+exactBits, (index-exactSlots-1)%perOctave+1
	return 1<<octave + part*(1<<octave/perOctave)
}

// tableSize is the size of the table for n endpoints.
func tableSize(n uint32) uint32 { return sizeAt(sizeIndex(n)) }

// surelyFilled is a number of slots that every table of the size has filled.
func surelyFilled(size uint32) uint32 {
	if size <= exactSlots {
		return size
	}
	return sizeAt(sizeIndex(size) - 1)
}

// timeouts are the times in seconds for which clients are remembered. Others are rounded up: each has a chain. Upstream's e2e tests have
// a timeout of 125 s, and expect clients to be forgotten within 130 s.
var timeouts = [...]uint32{
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 40, 45, 60, 75, 90, 120, 125, 150, 180, 240, 300, 360, 420, 480, 600, 750, 900, 1200, 1500,
	1800, 2400, 2700, 3600, 4500, 5400, 7200, 9000, 10800, 14400, 18000, 21600, 28800, 36000, 43200, 57600, 72000, 86400,
}

func timeoutClass(seconds uint32) uint32 {
	at, _ := slices.BinarySearch(timeouts[:], seconds)
	return timeouts[min(at, len(timeouts)-1)]
}

func (c class) compare(d class) int {
	return slices.Compare([]uint32{uint32(c.kind), c.n}, []uint32{uint32(d.kind), d.n})
}
