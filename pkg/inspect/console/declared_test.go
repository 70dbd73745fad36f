package console

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
		{"", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}, nil, "DNS returns the name in its externalName, and"},
		{"", clusterIP, map[string]string{label: ""}, "another proxy"},
		{"", corev1.ServiceSpec{}, nil, "has not assigned"},
		{"try", clusterIP, map[string]string{label: "try"}, ""},
		{"try", clusterIP, map[string]string{label: "other"}, label + "=other assigns it to another proxy"},
		{"try", clusterIP, map[string]string{label: ""}, "another proxy"},
		{"try", clusterIP, nil, "lacks the label " + label + "=try"},
		{"try", corev1.ServiceSpec{ClusterIP: "None"}, map[string]string{label: "try"}, "headless"},
	} {
		got := declaredAs(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Labels: c.labels}, Spec: c.spec}, c.proxy)
		if got.Name.String() != "a/b" || (c.want == "") != (got.WhyNot == "") || !strings.Contains(got.WhyNot, c.want) {
			t.Errorf("%q, %+v: %+v, want %q", c.proxy, c.spec, got, c.want)
		}
	}
}
