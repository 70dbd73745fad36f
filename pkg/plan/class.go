package plan

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// A class says what happens to a packet once its frontend is known. Maps hold classes as plain numbers, and one small
// map turns a class into a chain: an element that carries a verdict makes the kernel walk its whole map again on every
// commit, one that carries a number doesn't.
type class struct {
	kind kind
	// n is the number of endpoints of a direct or pick class, the timeout in seconds of an affinity class.
	n uint32
}

// value is the class as it stands in maps: the kind in the top eight bits.
func (c class) value() nft.Value { return nft.Value{}.Uint32(c.number()) }

// number is the class as it stands in the scratch register.
func (c class) number() uint32 { return uint32(c.kind)<<24 | c.n }

// chain is the name of the chain of the class.
func (c class) chain() string {
	name := c.kind.name()
	if c.kind.perCount() {
		return fmt.Sprintf("%s-%d", name, c.n)
	}
	return name
}

// kind is the kind of a class: one of the fixed ones, or a stage with a scope and a route.
type kind uint8

// The kinds that have exactly one chain, which is always there.
const (
	kindReject kind = 1 + iota
	kindDrop
	kindFirewall
	kindExternalLocal
	kindNodePortExternalLocal
)

// scope says what a frontend is matched by.
type scope uint8

const (
	// scopeVIP is matched by address, protocol and port: cluster IPs, external IPs, load-balancer IPs.
	scopeVIP scope = iota
	// scopeNodePort is matched by protocol and port on the node's own addresses.
	scopeNodePort
	scopes
)

func (s scope) prefix() string { return [...]string{"", "nodeport-"}[s] }

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

// list is one of the two lists of endpoints of a service port.
type list uint8

const (
	listCluster list = iota
	listLocal
	lists
)

func (l list) prefix() string { return [...]string{"", "local-"}[l] }

// The stages of classes that have a chain for every number in use.
const (
	stageDirect   = 0x10 // chooses an endpoint at random
	stageAffinity = 0x30 // looks for the client's endpoint first
	stagePick     = 0x50 // chooses an endpoint's id for a new client
	stageEnd      = 0x70
)

func directKind(s scope, r route) kind   { return stageDirect + kind(s)<<4 + kind(r) }
func affinityKind(s scope, r route) kind { return stageAffinity + kind(s)<<4 + kind(r) }
func pickKind(s scope, l list) kind      { return stagePick + kind(s)<<4 + kind(l) }

func (k kind) perCount() bool { return k >= stageDirect }
func (k kind) scope() scope   { return scope(k>>4&1) ^ 1 }
func (k kind) route() route   { return route(k & 15) }
func (k kind) list() list     { return list(k & 15) }

func (k kind) stage() kind {
	switch {
	case k >= stagePick:
		return stagePick
	case k >= stageAffinity:
		return stageAffinity
	case k >= stageDirect:
		return stageDirect
	}
	return 0
}

func (k kind) name() string {
	switch k.stage() {
	case stageDirect:
		return k.scope().prefix() + k.route().String()
	case stageAffinity:
		return "affinity-" + k.scope().prefix() + k.route().String()
	case stagePick:
		return k.scope().prefix() + "pick-" + k.list().prefix() + "of"
	}
	return [...]string{"", "reject-packet", "drop-packet", "firewall", "external-local", "nodeport-external-local"}[k]
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
	// stepPick: a client needs an endpoint; the chain comes back.
	stepPick
	steps
)

func (s step) mapName() string {
	return "dispatch" + [...]string{"", "-allowed", "-local", "-pick"}[s]
}

func (s step) when() string {
	return [...]string{"at first", "after the firewall", "after external-local", "for a new client"}[s]
}

// fixedDispatch are the steps at which each of the kinds with one chain can be chosen.
var fixedDispatch = map[kind][]step{
	kindReject:                {stepFirst, stepAllowed, stepLocal},
	kindDrop:                  {stepFirst, stepAllowed, stepLocal},
	kindFirewall:              {stepFirst},
	kindExternalLocal:         {stepFirst, stepAllowed},
	kindNodePortExternalLocal: {stepFirst},
}

// use is a class at a step in one family's table.
type use struct {
	family model.Family
	step   step
	class
}

// classKey names a class within both tables.
type classKey struct {
	family model.Family
	class
}

// classOf finds the class whose chain has the given name.
func classOf(name string) (class, bool) {
	base, number, ok := cutLast(name, "-")
	n, err := strconv.ParseUint(number, 10, 24)
	if !ok || err != nil {
		return class{}, false
	}
	for k := range kind(stageEnd) {
		if k.exists() && k.name() == base {
			c := class{k, uint32(n)}
			return c, c.chain() == name
		}
	}
	return class{}, false
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// exists tells whether a number stands for a kind that has a chain for every number in use.
func (k kind) exists() bool {
	switch k.stage() {
	case stageDirect, stageAffinity:
		return k.route() < routes
	case stagePick:
		return k < stageEnd && k.list() < lists
	}
	return false
}

func (c class) compare(d class) int {
	return cmp.Or(cmp.Compare(c.kind, d.kind), cmp.Compare(c.n, d.n))
}
