package watch

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// A list after a broken watch marks all new, changed and missing objects.
func TestListsMark(t *testing.T) {
	for _, tc := range []struct {
		name  string
		kind  func(*Store) *objects
		known metav1.Object
		want  track.Dirty
	}{
		{"service", func(s *Store) *objects { return s.services }, service("shop", "web"), track.Dirty{Services: names(web), ServiceChanges: 1}},
		{"slice", func(s *Store) *objects { return s.slices }, slice("shop", "s", "web"), track.Dirty{Services: names(web), SliceChanges: 1}},
		{"node", func(s *Store) *objects { return s.nodes }, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, track.Dirty{Node: true}},
		{"service CIDR", func(s *Store) *objects { return s.serviceCIDRs }, &networkingv1.ServiceCIDR{}, track.Dirty{ServiceCIDRs: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tracker := newTracker()
			o := tc.kind(NewStore(Config{NodeName: "node-1", Tracker: tracker}))
			for _, step := range []struct {
				name string
				list []any
				want track.Dirty
			}{
				{"new", []any{tc.known}, tc.want}, {"the same", []any{tc.known}, track.Dirty{}},
				{"gone", nil, tc.want}, {"still gone", nil, track.Dirty{}},
			} {
				lab.Must(t, o.Replace(step.list, "1"))
				got := tracker.Take()
				got.Since = time.Time{}
				lab.Same(t, step.want, got, "%s: marks", step.name)
				if len(o.list()) != len(step.list) {
					t.Errorf("%s: %d objects are stored, want %d", step.name, len(o.list()), len(step.list))
				}
			}
		})
	}
}

// After a slice is deleted or moves to another Service, its old Service no longer has the slice.
func TestSlicesAreFoundByTheirService(t *testing.T) {
	o := NewStore(Config{NodeName: "node-1", Tracker: newTracker()}).slices
	found := func(of types.NamespacedName) (list []string) {
		for _, s := range o.of(of) {
			list = append(list, s.Name)
		}
		return list
	}
	for _, step := range []struct {
		name    string
		do      func(any) error
		slice   *discoveryv1.EndpointSlice
		web, db []string
	}{
		{"added", o.Add, slice("shop", "s-2", "web"), []string{"s-2"}, nil},
		{"another one", o.Add, slice("shop", "s-1", "web"), []string{"s-1", "s-2"}, nil},
		{"changed", o.Update, slice("shop", "s-2", "web"), []string{"s-1", "s-2"}, nil},
		{"moved", o.Update, slice("shop", "s-2", "db"), []string{"s-1"}, []string{"s-2"}},
		{"deleted", o.Delete, slice("shop", "s-1", "web"), nil, []string{"s-2"}},
		{"deleted again", o.Delete, slice("shop", "s-1", "web"), nil, []string{"s-2"}},
		{"without a Service", o.Update, slice("shop", "s-2", ""), nil, nil},
	} {
		lab.Must(t, step.do(step.slice))
		lab.Same(t, [][]string{step.web, step.db}, [][]string{found(web), found(db)}, "%s: slices of both", step.name)
	}
	if len(o.byService) != 0 {
		t.Errorf("%d Services without slices are stored", len(o.byService))
	}
}

// The stored forms of an unchanged slice are equal (==), so that it is not read again.
func TestAStoredSliceIsTheSameUntilItChanges(t *testing.T) {
	s := NewStore(Config{NodeName: "node-1", Tracker: newTracker()})
	put := func(name, addr string) {
		t.Helper()
		o := slice("shop", name, "web")
		o.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{addr}}}
		lab.Must(t, s.slices.Add(o))
	}
	put("s-1", "10.0.0.1")
	put("s-2", "10.0.0.2")
	before := s.StoredSlices(web)
	put("s-2", "10.0.0.3")
	after := s.StoredSlices(web)
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("%d slices, then %d, want 2", len(before), len(after))
	}
	if after[0] != before[0] || after[1] == before[1] {
		t.Errorf("the slice that stayed is the same: %v, the one that changed: %v", after[0] == before[0], after[1] == before[1])
	}
	var room discoveryv1.EndpointSlice
	for stored, want := range map[model.Slice]string{before[1]: "10.0.0.2", after[1]: "10.0.0.3"} {
		if !stored.Read(&room) || len(room.Endpoints) != 1 || room.Endpoints[0].Addresses[0] != want {
			t.Errorf("read %v, want one endpoint with address %s", room.Endpoints, want)
		}
	}
}

// An object that is read into the memory of an earlier object has no content of the earlier object.
func TestReadingIntoAUsedObject(t *testing.T) {
	s := NewStore(Config{NodeName: "node-1", Tracker: newTracker()})
	full := with(service("shop", "web"), func(o *corev1.Service) {
		o.UID, o.CreationTimestamp = "1", metav1.Unix(1, 0)
		o.Spec = corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "172.30.0.2", ClusterIPs: []string{"172.30.0.2", "fd00::2"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, ExternalIPs: []string{"192.0.2.1"},
			SessionAffinity: corev1.ServiceAffinityClientIP, LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
			SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(9))}},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30001,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal),
			Ports: []corev1.ServicePort{
				{Name: "a", Protocol: corev1.ProtocolTCP, Port: 81, NodePort: 30081}, {Name: "b", Protocol: corev1.ProtocolUDP, Port: 82},
			},
		}
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.3", IPMode: new(corev1.LoadBalancerIPModeProxy)}}
	})
	plain := service("shop", "db")
	fullSlice := with(slice("shop", "web-1", "web"), func(o *discoveryv1.EndpointSlice) {
		o.UID, o.AddressType = "2", discoveryv1.AddressTypeIPv6
		o.Ports = []discoveryv1.EndpointPort{
			{Name: new("a"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(1))}, {Name: new("b"), Port: new(int32(2))},
		}
		o.Endpoints = []discoveryv1.Endpoint{
			{
				Addresses: []string{"fd00::3"}, NodeName: new("node-1"),
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(true)},
				Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}},
			},
			{Addresses: []string{"fd00::4"}, NodeName: new("node-2")},
		}
	})
	plainSlice := slice("shop", "db-1", "db")
	for _, o := range []*corev1.Service{full, plain} {
		lab.Must(t, s.services.Add(o))
	}
	for _, o := range []*discoveryv1.EndpointSlice{fullSlice, plainSlice} {
		lab.Must(t, s.slices.Add(o))
	}
	var room corev1.Service
	var sliceRoom discoveryv1.EndpointSlice
	for _, name := range []types.NamespacedName{web, db, web, web, db} {
		var unused discoveryv1.EndpointSlice
		stored := s.StoredSlices(name)[0]
		if !s.ReadService(name, &room) || !stored.Read(&sliceRoom) || !stored.Read(&unused) {
			t.Fatalf("%v is unreadable", name)
		}
		if diff := cmp.Diff(s.Service(name), &room, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("Service (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(&unused, &sliceRoom, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("EndpointSlice (-want +got):\n%s", diff)
		}
	}
	if s.ReadService(types.NamespacedName{Namespace: "shop", Name: "nothing"}, &room) {
		t.Error("ReadService() = true for a missing Service")
	}
}
