package proxy

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// jumped returns a time as time.Now returns it after the machine's clock was set: the wall clock jumps, the monotonic
// clock does not.
func jumped(t time.Time, seconds int64) time.Time {
	// The layout of package time: 33 bits of seconds since 1885 above 30 bits of nanoseconds, beside the monotonic
	// clock.
	wall := (*uint64)(unsafe.Pointer(&t))
	*wall += uint64(seconds) << 30
	return t
}

func TestJumped(t *testing.T) {
	now := time.Now()
	for _, seconds := range []int64{3600, -36000} {
		then := jumped(now, seconds)
		if passed, shown := then.Sub(now), then.Unix()-now.Unix(); passed != 0 || shown != seconds {
			t.Errorf("%v passed and the clock shows %d seconds more; want none and %d", passed, shown, seconds)
		}
	}
}

// The machine's clock is set forward and back while Services change, syncs fail and the loop idles. Each event
// happens at the same monotonic time as without these jumps.
func TestTheClockIsSet(t *testing.T) {
	want := history(t, nil)
	if len(want) < 20 {
		t.Fatalf("only %q happened", want)
	}
	const hour = 3600
	lab.Same(t, want, history(t, []int64{10 * hour, -24 * hour, 0, 24 * 365 * hour, -hour}), "what happened (-with a steady clock +with one that is set)")
}

// history runs the proxy for some minutes, during which it sets the clock to each offset in turn. It lists the events
// with their times.
func history(t *testing.T, offsets []int64) (list []string) {
	real := time.Now() // the bubble's time has no monotonic part
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		happened := func(format string, args ...any) {
			list = append(list, fmt.Sprintf("%v: %s", time.Since(begin), fmt.Sprintf(format, args...)))
		}
		var offset atomic.Int64
		clock := func() time.Time { return jumped(real.Add(time.Since(begin)), offset.Load()) }
		b := newBench()
		b.Now, b.Tracker = clock, track.New(clock(), clock)
		b.Health = health.New(health.Config{Timeout: time.Minute, Now: clock, NoNode: true})
		b.kernel.fail = func(sync int) error {
			if sync%7 == 3 || sync > 40 {
				happened("sync %d fails", sync)
				return errors.New("busy")
			}
			happened("sync %d", sync)
			return nil
		}
		defer b.start(t)()
		close(b.source.synced)
		synctest.Wait() // the first sync has happened: whether it includes the first change would depend on the scheduler
		for i := range 20 {
			if len(offsets) > 0 {
				offset.Store(offsets[i%len(offsets)])
			}
			for range 5 {
				b.set(i, 1+i%3)
				time.Sleep(300 * time.Millisecond)
			}
			time.Sleep(time.Duration(i) * 5 * time.Second)
			synctest.Wait()
			happened("healthy %t", b.Health.Healthy())
		}
	})
	return list
}
