package beside

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Each row has the times of wakes, in seconds, and the expected times of calls. The work takes no time.
func TestPauses(t *testing.T) {
	second := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	for _, tc := range []struct {
		name         string
		first, pause Pause
		settle       time.Duration
		wakes, want  []float64
	}{
		{"regularly", Pause{}, Exactly(second(4)), 0, nil, []float64{0, 4, 8}},
		{"a pause that no wake ends", Pause{}, Exactly(second(4)), 0, []float64{1, 5, 6}, []float64{0, 4, 8}},
		{"a pause that a wake ends", Pause{}, Pause{Most: second(4)}, 0, []float64{1, 6}, []float64{0, 1, 5, 6}},
		{"the least pause", Pause{}, Pause{Least: second(2), Most: second(5)}, 0, []float64{1, 5}, []float64{0, 2, 5}},
		{"only wakes", UntilWake, UntilWake, 0, []float64{3, 3, 7}, []float64{3, 7}},
		{"changes are collected", UntilWake, UntilWake, second(2), []float64{3, 4, 4.5, 9.5}, []float64{5}},
		{"the first pause", Pause{Most: second(6)}, UntilWake, 0, nil, []float64{6}},
		{"a wake before Run", UntilWake, UntilWake, 0, []float64{-1}, []float64{0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var begun time.Time
			var got []float64
			r := NewRunner(Runner{First: tc.first, Settle: tc.settle, Work: func(context.Context) (Pause, error) {
				got = append(got, time.Since(begun).Seconds())
				return tc.pause, nil
			}})
			wakes := tc.wakes
			if len(wakes) > 0 && wakes[0] < 0 {
				r.Wake()
				wakes = wakes[1:]
			}
			begun = time.Now()
			ctx, end := context.WithTimeout(t.Context(), second(9.75))
			defer end()
			go func() {
				for _, at := range wakes {
					time.Sleep(time.Until(begun.Add(second(at))))
					r.Wake()
				}
			}()
			r.Run(ctx)
			lab.Same(t, tc.want, got, "%s: calls", tc.name)
		})
	}
}

// A wake during the work is not lost.
func TestAWakeDuringTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		ctx, end := context.WithCancel(t.Context())
		r := NewRunner(Runner{})
		r.Work = func(context.Context) (Pause, error) {
			if calls++; calls == 1 {
				r.Wake()
			} else {
				end()
			}
			return UntilWake, nil
		}
		r.Run(ctx)
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}

// An error is logged once until it changes, and the first success after it is logged, too. At the end, an error may
// come from the context, and is not logged.
func TestErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log)))
		ctx, end := context.WithCancel(klog.NewContext(t.Context(), logger))
		outcomes := []string{"one", "one", "two", "", "", "one", "last"}
		r := NewRunner(Runner{Failed: "Failed to work", Work: func(context.Context) (Pause, error) {
			outcome := outcomes[0]
			if outcomes = outcomes[1:]; len(outcomes) == 0 {
				end()
			}
			if outcome == "" {
				return Exactly(time.Second), nil
			}
			return Exactly(time.Second), errors.New(outcome)
		}})
		r.Run(ctx)
		var got []string
		for line := range strings.Lines(log.String()) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), "] ")
			got = append(got, text)
		}
		lab.Same(t, []string{
			`"Failed to work" err="one" retryingTime="1s"`, `"Failed to work" err="two" retryingTime="1s"`,
			`"Succeeded again" lastErr="two"`, `"Failed to work" err="one" retryingTime="1s"`,
		}, got, "log")
	})
}
