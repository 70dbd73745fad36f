package proxy

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAKubeProxyBesideUsIsReportedOnce(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		for _, tc := range []struct {
			rival bool
			want  int
		}{{false, 0}, {true, 1}, {true, 1}, {false, 1}, {true, 2}} {
			b.kernel.mu.Lock()
			b.kernel.rival, b.kernel.meddled = tc.rival, true
			b.kernel.mu.Unlock()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if b.mu.Lock(); len(b.problems) != tc.want {
				t.Errorf("problems %v, want %d", b.problems, tc.want)
			}
			b.mu.Unlock()
		}
	})
}
