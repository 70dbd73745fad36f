package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// awaitSource waits until the source has read all Services and EndpointSlices. It returns false if the context ended
// first.
func (p *Proxy) awaitSource(ctx context.Context) bool {
	const patience = 10 * time.Second
	late := time.NewTicker(patience)
	defer late.Stop()
	p.account.waits = "to read all Services and EndpointSlices"
	for waited := patience; ; {
		select {
		case <-p.Source.Loaded():
			p.account.waits = "for the first sync"
			return true
		case <-ctx.Done():
			return false
		case question := <-p.questions:
			question()
		case <-late.C:
			klog.FromContext(ctx).Info("Waiting to read all Services and EndpointSlices; nothing is programmed until "+
				"then",
				"waited", waited)
			waited += patience
		}
	}
}

// awaitPodCIDRs waits until the Node has prefixes of pods. Without [Config.NodeCIDR], it does not wait. It fails
// after a time limit.
func (p *Proxy) awaitPodCIDRs(ctx context.Context) error {
	if !p.NodeCIDR {
		return nil
	}
	// kube-proxy waits as long (waitForPodCIDR).
	const patience = 5 * time.Minute
	late := time.NewTimer(patience)
	defer late.Stop()
	for logged := false; ctx.Err() == nil && !p.hasPodCIDRs(); logged = true {
		if !logged {
			klog.FromContext(ctx).Info("Waiting for spec.podCIDRs of the Node; nothing is programmed until then",
				"node",
				p.NodeName)
			p.account.waits = "for spec.podCIDRs of the Node"
		}
		select {
		case question := <-p.questions:
			question()
		case <-p.Tracker.Ready():
		case <-ctx.Done():
		case <-late.C:
			return fmt.Errorf("timeout waiting for PodCIDR allocation on node %q: no CIDR is in its spec.podCIDRs "+
				"after %v; use another --detect-local-mode if the pod network does not need it", p.NodeName, patience)
		}
	}
	return nil
}

// awaitAddresses waits until it can read the addresses of this node, up to a time limit. Without addresses, the first
// commit would remove all node ports of an earlier process.
func (p *Proxy) awaitAddresses(ctx context.Context) {
	const patience, pause = 10 * time.Second, 100 * time.Millisecond
	begun, logged := p.Now(), false
	for ctx.Err() == nil {
		node := model.NodeOf(p.NodeName, p.Source.Node()).WithIP(p.NodeIP)
		var failed error
		for _, f := range p.Families {
			_, err := p.NodePorts.Addresses(f, node)
			failed = errors.Join(failed, err)
		}
		if failed == nil || p.Now().Sub(begun) > patience {
			return
		}
		if !logged {
			klog.FromContext(ctx).Error(failed, "Waiting to read the addresses of this node", "patience", patience)
			logged, p.account.waits = true, "to read the addresses of this node"
		}
		select {
		case <-ctx.Done():
		case question := <-p.questions:
			question()
		case <-time.After(pause):
		}
	}
}

// hasPodCIDRs reports whether the Node has a valid prefix of any family.
func (p *Proxy) hasPodCIDRs() bool {
	node := p.Source.Node()
	if node == nil {
		return false
	}
	cidrs, _ := model.PodCIDRs(node)
	return cidrs != [2]netip.Prefix{}
}
