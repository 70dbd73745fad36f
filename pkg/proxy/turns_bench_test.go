package proxy

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// lockedSource is a source whose objects may change at any time.
type lockedSource struct {
	*storedSource
	mu sync.RWMutex
}

func (s *lockedSource) Get(n types.NamespacedName) model.Objects {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.storedSource.Get(n)
}

// BenchmarkTurns measures the time from a change of one namespace to its commit, while another namespace changes 66
// Services of 2,000 ports, in ms.
func BenchmarkTurns(b *testing.B) {
	const services, ports = 66, 2_000
	evil := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: "aevil", Name: fmt.Sprintf("wide-%d", i)}
	}
	var versions [3][services]*corev1.Service
	for v := range versions {
		for i := range services {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: evil(i).Namespace, Name: evil(i).Name, CreationTimestamp: metav1.Unix(int64(i), 0)}}
			s.Spec.ClusterIP = fmt.Sprintf("10.90.1.%d", i+1)
			for port := range ports {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", port), Protocol: corev1.ProtocolTCP, Port: int32(1 + v*ports + port)})
			}
			versions[v][i] = s
		}
	}
	for b.Loop() {
		b.StopTimer()
		lab.EnterNamespace(b)
		s := &lockedSource{storedSource: newStoredSource(1_000, 10)}
		bank := s.put(1_000_000, 10, 0)
		kernel := openKernel(b)
		p := proxyOn(b, s, s.objects, kernel)
		p.Report = func(model.Problem) {}
		settle(b, p)
		l, stop := startLoop(b, p)
		change := func(version int) func(i int) {
			return func(i int) {
				s.mu.Lock()
				if delete(s.objects, evil(i)); version >= 0 {
					s.objects[evil(i)] = model.Objects{Service: versions[version][i]}
				}
				s.mu.Unlock()
				p.Tracker.MarkService(evil(i))
			}
		}
		round := 0
		b.StartTimer()
		for _, phase := range []struct {
			name  string
			do    func(i int)
			pause time.Duration
		}{
			{"quiet", func(int) {}, 50 * time.Millisecond},
			{"created", change(0), 100 * time.Millisecond},
			{"changed", change(1), 100 * time.Millisecond},
			{"at-once", change(2), 0},
			{"deleted", change(-1), 0},
		} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				for i := range services {
					phase.do(i)
					time.Sleep(phase.pause)
				}
				if phase.pause == 0 {
					time.Sleep(3 * time.Second)
				}
			}()
			for running := true; running; {
				round++
				s.mu.Lock()
				s.put(1_000_000, 10, round)
				s.mu.Unlock()
				l.mark(bank)
				p.Tracker.MarkSlice(bank, track.Trigger{})
				time.Sleep(time.Duration(200+round*37%100) * time.Millisecond) // longer than --min-sync-period
				select {
				case <-done:
					running = false
				default:
				}
			}
			time.Sleep(time.Second)
			l.mu.Lock()
			slices.Sort(l.list)
			b.ReportMetric(float64(len(l.list)), phase.name+"-n")
			b.ReportMetric(millis(l.list[len(l.list)/2]), phase.name+"-median-ms")
			b.ReportMetric(millis(l.list[len(l.list)-1]), phase.name+"-longest-ms")
			l.list = nil
			l.mu.Unlock()
		}
		b.StopTimer()
		stop()
		lab.Must(b, kernel.Close())
		b.StartTimer()
	}
}

// BenchmarkNamespaces puts one Service of each of many namespaces into a queue, and takes all of them.
func BenchmarkNamespaces(b *testing.B) {
	for _, n := range []int{4_000, 64_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			names := make([]types.NamespacedName, n)
			for i := range names {
				names[i] = types.NamespacedName{Namespace: fmt.Sprint("tenant-", i), Name: "web"}
			}
			b.ReportAllocs()
			for b.Loop() {
				q := newQueue()
				for _, name := range names {
					q.push(name, 1)
				}
				for w := q.next(false); w != nil; {
					w = q.next(true)
				}
				if len(q.services) > 0 {
					b.Fatalf("%d Services wait", len(q.services))
				}
			}
		})
	}
}
