package proxy

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// growthSizes are the sizes of BenchmarkGrowth. First, the number of Services grows at a fixed number of endpoints.
// Then the number of endpoints of a Service, and the number of its frontends, grow at a fixed number of Services. The
// last rows have one large Service beside small ones.
var growthSizes = []struct{ services, endpoints, large, frontends int }{
	{1_000, 1, 0, 1}, {3_000, 1, 0, 1}, {10_000, 1, 0, 1}, {30_000, 1, 0, 1}, {100_000, 1, 0, 1}, {150_000, 1, 0, 1},
	{1_000, 5, 0, 1}, {3_000, 5, 0, 1}, {10_000, 5, 0, 1}, {30_000, 5, 0, 1}, {100_000, 5, 0, 1},
	{1_000, 10, 0, 1}, {1_000, 30, 0, 1}, {1_000, 100, 0, 1}, {1_000, 300, 0, 1}, {1_000, 1_000, 0, 1},
	{1_000, 1, 0, 3}, {1_000, 1, 0, 10}, {1_000, 1, 0, 30}, {1_000, 1, 0, 100},
	{1_000, 1, 1_000, 1}, {1_000, 1, 3_000, 1}, {1_000, 1, 10_000, 1}, {1_000, 1, 16_000, 1},
}

// BenchmarkGrowth measures how the cost grows with Services and endpoints, from stored objects to the kernel's
// acknowledgement. first-ms is the time of the first sync, and commit-ms the kernel's part of it. adopt-ms is the
// time in which another process adopts the tables. change-us and slow-us are the median and the 99th percentile of
// single changes. heap-MB is the memory of the program that is in use afterwards, with the stored objects. elements
// is the number of elements in the kernel.
func BenchmarkGrowth(b *testing.B) {
	for _, size := range growthSizes {
		b.Run(fmt.Sprintf("%dx%d+%d*%d", size.services, size.endpoints, size.large, size.frontends), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				lab.EnterNamespace(b)
				before := heapInUse()
				s := newSourceWithIPs(size.services, size.endpoints, size.frontends-1)
				large := s.put(200_000, 0, 0)
				for i := range size.large / perSlice {
					s.putSlice(large, i, 0, 0)
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
						s.putSlice(large, i%(size.large/perSlice), 1, 1+i)
					} else {
						name = s.put(i*7%size.services, size.endpoints, 1+i*7/size.services)
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

// alternating are the objects of a Service with two contents.
type alternating struct {
	contents [2]model.Objects
	now      atomic.Int32
}

// alternatingSource has one slice for each Service, which may change at any time.
type alternatingSource struct {
	*storedSource
	names []types.NamespacedName
	slice map[types.NamespacedName]*alternating
}

func newAlternatingSource(services, endpoints int) *alternatingSource {
	s := &alternatingSource{storedSource: newStoredSource(services, endpoints), slice: map[types.NamespacedName]*alternating{}}
	for i := range services {
		a := &alternating{}
		for round := range a.contents {
			name := s.put(i, endpoints, round)
			a.contents[round] = s.objects[name]
			if round == 0 {
				s.names, s.slice[name] = append(s.names, name), a
			}
		}
	}
	return s
}

func (s *alternatingSource) Get(n types.NamespacedName) model.Objects {
	a := s.slice[n]
	return a.contents[a.now.Load()]
}

// lags measures the time from a change to its commit.
type lags struct {
	mu     sync.Mutex
	marked map[types.NamespacedName]time.Time
	list   []time.Duration
	syncs  int
}

func (l *lags) mark(name types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.marked[name]; !waits {
		l.marked[name] = time.Now()
	}
}

func (l *lags) Synced(s *beside.Sync) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.syncs++
	for _, name := range s.Services {
		if at, waits := l.marked[name]; waits && !at.After(s.Start) {
			l.list = append(l.list, s.End.Sub(at))
			delete(l.marked, name)
		}
	}
}

// startLoop runs the loop of a proxy after its first sync. It returns the times from changes to their commits. stop
// ends the loop and waits for it.
func startLoop(b *testing.B, p *Proxy) (l *lags, stop func()) {
	l = &lags{marked: map[types.NamespacedName]time.Time{}}
	p.Listeners = append(p.Listeners, beside.Listener{Synced: l.Synced})
	p.Schedule = NewSchedule(100*time.Millisecond, 30*time.Second, 30*time.Second)
	p.alarm = time.NewTimer(0)
	ctx, cancel := context.WithCancel(quietly(b))
	var loop sync.WaitGroup
	loop.Go(func() {
		for ctx.Err() == nil {
			p.step(ctx)
		}
	})
	return l, func() {
		cancel()
		loop.Wait()
	}
}

// BenchmarkRate measures the cost of changes that arrive at a constant rate: each replaces one endpoint of another
// Service. The cluster has 10,000 Services with 10 endpoints. cpu-ms is the processor time of the process in a
// second, and syncs the number of syncs. lag-ms and slow-ms are the median and the 99th percentile of the time from a
// change to its commit.
func BenchmarkRate(b *testing.B) {
	const services, endpoints, duration = 10_000, 10, 5 * time.Second
	for _, rate := range []int{10, 100, 1_000, 10_000} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				lab.EnterNamespace(b)
				s := newAlternatingSource(services, endpoints)
				kernel := openKernel(b)
				p := proxyOn(b, s, s.objects, kernel)
				settle(b, p)
				l, stop := startLoop(b, p)
				runtime.GC()
				before, start := lab.ProcessorTime(b), time.Now()
				b.StartTimer()
				for n := range rate * int(duration/time.Second) {
					time.Sleep(time.Until(start.Add(time.Duration(n) * time.Second / time.Duration(rate))))
					name := s.names[n*7%services]
					a := s.slice[name]
					a.now.Store(1 - a.now.Load())
					l.mark(name)
					p.Tracker.MarkSlice(name, track.Trigger{})
				}
				time.Sleep(time.Until(start.Add(duration)))
				b.StopTimer()
				spent := lab.ProcessorTime(b) - before
				stop()
				l.mu.Lock()
				slices.Sort(l.list)
				seconds := duration.Seconds()
				if made := float64(rate) * seconds; float64(len(l.list)) < 0.8*made { // the last ones are not committed yet
					b.Fatalf("%d of %.0f changes were committed", len(l.list), made)
				}
				b.ReportMetric(millis(spent)/seconds, "cpu-ms")
				b.ReportMetric(float64(l.syncs)/seconds, "syncs")
				b.ReportMetric(millis(l.list[len(l.list)/2]), "lag-ms")
				b.ReportMetric(millis(l.list[len(l.list)*99/100]), "slow-ms")
				l.mu.Unlock()
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
