package proxy

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// leaseOf returns the times of all renewals, and of those that shortened the lease.
func (k *fakeKernel) leaseOf() (renewals, shortened []time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.renewals), slices.Clone(k.shortened)
}

// longestGap returns the longest time between two of the given times, or between one of them and the begin or the end.
func longestGap(begin time.Time, times []time.Time, end time.Time) (gap time.Duration) {
	for _, at := range append(slices.Clone(times), end) {
		gap, begin = max(gap, at.Sub(begin)), at
	}
	return gap
}

// The loop renews the lease while it waits for the API server, plans many Services at the start, idles, is busy, and
// cannot sync. It shortens the lease at the end.
func TestTheLoopRenewsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		stop := b.start(t)
		begin := time.Now()
		expect := func(when string, longest time.Duration) {
			t.Helper()
			synctest.Wait()
			renewals, _ := b.kernel.leaseOf()
			renewals = slices.DeleteFunc(renewals, func(at time.Time) bool { return at.Before(begin) })
			if gap := longestGap(begin, renewals, time.Now()); gap > longest {
				t.Errorf("%s, the lease was not renewed for %v, want at most %v", when, gap, longest)
			}
			begin = time.Now()
		}
		synctest.Wait()
		if renewals, _ := b.kernel.leaseOf(); len(renewals) != 1 {
			t.Errorf("%d renewals immediately after the start, want 1", len(renewals))
		}
		time.Sleep(time.Hour)
		expect("while the API server does not answer", renewEvery)
		if renewals, _ := b.kernel.leaseOf(); len(renewals) != 1+int(time.Hour/renewEvery) {
			t.Errorf("%d renewals in the first hour", len(renewals))
		}
		for i := range 700 {
			b.set(i, 1)
		}
		const each = 100 * time.Millisecond // of each Service
		b.slow(each)
		close(b.source.synced)
		time.Sleep(time.Minute)
		if _, syncs := b.kernel.held(); syncs > 0 {
			t.Fatal("the first batch was planned in a minute: this proves nothing")
		}
		expect("while the first batch was planned", renewEvery+leaseEvery+64*each)
		time.Sleep(2 * time.Minute)
		begin = time.Now()
		b.slow(0)
		time.Sleep(10 * time.Minute)
		expect("while nothing changed", renewEvery)
		for i := range 100 {
			b.slow(30 * time.Millisecond)
			b.set(i, 2)
			time.Sleep(time.Second)
		}
		expect("in a busy time", renewEvery+leaseEvery)
		b.kernel.mu.Lock()
		b.kernel.fail = func(int) error { return errors.New("busy") }
		b.kernel.mu.Unlock()
		b.set(1, 3)
		time.Sleep(10 * time.Minute)
		expect("while syncs failed", renewEvery+leaseEvery)
		stop()
		if _, shortened := b.kernel.leaseOf(); len(shortened) != 1 {
			t.Errorf("the lease was shortened %d times, want once", len(shortened))
		}
	})
}

// A failed renewal is tried again after two seconds. The loop reports only the first of several failures.
func TestAFailedRenewalIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.kernel.refused = errors.New("not permitted")
		var log bytes.Buffer
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if renewals, _ := b.kernel.leaseOf(); longestGap(renewals[0], renewals, time.Now()) > leaseEvery {
			t.Errorf("renewals were tried at %v", renewals)
		}
		b.kernel.mu.Lock()
		b.kernel.refused = nil
		b.kernel.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if since := time.Since(b.kernel.Leased()); since > renewEvery {
			t.Errorf("the last renewal was %v ago", since)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "Cannot renew the lease"); n != 1 {
			t.Errorf("%d reports, want one:\n%s", n, &log)
		}
	})
}

// waitingTurn is a fakeTurn of a process that stands by. It counts the calls of Reclaim.
type waitingTurn struct {
	fakeTurn
	reclaims atomic.Int32
}

func (w *waitingTurn) Reclaim() bool {
	w.reclaims.Add(1)
	return true
}

// A process that does not serve neither renews nor shortens the lease. It takes over if no other process renews the
// lease for 30 seconds.
func TestAnAbandonedLeaseIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		turn := &waitingTurn{fakeTurn: fakeTurn{ready: make(chan struct{}), changed: make(chan struct{}, 1)}}
		b.Turn = turn
		stop := b.start(t)
		close(b.source.synced)
		for range 100 {
			b.kernel.mu.Lock()
			b.kernel.other = time.Now()
			b.kernel.mu.Unlock()
			time.Sleep(abandonedAfter - leaseEvery)
		}
		if n := turn.reclaims.Load(); n > 0 {
			t.Errorf("%d takeovers while another process renews the lease", n)
		}
		time.Sleep(2 * leaseEvery)
		synctest.Wait()
		lab.Same(t, 1, turn.reclaims.Load(), "takeovers")
		lab.Same(t, 1, count(t, b.registry, "kubenftproxy_takeovers_total")[""], "kubenftproxy_takeovers_total")
		stop()
		if renewals, _ := b.kernel.leaseOf(); len(renewals) > 0 {
			t.Errorf("a process that does not serve renewed the lease at %v", renewals)
		}
	})
}
