package manifests

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestDefaults(t *testing.T) {
	defaulted := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "172.30.0.1", ClusterIPs: []string{"172.30.0.1"},
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
			SessionAffinity:       corev1.ServiceAffinityNone,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			Ports:                 []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, tc := range []struct {
		name        string
		given, want runtime.Object
	}{
		{
			name: "service by clusterIP",
			given: &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec:       corev1.ServiceSpec{ClusterIP: "172.30.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
			},
			want: defaulted,
		},
		{
			name: "service by clusterIPs",
			given: &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec:       corev1.ServiceSpec{ClusterIPs: []string{"172.30.0.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
			},
			want: defaulted,
		},
		{
			name:  "service with defaults set",
			given: defaulted.DeepCopy(),
			want:  defaulted,
		},
		{
			name: "dual-stack service with affinity and policies of its own",
			given: with(defaulted, func(s *corev1.Service) {
				s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{"172.30.0.1", "fd00::1"}, nil
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
			}),
			want: with(defaulted, func(s *corev1.Service) {
				s.Spec.ClusterIPs = []string{"172.30.0.1", "fd00::1"}
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
					ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10800))},
				}
				s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
			}),
		},
		{
			name: "external name",
			given: &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName},
			},
			want: &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeExternalName, SessionAffinity: corev1.ServiceAffinityNone,
				},
			},
		},
		{
			name:  "slice",
			given: &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: new(int32(80))}}},
			want: &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
				Ports: []discoveryv1.EndpointPort{
					{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(80))},
				},
			},
		},
		{
			name:  "a node has no namespace",
			given: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "node-1"}},
			want:  &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		},
		{
			name:  "a ServiceCIDR has no namespace",
			given: &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}},
			want:  &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			setDefaults(tc.given)
			lab.Same(t, tc.want, tc.given, "defaults")
		})
	}
}

func TestFamiliesOfInvalidAddresses(t *testing.T) {
	if got := familiesOf([]string{"nonsense", "fd00::1"}); got != nil {
		t.Errorf("familiesOf = %v, want nil: the families would belong to other addresses", got)
	}
}

// with returns a changed copy of a Service.
func with(s *corev1.Service, change func(*corev1.Service)) *corev1.Service {
	changed := s.DeepCopy()
	change(changed)
	return changed
}
