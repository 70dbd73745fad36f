//go:build e2e || twin

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const (
	// nodeName is the lab's node, otherNode stands for all others.
	nodeName, otherNode = "node-1", "node-2"
	// backendPort is the port of servers, servicePort that of Services.
	backendPort, servicePort = 8080, 80
)

var protocols = []inet.Protocol{inet.TCP, inet.UDP}

// node returns the lab's Node as its kubelet would describe it.
func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
		}},
	}
}

// service returns a Service in namespace default with ports 80/TCP and 80/UDP. The families default to IPv4.
func service(name string, families ...corev1.IPFamily) *corev1.Service {
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) == 2 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilies: families, IPFamilyPolicy: &policy,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: servicePort},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: servicePort},
			},
		},
	}
}

// slice returns an EndpointSlice of a Service with ready endpoints. Its address type is that of the first one.
func slice(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	port := int32(backendPort)
	tcp, udp, tcpName, udpName := corev1.ProtocolTCP, corev1.ProtocolUDP, "tcp", "udp"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
		Ports: []discoveryv1.EndpointPort{
			{Name: &tcpName, Protocol: &tcp, Port: &port}, {Name: &udpName, Protocol: &udp, Port: &port},
		},
	}
	if len(endpoints) > 0 && netip.MustParseAddr(endpoints[0].Addresses[0]).Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

// endpoint returns a ready endpoint on node-1.
func endpoint(addr netip.Addr) discoveryv1.Endpoint {
	ready, name := true, nodeName
	return discoveryv1.Endpoint{
		Addresses: []string{addr.String()}, NodeName: &name, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
	}
}

// elsewhere moves an endpoint to another node.
func elsewhere(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	name := otherNode
	e.NodeName = &name
	return e
}

// terminating makes an endpoint terminating and still serving.
func terminating(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	no, yes := false, true
	e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	return e
}

// apply creates or replaces objects.
func (w *world) apply(objs ...runtime.Object) {
	w.Helper()
	if err := w.api.Apply(w.Context(), objs...); err != nil {
		w.Fatal(err)
	}
}

// delete deletes objects.
func (w *world) delete(objs ...runtime.Object) {
	w.Helper()
	if err := w.api.Delete(w.Context(), objs...); err != nil {
		w.Fatal(err)
	}
}

// clusterIPs returns the cluster IPs that the API server allocated to a Service, with the Services' port.
func (w *world) clusterIPs(name string) []netip.AddrPort {
	w.Helper()
	svc, err := w.api.Client().CoreV1().Services("default").Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var out []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(ip), servicePort))
	}
	return out
}

// reached probes from a host until each of servers, and no other server, has answered. Without servers, there must be no answer.
func reached(ctx context.Context, from *lab.Host, proto inet.Protocol, to netip.AddrPort, servers ...string) error {
	n := 1
	if len(servers) > 1 {
		n = 30 * len(servers)
	}
	counts, err := from.Spread(ctx, proto, to, n, lab.Options{})
	if err != nil {
		return err
	}
	got := slices.Sorted(maps.Keys(counts))
	if len(servers) == 0 {
		if counts["refused"]+counts["timed out"]+counts["unreachable"] != n {
			return fmt.Errorf("%s -> %s %s: %v, want no answer", from.Name, proto, to, counts)
		}
		return nil
	}
	if want := slices.Sorted(slices.Values(servers)); !slices.Equal(got, want) {
		return fmt.Errorf("%s -> %s %s: %v, want %q", from.Name, proto, to, counts, want)
	}
	return nil
}

// reach waits until a host reaches exactly these servers, with TCP and UDP.
func reach(t testing.TB, from *lab.Host, to netip.AddrPort, servers ...string) {
	t.Helper()
	for _, proto := range protocols {
		eventually(t, patience, func() error { return reached(t.Context(), from, proto, to, servers...) })
	}
}

// never fails the test if check returns an error within the time.
func never(t testing.TB, during time.Duration, check func() error) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := check(); err != nil {
			t.Fatal(err)
		}
	}
}

// addrPort returns an address with the Services' port.
func addrPort(addr string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), servicePort)
}
