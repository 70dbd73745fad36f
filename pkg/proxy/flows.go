package proxy

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Flows deletes connection tracking entries beside the loop. It takes ownership of its arguments.
type Flows interface {
	Request(*conntrack.Desired)
}

// flowState is the state about flows that a sync keeps for the next one.
type flowState struct {
	// earlier holds the UDP frontends of an earlier process, until the first sync.
	earlier []model.Key
	// served holds the addresses that served node ports after the last sync.
	served [2][]netip.Addr
}

// patienceWithEarlier is the longest time that a start waits for the frontends of an earlier process. The kernel's work grows
// with the square of the number of frontends: some 10 ms for 10,000.
const patienceWithEarlier = time.Second

// readEarlier reads the UDP frontends in the tables of an earlier process. If a Service was deleted while no process ran, only
// these tables have its frontends. Flows to them belong to this program and are stale. Flows to any other unknown frontend may
// belong to another program.
func (p *Proxy) readEarlier(ctx context.Context) {
	if p.Earlier == nil {
		return
	}
	read := make(chan []model.Key, 1)
	go func() {
		keys, err := p.Earlier()
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read the frontends of an earlier process; UDP flows to deleted frontends stay")
		}
		read <- keys
	}()
	select {
	case p.flows.earlier = <-read:
	case <-ctx.Done():
	case <-time.After(patienceWithEarlier):
		klog.FromContext(ctx).Info("An earlier process has too many frontends to read; UDP flows to deleted frontends stay",
			"waited", patienceWithEarlier)
	}
}

// syncFlows requests a search for stale flows after a commit. It includes all changed frontends. If an address newly serves node
// ports, it includes all node ports. After a time without rules, it includes all frontends, because a flow that began without
// rules is not translated.
func (p *Proxy) syncFlows(kind apply.Kind) {
	changed := p.Planner.TakeFlows()
	all := kind == apply.Full || !p.started
	added := p.nodeAddressAdded()
	if len(changed) == 0 && !all && !added {
		return
	}
	d := &conntrack.Desired{Undnated: all || added}
	for k := range changed {
		p.addFlows(d, k)
	}
	switch {
	case all:
		p.Planner.Keys(func(k model.Key) { p.addFlows(d, k) })
	case added:
		p.Planner.Keys(func(k model.Key) {
			if !k.Addr.IsValid() {
				p.addFlows(d, k)
			}
		})
	}
	for _, k := range p.flows.earlier {
		p.addFlows(d, k)
	}
	p.flows.earlier = nil
	for _, f := range p.Families {
		d.NodeAddresses(f, p.nodeAddrs[f])
	}
	p.Flows.Request(d)
}

// addFlows adds the current state of a frontend to the request.
func (p *Proxy) addFlows(d *conntrack.Desired, k model.Key) {
	allowed, exists := p.Planner.FlowSources(k)
	switch {
	case !exists:
		d.Gone(k)
	case k.Protocol == inet.UDP:
		d.Frontend(k, p.Planner.FlowEndpoints(k))
		d.Restrict(k, allowed)
	case d.Undnated || allowed != nil:
		d.Frontend(k, nil)
		d.Restrict(k, allowed)
	}
}

// nodeAddressAdded reports whether an address newly serves node ports. It ignores link-local addresses: each new pod adds one to
// the node, and clients do not connect to node ports at these addresses.
func (p *Proxy) nodeAddressAdded() (added bool) {
	for f, now := range p.nodeAddrs {
		if slices.Equal(now, p.flows.served[f]) {
			continue
		}
		for _, a := range now {
			_, known := slices.BinarySearchFunc(p.flows.served[f], a, netip.Addr.Compare)
			added = added || !known && !a.IsLinkLocalUnicast()
		}
		p.flows.served[f] = now
	}
	return added
}
