package health

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Checks is a listener that keeps the health checks of Services for load balancers.
type Checks struct {
	*Services
	families []inet.Family
	// failed receives the number of ports that could not be opened.
	failed func(int)
	checks map[types.NamespacedName]Check
	node   beside.Node
	// changed is true if checks and node were not passed to Services yet, or a port could not be opened.
	changed bool
}

// NewChecks returns a listener without checks. failed receives the number of ports that could not be opened.
func NewChecks(s *Services, families []inet.Family, failed func(int)) *Checks {
	return &Checks{Services: s, families: families, failed: failed, checks: map[types.NamespacedName]Check{}}
}

// Listener returns the functions that the loop calls. The checks change after the commit.
func (c *Checks) Listener() beside.Listener {
	return beside.Listener{Of: beside.HealthChecks, Service: c.Service, Node: c.Node, Serve: c.Serve}
}

// Service sets the check of a Service.
func (c *Checks) Service(name types.NamespacedName, s *model.Service) {
	old, had := c.checks[name]
	if s == nil || s.HealthCheckNodePort == 0 {
		delete(c.checks, name)
		c.changed = c.changed || had
		return
	}
	now := Check{Port: s.HealthCheckNodePort, Created: s.Created, Local: s.LocalReady}
	for _, f := range c.families {
		now.Served[f] = s.Serves(f)
	}
	if !had || now != old {
		c.checks[name], c.changed = now, true
	}
}

// Node sets the addresses that serve checks.
func (c *Checks) Node(n *beside.Node) { c.node, c.changed = *n, true }

// Serve opens and closes ports. It retries ports that could not be opened.
func (c *Checks) Serve(on bool) {
	switch {
	case !on:
		c.Sync(nil, nil)
		c.changed = true
	case c.changed:
		broken := c.Sync(c.checks, slices.Concat(c.node.Sockets[:]...))
		c.failed(broken)
		c.changed = broken > 0
	}
}
