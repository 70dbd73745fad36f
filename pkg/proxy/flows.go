package proxy

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Flows deletes connection tracking entries beside the loop; it takes over what it is given.
type Flows interface {
	Request(*conntrack.Desired)
}

// syncFlows has the flows looked at that may have to go now that the kernel holds what is wanted: those of changed UDP
// frontends; or after a time without rules, those of all, because a flow that began without rules stays without.
func (p *Proxy) syncFlows(kind apply.Kind) {
	changed := p.Planner.TakeFlows()
	all := kind == apply.Full || !p.started
	// Services may have gone since the last process of ours looked. Where the tables were just right, none has.
	p.orphansDue = p.orphansDue || kind == apply.Full && !p.started
	orphans := p.orphansDue && len(p.serviceCIDRs[model.IPv4])+len(p.serviceCIDRs[model.IPv6]) > 0
	if len(changed) == 0 && !all && !orphans {
		return
	}
	d := &conntrack.Desired{Undnated: all}
	add := func(k model.Key) {
		if endpoints, exists := p.Planner.FlowEndpoints(k); exists {
			d.Frontend(k, endpoints)
		} else {
			d.Gone(k)
		}
	}
	for k := range changed {
		add(k)
	}
	if all || orphans {
		p.Planner.Keys(add)
	}
	for _, f := range p.Families {
		d.NodeAddresses(f, p.Planner.NodeAddresses(f))
		if orphans {
			d.Orphans(f, p.serviceCIDRs[f])
		}
	}
	p.orphansDue = p.orphansDue && !orphans
	p.Flows.Request(d)
}
