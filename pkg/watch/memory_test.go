package watch

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const endpointsPerService = 10

// A cluster with 50,000 Services of 10 endpoints each must fit in 135 MB: 270 bytes for each endpoint, including its
// share of the Service, the EndpointSlice, and the stores' keys and indexes. The test uses a tenth of this cluster.
func TestMemoryPerEndpoint(t *testing.T) {
	if got := bytesPerEndpoint(t, 5000); got > 270 {
		t.Errorf("the stores take %.0f bytes per endpoint, want at most 270", got)
	}
}

func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(bytesPerEndpoint(b, 50_000), "B/endpoint")
	}
}

// bytesPerEndpoint returns the heap size of the stores for a number of Services, divided by the number of endpoints.
func bytesPerEndpoint(t testing.TB, services int) float64 {
	t.Helper()
	before := heap()
	store := newTestStore()
	for i := range services {
		store.services.put(encodeForTest(t, bigService(i)))
		store.slices.put(encodeForTest(t, bigSlice(i, endpointsPerService)))
	}
	after := heap()
	runtime.KeepAlive(store)
	return float64(after-before) / float64(services*endpointsPerService)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first collection may only empty sync.Pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// put stores an object.
func (s *objects) put(o *object) { s.set(o.NamespacedName, o) }

func newTestStore() *Store {
	return NewStore(Config{NodeName: "node-1", Tracker: newTracker()})
}

func encodeForTest(t testing.TB, item any) *object {
	t.Helper()
	return encodeFor(t, "", item)
}

func encodeFor(t testing.TB, serviceProxyName string, item any) *object {
	t.Helper()
	cfg := Config{Report: func(p model.Problem) { t.Errorf("problem: %+v", p) }, ServiceProxyName: serviceProxyName}
	encoded, err := cfg.transformer().transform(item)
	lab.Must(t, err)
	return encoded.(*object)
}

func bigMeta(name string, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:       fmt.Sprintf("namespace-%d", i%100),
		Name:            name,
		UID:             types.UID(fmt.Sprintf("3f9c8f1e-5d3c-4d37-9d7b-%012d", i)),
		ResourceVersion: fmt.Sprint(1_000_000 + i),
		Annotations:     map[string]string{"example.com/note": fmt.Sprintf("not read by any program %d", i)},
		Labels:          map[string]string{"app.kubernetes.io/name": name},
	}
}

func bigService(i int) *corev1.Service {
	ip := fmt.Sprintf("172.30.%d.%d", i/256%256, i%256)
	policy := corev1.ServiceInternalTrafficPolicyCluster
	service := &corev1.Service{
		ObjectMeta: bigMeta(fmt.Sprintf("service-%d", i), i),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
			InternalTrafficPolicy: &policy, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	return service
}

func bigSlice(i, endpoints int) *discoveryv1.EndpointSlice {
	yes, no, port, portName, protocol := true, false, int32(8080), "http", corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  bigMeta(fmt.Sprintf("service-%d-x7k2p", i), i),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
	}
	slice.Labels[discoveryv1.LabelServiceName] = fmt.Sprintf("service-%d", i)
	slice.Annotations[corev1.EndpointsLastChangeTriggerTime] = "2026-03-01T12:00:00Z"
	for e := range endpoints {
		node, zone := fmt.Sprintf("node-%04d.example.internal", (i+e)%5000), "zone-a"
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", i/256%256, i%256, e)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node,
			Zone:       &zone,
			Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-a"}}},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("pod-%d-%d", i, e)},
		})
	}
	return slice
}
