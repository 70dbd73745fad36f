package health

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// taintToBeDeleted is the key of the taint on a node that the cluster autoscaler is about to remove
// (cluster-autoscaler/utils/taints). Load balancers should send no new connections to such a node (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Config holds the settings of a Health.
type Config struct {
	// Timeout is the time after which a requested sync that has not succeeded makes the proxy unhealthy. kube-proxy
	// uses twice the syncPeriod.
	Timeout time.Duration
	// Now is the clock of the answers: time.Now except in tests.
	Now func() time.Time
	// Families are the served IP families. One sync writes all of them, so all have the same health.
	Families []inet.Family
	// NoNode makes the node always eligible, for a proxy without an API server.
	NoNode bool
	// Reasons, if not nil, returns the reasons why the proxy is not ready, one line each. Any goroutine calls it.
	Reasons func(context.Context) []string
	// Answered, if not nil, is called after each answer of /healthz and /livez, with the HTTP status code.
	Answered func(path string, code int)
}

// Health is the health of the proxy. Its methods are safe for concurrent use.
//
// It decides as kube-proxy's proxier health server does (pkg/proxy/healthcheck/proxy_health.go).
type Health struct {
	config Config

	mu sync.Mutex
	// updated is the time of the last call of Updated or RecordSync; zero before the first one.
	updated time.Time
	// queued is the time of the first request since that call; zero if no sync is pending.
	queued time.Time
	// serves is true after the first call of RecordSync.
	serves bool
	// eligible is the last known eligibility of the Node.
	eligible bool
}

// New returns the Health of a proxy that has not started. The node is not eligible before the first call of Node,
// unless Config.NoNode is set.
func New(c Config) *Health {
	if c.Answered == nil {
		c.Answered = func(string, int) {}
	}
	if c.Reasons == nil {
		c.Reasons = func(context.Context) []string { return nil }
	}
	return &Health{config: c, eligible: c.NoNode}
}

// Queued records that a sync was requested. Call it for each request; only the first call after a call of Updated or
// RecordSync has an effect. Call it also before a sync without a request: otherwise, Health would not detect the
// failure of this sync.
func (h *Health) Queued(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queued.IsZero() {
		h.queued = now
	}
}

// Updated records that no sync is due: when the sync loop starts, and while another instance serves. The proxy is
// then healthy until the next requested sync is overdue. Call it, and RecordSync, from the goroutine that calls
// Queued.
func (h *Health) Updated(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updated, h.queued = now, time.Time{}
}

// RecordSync records a successful sync: no request is pending, and the proxy is ready from now on. Call it instead of
// Updated.
func (h *Health) RecordSync(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updated, h.queued, h.serves = now, time.Time{}, true
}

// Node records the eligibility of this node. It is eligible unless its Node has a deletion timestamp or the cluster
// autoscaler's taint. A nil Node, after a deletion, changes nothing: as in kube-proxy, the last state applies.
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

// Healthy reports whether no sync is overdue. The health check node ports of Services also depend on it. The
// eligibility of the node has no effect.
func (h *Health) Healthy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.healthy(h.config.Now())
}

// healthy reports whether the oldest pending request is younger than the timeout.
func (h *Health) healthy(now time.Time) bool {
	return h.queued.IsZero() || now.Sub(h.queued) < h.config.Timeout
}
