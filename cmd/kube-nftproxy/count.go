package main

import (
	"github.com/kube-nftproxy/kube-nftproxy/pkg/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
)

// count takes up what the kernel counts of connections to Services. Commands ask [counters.Counters.Connections] for frontends.
func (d *daemon) count() (err error) {
	if d.counts, err = counters.Open(d.planner.Counters()); err != nil {
		return err
	}
	d.kernel.Count(d.counts)
	metrics.RegisterServices(d.registry, d.counts, d.MetricsServices)
	return nil
}
