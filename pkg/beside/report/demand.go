package report

import (
	"sync"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// demandPerNode is the number of Events about demand within [window]. Clients of tenants cause them, so namespaces
// share them.
const demandPerNode = 2_500

// demandBudget limits the Events about demand. It does not remember suppressed ones: while there is demand, the
// Service has another outage later.
type demandBudget struct {
	mu      sync.Mutex
	granted allowance
}

// take reports whether a Service of a namespace may have another Event.
func (b *demandBudget) take(namespace string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.granted.renew(now)
	return b.granted.take(object{namespace: namespace}) == room.None
}
