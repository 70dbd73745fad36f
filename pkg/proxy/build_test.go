package proxy

import (
	"fmt"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// countingSource counts reads of slices.
type countingSource struct {
	*fakeSource
	reads atomic.Int32
}

func (s *countingSource) StoredSlices(n types.NamespacedName) (list []model.Slice) {
	for _, slice := range s.Slices(n) {
		list = append(list, countedSlice{s, slice})
	}
	return list
}

type countedSlice struct {
	source *countingSource
	slice  *discoveryv1.EndpointSlice
}

func (s countedSlice) Read(into *discoveryv1.EndpointSlice) bool {
	s.source.reads.Add(1)
	s.slice.DeepCopyInto(into)
	return true
}

// build makes the proxy build some Services. It returns the number of slices read, and the last Service.
func (s *countingSource) build(p *rebuilder, names []types.NamespacedName) (reads int, last *model.Service) {
	s.reads.Store(0)
	p.build(names, nil, func(_ types.NamespacedName, built *model.Service) bool { last = built; return true })
	return int(s.reads.Load()), last
}

// Of a Service with many slices, only changed slices are read: also at its first change, and regardless of the goroutine that built it
// before.
func TestOnlyChangedSlicesAreRead(t *testing.T) {
	const services, slices = 2 * blockSize, 5
	s := &countingSource{fakeSource: &fakeSource{
		services: map[types.NamespacedName]*corev1.Service{}, slices: map[types.NamespacedName][]*discoveryv1.EndpointSlice{},
	}}
	var names []types.NamespacedName
	for i := range services {
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
		names = append(names, name)
		s.services[name] = &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.0.%d", 1+i), Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
		}
		for n := range slices {
			s.slices[name] = append(s.slices[name], largeSlice(name, n, 0))
		}
	}
	p := newRebuilder(&Config{Source: s, Planner: plan.New(plan.Options{})}, &model.Node{}, time.Now)
	if reads, _ := s.build(p, names); reads != services*slices {
		t.Fatalf("at first %d slices were read, want all %d", reads, services*slices)
	}
	changed := names[services-1]
	s.slices[changed][3] = largeSlice(changed, 3, 1)
	reads, got := s.build(p, []types.NamespacedName{changed})
	if reads != 1 {
		t.Errorf("after the first change %d slices were read, want the one that has changed", reads)
	}
	want := model.Build(s.services[changed], s.slices[changed], model.Node{}, model.Options{})
	if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
		t.Errorf("the Service (-want +got):\n%s", diff)
	}
	s.slices[changed][3] = largeSlice(changed, 3, 2)
	if reads, _ := s.build(p, names); reads != 1 {
		t.Errorf("after a change among all %d slices were read, want the one that has changed", reads)
	}
	s.slices[changed] = s.slices[changed][:1]
	s.build(p, names)
	if _, remembered := p.readings[changed]; remembered {
		t.Error("the reading of a Service that has few slices now is still kept")
	}
}

// pairedSource blocks the read of the first Service of an even block until the first Service of the next block is read. alone counts
// reads that waited in vain.
type pairedSource struct {
	*fakeSource
	begun map[types.NamespacedName]chan struct{}
	waits map[types.NamespacedName]chan struct{}
	alone atomic.Int32
}

func (s *pairedSource) ReadService(n types.NamespacedName, into *corev1.Service) bool {
	if begun := s.begun[n]; begun != nil {
		close(begun)
	}
	if other := s.waits[n]; other != nil {
		select {
		case <-other:
		case <-time.After(5 * time.Second):
			s.alone.Add(1)
		}
	}
	return s.fakeSource.ReadService(n, into)
}

// TestAwaitBuildsOtherBlocks: the loop builds other blocks while another goroutine builds the next block.
func TestAwaitBuildsOtherBlocks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const blocks = 6
	s := &pairedSource{
		fakeSource: &fakeSource{}, begun: map[types.NamespacedName]chan struct{}{}, waits: map[types.NamespacedName]chan struct{}{},
	}
	var names []types.NamespacedName
	for i := range blocks * blockSize {
		names = append(names, types.NamespacedName{Name: fmt.Sprint(i)})
	}
	for first := 0; first < len(names); first += 2 * blockSize {
		met := make(chan struct{})
		s.waits[names[first]], s.begun[names[first+blockSize]] = met, met
	}
	var taken []types.NamespacedName
	newRebuilder(&Config{Source: s, Planner: plan.New(plan.Options{})}, &model.Node{}, time.Now).build(names, nil, func(name types.NamespacedName, _ *model.Service) bool { taken = append(taken, name); return true })
	lab.Same(t, names, taken, "Services that were taken")
	if n := s.alone.Load(); n > 0 {
		t.Errorf("%d of %d pairs of blocks were not built at the same time", n, blocks/2)
	}
}

// largeSlice returns a slice with two endpoints. The first endpoint differs between rounds.
func largeSlice(service types.NamespacedName, number, round int) *discoveryv1.EndpointSlice {
	port, protocol := int32(8080), corev1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: service.Namespace, Name: fmt.Sprintf("%s-%d", service.Name, number)},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{fmt.Sprintf("10.%d.%d.1", round, number)}}, {Addresses: []string{fmt.Sprintf("10.9.%d.2", number)}},
		},
	}
}
