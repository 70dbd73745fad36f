package health

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// taintToBeDeleted is the key of the taint on a node that the cluster autoscaler is about to remove
// (cluster-autoscaler/utils/taints). Load balancers should stop sending new connections to it: KEP-3836.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Counter counts answers by HTTP status code.
type Counter interface {
	HealthzAnswered(code int)
	LivezAnswered(code int)
}

// Config holds the settings of a Health.
type Config struct {
	// Timeout is the time after which a requested sync that has not succeeded makes the proxy unhealthy. kube-proxy uses twice the
	// syncPeriod.
	Timeout time.Duration
	// Now is the clock of the answers: time.Now except in tests.
	Now func() time.Time
	// Families are the served IP families. One sync writes all of them, so they are healthy together.
	Families []inet.Family
	// NoNode makes the node always eligible, for a proxy without an API server.
	NoNode bool
	// Counter, if not nil, counts the answers.
	Counter Counter
}

// Health is the health of the proxy. Its methods are safe for concurrent use.
//
// The rules are those of kube-proxy's proxier health server (pkg/proxy/healthcheck/proxy_health.go).
type Health struct {
	config Config

	mu sync.Mutex
	// updated is the time of the last successful sync; zero before the first call of Updated.
	updated time.Time
	// queued is the time of the first request since the last successful sync; zero if no sync is pending.
	queued time.Time
	// eligible is the last known eligibility of the Node.
	eligible bool
}

// New returns the Health of a proxy that has not started. The node is not eligible before the first call of Node, unless
// Config.NoNode is set.
func New(c Config) *Health {
	if c.Counter == nil {
		c.Counter = uncounted{}
	}
	return &Health{config: c, eligible: c.NoNode}
}

// uncounted is the Counter for a Config without one.
type uncounted struct{}

func (uncounted) HealthzAnswered(int) {}
func (uncounted) LivezAnswered(int)   {}

// Queued records that a sync was requested. Call it for each request: until the next call of Updated, only the first call has an
// effect. Call it also before a sync without a request: otherwise Health does not notice the failure of this sync until the next
// request.
func (h *Health) Queued(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queued.IsZero() {
		h.queued = now
	}
}

// Updated records a successful sync: no earlier request is pending. Call it from the goroutine that calls Queued, and once when
// the sync loop starts: the proxy is then healthy until the first sync is overdue.
func (h *Health) Updated(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updated, h.queued = now, time.Time{}
}

// Node records the state of this node's Node: it is eligible unless it is being deleted, by any client or by the cluster
// autoscaler. Nil, for a deleted Node, changes nothing: as in kube-proxy, the last state applies.
func (h *Health) Node(node *corev1.Node) {
	if node == nil || h.config.NoNode {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible(node)
}

// eligible reports whether load balancers should send new connections to a node.
func eligible(node *corev1.Node) bool {
	if node.DeletionTimestamp != nil {
		return false
	}
	for _, t := range node.Spec.Taints {
		if t.Key == taintToBeDeleted {
			return false
		}
	}
	return true
}

// Healthy reports whether no sync is overdue. The health check node ports of Services use it, too. It does not depend on the
// eligibility of the node.
func (h *Health) Healthy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.healthy(h.config.Now())
}

// healthy reports whether the oldest pending request is younger than the timeout.
func (h *Health) healthy(now time.Time) bool {
	return h.queued.IsZero() || now.Sub(h.queued) < h.config.Timeout
}
