package daemon

import (
	"sync"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// challenges records the results of challenging the clients of terminated connections.
type challenges struct {
	metrics *metrics.Terminations

	mu      sync.Mutex
	failure error
}

// record records the number of clients that were challenged, and the error if some were not. It logs an error that differs from the previous one.
func (c *challenges) record(f inet.Family, n int, err error) {
	c.metrics.Challenged(f, n)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && (c.failure == nil || c.failure.Error() != err.Error()) {
		klog.ErrorS(err, "Cannot reset all terminated connections at once")
	}
	c.failure = err
}

// failed returns the error of the last batch, or nil.
func (c *challenges) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}
