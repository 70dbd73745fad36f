package proxy

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
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

// crowds are namespaces that do their worst together: each has Services, whose two versions differ in all elements.
var crowds = []struct {
	name                 string
	namespaces, services int
	make                 func(i, version int) hostile
}{
	{"2000-ports", 1, 66, func(_, v int) hostile {
		return hostile{hostileService(2_000, func(s *corev1.Service) {
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].Port += int32(2_000 * v)
			}
		}), nil}
	}},
	{"connection-limits", 20, 100, func(_, v int) hostile {
		return hostile{hostileService(1, annotated("max-connections", fmt.Sprint(100+v))), hostileSlices(v, 1, 1, 10)}
	}},
	{"maglev", 20, 100, func(_, v int) hostile {
		return hostile{hostileService(1, annotated("lb-algorithm", "maglev")), hostileSlices(v, 1, 1, 10)}
	}},
	{"source-ranges", 20, 1, func(_, v int) hostile {
		return hostile{hostileService(1, sourceRanges(v, 500)), hostileSlices(v, 1, 1, 10)}
	}},
	{"udp-ports", 20, 100, func(_, v int) hostile {
		h := hostile{hostileService(20, func(s *corev1.Service) {
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].Protocol = corev1.ProtocolUDP
			}
		}), hostileSlices(v, 1, 20, 10)}
		for i := range h.slices[0].Ports {
			h.slices[0].Ports[i].Protocol = new(corev1.ProtocolUDP)
		}
		return h
	}},
	{"port-ranges", 20, 2, func(_, v int) hostile {
		return hostile{hostileService(1, portRanges(v, 30)), hostileSlices(v, 1, 1, 10)}
	}},
}

// BenchmarkTurns measures the time from a change of one namespace to its commit, while other namespaces create, change
// and delete their Services, up to 1,000 in a second, in ms. It also measures the time from a flush of the ruleset,
// while they change, until the Service of this namespace is served again.
func BenchmarkTurns(b *testing.B) {
	for _, crowd := range crowds {
		b.Run(crowd.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				lab.EnterNamespace(b)
				s := &lockedSource{storedSource: newStoredSource(1_000, 10)}
				var names []types.NamespacedName
				versions := [2]map[types.NamespacedName]model.Objects{{}, {}}
				for i := range crowd.namespaces * crowd.services {
					name := types.NamespacedName{Namespace: fmt.Sprint("aevil-", i%crowd.namespaces), Name: fmt.Sprint("web-", i)}
					names = append(names, name)
					for v := range versions {
						versions[v][name] = crowd.make(i, v).at(name, i)
					}
				}
				measureTurns(b, s, names, versions)
				b.StartTimer()
			}
		})
	}
}

// at returns the objects with a name and addresses of their own.
func (h hostile) at(name types.NamespacedName, i int) (o model.Objects) {
	s := h.service
	s.Namespace, s.Name, s.CreationTimestamp = name.Namespace, name.Name, metav1.Unix(int64(1_000+i), 0)
	s.Spec.ClusterIP = fmt.Sprintf("10.90.%d.%d", i/250, i%250+1)
	for n := range s.Status.LoadBalancer.Ingress {
		s.Status.LoadBalancer.Ingress[n].IP = fmt.Sprintf("203.0.%d.%d", 100+i/250, i%250+1)
	}
	o.Service = s
	for _, slice := range h.slices {
		slice.Namespace = name.Namespace
		o.Slices = append(o.Slices, stored(slice))
	}
	return o
}

// measureTurns reports the times of each phase of the named Services, which have two versions.
func measureTurns(
	b *testing.B, s *lockedSource, names []types.NamespacedName, versions [2]map[types.NamespacedName]model.Objects,
) {
	const least, pause = 3 * time.Second, time.Millisecond
	bank := s.put(1_000_000, 10, 0)
	kernel := openKernel(b)
	p := proxyOn(b, s, s.objects, kernel)
	p.Report = func(model.Problem) {}
	settle(b, p)
	l, stop := startLoop(b, p)
	change := func(name types.NamespacedName, version int) {
		s.mu.Lock()
		if delete(s.objects, name); version >= 0 {
			s.objects[name] = versions[version][name]
		}
		s.mu.Unlock()
		p.Tracker.MarkService(name)
	}
	// Each phase changes all Services, and the one that changes them goes on until the end of its time.
	changing := func(n int) int { return n % 2 }
	for _, phase := range []struct {
		name    string
		version func(n int) int
		again   bool
		flushes int
	}{
		{"quiet", nil, false, 0},
		{"created", func(int) int { return 0 }, false, 0},
		{"changed", func(n int) int { return changing(n + 1) }, true, 0},
		{"flushed", changing, true, 5},
		{"deleted", func(int) int { return -1 }, false, 0},
	} {
		done, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			end := time.Now().Add(least)
			for n := 0; phase.version != nil && (n == 0 || phase.again); n++ {
				for _, name := range names {
					change(name, phase.version(n))
					time.Sleep(pause)
				}
				select {
				case <-over:
					return
				default:
				}
			}
			time.Sleep(time.Until(end))
		}()
		for round, end := 0, time.Now().Add(least); ; round++ {
			s.mu.Lock()
			s.put(1_000_000, 10, round+1)
			s.mu.Unlock()
			l.mark(bank)
			p.Tracker.MarkSlice(bank, track.Trigger{})
			time.Sleep(time.Duration(200+round*37%100) * time.Millisecond) // longer than --min-sync-period
			if time.Now().After(end) {
				break
			}
		}
		repairs := repairTimes(b, phase.flushes)
		close(over)
		<-done
		time.Sleep(time.Second)
		l.mu.Lock()
		if phase.flushes > 0 {
			l.list = repairs
		}
		slices.Sort(l.list)
		b.ReportMetric(millis(l.list[len(l.list)/2]), phase.name+"-median-ms")
		b.ReportMetric(millis(l.list[len(l.list)-1]), phase.name+"-longest-ms")
		l.list = nil
		l.mu.Unlock()
	}
	stop()
	lab.Must(b, kernel.Close())
}

// repairTimes flushes the ruleset a number of times, and returns the times until a Service is served again.
func repairTimes(b *testing.B, n int) (list []time.Duration) {
	conn, err := nft.Open()
	lab.Must(b, err)
	defer conn.Close() //nolint:errcheck // read only
	set := &nft.Set{
		Family: inet.IPv4, Table: plan.TableName, Name: plan.ServicesSet, Counter: true,
		Key: []nft.Field{nft.DstAddr(inet.IPv4), nft.L4Proto(), nft.DstPort()}, Data: []nft.Field{nft.Priority()},
	}
	key := nft.Value{}.Addr(netip.MustParseAddr("10.96.0.1")).Proto(inet.TCP).Port(80)
	for range n {
		time.Sleep(2 * time.Second)
		lab.Must(b, exec.CommandContext(b.Context(), "nft", "flush", "ruleset").Run())
		start := time.Now()
		for {
			if found, err := conn.Get(set, []nft.Value{key}); err == nil && found[0] != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		list = append(list, time.Since(start))
	}
	return list
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
