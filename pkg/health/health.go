package health

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// taintToBeDeleted is the key of the taint that the cluster autoscaler puts on a node that it is about to remove
// (cluster-autoscaler/utils/taints). Load balancers should stop sending new connections to it: KEP-3836.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Counter counts the answers given, by HTTP status code.
type Counter interface {
	HealthzAnswered(code int)
	LivezAnswered(code int)
}

// Config is what a Health is made of.
type Config struct {
	// Timeout is how long rules may be asked for and not be written before the proxy counts as unhealthy; kube-proxy
	// has twice the syncPeriod.
	Timeout time.Duration
	// Now is the clock of the answers: time.Now but in tests.
	Now func() time.Time
	// Families are the IP families served. One sync writes all of them, so they are healthy together.
	Families []model.Family
	// NoNode is set where no Node tells whether this node is to be used, as without an API server: it always is.
	NoNode bool
	// Counter, if not nil, counts the answers.
	Counter Counter
}

// Health is the health of the proxy. Its methods may be called by any goroutine.
//
// The rules are those of kube-proxy's proxier health server (pkg/proxy/healthcheck/proxy_health.go).
type Health struct {
	config Config

	mu sync.Mutex
	// updated is when rules were last written, and zero before Updated was called.
	updated time.Time
	// queued is when rules were first asked for since they were last written, and zero where nothing is owed.
	queued time.Time
	// eligible says what the Node said when it was last seen.
	eligible bool
}

// New returns the Health of a proxy that has not begun. Until Node is called the node counts as not eligible, unless
// the Config says that there is none.
func New(c Config) *Health {
	if c.Counter == nil {
		c.Counter = uncounted{}
	}
	return &Health{config: c, eligible: c.NoNode}
}

// uncounted is the Counter of those who have none.
type uncounted struct{}

func (uncounted) HealthzAnswered(int) {}
func (uncounted) LivezAnswered(int)   {}

// Queued notes that rules were asked for. As long as they have not been written, only the first call counts, so it can
// be called for each request. Call it as well before a sync that nobody asked for: otherwise its failure goes unnoticed
// here until the next request.
func (h *Health) Queued(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queued.IsZero() {
		h.queued = now
	}
}

// Updated notes that rules were written: nothing that was asked for before is owed any more. Call it from the goroutine
// that calls Queued, and once when the sync loop starts: the proxy is then healthy until the first sync is overdue.
func (h *Health) Updated(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updated, h.queued = now, time.Time{}
}

// Node notes the state of this node's Node: it is eligible unless it is being deleted, by anybody or by the cluster
// autoscaler. Nil, for a Node that is gone, changes nothing: as with kube-proxy the last state seen counts.
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

// Healthy reports whether no rules are overdue. It is what the health check node ports of Services go by too; whether
// the node is eligible has no part in it.
func (h *Health) Healthy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.healthy(h.config.Now())
}

// healthy reports whether the oldest request that is owed is younger than the timeout.
func (h *Health) healthy(now time.Time) bool {
	return h.queued.IsZero() || now.Sub(h.queued) < h.config.Timeout
}
