package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
)

// A Service can have a connection limit for each endpoint. Each element of the map limited counts the connections
// of its endpoint, with the kernel's connlimit. connlimit first counts a connection, and then compares the count. It
// counts the connection as long as it exists. So a connection that tries a full endpoint, and then uses another one,
// would count for both. Thus a packet tries only one endpoint:
//
//	unless-full  draws endpoints until one is not in the set full, at random or by hashes with successive seeds.
//	             If all draws are full, any-not-full looks up the first slots. If these are full, too, another draw
//	             decides.
//	admit        translates the packet if the endpoint has a place. Otherwise it adds the endpoint to full for
//	             fullTime. The packet is dropped, and the client's retry finds another endpoint. If the endpoint was
//	             in full already, all-full refuses the packet, or drops it.
//
// A packet that is not translated has no connection, and connlimit forgets it. So the counts are exact. But connlimit
// forgets only about eight such packets per tick of the kernel's clock. So packets try an endpoint of full only once in
// triedTime: otherwise, a flood would fill the kernel's memory. An endpoint keeps its count while it gets no
// connections, see [counted].

const (
	// fullTime is the time for which an endpoint is skipped after it was full.
	fullTime = 5 * time.Second
	// triedTime is the time between two packets that try one full endpoint.
	triedTime = 100 * time.Millisecond
	// choices is the number of draws that skip full endpoints.
	choices = 4
	// walked is the number of slots that are looked up after the draws. With at most this number of endpoints, the
	// rules find any endpoint that is not in full.
	walked = exactSlots
)

// admit is the chain of packets with an endpoint id, and allFull the chain of packets that find all endpoints full.
const admit, allFull = "admit", "all-full"

func (l list) unlessFull() string { return l.prefix() + "unless-full" }
func (l list) anyNotFull() string { return l.prefix() + "any-not-full" }

// notFull: meta priority & 0:ffff != 0:0 meta priority != @full
func (l *layout) notFull() []expr.Any {
	return append(hasBits(endpointBits), in(l.full, []nft.Field{nft.Priority()}, true)...)
}

// choose: meta priority set meta priority . numgen random mod n map @limited-slots, or first with hashes of successive
// seeds instead of numgen. The last draw is random, so that different packets of a client try different full endpoints.
func (l *layout) choose(c class) []nft.Rule {
	var rules []nft.Rule
	draw := func(t table, seed uint32) {
		index := indexed(l.family, []nft.Field{nft.Priority()}, t)
		if hash, ok := index[len(index)-1].(*expr.Hash); ok {
			hash.Seed += seed
		}
		rules = append(rules, rule("", keepBits(affineBits), setPriority(index, l.limitedSlots[c.list()])))
	}
	if c.table.size > 1 {
		for i := range uint32(choices) {
			draw(c.table, i)
			rules = append(rules, rule("", l.notFull(), back()))
		}
	}
	last := table{size: c.table.size}
	if c.table.by == (selector{}) {
		last.size = surelyFilled(c.table.size)
	}
	draw(last, 0)
	return rules
}

// anyNotFull looks up slots one after the other: numgen random mod 1 offset I is the number I in a form that nft can
// load.
func (l *layout) anyNotFull(ls list) []nft.Rule {
	var rules []nft.Rule
	for i := range uint32(walked) {
		number := &expr.Numgen{Register: reg + 1, Modulus: 1, Type: unix.NFT_NG_RANDOM, Offset: walked - 1 - i}
		index := append(key(nft.Priority()), number)
		rules = append(rules,
			rule("", keepBits(affineBits), setPriority(index, l.limitedSlots[ls])), rule("", l.notFull(), back()))
	}
	return rules
}

func (l *layout) unlessFull(ls list) []nft.Rule {
	draw := rule("", keepBits(affineBits), setPriority(key(nft.Priority()), l.draw[ls]),
		dispatch(endpointBits, l.dispatch[ls.choose()]))
	found := rule("", l.notFull(), goTo(admit))
	firstSlot := indexed(l.family, []nft.Field{nft.Priority()}, table{size: 1})
	return []nft.Rule{
		draw, found,
		rule("all draws are full", jump(ls.anyNotFull())), found,
		draw,
		rule("fewer by now: the first one exists", hasNoBits(endpointBits), setPriority(firstSlot, l.limitedSlots[ls])),
		rule("", goTo(admit)),
	}
}

func (l *layout) admit() []nft.Rule {
	id := []nft.Field{nft.Priority()}
	full, tried := enter(l.full, id[0], fullTime), enter(l.tried, id[0], triedTime)
	return []nft.Rule{
		rule("a packet has just tried it", in(l.tried, id, false), goTo(allFull)),
		rule("if the endpoint has a place", dnat(l.family, key(nft.L4Proto(), id[0]), l.limited)),
		rule(undone, hasNoBits(endpointBits), goTo("clear-register")),
		rule("full since now: a retry finds another one", l.notFull(), full, l.overMaximum(), countedDrop()),
		rule("still full", full, tried, goTo(allFull)),
	}
}

// refuse refuses packets, or drops them so that clients retry. It refuses packets of connections that began earlier in
// any case, see [layout.holdChain].
func (l *layout) refuse() []nft.Rule {
	rules := append([]nft.Rule{rule("", l.overMaximum())}, refuseBegun()...)
	return append(rules, rule(outcome.Rows[outcome.AtMaximum].Words, dispatch(wordBits, l.dispatch[stepFull])),
		rule(undone, goTo("clear-register")))
}

// overMaximum counts the packet for its service port, and loads the class for it.
func (l *layout) overMaximum() []expr.Any {
	return append(keepBits(affineBits), setPriority(key(nft.Priority()), l.atMaximum)...)
}

// The kernel's count of the connections of an endpoint is in the endpoint's element of the map limited. An endpoint
// that does not get connections any more may still have some, and it may return. So it keeps its element and its id,
// without a slot:
//
//   - as long as it is in the EndpointSlices, for example not ready, or with weight 0;
//   - after it has left them, until [Planner.Age] was called twice.
//
// The elements take room of the namespace as all others. If there is no room for them, the counts are lost.
//
// An endpoint without a slot has an element of limited-slots from the index firstIdle on, where no packet looks. With
// it, a later process finds the id.

// counted are the endpoints of a service port whose connections count.
type counted struct {
	// endpoints are all of them, and idle those without a slot. Both are sorted.
	endpoints, idle []netip.AddrPort
	// left has the round in which an endpoint left the EndpointSlices.
	left map[netip.AddrPort]int
}

const (
	// firstIdle is the index in limited-slots of the first endpoint without a slot.
	firstIdle = mostSlots
	// mostIdle is the number of endpoints of a service port that keep their counts without a slot. It is lower if the
	// port has very many endpoints.
	mostIdle = 1 << 14
	// perIdle is the number of elements of each of them.
	perIdle = 2
)

// count returns the endpoints of a port whose connections count. Those of the earlier version of the port keep their
// counts.
func (p *Planner) count(before, n *port) *counted {
	c, slotted := &counted{}, union(n.Cluster, n.Local)
	var known []netip.AddrPort
	var left map[netip.AddrPort]int
	if before.counted != nil {
		known, left = before.counted.endpoints, before.counted.left
	} else if ids := p.recallIDs(n.id()); len(ids) > 0 {
		known = slices.SortedFunc(maps.Keys(ids), netip.AddrPort.Compare)
	}
	// A change may replace all endpoints, and frees the ids of the earlier ones last.
	most := min(mostIdle, mostIDs-2*len(slotted))
	for _, e := range known {
		if isIn(slotted, e) || len(c.idle) >= most {
			continue
		}
		if !isIn(n.Idle, e) {
			round, gone := left[e]
			switch {
			case !gone:
				round = p.round
			case round+1 < p.round:
				continue
			}
			if c.left == nil {
				c.left = map[netip.AddrPort]int{}
			}
			c.left[e] = round
		}
		c.idle = append(c.idle, e)
	}
	c.endpoints = union(slotted, c.idle)
	return c
}

// withoutIdle returns the same without the endpoints that have no slot.
func (c *counted) withoutIdle() *counted {
	_, endpoints := difference(c.idle, c.endpoints)
	return &counted{endpoints: endpoints}
}

// isIn reports whether a sorted list has an endpoint.
func isIn(list []netip.AddrPort, e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, e, netip.AddrPort.Compare)
	return found
}

// Age returns the Services with endpoints that lose their counts of connections now: they had left when Age was called
// before. Plan them again.
func (p *Planner) Age() (names []types.NamespacedName) {
	p.round++
	for name := range p.keeping {
		old := func(port *port) bool { return port.counted != nil && port.counted.hasOld(p.round) }
		if slices.ContainsFunc(p.services[name].ports, old) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, model.CompareNames)
	return names
}

// hasOld reports whether an endpoint left before the round before.
func (c *counted) hasOld(round int) bool {
	for _, left := range c.left {
		if left+1 < round {
			return true
		}
	}
	return false
}
