package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/report"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// hostile is a Service above its limits, with its EndpointSlices. Its two versions differ in every field that its
// author may change at once.
type hostile struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

// atLimits are the rows of the table about limits of one object in docs/threat-model.md.
var atLimits = []struct {
	name string
	make func(version int) hostile
}{
	{"service ports", func(v int) hostile {
		return hostile{hostileService(50_000), []*discoveryv1.EndpointSlice{hostileSlice(v, 0, 2_000, 1)}}
	}},
	{"addresses", func(v int) hostile {
		return hostile{hostileService(1, externalIPs(v, 100_000)), nil}
	}},
	{"frontends", func(v int) hostile {
		return hostile{hostileService(1_000, externalIPs(v, 37_500)), nil}
	}},
	{"source ranges", func(v int) hostile {
		return hostile{hostileService(1, sourceRanges(v, 2_000)), nil}
	}},
	{"EndpointSlices", func(v int) hostile {
		return hostile{hostileService(1), hostileSlices(v, 5_000, 1, 4)}
	}},
	{"ports of a slice", func(v int) hostile {
		return hostile{hostileService(2_000), []*discoveryv1.EndpointSlice{hostileSlice(v, 0, 20_000, 10)}}
	}},
	{"endpoints times ports", func(v int) hostile {
		return hostile{hostileService(200), hostileSlices(v, 2, 200, 1_000)}
	}},
	{"endpoints times ports, affinity", func(v int) hostile {
		return hostile{hostileService(200, withAffinity), hostileSlices(v, 2, 200, 1_000)}
	}},
	{"port ranges", func(v int) hostile { return hostile{hostileService(1, portRanges(v, 80)), hostileSlices(v, 1, 1, 10)} }},
	{"endpoints times ports, Local", func(v int) hostile {
		return hostile{hostileService(200, withLocal), hostileSlices(v, 2, 200, 1_000)}
	}},
	{"endpoints times ports, Local, affinity", func(v int) hostile {
		return hostile{hostileService(200, withLocal, withAffinity), hostileSlices(v, 2, 200, 1_000)}
	}},
	{"endpoints of a port", func(v int) hostile {
		return hostile{hostileService(1), hostileSlices(v, 30, 1, 1_000)}
	}},
	{"endpoints of a port, affinity", func(v int) hostile {
		return hostile{hostileService(1, withAffinity), hostileSlices(v, 30, 1, 1_000)}
	}},
	// At the limit of slots: above it, the choice is random.
	{"slots of a hash", func(v int) hostile { return hostile{hostileService(2, withHash(v)), hostileSlices(v, 4, 2, 1_000)} }},
	{"slots of a hash, affinity", func(v int) hostile {
		return hostile{hostileService(2, withHash(v), withAffinity), hostileSlices(v, 4, 2, 1_000)}
	}},
	{"slots by weight", func(v int) hostile {
		all := hostileSlices(v, 15, 1, 1_000)
		all[v].Annotations = map[string]string{"kube-nftproxy.io/weights": all[v].Endpoints[0].Addresses[0] + "=17000"}
		return hostile{hostileService(1), all}
	}},
	{"problems", func(v int) hostile {
		return hostile{hostileService(1, func(s *corev1.Service) { s.Spec.ExternalIPs = slices.Repeat([]string{"1::"}, 300_000+v) }), nil}
	}},
	{"conflicts", func(v int) hostile {
		return hostile{hostileService(1_000, func(s *corev1.Service) {
			s.Name, s.CreationTimestamp = "loser", metav1.Unix(2, 0)
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.255.2", nil
			s.Spec.ExternalIPs = addressesFrom(198, 0, 9+v)
		}), nil}
	}},
}

// BenchmarkLimits measures a Service at or above each limit, from stored objects to the kernel's acknowledgement,
// beside 1,000 other Services. It adds the Service, changes every field that its author can change at once, and
// deletes it. Each time is the longest of these three steps. build-ms is the time to build the Service from its
// objects. loop-ms adds planning and encoding. commit-ms is the kernel's time. The numbers of log lines and Events
// are the sums of the three steps.
func BenchmarkLimits(b *testing.B) {
	for _, limit := range atLimits {
		b.Run(limit.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				lab.EnterNamespace(b)
				s := newStoredSource(1_000, 10)
				if limit.name == "conflicts" {
					winner := hostile{hostileService(1_000, func(s *corev1.Service) { s.Spec.ExternalIPs = addressesFrom(198, 0, 9) }), nil}
					s.store(winner)
				}
				m := newMeter(b, s)
				m.sync(b)
				m.reset()
				b.StartTimer()
				for version := range 2 {
					m.sync(b, s.store(limit.make(version)))
				}
				m.sync(b, s.remove(limit.make(0)))
				b.StopTimer()
				m.report(b)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkRoom measures the first sync with as many Services as 16 namespaces have room for, from stored objects to
// the kernel's acknowledgement. Then it measures a change of every field of one Service that its author can change at
// once.
func BenchmarkRoom(b *testing.B) {
	room, limits := plan.DefaultRoom(), model.DefaultLimits()
	const namespaces = 16
	for name, kind := range map[string]struct {
		// whole is the room that these namespaces share, and each the room that one Service takes.
		whole, each int
		make        func(version int) hostile
	}{
		"elements": {room.Elements / 2, limits.Pairs + limits.Pairs/1_000, func(v int) hostile {
			return hostile{hostileService(limits.Pairs / 1_000), hostileSlices(v, 1, limits.Pairs/1_000, 1_000)}
		}},
		"source ranges": {room.SourceRanges / 2, limits.SourceRanges / 2, func(v int) hostile {
			return hostile{hostileService(1, sourceRanges(v, limits.SourceRanges/2)), nil}
		}},
		"port ranges": {room.PortRanges / 2, 50, func(v int) hostile {
			return hostile{hostileService(1, portRanges(v, 50)), hostileSlices(v, 1, 1, 10)}
		}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				lab.EnterNamespace(b)
				s := newStoredSource(0, 0)
				one := func(i, version int) types.NamespacedName {
					h := kind.make(version)
					h.service.Namespace, h.service.Name = fmt.Sprint("evil-", i%namespaces), fmt.Sprint("big-", i)
					h.service.Spec.ClusterIP = fmt.Sprintf("10.97.0.%d", i)
					for j := range h.service.Status.LoadBalancer.Ingress {
						h.service.Status.LoadBalancer.Ingress[j].IP = fmt.Sprintf("203.0.113.%d", i)
					}
					return s.store(h)
				}
				for i := range kind.whole / namespaces / kind.each * namespaces {
					one(i, 0)
				}
				m := newMeter(b, s)
				b.StartTimer()
				m.sync(b)
				b.StopTimer()
				m.report(b)
				m.reset()
				b.StartTimer()
				m.sync(b, one(0, 1))
				b.StopTimer()
				b.ReportMetric(millis(m.loop), "change-loop-ms")
				b.ReportMetric(millis(m.commit), "change-commit-ms")
				b.StartTimer()
			}
		})
	}
}

// meter measures syncs: the longest time of each kind, the largest number of elements, and all lines of the log.
type meter struct {
	p                   *Proxy
	build, loop, commit time.Duration
	elements            int
	log                 *lines
}

// newMeter returns a meter with a proxy on a source, before its first sync.
func newMeter(b *testing.B, s *storedSource) *meter {
	m := &meter{p: s.open(b), log: &lines{}}
	m.p.facts.Node.Name = m.p.NodeName
	m.p.Report = report.New(klog.New(m.log), m.log, report.Count{Problem: func(string) {}, Suppressed: func(string) {}}).Problem
	return m
}

func (m *meter) reset() {
	*m.log = lines{}
	*m = meter{p: m.p, log: m.log}
}

// sync measures the build of the named Services, which have just changed, and the syncs that commit all changes.
func (m *meter) sync(b *testing.B, names ...types.NamespacedName) {
	p := m.p
	for _, name := range names {
		start := time.Now()
		p.builder.build(name, time.Now())
		m.build = max(m.build, time.Since(start))
		p.Tracker.MarkService(name)
	}
	ctx := klog.NewContext(b.Context(), klog.New(m.log))
	start := time.Now()
	for again := true; again; again = len(p.queue.services) > 0 {
		before := p.account.syncs
		p.queue.rest, p.waitingRest = rest{}, rest{}
		p.sync(ctx)
		if p.failed {
			b.Fatalf("the sync has failed: %v", p.account.failure)
		}
		for n := before; n < p.account.syncs; n++ {
			r := &p.account.recent[n%mostRecent].result
			m.commit, m.elements = max(m.commit, r.Commit), max(m.elements, r.Elements)
			start = start.Add(r.Commit)
		}
		if p.account.syncs > before {
			m.loop, start = max(m.loop, time.Since(start)), time.Now()
		}
	}
}

func (m *meter) report(b *testing.B) {
	b.ReportMetric(millis(m.build), "build-ms")
	b.ReportMetric(millis(m.loop), "loop-ms")
	b.ReportMetric(millis(m.commit), "commit-ms")
	b.ReportMetric(float64(m.elements), "elements")
	b.ReportMetric(float64(m.log.lines), "log-lines")
	b.ReportMetric(float64(m.log.events), "events")
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// lines counts the lines of a log, and Events.
type lines struct{ lines, events int }

func (l *lines) Init(klog.RuntimeInfo)                                   {}
func (l *lines) Enabled(level int) bool                                  { return level == 0 }
func (l *lines) Info(int, string, ...any)                                { l.lines++ }
func (l *lines) Error(error, string, ...any)                             { l.lines++ }
func (l *lines) WithValues(...any) klog.LogSink                          { return l }
func (l *lines) WithName(string) klog.LogSink                            { return l }
func (l *lines) Eventf(_, _ runtime.Object, _, _, _, _ string, _ ...any) { l.events++ }

// store stores a Service and its slices.
func (s *storedSource) store(h hostile) types.NamespacedName {
	name := types.NamespacedName{Namespace: h.service.Namespace, Name: h.service.Name}
	o := model.Objects{Service: h.service}
	for _, slice := range h.slices {
		slice.Namespace = name.Namespace
		o.Slices = append(o.Slices, stored(slice))
	}
	s.objects[name] = o
	return name
}

// remove removes a Service and its slices.
func (s *storedSource) remove(h hostile) types.NamespacedName {
	name := types.NamespacedName{Namespace: h.service.Namespace, Name: h.service.Name}
	delete(s.objects, name)
	return name
}

// hostileService returns a Service with a number of ports and changes.
func hostileService(ports int, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: "big", CreationTimestamp: metav1.Unix(1, 0)}}
	s.Spec.ClusterIP = "10.96.255.1"
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: int32(1 + i)})
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func externalIPs(version, n int) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = addressesFrom(198, version, n) }
}

func sourceRanges(version, n int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeLoadBalancer, []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		for i := range n { // no two ranges can be merged
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges,
				netip.AddrFrom4([4]byte{10 + byte(version), byte(i >> 15), byte(i >> 7), byte(i << 1)}).String()+"/32")
		}
	}
}

// portRanges have bounds for which the kernel stores many rules.
func portRanges(version, n int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf("udp/%d-%d", 1001+version+700*i, 1650+version+700*i))
		}
		s.Annotations = map[string]string{"kube-nftproxy.io/port-ranges": strings.Join(list, ",")}
	}
}

func withAffinity(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }

// withHash selects the largest tables.
func withHash(version int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Annotations = map[string]string{"kube-nftproxy.io/lb-algorithm": []string{"maglev", "source-hash"}[version%2], "kube-nftproxy.io/lb-table-size": "16381"}
	}
}

func withLocal(s *corev1.Service) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.Type, s.Spec.InternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, &local
	s.Spec.ExternalIPs = []string{"198.51.100.1"}
}

// addressesFrom returns n addresses whose first byte is first plus version.
func addressesFrom(first byte, version, n int) (list []string) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{first + byte(version), byte(i >> 16), byte(i >> 8), byte(i)}).String())
	}
	return list
}

func hostileSlices(version, n, ports, endpoints int) (list []*discoveryv1.EndpointSlice) {
	for i := range n {
		list = append(list, hostileSlice(version, i, ports, endpoints))
	}
	return list
}

// hostileSlice returns one EndpointSlice of a hostile Service. All its port numbers differ between versions.
func hostileSlice(version, number, ports, endpoints int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "evil", Name: fmt.Sprintf("big-%06d", number)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	protocol, ready := corev1.ProtocolTCP, true
	for i := range ports {
		name, port := fmt.Sprint("p", i), int32(1+i+version)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	node := "node-1"
	for i := range endpoints {
		addr := netip.AddrFrom4([4]byte{11, byte(number >> 6), byte(number<<2) | byte(i>>8), byte(i)})
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			NodeName: &node, Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}
