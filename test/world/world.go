package world

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Names of the node of a lab and of all other nodes, and the port of Services.
const (
	NodeName, OtherNode = "node-1", "node-2"
	ServicePort         = 80
)

// Node returns the Node of a lab's node, as its kubelet describes it.
func Node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
		}},
	}
}

// ServiceCIDR returns the default ServiceCIDR of test/cluster.
func ServiceCIDR() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:10:96::/112"}},
	}
}

// Service returns a Service in namespace default with ports 80/TCP and 80/UDP. Two families, or none, make it dual-stack.
func Service(name string, families ...corev1.IPFamily) *corev1.Service {
	policy := corev1.IPFamilyPolicyRequireDualStack
	switch len(families) {
	case 0:
		families = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	case 1:
		policy = corev1.IPFamilyPolicySingleStack
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilies: families, IPFamilyPolicy: &policy,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: ServicePort}, {Name: "udp", Protocol: corev1.ProtocolUDP, Port: ServicePort},
			},
		},
	}
}

// ServiceAt returns a dual-stack Service with cluster IPs, or without them for the API server to allocate them.
func ServiceAt(name string, ips ...string) *corev1.Service {
	s := Service(name)
	if len(ips) > 0 {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips
	}
	return s
}

// Slice returns an EndpointSlice of a Service whose endpoints serve both ports of [Service] on one port. Its address type is that of the
// first endpoint, and IPv4 without one.
func Slice(service, name string, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(port)}, {Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(port)},
		},
	}
	if len(endpoints) > 0 && netip.MustParseAddr(endpoints[0].Addresses[0]).Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

// Slices returns one EndpointSlice of a Service for each family. Each pair has the IPv4 and the IPv6 address of an endpoint.
func Slices(service string, port int32, pairs ...[2]discoveryv1.Endpoint) (out []runtime.Object) {
	for f, kind := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		s := Slice(service, service+"-"+strings.ToLower(string(kind)), port)
		s.AddressType = kind
		for _, pair := range pairs {
			s.Endpoints = append(s.Endpoints, pair[f])
		}
		out = append(out, s)
	}
	return out
}

// Endpoints returns the [Endpoint] of each family.
func Endpoints(addrs [2]netip.Addr, node string) [2]discoveryv1.Endpoint {
	return [2]discoveryv1.Endpoint{Endpoint(addrs[0], node), Endpoint(addrs[1], node)}
}

// Endpoint returns a ready endpoint on a node.
func Endpoint(addr netip.Addr, node string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{addr.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
	}
}

// Write replaces the file NAME.json of a folder of manifests atomically by one with the objects. It sets the types of the objects.
func Write(folder, name string, objects ...runtime.Object) error {
	for _, o := range objects {
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	hidden := filepath.Join(folder, "."+name)
	if err == nil {
		err = os.WriteFile(hidden, text, 0o600)
	}
	if err == nil {
		err = os.Rename(hidden, filepath.Join(folder, name+".json"))
	}
	return err
}
