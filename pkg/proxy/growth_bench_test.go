package proxy

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// growthSizes are the sizes of BenchmarkGrowth. First, the number of Services grows at a fixed number of endpoints. Then the number of endpoints of
// a Service grows at a fixed number of Services. The last rows have one large Service beside small ones.
var growthSizes = []struct{ services, endpoints, large int }{
	{1_000, 1, 0}, {3_000, 1, 0}, {10_000, 1, 0}, {30_000, 1, 0}, {100_000, 1, 0}, {150_000, 1, 0},
	{1_000, 5, 0}, {3_000, 5, 0}, {10_000, 5, 0}, {30_000, 5, 0}, {100_000, 5, 0},
	{1_000, 10, 0}, {1_000, 30, 0}, {1_000, 100, 0}, {1_000, 300, 0}, {1_000, 1_000, 0},
	{1_000, 1, 1_000}, {1_000, 1, 3_000}, {1_000, 1, 10_000}, {1_000, 1, 16_000},
}

// BenchmarkGrowth measures how the cost grows with Services and endpoints, from stored objects to the kernel's acknowledgement.
// first-ms is the time of the first sync, and commit-ms the kernel's part of it. adopt-ms is the time in which another process
// adopts the tables. change-us and slow-us are the median and the 99th percentile of single changes. heap-MB is the memory of the
// program that is in use afterwards, with the stored objects. elements is the number of elements in the kernel.
func BenchmarkGrowth(b *testing.B) {
	for _, size := range growthSizes {
		b.Run(fmt.Sprintf("%dx%d+%d", size.services, size.endpoints, size.large), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				lab.EnterNamespace(b)
				before := heapInUse()
				s := newStoredSource(b, size.services, size.endpoints)
				large := s.put(b, 200_000, 0, 0)
				for i := range size.large / perSlice {
					s.putSlice(b, large, i, 0, 0)
				}
				kernel := openKernel(b)
				p := s.on(b, kernel)
				start := time.Now()
				b.StartTimer()
				settle(b, p)
				b.StopTimer()
				b.ReportMetric(millis(time.Since(start)), "first-ms")
				var commit time.Duration
				elements := 0
				for n := range min(p.account.syncs, mostRecent) {
					r := &p.account.recent[n%mostRecent].result
					commit, elements = commit+r.Commit, elements+r.Elements
				}
				b.ReportMetric(millis(commit), "commit-ms")
				b.ReportMetric(float64(elements), "elements")
				b.ReportMetric(float64(heapInUse()-before)/1e6, "heap-MB")
				changes := make([]time.Duration, 200)
				for i := range changes {
					name := large
					if size.large > 0 {
						s.putSlice(b, large, i%(size.large/perSlice), 1, 1+i)
					} else {
						name = s.put(b, i*7%size.services, size.endpoints, 1+i*7/size.services)
					}
					p.Tracker.MarkSlice(name, track.Trigger{})
					start := time.Now()
					settle(b, p)
					changes[i] = time.Since(start)
				}
				slices.Sort(changes)
				b.ReportMetric(float64(changes[100].Microseconds()), "change-us")
				b.ReportMetric(float64(changes[198].Microseconds()), "slow-us")
				kernel.Doubt()
				p.guard.doubt("growth")
				start = time.Now()
				if r, err := kernel.Sync(p.Planner); err != nil || r.Kind != apply.Adopted {
					b.Fatalf("the tables were not adopted: %v, %v", r.Kind, err)
				}
				b.ReportMetric(millis(time.Since(start)), "adopt-ms")
				lab.Must(b, kernel.Close())
				b.StartTimer()
			}
		})
	}
}

// heapInUse returns the bytes of live objects.
func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
