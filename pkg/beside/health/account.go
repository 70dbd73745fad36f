package health

import "time"

// Account is the health, and the times that decide it.
type Account struct {
	// Ready is the result of /readyz.
	Healthy, Eligible, Ready bool
	// Updated is the time of the last successful sync, or of the last call of [Health.Updated]. Pending is the time
	// of the oldest pending request; zero if there is none.
	Updated, Pending time.Time
}

// Account returns the current health and times.
func (h *Health) Account() Account {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.config.Now()
	return Account{Healthy: h.healthy(now), Eligible: h.eligible, Ready: h.ready(now), Updated: h.updated,
		Pending: h.queued}
}
