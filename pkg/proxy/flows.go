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
	if len(changed) == 0 && !all {
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
	if all {
		p.Planner.Keys(add)
	}
	for _, f := range p.Families {
		d.NodeAddresses(f, p.Planner.NodeAddresses(f))
	}
	p.Flows.Request(d)
}
