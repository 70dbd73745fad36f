package nodeport

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The watcher follows each change of a Service's node ports, and of the addresses that serve them, in its families.
func TestWatcherListens(t *testing.T) {
	w := New(Config{Families: inet.Families[:1]})
	set := func(name string, nodePort int32, families ...corev1.IPFamily) {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.1", ExternalIPs: []string{"203.0.113.1"}, IPFamilies: families,
				Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: nodePort}},
			},
		}
		if families[0] == corev1.IPv6Protocol {
			s.Spec.ClusterIP = "fd00::1"
		}
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		m := model.Build(model.Objects{Service: s}, model.Node{Name: "node-1"}, model.Options{})
		w.Service(m.Name, m)
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for name, ports := range w.ports {
			for _, k := range ports {
				got = append(got, fmt.Sprintf("%s %s %d %s", name.Name, k.Protocol, k.Port, k.Family))
			}
		}
		slices.Sort(got)
		lab.Same(t, want, got, "node ports")
	}
	set("dns", 30053, corev1.IPv4Protocol)
	set("web", 30080, corev1.IPv4Protocol) // without endpoints, the rules reject packets before they reach a process
	set("six", 30081, corev1.IPv6Protocol)
	expect("dns tcp 30053 IPv4", "web tcp 30080 IPv4")
	set("web", 30090, corev1.IPv4Protocol)
	expect("dns tcp 30053 IPv4", "web tcp 30090 IPv4")
	set("web", 0, corev1.IPv4Protocol)
	expect("dns tcp 30053 IPv4")
	for name := range w.ports {
		w.Service(name, nil)
	}
	expect()
	n := &beside.Node{}
	n.Addresses[inet.IPv4], n.Addresses[inet.IPv6] = addrs("192.0.2.1"), addrs("2001:db8::1")
	w.Node(n)
	if len(w.addrs[inet.IPv4]) != 1 || w.addrs[inet.IPv4][0] != addrs("192.0.2.1")[0] || len(w.addrs[inet.IPv6]) > 0 {
		t.Errorf("addresses: %v, want only 192.0.2.1", w.addrs)
	}
}
