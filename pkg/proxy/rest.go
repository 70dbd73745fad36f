package proxy

import "time"

// rest limits the share of the loop's time that some expensive work takes: after each piece of this work, the work
// rests for a multiple of the time that the piece took. Meanwhile, the loop handles other changes.
type rest struct {
	// until is the end of the rest; zero if the work does not rest.
	until time.Time
}

// after starts the rest after a piece of work that has just ended.
func (r *rest) after(now time.Time, took time.Duration, multiple int) {
	r.until = now.Add(time.Duration(multiple) * took)
}

// active reports whether the work rests.
func (r *rest) active() bool { return !r.until.IsZero() }

// end ends the rest if its time is over, and reports whether it did.
func (r *rest) end(now time.Time) bool {
	over := r.active() && !now.Before(r.until)
	if over {
		r.until = time.Time{}
	}
	return over
}
