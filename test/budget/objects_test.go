// Package budget tests the costs of large and hostile objects: on their way from the API server to pkg/model, they cost
// little memory and little time of the loop.
package budget

import (
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// largest is the size in bytes of the largest object that etcd stores.
const largest = 1_500_000

// hostileObject is a Service with one EndpointSlice. Its author fills one text or list with 1.5 MB.
type hostileObject struct {
	name    string
	service func(*corev1.Service)
	slice   func(*discoveryv1.EndpointSlice)
}

// repeated returns a text of 1.5 MB.
func repeated(text string) string { return strings.Repeat(text, largest/len(text)) }

// manyOf returns a list of 1.5 MB with equal items.
func manyOf[T any](item T, size int) []T {
	list := make([]T, largest/size)
	for i := range list {
		list[i] = item
	}
	return list
}

// hostileObjects has a row for each text and each list of a Service and of an EndpointSlice.
func hostileObjects() (list []hostileObject) {
	ofService := func(name string, edit func(*corev1.Service)) {
		list = append(list, hostileObject{name, edit, func(*discoveryv1.EndpointSlice) {}})
	}
	ofSlice := func(name string, edit func(*discoveryv1.EndpointSlice)) {
		list = append(list, hostileObject{name, func(*corev1.Service) {}, edit})
	}
	nested := func() string { // prefixes that overlap, each with 128 candidates for a larger prefix
		var b strings.Builder
		for i := 0; b.Len() < largest; i++ {
			fmt.Fprintf(&b, "fd00:%x:%x:1::1/128,", i>>16, i&0xffff)
		}
		return b.String()
	}()
	long := map[string]string{
		"invalid items": repeated("a,"), "empty items": repeated(","), "one item": repeated("a"),
		"zeros": repeated("0"), "prefixes": nested, "weights": repeated("10.1.0.1=3,"), "ranges": repeated("tcp/1,"),
	}
	for _, a := range model.Annotations {
		for kind, text := range long {
			if a.OfSlices() {
				ofSlice(a.Name+", "+kind, func(s *discoveryv1.EndpointSlice) { s.Annotations[a.Name] = text })
			} else {
				ofService(a.Name+", "+kind, func(s *corev1.Service) { s.Annotations[a.Name] = text })
			}
		}
	}
	// At the limit, the loop parses the whole list.
	usual := model.DefaultLimits()
	items := usual.Items()
	atLimit := map[string]string{
		"invalid items": strings.Repeat("a,", items-1) + "a",
		"prefixes":      strings.Join(strings.Split(nested, ",")[:items], ","),
		"weights":       strings.Repeat("10.1.0.1=3,", items-1),
		"ranges":        strings.Repeat("tcp/1,", items-1) + "tcp/1",
		"empty items":   strings.Repeat(",", items-1),
	}
	for _, a := range model.Annotations {
		for kind, text := range atLimit {
			if a.List && a.OfSlices() {
				ofSlice(a.Name+" at the limit, "+kind, func(s *discoveryv1.EndpointSlice) { s.Annotations[a.Name] = text })
			} else if a.List {
				ofService(a.Name+" at the limit, "+kind, func(s *corev1.Service) { s.Annotations[a.Name] = text })
			}
		}
	}
	ofService("all lists of sources at the limit", func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = strings.Split(atLimit["prefixes"], ",")
		for _, a := range model.Annotations {
			if a.List && !a.OfSlices() {
				s.Annotations[a.Name] = atLimit["prefixes"]
			}
		}
	})
	ofService("frontends at the limit", func(s *corev1.Service) {
		s.Spec.Ports, s.Spec.ExternalIPs = manyPorts(1000), manyAddresses(198, 1000)
	})
	ofService("many unknown annotations", func(s *corev1.Service) {
		for i := range 60_000 {
			s.Annotations[fmt.Sprintf("kube-nftproxy.io/%05d", i)] = ""
		}
	})
	ofService("a long unknown annotation", func(s *corev1.Service) { s.Annotations["kube-nftproxy.io/x"] = repeated("x") })
	ofService("an unknown annotation with a long name", func(s *corev1.Service) {
		s.Annotations["kube-nftproxy.io/"+repeated("x")] = ""
	})
	ofService("ports", func(s *corev1.Service) {
		s.Spec.Ports = manyPorts(65_000)
	})
	ofService("invalid ports", func(s *corev1.Service) {
		s.Spec.Ports = manyOf(corev1.ServicePort{Port: 70_000, Protocol: "x"}, 8)
	})
	ofService("the name of a port", func(s *corev1.Service) { s.Spec.Ports[0].Name = repeated("x") })
	ofService("the protocol of a port", func(s *corev1.Service) {
		s.Spec.Ports[0].Protocol = corev1.Protocol(repeated("x"))
	})
	ofService("external IPs", func(s *corev1.Service) {
		s.Spec.ExternalIPs = manyAddresses(198, 100_000)
	})
	ofService("invalid external IPs", func(s *corev1.Service) { s.Spec.ExternalIPs = manyOf("x", 3) })
	ofService("blank external IPs", func(s *corev1.Service) { s.Spec.ExternalIPs = manyOf("", 2) })
	ofService("a long external IP", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{repeated("0")} })
	ofService("load-balancer IPs", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = nil
		for _, ip := range manyAddresses(198, 80_000) {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	})
	ofService("invalid load-balancer IPs", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = manyOf(corev1.LoadBalancerIngress{IP: "x"}, 7)
	})
	ofService("load balancers with names", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = manyOf(corev1.LoadBalancerIngress{Hostname: "x"}, 9)
	})
	ofService("a long load-balancer IP", func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = repeated("0") })
	ofService("a long ipMode", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPMode(repeated("x")))
	})
	for kind, ranges := range map[string]func() []string{
		"source ranges":         func() []string { return strings.Split(nested, ",") },
		"invalid source ranges": func() []string { return manyOf("x", 3) },
		"blank source ranges":   func() []string { return manyOf("", 2) },
		"a long source range":   func() []string { return []string{long["zeros"]} },
	} {
		ofService(kind, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges() })
		ofService("denied "+kind, func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = ranges()
			s.Annotations["service.cilium.io/src-ranges-policy"] = "deny"
		})
	}
	ofService("families", func(s *corev1.Service) { s.Spec.IPFamilies = manyOf(corev1.IPFamily("IPv4"), 6) })
	ofService("invalid families", func(s *corev1.Service) { s.Spec.IPFamilies = manyOf(corev1.IPFamily("x"), 3) })
	ofService("cluster IPs", func(s *corev1.Service) { s.Spec.ClusterIPs = manyOf("x", 3) })
	ofService("a long cluster IP", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{repeated("0")} })
	ofService("a long load-balancer class", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new(repeated("x")) })
	ofService("a long type", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceType(repeated("x")) })
	ofService("a long traffic policy", func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(repeated("x"))
	})
	ofService("a long affinity", func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinity(repeated("x"))
	})

	ofSlice("ports of a slice", func(s *discoveryv1.EndpointSlice) {
		for i := range 65_000 {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(int32(i + 1))})
		}
	})
	ofSlice("invalid ports of a slice", func(s *discoveryv1.EndpointSlice) {
		s.Ports = manyOf(discoveryv1.EndpointPort{}, 2)
	})
	ofSlice("the name of a port of a slice", func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new(repeated("x")) })
	ofSlice("the protocol of a port of a slice", func(s *discoveryv1.EndpointSlice) {
		s.Ports[0].Protocol = new(corev1.Protocol(repeated("x")))
	})
	ofSlice("an address", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{repeated("0")} })
	ofSlice("addresses of an endpoint", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = manyOf("x", 3) })
	ofSlice("a node name", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = new(repeated("x")) })
	ofSlice("a zone", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = new(repeated("x")) })
	ofSlice("zones of hints", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: manyOf(discoveryv1.ForZone{}, 4)}
	})
	ofSlice("nodes of hints", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForNodes: manyOf(discoveryv1.ForNode{}, 4)}
	})
	ofSlice("a zone of a hint", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: repeated("x")}}}
	})
	ofSlice("an address type", func(s *discoveryv1.EndpointSlice) {
		s.AddressType = discoveryv1.AddressType(repeated("x"))
	})
	ofSlice("1,000 endpoints, 1,000 ports", func(s *discoveryv1.EndpointSlice) {
		s.Ports = manyOf(discoveryv1.EndpointPort{Name: new("http"), Port: new(int32(80))}, 1500)
		s.Endpoints = manyEndpoints(1000)
	})
	ofSlice("endpoints", func(s *discoveryv1.EndpointSlice) { s.Endpoints = manyEndpoints(120_000) })
	ofSlice("invalid endpoints", func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = manyOf(discoveryv1.Endpoint{Addresses: []string{"x"}}, 5)
	})
	ofSlice("empty endpoints", func(s *discoveryv1.EndpointSlice) { s.Endpoints = manyOf(discoveryv1.Endpoint{}, 2) })
	return list
}

func manyEndpoints(n int) (list []discoveryv1.Endpoint) {
	for _, address := range manyAddresses(10, n) {
		list = append(list, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return list
}

func manyAddresses(net byte, n int) (list []string) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{net, 1 + byte(i>>16), byte(i >> 8), byte(i)}).String())
	}
	return list
}

func manyPorts(n int) (list []corev1.ServicePort) {
	for i := range n {
		list = append(list, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolUDP, Port: int32(i + 1)})
	}
	return list
}

// web is the name of the Service.
var web = types.NamespacedName{Namespace: "shop", Name: "web"}

// objects returns a Service and an EndpointSlice that are valid apart from the hostile text or list.
func (o *hostileObject) objects() (*corev1.Service, *discoveryv1.EndpointSlice) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: web.Namespace, Name: web.Name, Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "172.30.0.1", ClusterIPs: []string{"172.30.0.1"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, ExternalIPs: []string{"198.51.100.1"},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{IP: "198.51.100.2"}},
		}},
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: web.Namespace, Name: "web-1", Annotations: map[string]string{},
			Labels: map[string]string{discoveryv1.LabelServiceName: web.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.1.0"}, NodeName: new("node-1"), Zone: new("zone-a")}},
	}
	o.service(svc)
	o.slice(slice)
	return svc, slice
}

// encoded returns the objects as the API server sends them.
func (o *hostileObject) encoded(t testing.TB) (service, slice []byte) {
	t.Helper()
	svc, of := o.objects()
	service, err := svc.Marshal()
	lab.Must(t, err)
	slice, err = of.Marshal()
	lab.Must(t, err)
	return service, slice
}

// storeOf returns a store with an encoded Service and an encoded EndpointSlice.
func storeOf(t testing.TB, service, slice []byte) *watch.Store {
	t.Helper()
	tracker := track.New(time.Time{}, time.Now)
	store := watch.NewStore(watch.Config{NodeName: hostileNode.Name, Tracker: tracker, Zones: true})
	services, endpoints, _, _, _ := store.Kinds()
	var svc corev1.Service
	lab.Must(t, svc.Unmarshal(service))
	put(t, services, &svc)
	var of discoveryv1.EndpointSlice
	lab.Must(t, of.Unmarshal(slice))
	put(t, endpoints, &of)
	return store
}

// put replaces all objects of a kind by one.
func put(t testing.TB, kind watch.Kind, item metav1.Object) {
	t.Helper()
	encoded, err := kind.Encode(item)
	lab.Must(t, err)
	stored := encoded.(*watch.Object)
	kind.Publish(map[types.NamespacedName]*watch.Object{stored.NamespacedName: stored})
}

// measuredStore does the same, and returns the memory that is allocated for decoding and stripping the objects, and the
// memory that they take in the store.
func measuredStore(t testing.TB, service, slice []byte) (store *watch.Store, decoding, stored uint64) {
	t.Helper()
	before, allocated := heap(), allocatedBytes()
	store = storeOf(t, service, slice)
	decoding = allocatedBytes() - allocated
	after := heap()
	runtime.KeepAlive(service)
	runtime.KeepAlive(slice)
	return store, decoding, max(after, before) - before
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first collection may only empty sync.Pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func allocatedBytes() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

var hostileNode = model.Node{
	Name: "node-1", IPs: [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
}

// readInLoop does what the loop does to read a Service after a change.
func readInLoop(store *watch.Store) *model.Service {
	return model.Build(store.Get(web), hostileNode, model.Options{})
}

// rejected are the objects with many small items that the API server does not accept: endpoints above 1,000, and
// invalid items.
var rejected = map[string]bool{
	"endpoints": true, "invalid endpoints": true, "empty endpoints": true, "invalid ports of a slice": true, "invalid ports": true,
	"blank external IPs": true, "blank source ranges": true, "denied blank source ranges": true, "invalid load-balancer IPs": true,
}

// TestHostileObjects: for each text and list of an object, 1.5 MB of it cost the loop little processor time, memory and
// lines of the log. The loop reads only the part below the limit of the text or list, so the costs are those of a
// permitted large object, within a factor. The memory for decoding an object is free again afterwards.
func TestHostileObjects(t *testing.T) {
	const (
		mb = 1 << 20
		// mostStored is the largest stored size of an object: 20,000 endpoints. lines is 20 problems of the Service and of
		// the slice each, with a last one for the rest, and one for each limit.
		mostStored, mostAllocated, lines = 3 * mb, 12 * mb, 44
		mostDecoding                     = 64 * mb
		// factor times the cost of the 20,000 endpoints that are permitted: a margin for other work and a busy machine.
		permitted, factor = 20_000, 4
	)
	cost := func(o *hostileObject) (took time.Duration, bytes, decoding, stored uint64, s *model.Service) {
		service, slice := o.encoded(t)
		store, decoding, stored := measuredStore(t, service, slice)
		took, bytes, s = time.Hour, math.MaxUint64, readInLoop(store)
		for range 3 {
			before, start := allocatedBytes(), lab.ProcessorTime(t)
			s = readInLoop(store)
			took = min(took, lab.ProcessorTime(t)-start)
			bytes = min(bytes, allocatedBytes()-before) // the counter includes the runtime and other goroutines
		}
		return took, bytes, decoding, stored, s
	}
	largest, _, _, _, _ := cost(&hostileObject{"", func(*corev1.Service) {}, func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = manyEndpoints(permitted)
	}})
	most := factor * max(largest, time.Millisecond)
	for _, o := range hostileObjects() {
		took, bytes, decoding, stored, s := cost(&o)
		t.Logf("%s: %d kB decoding, %d kB stored, %d kB allocated, %v", o.name, decoding/1000, stored/1000, bytes/1000, took)
		if decoding > mostDecoding && !rejected[o.name] || stored > mostStored || bytes > mostAllocated || took > most {
			t.Errorf("%s: %d kB decoding, %d kB stored, %d kB allocated, %v, want at most %v",
				o.name, decoding/1000, stored/1000, bytes/1000, took, most)
		}
		if s == nil {
			continue
		}
		text := 0
		for _, p := range s.Problems {
			text = max(text, len(p.Text()))
		}
		if len(s.Problems) > lines || text > 500 {
			t.Errorf("%s: %d problems of up to %d bytes", o.name, len(s.Problems), text)
		}
	}
}

// TestCutObjectsHaveTheSameResult: a part that the store cuts is above a limit of pkg/model. So a Service has the same
// frontends, endpoints and problems with and without the store, and no limit is exceeded in secret.
func TestCutObjectsHaveTheSameResult(t *testing.T) {
	type result struct {
		Frontends [][]model.Frontend
		Endpoints [][]netip.AddrPort
		Problems  []string
	}
	resultOf := func(s *model.Service) (r result) {
		if s == nil {
			return r
		}
		for _, p := range s.Ports {
			r.Frontends, r.Endpoints = append(r.Frontends, p.Frontends), append(r.Endpoints, p.Cluster)
		}
		for _, p := range s.Problems {
			r.Problems = append(r.Problems, p.Field+" "+string(p.Limit))
		}
		return r
	}
	for _, o := range hostileObjects() {
		// The API does not define an order of annotations. The first endpoints of a slice are stored. Very long numbers
		// are cut.
		if strings.Contains(o.name, "unknown annotation") || strings.HasSuffix(o.name, "endpoints") ||
			strings.HasSuffix(o.name, "zeros") {
			continue
		}
		svc, slice := o.objects()
		most := model.Limits{Pairs: largest, SlicePorts: largest}
		whole := model.Objects{Service: svc, Slices: []*model.Slice{model.NewSlice(slice, most, model.Stored{})}}
		want := model.Build(whole, hostileNode, model.Options{})
		service, endpoints := o.encoded(t)
		got := readInLoop(storeOf(t, service, endpoints))
		sameAddr := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
		sameAddrPort := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
		if diff := cmp.Diff(resultOf(want), resultOf(got), sameAddr, sameAddrPort); diff != "" {
			t.Errorf("%s (-object +stored object): %.1500s", o.name, diff)
		}
	}
}

// BenchmarkHostileObjects measures the processor time of the loop, the allocated memory and the problems for each
// object, and the stored size.
func BenchmarkHostileObjects(b *testing.B) {
	for _, o := range hostileObjects() {
		b.Run(strings.ReplaceAll(o.name, "/", "."), func(b *testing.B) {
			service, slice := o.encoded(b)
			store, decoding, stored := measuredStore(b, service, slice)
			var s *model.Service
			b.ReportAllocs()
			start := lab.ProcessorTime(b)
			for b.Loop() {
				s = readInLoop(store)
			}
			b.ReportMetric((lab.ProcessorTime(b)-start).Seconds()/float64(b.N)*1000, "cpu-ms")
			b.ReportMetric(float64(stored)/1000, "kB-stored")
			b.ReportMetric(float64(decoding)/1000, "kB-decoding")
			b.ReportMetric(float64(len(s.Problems)), "problems")
		})
	}
}
