package proxy

import (
	"errors"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// firstRetry is the delay of the retry after a first failure. The delay doubles with each further failure in a row. It
// is short, because a failed batch leaves the kernel unchanged. The usual causes, such as an interrupted dump or a
// chain that is still referenced, disappear in a moment. kube-proxy waits for a whole syncPeriod.
const firstRetry = 100 * time.Millisecond

// Schedule decides when the next run is due. It is not safe for concurrent use. Create it with [NewSchedule].
//
// It decides as kube-proxy's runner does (pkg/util/async/bounded_frequency_runner.go), except for urgent requests,
// early requests and retries:
//
//   - The first request, and the first one after a quiet time, is due immediately.
//   - Other requests are due a minimum interval after the end of the last run, so that a storm of requests leads to a
//     few runs.
//   - An urgent request is due immediately, unless the last run failed. After a failure, it is due as any other
//     request.
//   - An early request is due immediately, unless the last run failed, or was itself due only because of an early
//     request. So early requests at most double the number of runs.
//   - After a failure, a retry is due after 100 ms. The delay doubles with each further failure in a row, up to the
//     longest backoff. A retry does not wait for the minimum interval, whose purpose is to collect changes. A new
//     request waits for the minimum interval; if the backoff is longer, the request is due before the retry.
//   - A run is due without a request when the maximum interval since the end of the last run has passed.
type Schedule struct {
	minInterval, maxBackoff, maxInterval time.Duration

	requested, urgent, early bool
	// wasEarly is true if the last run was due only because of an early request.
	wasEarly bool
	// ended is the end of the last run; zero before the first.
	ended time.Time
	// backoff is the delay of the pending retry; 0 after a success.
	backoff time.Duration
}

// NewSchedule returns the Schedule of a proxy before its first run. minInterval is the minimum time from the end of a
// run to the next requested one (minSyncPeriod, may be 0). maxBackoff is the longest delay of a retry (syncPeriod,
// raised to 100 ms). maxInterval is the longest time without a run (kube-proxy: one hour; raised to minInterval).
func NewSchedule(minInterval, maxBackoff, maxInterval time.Duration) Schedule {
	return Schedule{
		minInterval: minInterval,
		maxBackoff:  max(maxBackoff, firstRetry),
		maxInterval: max(maxInterval, minInterval),
	}
}

// Requested records that a run has changes to process. Any number of requests lead to one run.
func (s *Schedule) Requested() {
	s.requested = true
}

// Urgent records a request for a run that must not wait for more changes: the rules may be damaged, or planned work is
// left. After a failure, it is the same as Requested.
func (s *Schedule) Urgent() {
	s.requested, s.urgent = true, true
}

// Early records a request that must not wait for changes of the same kind as those of the last run, such as the changes
// of one namespace.
func (s *Schedule) Early() {
	s.requested, s.early = true, true
}

// Next returns the time of the next run, and whether it is due. If it is due, Next forgets all requests so far. The
// caller must then start it, and report its end with Succeeded or Failed. Requests during the run lead to another run.
// If it is not due, at is in the future: the caller must wait until at or until a request, and call Next again.
//
// Before the first request, nothing is due: at is the maximum interval after now.
func (s *Schedule) Next(now time.Time) (at time.Time, due bool) {
	from, wait := s.ended, s.maxInterval
	if s.backoff > 0 {
		wait = min(wait, s.backoff)
	}
	if s.requested {
		wait = min(wait, s.minInterval)
	}
	if from.IsZero() {
		from = now
	}
	if s.requested && s.ended.IsZero() || (s.urgent || s.early && !s.wasEarly) && s.backoff == 0 {
		wait = 0
	}
	at = from.Add(wait)
	if at.After(now) {
		return at, false
	}
	s.wasEarly = s.early && !s.urgent && !s.ended.IsZero() && now.Sub(s.ended) < s.minInterval
	s.requested, s.urgent, s.early = false, false, false
	return at, true
}

// Succeeded records the end of a successful run.
func (s *Schedule) Succeeded(end time.Time) {
	s.ended, s.backoff = end, 0
}

// Failed records the end of a failed run. It returns the time of the retry, which needs no request; a new request may
// cause an earlier run.
func (s *Schedule) Failed(end time.Time) (retryAt time.Time) {
	s.ended = end
	s.backoff = min(max(2*s.backoff, firstRetry), s.maxBackoff)
	return end.Add(min(s.backoff, s.maxInterval))
}

// guard protects the tables against foreign changes. It decides when the loop checks for them, and whether the next
// sync compares the tables with the plan before it writes. The method touched changes nothing. All other methods act.
type guard struct {
	kernel Kernel
	// doubted counts doubts.
	doubted func()
	now     func() time.Time
	// checkAt is the time of the next check, lastForeign the time of the last foreign change.
	checkAt, lastForeign time.Time
	// reason is the reason why the next sync compares. It is empty if there is no doubt, and for the first attempt of
	// the first sync, which always compares.
	reason beside.Reason
}

// checkEvery is the time between two checks for foreign changes of the ruleset. A check takes some microseconds.
const checkEvery = 500 * time.Millisecond

// touched reports whether the kernel has announced a foreign change of the trusted tables. If another program changes
// them continuously, it returns true at most twice a second.
func (g *guard) touched() bool {
	return g.kernel.Known() && g.kernel.Touched() != "" && g.now().Sub(g.lastForeign) >= checkEvery
}

// checkSoon schedules a check: immediately, but at most twice a second.
func (g *guard) checkSoon() {
	at := g.now()
	if next := g.lastForeign.Add(checkEvery); next.After(at) {
		at = next
	}
	if at.Before(g.checkAt) {
		g.checkAt = at
	}
}

// check looks for foreign changes of the ruleset. After a change or an error, the next sync compares.
func (g *guard) check() (changed bool, err error) {
	now := g.now()
	g.checkAt = now.Add(checkEvery)
	changed, err = g.kernel.CheckRuleset()
	switch {
	case err != nil:
		g.doubt(beside.FailedSync)
	case changed:
		g.distrust(now)
	}
	return changed, err
}

// checkAfter looks for foreign changes that may have caused a sync to fail. If there are any, it returns true, and the
// next sync compares.
func (g *guard) checkAfter(failure error) (changed bool) {
	if errors.Is(failure, nft.ErrUnknown) {
		return false // this sync may have made the change
	}
	if changed, err := g.kernel.CheckRuleset(); err != nil || !changed {
		return false
	}
	g.distrust(g.now())
	return true
}

// doubtIfTouched makes the next sync compare if the tables were touched.
func (g *guard) doubtIfTouched() {
	if g.touched() {
		g.distrust(g.now())
	}
}

// distrust makes the next sync compare because of a foreign change.
func (g *guard) distrust(now time.Time) {
	g.lastForeign, g.checkAt = now, now.Add(checkEvery)
	g.doubt(beside.ForeignChange)
}

// doubt makes the next sync compare the tables with the plan. Until a sync succeeds, the first reason is kept.
func (g *guard) doubt(reason beside.Reason) {
	g.kernel.Doubt()
	g.note(reason)
}

// note counts a doubt and records its reason. After a failed sync, doubt is not necessary: apply.Kernel already
// distrusts the tables.
func (g *guard) note(reason beside.Reason) {
	g.doubted()
	if g.reason == "" {
		g.reason = reason
	}
}

// complete sets the fields of a sync that depend on its outcome. If the sync compared because of a doubt, complete sets
// the reason and, for a foreign change, the author. After a failure, the next sync compares.
func (g *guard) complete(s *beside.Sync) {
	if s.Err != nil {
		g.note(beside.FailedSync)
		return
	}
	if s.Compared, g.reason = g.reason, ""; s.Compared == beside.ForeignChange {
		s.Author = g.kernel.Author()
	}
}
