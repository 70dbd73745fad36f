package track

import "time"

// Pending describes the marks that wait for [Tracker.Take].
type Pending struct {
	// Services is the number of dirty Services.
	Services int
	// Others is true if one of them belongs to a namespace without a Service in the last taken set.
	Others bool
	// Since is the time of the first mark; zero if there is none.
	Since time.Time
	// Latest is the time of the first mark that waits. If none waits, it is the Since of the marks that were taken
	// last; zero before the first mark.
	Latest time.Time
}

// Pending describes the current marks without taking them.
func (t *Tracker) Pending() Pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Pending{Services: len(t.dirty.Services), Others: t.others, Since: t.dirty.Since, Latest: t.dirty.Since}
	if p.Latest.IsZero() {
		p.Latest = t.latest
	}
	return p
}
