package proxy

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

// touch makes an announced foreign change of the program's tables.
func (k *fakeKernel) touch() {
	k.mu.Lock()
	k.meddled, k.touched = true, true
	k.mu.Unlock()
	select {
	case k.heard <- struct{}{}:
	default:
	}
}

// takeSizes returns the numbers of elements after each sync since the last call.
func (k *fakeKernel) takeSizes() []int {
	k.mu.Lock()
	defer k.mu.Unlock()
	taken := k.sizes
	k.sizes = nil
	return taken
}

// begin creates Services, waits until they are programmed, and changes one of them again.
func (b *bench) begin(t *testing.T, services int) {
	t.Helper()
	for i := range services {
		b.set(i, 2)
	}
	close(b.source.synced)
	synctest.Wait()
	time.Sleep(time.Minute)
	b.set(0, 1) // after this sync, the next one would be due in a second
	synctest.Wait()
	b.kernel.takeSizes()
}

// A repair does not wait for the schedule. Changes that arrive meanwhile are synced after it.
func TestARepairIsImmediate(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 10)
		before, _ := b.kernel.held()
		begun := time.Now()
		const more = 500
		for i := range more {
			b.set(10+i, 2)
		}
		b.kernel.touch()
		synctest.Wait()
		if passed := time.Since(begun); passed > 0 {
			t.Fatalf("%v passed", passed)
		}
		after, _ := b.kernel.held()
		if diff := cmp.Diff([]int{len(before), len(after)}, b.kernel.takeSizes()); diff != "" || len(after) <= len(before)+more {
			t.Errorf("elements after each sync (-want +got):\n%s", diff)
		}
		b.check(t)
	})
}

// A program that changes the tables continuously causes at most two repairs a second.
func TestContinuousForeignChangesAreRateLimited(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 10)
		_, before := b.kernel.held()
		earlier := b.kernel.doubts
		const seconds = 20
		for i := range seconds * 100 {
			b.set(i%10, i%3)
			b.kernel.touch()
			time.Sleep(time.Second / 100)
		}
		_, after := b.kernel.held()
		b.kernel.mu.Lock()
		defer b.kernel.mu.Unlock()
		if doubts, syncs := b.kernel.doubts-earlier, after-before; doubts < seconds || doubts > 2*seconds+2 || syncs > 5*seconds {
			t.Errorf("%d doubts and %d syncs in %d seconds", doubts, syncs, seconds)
		}
	})
}

// Planning thousands of Services takes longer than a full sync: a repair interrupts it.
func TestARepairInterruptsPlanning(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 10)
		before, _ := b.kernel.held()
		const more = 600 // one round
		var names []types.NamespacedName
		for i := range more {
			names = append(names, b.set(10+i, 2))
		}
		b.source.mu.Lock()
		b.source.built = func(name types.NamespacedName) {
			if name == names[more/2] {
				b.kernel.touch()
			}
		}
		b.source.mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		after, _ := b.kernel.held()
		sizes := b.kernel.takeSizes()
		if len(sizes) != 2 || sizes[0] <= len(before) || sizes[0] >= len(after) || sizes[1] != len(after) {
			t.Errorf("from %d to %d elements: %d after each sync, want a full sync between them", len(before), len(after), sizes)
		}
		b.check(t)
	})
}

// A repair immediately follows a batch that failed because a foreign change deleted its objects.
func TestAForeignChangeMakesABatchFail(t *testing.T) {
	for name, c := range map[string]struct {
		err     error
		meddled bool
		fails   int
		want    int // syncs without delay
	}{
		"by a foreign change":        {errors.New("no such file or directory"), true, 1, 2},
		"by two foreign changes":     {errors.New("no such file or directory"), true, 2, 3},
		"by foreign changes, always": {errors.New("no such file or directory"), true, 100, attempts},
		"by its content":             {errors.New("device or resource busy"), false, 1, 1},
		"the outcome is unknown":     {fmt.Errorf("read: %w", nft.ErrUnknown), true, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(b *bench) {
				b.begin(t, 3)
				time.Sleep(10 * time.Second)
				_, before := b.kernel.held()
				b.kernel.mu.Lock()
				b.kernel.fail = func(n int) error {
					if n <= before+c.fails {
						b.kernel.meddled = c.meddled
						return c.err
					}
					return nil
				}
				b.kernel.mu.Unlock()
				b.set(1, 5)
				synctest.Wait()
				if _, syncs := b.kernel.held(); syncs-before != c.want {
					t.Errorf("%d syncs at once, want %d", syncs-before, c.want)
				}
				b.kernel.mu.Lock()
				b.kernel.fail = nil
				b.kernel.mu.Unlock()
				time.Sleep(time.Minute)
				b.check(t)
			})
		})
	}
}

// A change that the kernel always rejects does not block the change that corrects it.
func TestARejectedChangeDoesNotBlockItsCorrection(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 3)
		bad := types.NamespacedName{Namespace: "default", Name: "svc-7"}
		b.kernel.mu.Lock()
		b.kernel.fail = func(int) error {
			if b.Planner.Service(bad).Exists() {
				return errors.New("invalid argument")
			}
			return nil
		}
		b.kernel.mu.Unlock()
		b.set(7, 2)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if b.Kernel.Known() {
			t.Fatal("the kernel has not rejected the change")
		}
		b.kernel.touch()
		time.Sleep(10 * time.Second)
		b.source.mu.Lock()
		delete(b.source.services, bad)
		b.source.mu.Unlock()
		b.Tracker.MarkService(bad)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !b.Kernel.Known() {
			t.Error("the Service was deleted, and still nothing is programmed")
		}
		b.check(t)
	})
}

// The program does not receive announcements during its own batch. The next check notices a foreign change then.
func TestAForeignChangeDuringABatch(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 3)
		time.Sleep(10*time.Second + checkEvery/2)
		b.kernel.mu.Lock()
		doubts := b.kernel.doubts
		b.kernel.fail = func(int) error { b.kernel.fail, b.kernel.after = nil, true; return nil }
		b.kernel.mu.Unlock()
		b.set(1, 1, func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.9.9" })
		time.Sleep(checkEvery)
		synctest.Wait()
		b.kernel.mu.Lock()
		defer b.kernel.mu.Unlock()
		if b.kernel.doubts != doubts+1 || !b.kernel.known {
			t.Errorf("%d doubts and known %v after a foreign change during a batch, want one, and a repair",
				b.kernel.doubts-doubts, b.kernel.known)
		}
	})
}

// If a foreign change caused a batch to fail, the metric of repairs has the reason foreign_change.
func TestTheReasonOfARepairAfterAFailedBatch(t *testing.T) {
	run(t, func(b *bench) {
		b.begin(t, 3)
		time.Sleep(10 * time.Second)
		b.kernel.mu.Lock()
		b.kernel.fail = func(int) error {
			b.kernel.fail, b.kernel.meddled = nil, true
			return errors.New("no such file or directory")
		}
		b.kernel.mu.Unlock()
		b.set(1, 5)
		synctest.Wait()
		repairs := count(t, b.registry, "kubenftproxy_repairs_total")
		if repairs["foreign_change"] != 1 || repairs["failed_sync"] != 0 {
			t.Errorf("repairs by reason: %v, want one of a foreign change", repairs)
		}
	})
}

// Continuous changes do not delay the check for foreign changes.
func TestAStormDoesNotDelayChecks(t *testing.T) {
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
			t.Error("no check has found the foreign change in one and a half seconds of changes")
		}
	})
}

// A Service whose algorithm needs many slots has a round of its own, also when it is new.
func TestSlotsOfANewServiceCount(t *testing.T) {
	const services, slots = 5, 4093
	run(t, func(b *bench) {
		b.begin(t, 3)
		before, _ := b.kernel.held()
		for i := range services {
			b.set(10+i, 2, func(s *corev1.Service) {
				s.Annotations = map[string]string{
					"kube-nftproxy.io/lb-algorithm": "maglev", "kube-nftproxy.io/lb-table-size": fmt.Sprint(slots),
				}
			})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		last := len(before)
		for _, size := range b.kernel.takeSizes() {
			if size-last >= 2*slots {
				t.Errorf("one sync adds %d elements, want those of one Service", size-last)
			}
			last = size
		}
		if last < len(before)+services*slots {
			t.Errorf("%d elements, want at least %d", last, len(before)+services*slots)
		}
		b.check(t)
	})
}
