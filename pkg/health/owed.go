package health

import "time"

// Account is the health with the times from which it follows.
type Account struct {
	Healthy, Eligible bool
	// Updated is the time of the last successful sync. Owed is the time of the oldest pending request; zero if there is none.
	Updated, Owed time.Time
}

// Account returns the current health and times.
func (h *Health) Account() Account {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Account{Healthy: h.healthy(h.config.Now()), Eligible: h.eligible, Updated: h.updated, Owed: h.queued}
}
