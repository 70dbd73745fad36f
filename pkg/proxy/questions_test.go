package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// status queries the loop with a timeout of a second.
func (b *bench) status(t *testing.T) *view.Loop {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	l, err := b.Status(ctx)
	lab.Must(t, err)
	return l
}

func TestStatusFollowsTheLoop(t *testing.T) {
	run(t, func(b *bench) {
		if l := b.status(t); l.Waits != "to read all Services and EndpointSlices" || l.Last != nil {
			t.Errorf("before anything was read: %+v", l)
		}
		if _, err := b.Numbers(context.Background()); err == nil || !strings.Contains(err.Error(), "to read all Services and EndpointSlices") {
			t.Errorf("numbers before anything was read: %v", err)
		}
		for i := range 9 {
			b.set(i, 2)
		}
		close(b.source.synced)
		synctest.Wait()
		l := b.status(t)
		if l.Waits != "" || l.Last == nil || l.Last.Kind != "full" || len(l.Last.Services) != mostNamed || l.Last.More != 9-mostNamed {
			t.Errorf("after the first sync: %+v, last %+v", l, l.Last)
		}
		time.Sleep(10 * time.Second)
		b.set(3, 5)
		synctest.Wait()
		l = b.status(t)
		if l.Last.Kind != "partial" || len(l.Last.Services) != 1 || l.Last.Services[0] != "default/svc-3" || time.Since(l.Last.Time) != 0 {
			t.Errorf("after a change: last %+v", l.Last)
		}
		if l.LeaseEnds == nil || !l.LeaseEnds.After(time.Now()) || l.LeaseRenewed.After(time.Now()) {
			t.Errorf("lease renewed at %v, ends %v; it is %v", l.LeaseRenewed, l.LeaseEnds, time.Now())
		}
	})
}

func TestStatusReportsFailures(t *testing.T) {
	run(t, func(b *bench) {
		var failing atomic.Bool
		failing.Store(true)
		b.kernel.fail = func(int) error {
			if failing.Load() {
				return errors.New("no buffer space available")
			}
			return nil
		}
		close(b.source.synced)
		start := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		f := b.status(t).Failure
		if f == nil || !strings.Contains(f.Error, "no buffer space") || f.Times < 2 || !f.Since.Equal(start) {
			t.Errorf("while syncs fail: %+v", f)
		}
		failing.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if l := b.status(t); l.Failure != nil || l.Last == nil {
			t.Errorf("after one has succeeded: %+v", l)
		}
	})
}

func TestStatusReportsRepairs(t *testing.T) {
	run(t, func(b *bench) {
		close(b.source.synced)
		synctest.Wait()
		for range mostRepairs + 2 {
			time.Sleep(10 * time.Second)
			b.kernel.mu.Lock()
			b.kernel.meddled = true
			b.kernel.mu.Unlock()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		l := b.status(t)
		if l.RepairsTotal != mostRepairs+2 || len(l.Repairs) != mostRepairs {
			t.Fatalf("%d repairs, %d listed, want %d and %d", l.RepairsTotal, len(l.Repairs), mostRepairs+2, mostRepairs)
		}
		last := l.Repairs[mostRepairs-1]
		if last.By != "nft (pid 7)" || last.Program != "nft" || last.Reason != "foreign_change" || time.Since(last.Time) > 20*time.Second {
			t.Errorf("the last repair: %+v", last)
		}
	})
}

// While the kernel blocks the loop, a query fails with an error that the loop is busy.
func TestAQueryOfABusyLoopFails(t *testing.T) {
	run(t, func(b *bench) {
		goOn := make(chan struct{})
		b.kernel.fail = func(int) error { <-goOn; return nil }
		close(b.source.synced)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := b.Status(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "busy") {
			t.Errorf("query of a busy loop: %v", err)
		}
		close(goOn)
		synctest.Wait()
		b.status(t)
	})
}

func TestFactsFollowTheNode(t *testing.T) {
	run(t, func(b *bench) {
		b.NodePorts.Local = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil }
		b.source.node = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
		}
		close(b.source.synced)
		synctest.Wait()
		f := b.Facts()
		if f.Node.Zone != "a" || fmt.Sprint(f.NodeAddresses[0]) != "[192.0.2.1]" {
			t.Errorf("facts %+v", f)
		}
	})
}

// TestSyncsAreRemembered fills the ring more than once.
func TestSyncsAreRemembered(t *testing.T) {
	run(t, func(b *bench) {
		syncs := func() []view.Sync {
			list, err := b.Syncs(context.Background())
			lab.Must(t, err)
			return list
		}
		if list := syncs(); len(list) != 0 {
			t.Errorf("before the first one: %+v", list)
		}
		close(b.source.synced)
		synctest.Wait()
		for i := range mostRecent + 50 {
			if list := syncs(); len(list) != min(i+1, mostRecent) || list[0].Kind == "full" != (i < mostRecent) {
				t.Fatalf("after %d changes there are %d, the first is %+v", i, len(list), list[0])
			}
			time.Sleep(2 * time.Second)
			b.set(i, 1)
			synctest.Wait()
		}
		list := syncs()
		for i := 1; i < len(list); i++ {
			if want := fmt.Sprint("default/svc-", 50+i); !list[i].Time.After(list[i-1].Time) || len(list[i].Services) != 1 || list[i].Services[0] != want {
				t.Fatalf("sync %d is %+v, want the one of %s", i, list[i], want)
			}
		}
		lab.Same(t, b.status(t).Last, &list[len(list)-1], "the last one")
	})
}
