package proxy

import (
	"context"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Crowd sets the service ports of a family whose new clients are not remembered, see [plan.Planner.SetCrowded]. The
// next sync commits them.
func (p *Proxy) Crowd(ctx context.Context, f inet.Family, ports []plan.Number) error {
	_, err := ask(ctx, p, func() bool {
		p.Change(func() { p.Planner.SetCrowded(f, ports) })
		p.Schedule.Urgent()
		return true
	})
	return err
}

// Forget makes the loop delete remembered clients between two syncs, and returns the number of deleted ones: 0 while
// another instance serves.
func (p *Proxy) Forget(ctx context.Context, clients []nft.Element) (int, error) {
	type outcome struct {
		n   int
		err error
	}
	o, err := ask(ctx, p, func() (o outcome) {
		if p.started && p.maySend() {
			o.n, o.err = p.Kernel.Forget(clients)
		}
		return o
	})
	if err == nil {
		err = o.err
	}
	return o.n, err
}
