package watch

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func ptr[T any](value T) *T { return &value }

// put stores objects as if the API server sent them.
func put(t *testing.T, store *Store, items ...metav1.Object) {
	t.Helper()
	for _, item := range items {
		into := store.nodes
		switch item.(type) {
		case *corev1.Service:
			into = store.services
		case *discoveryv1.EndpointSlice:
			into = store.slices
		case *networkingv1.ServiceCIDR:
			into = store.serviceCIDRs
		}
		into.put(encodeFor(t, store.serviceProxyName, item))
	}
}

func TestServiceKeepsFieldsThatAreRead(t *testing.T) {
	vip := corev1.LoadBalancerIPModeVIP
	kept := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "u1",
			CreationTimestamp: metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Local()),
			Annotations:       annotated(append(model.AnnotationsOf(false), "kube-nftproxy.io/unknown")),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "172.30.0.1", ClusterIPs: []string{"172.30.0.1", "fd00::1"},
			IPFamilies:               []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ExternalIPs:              []string{"192.0.2.1"},
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicyLocal,
			InternalTrafficPolicy:    ptr(corev1.ServiceInternalTrafficPolicyLocal),
			SessionAffinity:          corev1.ServiceAffinityClientIP,
			SessionAffinityConfig:    &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(60))}},
			LoadBalancerSourceRanges: []string{"192.0.2.0/24"},
			HealthCheckNodePort:      30123,
			Ports:                    []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
			Ingress: []corev1.LoadBalancerIngress{{}, {IP: "198.51.100.1", IPMode: &vip}},
		}},
	}
	sent := kept.DeepCopy()
	sent.UID, sent.Labels = "u1", map[string]string{"app": "web"}
	sent.Annotations["note"] = "long"
	sent.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	sent.Spec.Selector = map[string]string{"app": "web"}
	sent.Spec.Ports[0].AppProtocol = ptr("http")
	sent.Spec.PublishNotReadyAddresses = true
	sent.Status.LoadBalancer.Ingress[0].Hostname = "lb.example.com"
	sent.Status.LoadBalancer.Ingress[1].Ports = []corev1.PortStatus{{Port: 80}}

	kept.Annotations["kube-nftproxy.io/unknown"] = "" // only its name is reported
	store := newTestStore()
	put(t, store, sent)
	lab.Same(t, kept, store.Get(types.NamespacedName{Namespace: "shop", Name: "web"}).Service, "Service")
}

// annotated returns annotations with the given keys.
func annotated(keys []string) map[string]string {
	list := map[string]string{}
	for _, key := range keys {
		list[key] = "value of " + key
	}
	return list
}

func TestSliceKeepsFieldsThatAreRead(t *testing.T) {
	kept := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1",
			Labels:      map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: annotated(model.AnnotationsOf(true)),
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr(""), Protocol: ptr(corev1.ProtocolTCP), Port: ptr(int32(80))}},
		Endpoints: []discoveryv1.Endpoint{
			{
				Addresses:  []string{"10.0.0.1"},
				Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
				NodeName:   ptr("node-1"),
				Hints: &discoveryv1.EndpointHints{
					ForZones: []discoveryv1.ForZone{{Name: "a"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-1"}},
				},
			},
			{Conditions: discoveryv1.EndpointConditions{Ready: ptr(false)}},
		},
	}
	sent := kept.DeepCopy()
	sent.UID, sent.Labels["app"] = "u1", "web"
	sent.Annotations[corev1.EndpointsLastChangeTriggerTime] = "2026-03-01T12:00:00.5Z"
	sent.Endpoints[0].Addresses = append(sent.Endpoints[0].Addresses, "10.0.0.2")
	sent.Endpoints[0].TargetRef = &corev1.ObjectReference{Name: "pod"}
	sent.Endpoints[0].Zone = ptr("a")
	sent.Endpoints[0].Hostname = ptr("pod")

	store := newTestStore()
	put(t, store, sent)
	got := store.Get(types.NamespacedName{Namespace: "shop", Name: "web"}).Slices
	if len(got) != 1 {
		t.Fatalf("%d slices, want 1", len(got))
	}
	kept.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(false)} // the defaults
	lab.Same(t, kept, got[0].Object("web"), "slice")
	want := time.Date(2026, 3, 1, 12, 0, 0, 500_000_000, time.UTC)
	if got := encodeForTest(t, sent).triggerMicros; got != want.UnixMicro() {
		t.Errorf("trigger is %v, want %v", got, want)
	}
}

func TestNodeKeepsFieldsThatAreRead(t *testing.T) {
	kept := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              "node-1",
			UID:               "u1",
			Labels:            map[string]string{corev1.LabelTopologyZone: "a"},
			DeletionTimestamp: ptr(metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Local())),
		},
		Spec: corev1.NodeSpec{
			PodCIDRs: []string{"10.0.1.0/24"},
			Taints:   []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}},
	}
	sent := kept.DeepCopy()
	sent.Spec.PodCIDR = "10.0.1.0/24"
	sent.Annotations = map[string]string{"note": "long"}
	sent.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	sent.Status.Images = []corev1.ContainerImage{{Names: []string{"registry.example.com/app"}}}

	store := newTestStore()
	put(t, store, sent)
	lab.Same(t, kept, store.Node(), "Node")
}

func TestStoreOrderAndSelection(t *testing.T) {
	store := newTestStore()
	put(t, store,
		service("shop", "web"), service("shop", "db"), service("a", "z"),
		with(service("shop", "mesh"), func(s *corev1.Service) { s.Labels = map[string]string{labelServiceProxyName: ""} }),
		with(service("shop", "headless"), func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
		with(service("shop", "name"), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
		slice("shop", "web-2", "web"), slice("shop", "web-1", "web"), slice("shop", "db-1", "db"), slice("a", "web-3", "web"),
		with(slice("shop", "web-0", "web"), func(s *discoveryv1.EndpointSlice) { s.Labels[labelHeadless] = "" }),
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "second"}},
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "first"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}},
	)
	var services, slices, cidrs []string
	for _, name := range store.Services() {
		services = append(services, name.String())
	}
	for _, s := range store.Get(types.NamespacedName{Namespace: "shop", Name: "web"}).Slices {
		slices = append(slices, s.Name.Name)
	}
	for _, c := range store.ServiceCIDRs() {
		cidrs = append(cidrs, c.Name)
	}
	lab.Same(t, []string{"a/z", "shop/db", "shop/web"}, services, "Services")
	lab.Same(t, []string{"web-1", "web-2"}, slices, "Slices")
	lab.Same(t, []string{"first", "second"}, cidrs, "ServiceCIDRs")
	if got := store.Node(); got != nil {
		t.Errorf("Node() = %v, want nil: only another Node is known", got)
	}
	for _, name := range []string{"mesh", "headless", "name", "unknown"} {
		if got := store.Get(types.NamespacedName{Namespace: "shop", Name: name}).Service; got != nil {
			t.Errorf("Service %s = %v, want nil", name, got)
		}
	}
}

// TestStoreOfAServiceProxyName: the store selects Services by their label, because it does not trust the API server's selection. The labels of
// EndpointSlices do not matter.
func TestStoreOfAServiceProxyName(t *testing.T) {
	s := NewStore(Config{NodeName: "node-1", Tracker: newTracker(), ServiceProxyName: "try"})
	labelled := func(name, value string) *corev1.Service {
		return with(service("shop", name), func(s *corev1.Service) { s.Labels = map[string]string{labelServiceProxyName: value} })
	}
	put(t, s, service("shop", "plain"), labelled("selected", "try"), labelled("other", "other"), labelled("empty", ""), labelled("longer", "try2"),
		with(labelled("headless", "try"), func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }),
		slice("shop", "selected-1", "selected"), &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}})
	selected := types.NamespacedName{Namespace: "shop", Name: "selected"}
	lab.Same(t, []types.NamespacedName{selected}, s.Services(), "Services")
	if got := s.Get(selected).Slices; len(got) != 1 {
		t.Errorf("%d slices, want 1: a slice does not need the label", len(got))
	}
	if got := s.ServiceCIDRs(); len(got) != 0 {
		t.Errorf("ServiceCIDRs: %v, want none: their unused addresses belong to the other proxy", got)
	}
	put(t, s, with(labelled("selected", "try"), func(s *corev1.Service) { s.Labels = nil }), labelled("plain", "try"))
	lab.Same(t, []types.NamespacedName{{Namespace: "shop", Name: "plain"}}, s.Services(), "Services after a change of labels")
}

func TestTransform(t *testing.T) {
	var problems []model.Problem
	cfg := Config{Report: func(p model.Problem) { problems = append(problems, p) }}
	transform := cfg.transformer().transform

	once, err := transform(with(slice("shop", "web-1", "web"), func(s *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "yesterday"}
	}))
	lab.Must(t, err)
	if len(problems) != 1 || problems[0].Kind != "EndpointSlice" || problems[0].Name.Name != "web-1" {
		t.Errorf("problems = %+v, want one of shop/web-1", problems)
	}
	lab.Same(t, 0, once.(*object).triggerMicros, "trigger")
	twice, err := transform(once)
	if err != nil || twice != once {
		t.Errorf("second transform = %v, %v, want the object itself", twice, err)
	}
	if _, err := transform(&corev1.Secret{}); err == nil {
		t.Error("a Secret was stored, want an error")
	}
}

func service(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: "172.30.0.1",
			Ports:     []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func slice(namespace, name, owner string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	if owner != "" {
		s.Labels[discoveryv1.LabelServiceName] = owner
	}
	return s
}

// with returns a changed copy of an object.
func with[T interface{ DeepCopy() T }](item T, change func(T)) T {
	changed := item.DeepCopy()
	change(changed)
	return changed
}
