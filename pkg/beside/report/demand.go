package report

import (
	"sync"
	"time"
)

// demandPerNamespace is the number of Events about demand in a namespace within [window].
const demandPerNamespace = 100

// demandBudget limits the Events about demand. Tenants cause them, so each namespace has its own limit. The node's limit is that of the Services
// that may hold packets, because each has one episode in 90 s at most.
type demandBudget struct {
	mu   sync.Mutex
	ends time.Time
	used map[string]int
}

// take reports whether a namespace may have another Event.
func (b *demandBudget) take(namespace string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.After(b.ends) {
		b.ends, b.used = now.Add(window), map[string]int{}
	}
	b.used[namespace]++
	return b.used[namespace] <= demandPerNamespace
}
