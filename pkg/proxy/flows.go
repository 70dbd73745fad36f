package proxy

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Flows deletes connection tracking entries beside the loop; it takes over what it is given.
type Flows interface {
	Request(*conntrack.Desired)
}

// flowState is what is remembered of flows from one sync to the next.
type flowState struct {
	// earlier are the UDP frontends of an earlier process, until the first sync.
	earlier []model.Key
	// served are the addresses on which node ports were served after the last sync.
	served [2][]netip.Addr
}

// patienceWithEarlier is how long a start waits for what the tables of an earlier process hold. The kernel's work grows with the square
// of the number of frontends: it is some 10 ms with 10,000.
const patienceWithEarlier = time.Second

// readEarlier reads which UDP frontends the tables of an earlier process have. Flows to those that don't exist any more, because
// their Services were deleted while no process ran, are the program's own. Any other flow may be another program's.
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

// syncFlows has the flows looked at that may have to go now that the kernel holds what is wanted: those of changed frontends; those
// to an address that serves node ports from now on; or after a time without rules, those of all, because a flow that began without
// rules stays without.
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

// addFlows adds what is true of a frontend now.
func (p *Proxy) addFlows(d *conntrack.Desired, k model.Key) {
	allowed, exists := p.Planner.FlowSources(k)
	switch {
	case !exists:
		d.Gone(k)
	case k.Protocol == model.UDP:
		d.Frontend(k, p.Planner.FlowEndpoints(k))
		d.Restrict(k, allowed)
	case d.Undnated || allowed != nil:
		d.Frontend(k, nil)
		d.Restrict(k, allowed)
	}
}

// nodeAddressAdded reports whether node ports are served on an address on which they weren't before. Link-local addresses don't
// count: a pod that starts brings one along, and nobody sends to a node port there.
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
