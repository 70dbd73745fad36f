package model

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAddressesOfLoadBalancers(t *testing.T) {
	vip, proxied := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	balancer := func(list ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: list}}}
	}
	for _, c := range []struct {
		name string
		svc  *corev1.Service
		want []string
	}{
		{"another type", &corev1.Service{}, nil},
		{"none", balancer(), []string{"no load balancer yet"}},
		{"all served", balancer(corev1.LoadBalancerIngress{IP: "203.0.113.1"}, corev1.LoadBalancerIngress{IP: "203.0.113.2", IPMode: &vip}), nil},
		{"one of each kind", balancer(corev1.LoadBalancerIngress{IP: "203.0.113.1"}, corev1.LoadBalancerIngress{IP: "203.0.113.2", IPMode: &proxied},
			corev1.LoadBalancerIngress{Hostname: "lb.example.com"}), []string{"203.0.113.2 is not served here", "has a name"}},
	} {
		got := loadBalancerNotes(c.svc)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%s: %q, want %q", c.name, got[i], c.want[i])
			}
		}
	}
}

func TestServicesOfAnotherProxy(t *testing.T) {
	const label = "service.kubernetes.io/service-proxy-name"
	clusterIP := corev1.ServiceSpec{ClusterIP: "10.96.0.1"}
	for _, c := range []struct {
		proxy  string
		spec   corev1.ServiceSpec
		labels map[string]string
		want   string
	}{
		{"", clusterIP, nil, ""},
		{"", corev1.ServiceSpec{ClusterIP: "None"}, nil, "headless"},
		{"", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "db.example.com"}, nil, "db.example.com"},
		{"", clusterIP, map[string]string{label: ""}, "another proxy"},
		{"", corev1.ServiceSpec{}, nil, "has not assigned"},
		{"try", clusterIP, map[string]string{label: "try"}, ""},
		{"try", clusterIP, map[string]string{label: "other"}, label + "=other assigns it to another proxy"},
		{"try", clusterIP, map[string]string{label: ""}, "another proxy"},
		{"try", clusterIP, nil, "lacks the label " + label + "=try"},
		{"try", corev1.ServiceSpec{ClusterIP: "None"}, map[string]string{label: "try"}, "headless"},
	} {
		got := DeclaredAs(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Labels: c.labels}, Spec: c.spec}, c.proxy)
		if got.Name.String() != "a/b" || (c.want == "") != (got.WhyNot == "") || !strings.Contains(got.WhyNot, c.want) {
			t.Errorf("%q, %+v: %+v, want %q", c.proxy, c.spec, got, c.want)
		}
	}
}

func TestInternalIPs(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "?"},
		{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.2"},
	}}}
	want := []string{"192.0.2.1", "2001:db8::1", "192.0.2.2"}
	if diff := cmp.Diff(want, texts(InternalIPs(node))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func texts(list []netip.Addr) (out []string) {
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}
