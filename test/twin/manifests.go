package twin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// Decode parses the documents of a YAML file: Services, EndpointSlices, Nodes and ServiceCIDRs. It ignores documents of other
// kinds. The API server sets most defaults when it reads the objects. Decode derives the fields that it would allocate or derive
// when they are created.
func Decode(text []byte) (objects []runtime.Object, err error) {
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for number := 1; ; number++ {
		var raw runtime.RawExtension
		if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("read document %d: %w", number, err)
		}
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw.Raw, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode document %d: %w", number, err)
		}
		switch obj := obj.(type) {
		case *corev1.Service:
			complete(obj)
		case *discoveryv1.EndpointSlice:
			setNamespace(obj)
		case *corev1.Node, *networkingv1.ServiceCIDR:
		default:
			continue
		}
		objects = append(objects, obj)
	}
}

func setNamespace(obj metav1.Object) {
	if obj.GetNamespace() == "" {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
}

// complete derives a Service's cluster IPs and families from each other.
func complete(svc *corev1.Service) {
	setNamespace(svc)
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if len(spec.IPFamilies) > 0 {
		return
	}
	for _, text := range spec.ClusterIPs {
		family := corev1.IPv6Protocol
		if addr, err := netip.ParseAddr(text); err != nil || addr.Is4() {
			family = corev1.IPv4Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
}
