package proxy

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

func (k *fakeKernel) renewedAt() []time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]time.Time(nil), k.renewals...)
}

// However it starts and whatever happens meanwhile, there's a lease, and room for a failure before it runs out.
func TestTheLeaseIsRenewedInTime(t *testing.T) {
	for name, adopted := range map[string]bool{"from scratch": false, "adopted": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(b *bench) {
				b.kernel.asWanted = adopted
				close(b.source.synced)
				synctest.Wait()
				last := time.Now()
				if adopted {
					time.Sleep(checkEvery)
					synctest.Wait()
					if list := b.kernel.renewedAt(); len(list) != 1 {
						t.Fatalf("renewed %d times after tables were adopted, want once", len(list))
					}
				}
				for range 4000 { // a storm without a quiet moment
					b.set(1, 1+len(b.kernel.renewedAt())%3)
					time.Sleep(100 * time.Millisecond)
				}
				list := b.kernel.renewedAt()
				if len(list) < 9 {
					t.Fatalf("renewed %d times in 400 seconds", len(list))
				}
				for _, at := range list {
					if passed := at.Sub(last); passed > plan.Lease/2 {
						t.Errorf("%v passed without", passed)
					}
					last = at
				}
			})
		})
	}
}

func TestALeaseThatCannotBeRenewedMakesASync(t *testing.T) {
	run(t, func(b *bench) {
		b.kernel.asWanted, b.kernel.renewal = true, errors.New("no such table")
		close(b.source.synced)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, syncs := b.kernel.held(); syncs < 2 {
			t.Error("no sync followed")
		}
	})
}

// A look at what others do to the ruleset isn't put off by changes that never cease.
func TestAStormHidesNobody(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		synctest.Wait()
		b.kernel.mu.Lock()
		b.kernel.meddled = true
		b.kernel.mu.Unlock()
		for i := range 30 {
			b.set(1, 1+i%3)
			time.Sleep(50 * time.Millisecond)
		}
		b.kernel.mu.Lock()
		defer b.kernel.mu.Unlock()
		if b.kernel.doubts == 0 {
			t.Error("not noticed in one and a half seconds of changes")
		}
	})
}
