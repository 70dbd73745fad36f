package health

import "time"

// Account is what health is judged by.
type Account struct {
	Healthy, Eligible bool
	// Updated is when rules were last written, Owed since when they are asked for and not written; zero where nothing is.
	Updated, Owed time.Time
}

// Account tells how things are now.
func (h *Health) Account() Account {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Account{Healthy: h.healthy(h.config.Now()), Eligible: h.eligible, Updated: h.updated, Owed: h.queued}
}
