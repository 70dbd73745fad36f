package proxy

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Synced is called after the first successful sync, not before.
func TestSyncedIsCalledAfterASuccess(t *testing.T) {
	run(t, func(b *bench) {
		var calls atomic.Int32
		b.Synced = func() { calls.Add(1) }
		b.kernel.fail = func(sync int) error {
			if sync <= 2 {
				return errors.New("refused")
			}
			return nil
		}
		close(b.source.synced)
		for n := 0; n < 3; time.Sleep(50 * time.Millisecond) {
			synctest.Wait()
			_, n = b.kernel.held()
			if got, want := calls.Load() > 0, n > 2; got != want {
				t.Fatalf("after %d syncs, two of which fail: called %t, want %t", n, got, want)
			}
		}
	})
}
