package matrix

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// Ports of Services and endpoints. Every Service has a port of each protocol.
const (
	servicePort   = 80
	endpointPort  = 8080
	unservedPort  = 81
	refusingCIDRs = "198.51.100.0/24,2001:db8:1::/64" // of external IPs
)

// namespace holds the Services.
const namespace = "matrix"

var protocols = []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}

// secondaries are the node's second addresses.
var secondaries = [2]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}

// bridge is the name of the bridge in the lab that has one.
const bridge = "cni0"

// flags returns the mode's flags. kube-proxy and kube-nftproxy both accept them.
func (m mode) flags() (flags []string) {
	switch m.detector {
	case byClusterCIDR:
		flags = []string{"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"}
	case byNodeCIDR:
		flags = []string{"--detect-local-mode=NodeCIDR"}
	case byBridge:
		flags = []string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=" + bridge}
	case byPrefix:
		flags = []string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth-pod"}
	}
	if m.masqueradeAll {
		flags = append(flags, "--masquerade-all")
	}
	return flags
}

// ownFlags returns flags that kube-proxy does not have. None of them affects a packet to a port of a Service, so half of the modes have them.
func (m mode) ownFlags() []string {
	if m.choice.vips() {
		unused, ping := m.vips()
		return []string{"--refuse-unused-ports=" + unused, "--answer-ping=" + ping}
	}
	if m.choice.ranged() {
		return []string{"--limits=node-port-ranges=32000"}
	}
	if !m.masqueradeAll {
		return nil
	}
	return []string{"--refuse-unused-ports=all", "--answer-ping=ready", "--terminate-connections=gone", "--count-connections=false"}
}

// vips returns the values of --refuse-unused-ports and --answer-ping; empty for the defaults.
func (m mode) vips() (unused, ping string) {
	switch m.choice {
	case vipsReady:
		return "all", "ready"
	case vipsAlways:
		return refusingCIDRs, "always"
	}
	return "", ""
}

// newLab returns a lab in which all possible endpoints serve.
func newLab(t *testing.T, m mode) *lab.Lab {
	t.Helper()
	config := lab.Config{Pods: 3, Remotes: 3, NodeAddrs: secondaries[:]}
	if m.detector == byBridge {
		config.Bridge = bridge
	}
	l := lab.ForTest(t, config)
	servers := []*lab.Host{l.Node, l.Pods[0], l.Pods[1], l.Remotes[0], l.Remotes[1]}
	if m.choice == weights {
		servers = l.Hosts() // also those of weight 0
	}
	for _, h := range servers {
		for _, protocol := range m.protocols() {
			if _, err := h.Serve(protocol, endpointPort); err != nil {
				t.Fatal(err)
			}
		}
	}
	return l
}

// name returns the Service's name, which has all of its properties.
func (s service) name() string {
	affinity := ""
	if s.affinity {
		affinity = "-affinity"
	}
	return strings.ReplaceAll(strings.ToLower(fmt.Sprintf("i%s-e%s-%s%s", s.internal, s.external, s.placement, affinity)), " ", "-")
}

// address returns the address and port of Service number i.
func address(i int, d destination, f inet.Family) netip.AddrPort {
	first := map[destination][2]string{
		clusterIP:      {"10.96.1.10", "fd00:10:96::110"},
		externalIP:     {"198.51.100.10", "2001:db8:1::10"},
		loadBalancerIP: {"203.0.113.10", "2001:db8:2::10"},
		clusterIPAgain: {"10.96.1.10", "fd00:10:96::110"},
		nodePort:       {"192.0.2.1", "2001:db8::1"},
	}
	addr, port := netip.MustParseAddr(first[d][f]), uint16(servicePort)
	if d == nodePort {
		return netip.AddrPortFrom(addr, uint16(nodePortOf(i)))
	}
	for range i {
		addr = addr.Next()
	}
	return netip.AddrPortFrom(addr, port)
}

// to returns the destination of a cell's packets to Service number i. A packet to a range keeps its port.
func (c cell) to(i int) netip.AddrPort {
	a := address(i, c.dest, c.family)
	switch {
	case c.mode.choice.ranged():
		a = netip.AddrPortFrom(a.Addr(), endpointPort)
	case c.request == unusedPort:
		a = netip.AddrPortFrom(a.Addr(), unservedPort)
	}
	return a
}

// annotations are the annotations of all Services.
func (c choice) annotations() map[string]string {
	a := map[string]string{}
	if c.ranged() {
		a["kube-nftproxy.io/port-ranges"] = "tcp/8000-9000,udp/8000-9000"
	}
	switch c {
	case sourceHash, maglev:
		a["kube-nftproxy.io/lb-algorithm"] = string(c)
	case maximum:
		a["kube-nftproxy.io/max-connections"], a["kube-nftproxy.io/slow-start"] = "1000", "60"
	case ranges:
		a["kube-nftproxy.io/scale-to-zero"] = "true"
	case rangesHashed:
		a["kube-nftproxy.io/lb-algorithm"] = string(sourceHash)
	case rangesSources:
		a["kube-nftproxy.io/external-ip-source-ranges"] = "10.244.0.0/24,fd00:10:244::/64,192.0.2.0/24,2001:db8::/64"
		a["kube-nftproxy.io/denied-source-ranges"] = "192.0.2.100/32,2001:db8::100/128"
	}
	return a
}

// nodePortOf returns the node port of all ports of Service number i; the ports differ in protocol. The number is in the lower part of
// the range, which an API server uses last for dynamic allocation (KEP-3668).
func nodePortOf(i int) int32 { return int32(30010 + i) }

// healthPortOf returns the health check node port of Service number i, if it needs one.
func healthPortOf(i int) int32 { return int32(30060 + i) }

func addresses(i int, d destination) []string {
	return []string{address(i, d, inet.IPv4).Addr().String(), address(i, d, inet.IPv6).Addr().String()}
}

// objects returns the cluster: this node, and all Services with their endpoints.
func objects(c choice) []runtime.Object {
	all := []runtime.Object{thisNode()}
	for i, s := range services() {
		service := object(i, s)
		service.Annotations = c.annotations()
		all = append(all, service)
		for _, f := range inet.Families {
			slice := endpoints(s, f)
			if c == weights {
				weigh(slice, f)
			}
			all = append(all, slice)
		}
	}
	return all
}

// weigh gives the first endpoint of a slice a greater weight, but only a little, so that each endpoint gets connections soon. It adds an endpoint of
// weight 0 on this node, and one on another node.
func weigh(slice *discoveryv1.EndpointSlice, f inet.Family) {
	slice.Annotations = map[string]string{"service.cilium.io/weight": "10"}
	var own []string
	if len(slice.Endpoints) > 0 {
		own = append(own, slice.Endpoints[0].Addresses[0]+"=11")
	}
	for host, node := range map[string]string{"pod-2": world.NodeName, "remote-2": world.OtherNode} {
		slice.Endpoints = append(slice.Endpoints, world.Endpoint(lab.AddressOf(host, f), node))
		own = append(own, lab.AddressOf(host, f).String()+"=0")
	}
	slice.Annotations["kube-nftproxy.io/weights"] = strings.Join(own, ",")
}

func thisNode() *corev1.Node {
	n := world.Node()
	n.Spec = corev1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24", "fd00:10:244::/64"}}
	return n
}

func object(i int, s service) *corev1.Service {
	internal := corev1.ServiceInternalTrafficPolicy(s.internal)
	dual, vip := corev1.IPFamilyPolicyRequireDualStack, corev1.LoadBalancerIPModeVIP
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.name()},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeLoadBalancer,
			ClusterIP: addresses(i, clusterIP)[0], ClusterIPs: addresses(i, clusterIP),
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: &dual,
			ExternalIPs:           addresses(i, externalIP),
			InternalTrafficPolicy: &internal, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicy(s.external),
			SessionAffinity: corev1.ServiceAffinityNone,
		},
	}
	for _, p := range protocols {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: p.String(), Protocol: apiProtocol(p), Port: servicePort, NodePort: nodePortOf(i),
		})
	}
	if s.affinity {
		seconds := corev1.DefaultClientIPServiceAffinitySeconds
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	if s.external == local {
		svc.Spec.HealthCheckNodePort = healthPortOf(i)
	}
	for _, ip := range addresses(i, loadBalancerIP) {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &vip})
	}
	return svc
}

// apiProtocol returns a protocol's name in the API; empty for ping.
func apiProtocol(p inet.Protocol) corev1.Protocol {
	if p == 0 {
		return ""
	}
	return corev1.Protocol(strings.ToUpper(p.String()))
}

// endpoints returns a Service's slice of one family.
func endpoints(s service, f inet.Family) *discoveryv1.EndpointSlice {
	types := [2]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: s.name() + "-" + strings.ToLower(f.String()),
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name()},
		},
		AddressType: types[f],
		Endpoints:   []discoveryv1.Endpoint{},
	}
	for _, p := range protocols {
		name, protocol, port := p.String(), apiProtocol(p), int32(endpointPort)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	for _, host := range s.placement.hosts() {
		nodeName := world.OtherNode
		if onThisNode(host) {
			nodeName = world.NodeName
		}
		slice.Endpoints = append(slice.Endpoints, world.Endpoint(lab.AddressOf(host, f), nodeName))
	}
	return slice
}

var hostNames = []string{"node", "pod-0", "pod-1", "remote-0", "remote-1", "pod-2", "remote-2", "client"}

// writeManifests writes the objects to a folder, with a ServiceCIDR, which an API server creates itself.
func writeManifests(t *testing.T, c choice) string {
	t.Helper()
	dir := t.TempDir()
	lab.Must(t, world.Write(dir, "all", append(objects(c), world.ServiceCIDR())...))
	return dir
}
