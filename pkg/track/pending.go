package track

import "time"

// Pending is what waits to be taken.
type Pending struct {
	// Services is how many are dirty.
	Services int
	// Since is when the first of the changes was marked; zero where there is none.
	Since time.Time
	// Latest is when a change was last marked after a time without any; zero if there never was one.
	Latest time.Time
}

// Pending tells what is dirty now, and takes nothing.
func (t *Tracker) Pending() Pending {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Pending{Services: len(t.dirty.Services), Since: t.dirty.Since, Latest: t.dirty.Since}
	if p.Latest.IsZero() {
		p.Latest = t.latest
	}
	return p
}
