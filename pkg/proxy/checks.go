package proxy

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// healthChecks keeps the health checks for load balancers.
type healthChecks struct {
	quiet
	services *health.Services
	families []inet.Family
	// failed counts ports that could not be opened.
	failed func(int)
	checks map[types.NamespacedName]health.Check
	addrs  [2][]netip.Addr
	// changed is true if checks and addrs were not passed to services yet, or a port could not be opened.
	changed bool
}

func newHealthChecks(c *Config) *healthChecks {
	return &healthChecks{
		services: c.Checks, families: c.Families, failed: c.Metrics.HealthCheckPortsFailed, checks: map[types.NamespacedName]health.Check{},
	}
}

func (h *healthChecks) Service(name types.NamespacedName, s *model.Service) {
	old, had := h.checks[name]
	if s == nil || s.HealthCheckNodePort == 0 {
		delete(h.checks, name)
		h.changed = h.changed || had
		return
	}
	now := health.Check{Port: s.HealthCheckNodePort, Created: s.Created, Local: s.LocalReady}
	for _, f := range h.families {
		now.Served[f] = s.Serves(f)
	}
	if !had || now != old {
		h.checks[name], h.changed = now, true
	}
}

func (h *healthChecks) Node(n *Node) { h.addrs, h.changed = n.Sockets, true }

// Serve opens and closes ports. It retries ports that could not be opened.
func (h *healthChecks) Serve(on bool) {
	switch {
	case !on:
		h.services.Sync(nil, nil)
		h.changed = true
	case h.changed:
		broken := h.services.Sync(h.checks, slices.Concat(h.addrs[:]...))
		h.failed(broken)
		h.changed = broken > 0
	}
}
