package schedule

import "time"

// firstRetry is how long after the first of a row of failures the run is tried again; the delay doubles from there.
// It is short because a failed batch left the kernel unchanged, and the usual causes (an interrupted dump, a chain that
// is still referenced) are gone in a moment. kube-proxy waits for a whole syncPeriod.
const firstRetry = 100 * time.Millisecond

// Schedule says when the next run is due. It belongs to one goroutine, the one that runs; the zero Schedule is not
// usable, see [New].
//
// The rules are those of kube-proxy's runner (pkg/util/async/bounded_frequency_runner.go) but for the retries:
//
//   - The first request ever, or the first one after a quiet time, is due at once.
//   - Further requests are due the minimum interval after the end of the last run, so that a storm becomes a few runs.
//   - One that is urgent is due at once, unless the last one failed.
//   - After a failure a retry is due after 100 ms, and after twice as long for each further failure in a row, up to
//     the longest backoff. A retry does not wait for the minimum interval, which is there to gather changes: it
//     happens at most a few times in it. A new request does, and may then be due before the retry.
//   - When the maximum interval has passed since the end of the last run, a run is due although nobody asked.
type Schedule struct {
	minInterval, maxBackoff, maxInterval time.Duration

	requested, urgent bool
	// ended is when the last run ended; zero before the first.
	ended time.Time
	// backoff is the delay of the retry that is owed, and 0 after a success.
	backoff time.Duration
}

// New returns the Schedule of a proxy that has not run yet: minInterval is the least time from the end of one run
// to the next one that was asked for (minSyncPeriod, may be 0), maxBackoff the longest delay of a retry (syncPeriod;
// less than 100 ms counts as 100 ms), and maxInterval the longest time without any run (kube-proxy: one hour; less
// than minInterval counts as minInterval).
func New(minInterval, maxBackoff, maxInterval time.Duration) Schedule {
	return Schedule{
		minInterval: minInterval,
		maxBackoff:  max(maxBackoff, firstRetry),
		maxInterval: max(maxInterval, minInterval),
	}
}

// Requested notes that something has changed that a run should write. Any number of requests lead to one run.
func (s *Schedule) Requested() {
	s.requested = true
}

// Urgent notes that a run should not wait for others to be gathered with it: something is broken. It does wait for the retry that
// is owed after a failure.
func (s *Schedule) Urgent() {
	s.requested, s.urgent = true, true
}

// Next returns when the next run is due, and whether that moment has come. If it has, the run counts as begun: the
// caller starts it now and ends it with Succeeded or Failed, and whatever is requested meanwhile asks for a further
// run. If it has not, at lies in the future and can be slept until, unless a request comes first.
//
// Before the first request ever there is nothing to repeat: at then is the maximum interval from now, time and again.
func (s *Schedule) Next(now time.Time) (at time.Time, due bool) {
	at = s.next(now)
	if at.After(now) {
		return at, false
	}
	s.requested, s.urgent = false, false
	return at, true
}

// next returns the earliest of the moments for which there is a reason.
func (s *Schedule) next(now time.Time) time.Time {
	if s.ended.IsZero() {
		if s.requested {
			return now
		}
		return now.Add(s.maxInterval)
	}
	wait := s.maxInterval
	if s.backoff > 0 {
		wait = min(wait, s.backoff)
	}
	if s.requested {
		wait = min(wait, s.minInterval)
	}
	if s.urgent && s.backoff == 0 {
		wait = 0
	}
	return s.ended.Add(wait)
}

// Succeeded notes that a run ended well at the given time.
func (s *Schedule) Succeeded(end time.Time) {
	s.ended, s.backoff = end, 0
}

// Failed notes that a run ended at the given time without having written what it should, and returns when it is
// retried at the latest. The retry needs no request.
func (s *Schedule) Failed(end time.Time) (retryAt time.Time) {
	s.ended = end
	s.backoff = min(max(2*s.backoff, firstRetry), s.maxBackoff)
	return end.Add(min(s.backoff, s.maxInterval))
}
