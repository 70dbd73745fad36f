package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// storedSource has its objects in their stored form, as watch.Store does.
type storedSource struct {
	*fakeSource
	// externalIPs is the number of external IPs of each Service.
	externalIPs int
	objects     map[types.NamespacedName]model.Objects
}

func (s *storedSource) Get(n types.NamespacedName) model.Objects { return s.objects[n] }

// set stores one slice of a Service, by its number.
func (s *storedSource) set(name types.NamespacedName, number int, slice *model.Slice) {
	o := s.objects[name]
	for len(o.Slices) <= number {
		o.Slices = append(o.Slices, nil)
	}
	o.Slices[number] = slice
	s.objects[name] = o
}

func stored(slice *discoveryv1.EndpointSlice) *model.Slice {
	return model.NewSlice(slice, model.Limits{}, model.Stored{})
}

// perSlice is the number of endpoints that the EndpointSlice controller puts into a slice.
const perSlice = 100

// putSlice stores one slice of a Service. replaced is the number of its endpoints that each round replaces.
func (s *storedSource) putSlice(name types.NamespacedName, number, replaced, round int) {
	portName, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: name.Namespace, Name: fmt.Sprintf("%s-%d", name.Name, number)},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
	}
	for e := range perSlice {
		addr := netip.AddrFrom4([4]byte{11, byte(number >> 8), byte(number), byte(e)})
		if e < replaced {
			addr = netip.AddrFrom4([4]byte{12 + byte(number>>8), byte(round), byte(number), byte(e)})
		}
		slice.Endpoints = append(slice.Endpoints, endpointAt(addr))
	}
	s.set(name, number, stored(slice))
}

// endpointAt returns an endpoint with the fields that the program stores, such as the name of a node.
func endpointAt(addr netip.Addr) discoveryv1.Endpoint {
	last := addr.As4()[3]
	return discoveryv1.Endpoint{
		Addresses: []string{addr.String()}, NodeName: new(fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", last%8, last)),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
	}
}

// put stores a Service with one slice. Each round replaces the first endpoint.
func (s *storedSource) put(i, endpoints, round int) types.NamespacedName {
	name := types.NamespacedName{Namespace: fmt.Sprint("tenant-", i%16), Name: fmt.Sprintf("svc-%d", i)}
	portName, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name, UID: types.UID(fmt.Sprintf("7f1c2b9e-5d4a-4c3b-9e2f-%012x", i)), CreationTimestamp: metav1.Unix(int64(i), 0)},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: fmt.Sprintf("10.%d.%d.%d", 96+i/62500, i/250%250, i%250+1),
			Ports:     []corev1.ServicePort{{Name: portName, Protocol: protocol, Port: 80}},
		},
	}
	for e := range s.externalIPs {
		n := uint32(i*s.externalIPs + e)
		service.Spec.ExternalIPs = append(service.Spec.ExternalIPs, netip.AddrFrom4([4]byte{150 + byte(n>>24), byte(n >> 16), byte(n >> 8), byte(n)}).String())
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name + "-1"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
	}
	for e := range endpoints {
		n := uint32(i*endpoints + e)
		addr := netip.AddrFrom4([4]byte{11 + byte(n>>24), byte(n >> 16), byte(n >> 8), byte(n)})
		if e == 0 && round%2 == 1 {
			addr = netip.AddrFrom4([4]byte{99, byte(i >> 16), byte(i >> 8), byte(i)})
		}
		slice.Endpoints = append(slice.Endpoints, endpointAt(addr))
	}
	s.objects[name] = model.Objects{Service: service, Slices: []*model.Slice{stored(slice)}}
	return name
}

func newStoredSource(services, endpoints int) *storedSource {
	return newSourceWithIPs(services, endpoints, 0)
}

// newSourceWithIPs does the same for Services with external IPs.
func newSourceWithIPs(services, endpoints, externalIPs int) *storedSource {
	s := &storedSource{
		&fakeSource{synced: make(chan struct{})}, externalIPs, map[types.NamespacedName]model.Objects{},
	}
	for i := range services {
		s.put(i, endpoints, 0)
	}
	close(s.synced)
	return s
}

// open returns an IPv4 proxy with this source and the real kernel, before its first sync.
func (s *storedSource) open(b *testing.B) *Proxy {
	kernel := openKernel(b)
	b.Cleanup(func() { kernel.Close() }) //nolint:errcheck // the connection is unused from here on
	return s.on(b, kernel)
}

func openKernel(b *testing.B) *apply.Kernel {
	kernel, err := apply.Open()
	lab.Must(b, err)
	lab.Must(b, kernel.Listen())
	return kernel
}

// sizedKernel is a kernel with the sizes of its tables.
type sizedKernel interface {
	Kernel
	EachCount(inet.Family, func(*nft.Set, int)) (classChains int)
}

// on does the same as open, with a kernel that the caller closes.
func (s *storedSource) on(b *testing.B, kernel sizedKernel) *Proxy {
	return proxyOn(b, s, s.objects, kernel)
}

// proxyOn returns an IPv4 proxy with a source, whose Services have all changed.
func proxyOn(b *testing.B, source Source, services map[types.NamespacedName]model.Objects, kernel sizedKernel) *Proxy {
	families := inet.Families[:1]
	planner := plan.New(plan.Options{Families: families, MasqueradeMark: 0x4000})
	p := New(Config{
		Source: source, Tracker: track.New(time.Now(), time.Now), Kernel: kernel, Planner: planner,
		Metrics:  metrics.NewLoop(metrics.New(prometheus.NewRegistry(), metrics.Config{}), planner, kernel.EachCount),
		Health:   health.New(health.Config{Timeout: time.Minute, Now: time.Now, NoNode: true}),
		Schedule: NewSchedule(0, 30*time.Second, 30*time.Second), Families: families, NodeName: "node-1",
		NodePorts: model.NodePortAddresses{Local: func() ([]netip.Addr, error) { return nil, nil }}, Now: time.Now,
		Listeners: []beside.Listener{conntrack.NewFlows(conntrack.FlowsConfig{
			To: conntrack.New(conntrack.Config{}), Planned: planner.Flows(), Change: func(func()) {},
		}).Listener()},
		Report: func(p model.Problem) { b.Error(p) },
	})
	p.connect()
	for name := range services {
		p.Tracker.MarkService(name)
	}
	return p
}

var sizes = []struct{ services, endpoints int }{{1000, 10}, {10000, 10}, {5000, 50}, {45000, 1}, {50000, 10}}

// quietly returns a context with a logger that discards everything.
func quietly(b *testing.B) context.Context {
	return klog.NewContext(b.Context(), klog.Logger{})
}

// settle syncs until no change waits: very many changes take several syncs. Large Services do not rest.
func settle(b *testing.B, p *Proxy) {
	ctx := quietly(b)
	for again := true; again; again = len(p.queue.services) > 0 {
		p.queue.rest, p.waitingRest = rest{}, rest{}
		p.sync(ctx)
	}
}

// BenchmarkFirstSync measures the time of the first sync, from stored objects to the kernel's acknowledgement.
func BenchmarkFirstSync(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			lab.EnterNamespace(b)
			s := newStoredSource(size.services, size.endpoints)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				lab.Must(b, lab.Err(apply.Cleanup("")))
				kernel := openKernel(b)
				p := s.on(b, kernel)
				b.StartTimer()
				settle(b, p)
				b.StopTimer()
				if err := kernel.Close(); err != nil || !p.started {
					b.Fatalf("synced: %t (%v)", p.started, err)
				}
				b.StartTimer()
			}
		})
	}
}

// countingKernel counts the wanted elements.
type countingKernel struct {
	fakeKernel
	elements int
}

func (k *countingKernel) Put(nft.Element)    { k.elements++ }
func (k *countingKernel) Remove(nft.Element) { k.elements-- }

func (k *countingKernel) Recall(*plan.Planner, []*model.Service) error { return nil }

func (k *countingKernel) Sync(p *plan.Planner) (apply.Result, error) {
	if k.known {
		return apply.Result{Kind: apply.Partial}, nil
	}
	k.known = true
	p.ReportTo(k)
	return apply.Result{Kind: apply.Full}, nil
}

// inUse returns the size of the heap.
func inUse() float64 {
	runtime.GC()
	runtime.GC() // the first collection may only empty sync.Pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// BenchmarkPlanned measures the time of the first sync without a kernel, from stored objects to elements, and the
// memory that stays.
func BenchmarkPlanned(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			s := newStoredSource(size.services, size.endpoints)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				kernel := &countingKernel{}
				before := inUse()
				p := s.on(b, kernel)
				runtime.GC()
				b.StartTimer()
				settle(b, p)
				b.StopTimer()
				b.ReportMetric((inUse()-before)/float64(size.services), "stay-B/service")
				runtime.KeepAlive(p)
				b.StartTimer()
				if least := 2 * size.services; kernel.elements < least {
					b.Fatalf("%d elements, want at least %d", kernel.elements, least)
				}
			}
		})
	}
}

// BenchmarkEvent measures the part of a change without a kernel: one endpoint of a Service is replaced, in slices of
// 100, beside a thousand small Services. It begins with the stored slice, and ends with the reported elements.
func BenchmarkEvent(b *testing.B) {
	for _, endpoints := range []int{1, 100, 1000, 10_000, 50_000} {
		b.Run(fmt.Sprint(endpoints), func(b *testing.B) {
			s := newStoredSource(1000, 10)
			name := s.put(60000, 1, 0)
			stored := [2][]*model.Slice{s.objects[name].Slices}
			if endpoints > 1 {
				for i := range endpoints / perSlice {
					s.putSlice(name, i, 1, 1)
				}
				stored[0] = slices.Clone(s.objects[name].Slices)
				for i := range stored[0] {
					s.putSlice(name, i, 1, 2)
				}
			} else {
				s.put(60000, 1, 1)
			}
			stored[1] = slices.Clone(s.objects[name].Slices)
			kernel := &countingKernel{}
			p := s.on(b, kernel)
			limits := model.DefaultLimits()
			limits.Pairs, limits.PortEndpoints = max(limits.Pairs, endpoints), max(limits.PortEndpoints, endpoints)
			p.Model.Limits, p.builder.options.Limits = limits, limits
			settle(b, p)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				n := len(stored[0])
				s.set(name, i%n, stored[i/n%2][i%n])
				p.Tracker.MarkSlice(name, track.Trigger{})
				settle(b, p)
			}
			b.StopTimer()
			if kernel.elements < endpoints {
				b.Fatalf("%d elements, want at least %d", kernel.elements, endpoints)
			}
		})
	}
}

// BenchmarkRolling replaces endpoints of one slice of a large Service at a time, beside a thousand small Services.
func BenchmarkRolling(b *testing.B) {
	for _, replaced := range []int{1, 10} {
		for _, endpoints := range []int{100, 1000, 5000} {
			b.Run(fmt.Sprintf("%d-of-%d", replaced, endpoints), func(b *testing.B) {
				lab.EnterNamespace(b)
				s := newStoredSource(1000, 10)
				name, slices := s.put(60000, 0, 0), endpoints/perSlice
				for i := range slices {
					s.putSlice(name, i, replaced, 0)
				}
				p := s.open(b)
				settle(b, p)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					b.StopTimer()
					s.putSlice(name, i%slices, replaced, 1+i/slices)
					p.Tracker.MarkSlice(name, track.Trigger{})
					b.StartTimer()
					settle(b, p)
				}
			})
		}
	}
}
