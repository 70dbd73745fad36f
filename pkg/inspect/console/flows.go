package console

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// flows searches connection tracking for entries that contradict the present endpoints. The program deletes stale
// entries beside the loop, within seconds after a change. So flows returns only stale entries that a second search also
// finds.
func (c *Console) flows(ctx context.Context) (*view.Flows, error) {
	const between = 2500 * time.Millisecond // long enough for the end of a pass of the reconciler, and for another pass
	first, err := c.searchFlows(ctx, nil)
	if err != nil || len(first.stale.ids) == 0 {
		return first.view(), err
	}
	select {
	case <-time.After(between):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	second, err := c.searchFlows(ctx, first)
	return second.view(), err
}

const (
	// mostFlows is the number of flows of each kind in the answer. mostStale is the number of flows of each kind that a
	// search counts.
	mostFlows, mostStale = 20, 10_000
)

// search is one search for flows.
type search struct {
	seen    int
	partial bool
	stale   found
	// removed are established TCP connections to endpoints that no EndpointSlice has.
	removed found
	// before has the IDs of the stale flows of the first search; it is nil in the first search.
	before map[uint32]bool
	// endpoints are the addresses of all endpoints, ready or not, of the Services that were looked up.
	endpoints map[types.NamespacedName]map[netip.Addr]bool
}

// found are flows of one kind: their IDs, and the first flows.
type found struct {
	ids  map[uint32]bool
	list []view.Flow
}

func (f *found) add(flow *conntrack.Flow, service string) {
	if f.ids[flow.ID] || len(f.ids) == mostStale {
		return
	}
	if f.ids[flow.ID] = true; len(f.list) < mostFlows {
		f.list = append(f.list, view.Flow{
			Protocol: flow.Protocol.String(), Client: flow.Source.String(), Frontend: flow.Destination.String(), Endpoint: flow.Server.String(),
			Service: service, Replied: flow.Replied,
		})
	}
}

func (s *search) view() *view.Flows {
	if s == nil {
		return nil
	}
	return &view.Flows{
		Read: s.seen, Partial: s.partial, Stale: s.stale.list, StaleTotal: len(s.stale.ids), Removed: s.removed.list, RemovedTotal: len(s.removed.ids),
	}
}

// searchFlows reads connection tracking once. first is the first search, or nil if this is the first.
func (c *Console) searchFlows(ctx context.Context, first *search) (*search, error) {
	p, _, err := c.planAgain(ctx)
	if err != nil {
		return nil, err
	}
	facts := c.Loop.Facts()
	desired := &conntrack.Desired{Nodes: facts.NodeAddresses, Networks: p.Flows().NodeNetworks}
	s := &search{
		endpoints: map[types.NamespacedName]map[netip.Addr]bool{}, stale: found{ids: map[uint32]bool{}}, removed: found{ids: map[uint32]bool{}},
	}
	if first != nil {
		s.before = first.stale.ids
	}
	p.Flows().Each(func(k model.Key, flows plan.FlowPolicy, _ bool) {
		desired.Frontend(k, flows)
	})
	table, err := conntrack.OpenNetlink()
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	defer func() { _ = table.Close() }() // read only
	for _, f := range c.Families {
		seen, partial, err := table.Each(ctx, f, func(flow *conntrack.Flow) { s.judge(c, p, desired, flow) })
		if err != nil {
			return nil, fmt.Errorf("read connection tracking of %s: %w", f, err)
		}
		s.seen, s.partial = s.seen+seen, s.partial || partial
	}
	return s, nil
}

// judge adds a flow to the search if it contradicts the present endpoints.
func (s *search) judge(c *Console, p *plan.Planner, desired *conntrack.Desired, flow *conntrack.Flow) {
	k, known := desired.FrontendOf(flow)
	if !known {
		return
	}
	policy, _ := p.Flows().Of(k)
	name := policy.Port
	switch {
	case desired.Stale(flow):
		if s.before == nil || s.before[flow.ID] {
			s.stale.add(flow, name.String())
		}
	case flow.Established && flow.DNAT:
		if !s.endpointsOf(c, name.NamespacedName)[flow.Server.Addr()] {
			s.removed.add(flow, name.String())
		}
	}
}

// endpointsOf returns the addresses of all endpoints of a Service, ready or not.
func (s *search) endpointsOf(c *Console, name types.NamespacedName) map[netip.Addr]bool {
	if known, ok := s.endpoints[name]; ok {
		return known
	}
	all := map[netip.Addr]bool{}
	of := c.Source.Get(name)
	for _, addr := range model.Addresses(slices.Concat(of.Slices, of.Redirect), "") {
		all[addr] = true
	}
	s.endpoints[name] = all
	return all
}
