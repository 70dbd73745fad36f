package console

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestMentions: a Service is found by each of its addresses, by its node port, and by endpoints that are not ready.
func TestMentions(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		ExternalIPs: []string{"203.0.113.1"}, Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}},
	}}
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}},
	}
	web := model.Objects{Service: svc, Slices: []*model.Slice{model.NewSlice(slice, model.Limits{}, model.Stored{})}}
	slice.Endpoints[0].Addresses = []string{"10.244.0.8"}
	web.Redirect = []*model.Slice{model.NewSlice(slice, model.Limits{}, model.Stored{})}
	for text, want := range map[string]bool{
		"10.244.0.8:8080": true, "10.96.0.1:0": true, "10.96.0.1:80": true, "10.96.0.1:81": false, "203.0.113.1:80": true,
		"10.244.0.9:0": true, "10.244.0.9:8080": true,
		"10.244.0.9:80": false, "10.96.0.2:0": false, "192.0.2.1:30080": true, "192.0.2.1:80": false, "192.0.2.2:30080": false,
	} {
		at := netip.MustParseAddrPort(text)
		to := target{Addr: at.Addr(), Port: at.Port(), NodePorts: at.Addr() == netip.MustParseAddr("192.0.2.1")}
		if got := mentions(web, model.Node{}, model.Options{}, to); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	for port, want := range map[uint16]bool{30080: true, 80: false, 8080: false} {
		lab.Same(t, want, mentions(web, model.Node{}, model.Options{}, target{Port: port}), "node port %d", port)
	}
}
