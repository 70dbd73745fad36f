package twin

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// marks are objects whose state is visible in the rules, to see what a proxy has processed. The API server sends the changes of
// objects of one type in order, so the marks are written last:
//
//   - a Service whose port changes after each Set,
//   - its EndpointSlices with that port, whose endpoints have one hint each: the endpoint in the rules shows
//     the zone in which the proxy believes its node to be,
//   - a ServiceCIDR that changes after each change of the others.
type marks struct {
	number int    // of calls of Set
	zone   string // the node's zone, or its last one
	homed  bool   // whether the node has a zone now
	ranges int    // of changes of the ServiceCIDRs
}

const (
	markNamespace = "twin-marks"
	markName      = "mark"
	zoneAway      = "twin-away"
)

// markIPs, homeIPs and awayIPs are those of the Service and its two endpoints, from ranges for benchmarks.
var (
	markIPs = [2]string{"198.19.0.1", "2001:2:0:ffff::1"}
	homeIPs = [2]string{"198.19.0.2", "2001:2:0:ffff::2"}
	awayIPs = [2]string{"198.19.0.3", "2001:2:0:ffff::3"}
)

// ours reports whether the name of an object, from nameOf, is that of a mark.
func ours(name string) bool { return strings.Contains(name, markNamespace) }

// advance changes the marks.
func (m *marks) advance(before, after map[string]runtime.Object, nodeName string) {
	m.number++
	if m.ranges == 0 || !slices.Equal(cidrs(before), cidrs(after)) {
		m.ranges++
	}
	m.homed = false
	if n := node(after, nodeName); n != nil && n.Labels[corev1.LabelTopologyZone] != "" {
		m.zone, m.homed = n.Labels[corev1.LabelTopologyZone], true
	}
	if m.zone == "" {
		m.zone = "twin-home"
	}
}

func (m *marks) port() int32 { return int32(20000 + m.number%10000) }

// prefixes returns those of the ServiceCIDR.
func (m *marks) prefixes() []string {
	return []string{fmt.Sprintf("198.18.%d.0/24", m.ranges%256), fmt.Sprintf("2001:2:0:%x::/64", m.ranges%256)}
}

// objects returns the present marks.
func (m *marks) objects() []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: markNamespace, Name: markName}
	objects := []runtime.Object{
		&networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: markNamespace},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: m.prefixes()},
		},
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: markIPs[inet.IPv4], ClusterIPs: markIPs[:],
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: m.port()}},
		}},
	}
	for _, f := range inet.Families {
		objects = append(objects, m.slice(f))
	}
	return objects
}

func (m *marks) slice(f inet.Family) *discoveryv1.EndpointSlice {
	endpoint := func(ip, zone string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses: []string{ip}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: markNamespace, Name: markName + "-" + strings.ToLower(f.String()),
			Labels: map[string]string{discoveryv1.LabelServiceName: markName},
		},
		AddressType: discoveryv1.AddressType(f.String()),
		Endpoints:   []discoveryv1.Endpoint{endpoint(homeIPs[f], m.zone), endpoint(awayIPs[f], zoneAway)},
		Ports:       []discoveryv1.EndpointPort{{Name: new(string), Protocol: new(corev1.ProtocolTCP), Port: new(m.port())}},
	}
}

// complete returns the missing marks in a listing, unless the rules are those for all objects.
func (m *marks) complete(listing string) error {
	return errors.Join(m.settled(listing), m.current(listing))
}

// settled returns the missing marks in a listing, unless the rules are those for all objects except ServiceCIDRs.
func (m *marks) settled(listing string) error { return m.endpoints(listing, true, !m.homed) }

// away returns the missing marks, unless the rules are those for a node in another zone.
func (m *marks) away(listing string) error { return m.endpoints(listing, false, true) }

// endpoints checks which of the Service's endpoints the rules have.
func (m *marks) endpoints(listing string, home, away bool) error {
	for _, f := range inet.Families {
		if text := fmt.Sprintf("%s . tcp . %d ", markIPs[f], m.port()); !strings.Contains(listing, text) {
			return fmt.Errorf("%q is not in the rules", text)
		}
		for ip, want := range map[string]bool{homeIPs[f]: home, awayIPs[f]: away} {
			if got := m.has(listing, ip); got != want {
				return fmt.Errorf("endpoint %s with port %d in the rules: %t, want %t", ip, m.port(), got, want)
			}
		}
	}
	return nil
}

// has reports whether an endpoint with the mark's port is in a listing: as an element, or in a rule where kube-proxy writes the only
// endpoint of a Service.
func (m *marks) has(listing, ip string) bool {
	return strings.Contains(listing, fmt.Sprintf("%s . %d", ip, m.port())) ||
		strings.Contains(listing, net.JoinHostPort(ip, strconv.Itoa(int(m.port()))))
}

// current returns the missing marks, unless the rules are those for the ServiceCIDRs.
func (m *marks) current(listing string) error {
	for _, prefix := range m.prefixes() {
		if !strings.Contains(listing, prefix) {
			return fmt.Errorf("%s is not in the rules", prefix)
		}
	}
	return nil
}
