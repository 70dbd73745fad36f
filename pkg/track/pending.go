package track

import "time"

// Pending describes the marks that wait for [Tracker.Take].
type Pending struct {
	// Services is the number of dirty Services.
	Services int
	// Since is the time of the first mark; zero if there is none.
	Since time.Time
	// Latest is Since if marks wait. Otherwise it is the Since of the last marks that were taken; zero before the first mark.
	Latest time.Time
}

// Pending describes the current marks without taking them.
func (t *Tracker) Pending() Pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Pending{Services: len(t.dirty.Services), Since: t.dirty.Since, Latest: t.dirty.Since}
	if p.Latest.IsZero() {
		p.Latest = t.latest
	}
	return p
}
