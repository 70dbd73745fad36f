package proxy

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	testMin     = time.Second
	testBackoff = 30 * time.Second
	testMax     = time.Hour
)

// A step is one action at a virtual time.
type step struct {
	at time.Duration
	do string // "request", "urge", "early", "next", "ok" or "fail"
	// wantAt and wantDue are the expected results of Next. For "fail", wantAt is the time of the retry.
	wantAt  time.Duration
	wantDue bool
}

func TestSchedule(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	tests := []struct {
		name  string
		steps []step
	}{
		{"nothing before the first request", []step{
			{at: 0, do: "next", wantAt: testMax},
			{at: 2 * testMax, do: "next", wantAt: 3 * testMax},
		}},
		{"the first request is due immediately", []step{
			{at: 5 * s, do: "request"},
			{at: 5 * s, do: "next", wantAt: 5 * s, wantDue: true},
		}},
		{"requests wait for the minimum interval after a run", []step{
			{at: 0, do: "request"},
			{at: 0, do: "next", wantAt: 0, wantDue: true},
			{at: 300 * ms, do: "ok"},
			{at: 301 * ms, do: "request"},
			{at: 302 * ms, do: "request"},
			{at: 302 * ms, do: "next", wantAt: 1300 * ms},
			{at: 1299 * ms, do: "next", wantAt: 1300 * ms},
			{at: 1300 * ms, do: "next", wantAt: 1300 * ms, wantDue: true},
			{at: 1400 * ms, do: "ok"},
			{at: 1400 * ms, do: "next", wantAt: testMax + 1400*ms},
		}},
		{"an early request is due immediately, but not the next one", []step{
			{at: 0, do: "request"},
			{at: 0, do: "next", wantAt: 0, wantDue: true},
			{at: 0, do: "ok"},
			{at: 100 * ms, do: "early"},
			{at: 100 * ms, do: "next", wantAt: 0, wantDue: true},
			{at: 200 * ms, do: "ok"},
			{at: 300 * ms, do: "early"},
			{at: 300 * ms, do: "next", wantAt: 1200 * ms},
			{at: 1200 * ms, do: "next", wantAt: 1200 * ms, wantDue: true},
			{at: 1200 * ms, do: "ok"},
			{at: 1300 * ms, do: "early"},
			{at: 1300 * ms, do: "next", wantAt: 1200 * ms, wantDue: true},
			{at: 1400 * ms, do: "fail", wantAt: 1500 * ms},
			{at: 1450 * ms, do: "early"},
			{at: 1450 * ms, do: "next", wantAt: 1500 * ms},
		}},
		{"a request after a quiet time is due immediately", []step{
			{at: 0, do: "request"},
			{at: 0, do: "next", wantAt: 0, wantDue: true},
			{at: 0, do: "ok"},
			{at: 10 * s, do: "request"},
			{at: 10 * s, do: "next", wantAt: 1 * s, wantDue: true},
		}},
		{"a request during a run leads to another run", []step{
			{at: 0, do: "request"},
			{at: 0, do: "next", wantAt: 0, wantDue: true},
			{at: 100 * ms, do: "request"},
			{at: 200 * ms, do: "ok"},
			{at: 200 * ms, do: "next", wantAt: 1200 * ms},
			{at: 1200 * ms, do: "next", wantAt: 1200 * ms, wantDue: true},
			{at: 1200 * ms, do: "ok"},
			{at: 1200 * ms, do: "next", wantAt: testMax + 1200*ms},
		}},
		{"the backoff grows with failures, and a success resets it", []step{
			{at: 0, do: "request"},
			{at: 0, do: "next", wantAt: 0, wantDue: true},
			{at: 0, do: "fail", wantAt: 100 * ms},
			{at: 0, do: "next", wantAt: 100 * ms},
			{at: 100 * ms, do: "next", wantAt: 100 * ms, wantDue: true},
			{at: 100 * ms, do: "fail", wantAt: 300 * ms},
			{at: 300 * ms, do: "fail", wantAt: 700 * ms},
			{at: 700 * ms, do: "fail", wantAt: 1500 * ms},
			{at: 1500 * ms, do: "fail", wantAt: 3100 * ms},
			{at: 3100 * ms, do: "ok"},
			{at: 3100 * ms, do: "next", wantAt: testMax + 3100*ms},
			{at: 10 * s, do: "fail", wantAt: 10*s + 100*ms},
		}},
		{"the backoff has a limit", []step{
			{at: 0, do: "fail", wantAt: 100 * ms},
			{at: 0, do: "fail", wantAt: 200 * ms},
			{at: 0, do: "fail", wantAt: 400 * ms},
			{at: 0, do: "fail", wantAt: 800 * ms},
			{at: 0, do: "fail", wantAt: 1600 * ms},
			{at: 0, do: "fail", wantAt: 3200 * ms},
			{at: 0, do: "fail", wantAt: 6400 * ms},
			{at: 0, do: "fail", wantAt: 12800 * ms},
			{at: 0, do: "fail", wantAt: 25600 * ms},
			{at: 0, do: "fail", wantAt: 30 * s},
			{at: 0, do: "fail", wantAt: 30 * s},
		}},
		{"a request waits for the minimum interval, not for a longer backoff", []step{
			{at: 0, do: "fail", wantAt: 100 * ms},
			{at: 0, do: "fail", wantAt: 200 * ms},
			{at: 0, do: "fail", wantAt: 400 * ms},
			{at: 0, do: "fail", wantAt: 800 * ms},
			{at: 0, do: "fail", wantAt: 1600 * ms},
			{at: 0, do: "fail", wantAt: 3200 * ms},
			{at: 100 * ms, do: "request"},
			{at: 100 * ms, do: "next", wantAt: 1 * s},
			{at: 1 * s, do: "next", wantAt: 1 * s, wantDue: true},
		}},
		{"a request does not delay a short retry", []step{
			{at: 0, do: "fail", wantAt: 100 * ms},
			{at: 50 * ms, do: "request"},
			{at: 50 * ms, do: "next", wantAt: 100 * ms},
			{at: 100 * ms, do: "next", wantAt: 100 * ms, wantDue: true},
		}},
		{"an urgent request does not wait, and the next one does", []step{
			{at: 0, do: "ok"},
			{at: 100 * ms, do: "request"},
			{at: 200 * ms, do: "urge"},
			{at: 200 * ms, do: "next", wantAt: 0, wantDue: true},
			{at: 300 * ms, do: "ok"},
			{at: 300 * ms, do: "request"},
			{at: 300 * ms, do: "next", wantAt: 1300 * ms},
		}},
		{"an urgent request waits for a short retry", []step{
			{at: 0, do: "fail", wantAt: 100 * ms},
			{at: 50 * ms, do: "urge"},
			{at: 50 * ms, do: "next", wantAt: 100 * ms},
			{at: 100 * ms, do: "next", wantAt: 100 * ms, wantDue: true},
		}},
		{"after failures, an urgent request is due as any other", []step{
			{at: 0, do: "fail", wantAt: 100 * ms},
			{at: 0, do: "fail", wantAt: 200 * ms},
			{at: 0, do: "fail", wantAt: 400 * ms},
			{at: 0, do: "fail", wantAt: 800 * ms},
			{at: 0, do: "fail", wantAt: 1600 * ms},
			{at: 100 * ms, do: "urge"},
			{at: 100 * ms, do: "next", wantAt: 1 * s},
			{at: 1 * s, do: "next", wantAt: 1 * s, wantDue: true},
		}},
		{"the maximum interval needs no request", []step{
			{at: 0, do: "request"},
			{at: 0, do: "next", wantAt: 0, wantDue: true},
			{at: 2 * s, do: "ok"},
			{at: testMax, do: "next", wantAt: testMax + 2*s},
			{at: testMax + 3*s, do: "next", wantAt: testMax + 2*s, wantDue: true},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			play(t, NewSchedule(testMin, testBackoff, testMax), tt.steps)
		})
	}
}

func TestOddSettings(t *testing.T) {
	tests := []struct {
		name  string
		s     Schedule
		steps []step
	}{
		{"no minimum", NewSchedule(0, testBackoff, testMax), []step{
			{at: 5, do: "ok"},
			{at: 5, do: "request"},
			{at: 5, do: "next", wantAt: 5, wantDue: true},
		}},
		{"a maximum backoff of 0 is raised to the first retry", NewSchedule(testMin, 0, testMax), []step{
			{at: 0, do: "fail", wantAt: firstRetry},
			{at: 0, do: "fail", wantAt: firstRetry},
		}},
		{"maximum below minimum", NewSchedule(time.Minute, testBackoff, time.Second), []step{
			{at: 0, do: "ok"},
			{at: 0, do: "request"},
			{at: 0, do: "next", wantAt: time.Minute},
		}},
		{"maximum below backoff", NewSchedule(0, testBackoff, 50*time.Millisecond), []step{
			{at: 0, do: "fail", wantAt: 50 * time.Millisecond},
			{at: 0, do: "next", wantAt: 50 * time.Millisecond},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			play(t, tt.s, tt.steps)
		})
	}
}

// play carries out the steps in order, with time from an arbitrary start.
func play(t *testing.T, s Schedule, steps []step) {
	t.Helper()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, st := range steps {
		got := step{at: st.at, do: st.do}
		now := start.Add(st.at)
		switch st.do {
		case "request":
			s.Requested()
		case "early":
			s.Early()
		case "urge":
			s.Urgent()
		case "ok":
			s.Succeeded(now)
		case "fail":
			got.wantAt = s.Failed(now).Sub(start)
		case "next":
			var at time.Time
			at, got.wantDue = s.Next(now)
			got.wantAt = at.Sub(start)
		default:
			t.Fatalf("step %d: unknown action %q", i, st.do)
		}
		if diff := cmp.Diff(st, got, cmp.AllowUnexported(step{})); diff != "" {
			t.Fatalf("step %d at %v (-want +got):\n%s", i, st.at, diff)
		}
	}
}

// loop uses a Schedule in the way of the proxy: one timer, one channel of requests.
func loop(ctx context.Context, s Schedule, requests <-chan struct{}, run func() error) {
	for {
		at, due := s.Next(time.Now())
		if due {
			if run() != nil {
				s.Failed(time.Now())
			} else {
				s.Succeeded(time.Now())
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-requests:
			s.Requested()
		case <-time.After(time.Until(at)):
		}
	}
}

func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var ran []time.Duration
		run := func() error {
			ran = append(ran, time.Since(start))
			time.Sleep(10 * time.Millisecond)
			if n := len(ran); n == 3 || n == 4 {
				return errors.New("the kernel rejects the batch")
			}
			return nil
		}
		requests := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			loop(ctx, NewSchedule(testMin, testBackoff, testMax), requests, run)
		}()

		// Ten requests, 50 ms apart: the first one runs at once, the rest lead to one run.
		for range 10 {
			requests <- struct{}{}
			time.Sleep(50 * time.Millisecond)
		}
		// A quiet time, then a request whose run fails twice.
		time.Sleep(5 * time.Second)
		requests <- struct{}{}
		// No request for more than the maximum interval.
		time.Sleep(testMax + time.Minute)
		cancel()
		<-done

		want := []time.Duration{
			0,
			1010 * time.Millisecond,
			5500 * time.Millisecond,
			5610 * time.Millisecond,
			5820 * time.Millisecond,
			testMax + 5830*time.Millisecond,
		}
		lab.Same(t, want, ran, "runs")
	})
}
