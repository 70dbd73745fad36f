package plan

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

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

// union returns the endpoints of two sorted lists, sorted and each once.
func union(a, b []netip.AddrPort) []netip.AddrPort {
	_, added := difference(a, b)
	if len(added) == 0 {
		return a
	}
	all := append(slices.Clip(a), added...)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
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
