package hostile

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/cespare/xxhash/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// service returns a Service without ports. name is NAMESPACE/NAME.
func service(name string, clusterIPs ...string) *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	s.Namespace, s.Name = split(name)
	s.CreationTimestamp = metav1.Unix(1_600_000_000, 0)
	s.Spec.ClusterIP, s.Spec.ClusterIPs = clusterIPs[0], clusterIPs
	return s
}

// ports returns n TCP ports from first on. The name of port 80 is p80.
func ports(first, n int) (list []corev1.ServicePort) {
	for i := range n {
		list = append(list, corev1.ServicePort{Name: fmt.Sprintf("p%d", first+i), Protocol: corev1.ProtocolTCP, Port: int32(first + i)})
	}
	return list
}

// portNames returns the names of ports.
func portNames(list []corev1.ServicePort) (names []string) {
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
}

// slice returns one EndpointSlice of a Service. Its endpoints are on this node and of one family, and serve all named ports on one port number.
func slice(of string, number int, names []string, port int32, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}}
	namespace, name := split(of)
	s.Namespace, s.Name = namespace, fmt.Sprintf("%.240s-%d", name, number)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	s.AddressType = discoveryv1.AddressTypeIPv4
	here, proto := "node-1", corev1.ProtocolTCP
	for _, a := range addrs {
		if a.Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &here})
	}
	for _, n := range names {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &n, Port: &port, Protocol: &proto})
	}
	return s
}

// slicesOf splits endpoints into slices of 1,000, the API server's limit.
func slicesOf(of string, names []string, port int32, addrs []netip.Addr) (list []runtime.Object) {
	for len(addrs) > 0 {
		n := min(len(addrs), 1000)
		list = append(list, slice(of, len(list), names, port, addrs[:n]...))
		addrs = addrs[n:]
	}
	return list
}

// addresses returns n addresses from first on, in steps of step.
func addresses(first string, n, step int) (list []netip.Addr) {
	a := netip.MustParseAddr(first)
	for range n {
		list = append(list, a)
		for range step {
			a = a.Next()
		}
	}
	return list
}

func texts[T fmt.Stringer](list []T) (out []string) {
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}

// The constants of xxHash64.
const (
	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime4 uint64 = 0x85EBCA77C2B2AE63
	prime5 uint64 = 0x27D4EB2F165667C5
)

// inverse returns the multiplicative inverse of an odd factor modulo 2^64.
func inverse(odd uint64) uint64 {
	x := odd
	for range 6 { // each step doubles the number of correct bits, initially three
		x *= 2 - odd*x
	}
	return x
}

// mixed returns xxHash64's intermediate value for a lane of eight bytes. unmixed is its inverse.
func mixed(lane uint64) uint64 { return bits.RotateLeft64(lane*prime2, 31) * prime1 }
func unmixed(k uint64) uint64 {
	return bits.RotateLeft64(k*inverse(prime1), -31) * inverse(prime2)
}

// twin returns the address in the /64 prefix whose unkeyed xxHash64, followed by any port, equals that of another address.
func twin(of netip.Addr, prefix uint64) netip.Addr {
	state := func(first uint64) uint64 { return bits.RotateLeft64((prime5+18)^mixed(first), 27)*prime1 + prime4 }
	b := of.As16()
	le, be := binary.LittleEndian, binary.BigEndian
	first, second := le.Uint64(b[:8]), le.Uint64(b[8:])
	be.PutUint64(b[:8], prefix)
	le.PutUint64(b[8:], unmixed(state(first)^mixed(second)^state(le.Uint64(b[:8]))))
	return netip.AddrFrom16(b)
}

// hashOf returns the unkeyed xxHash64 of an endpoint: of its address and port.
func hashOf(e netip.AddrPort) uint64 {
	b := e.Addr().As16()
	return xxhash.Sum64(binary.LittleEndian.AppendUint16(b[:], e.Port()))
}

// number16 reduces a hash to 1 to 65535.
func number16(hash uint64) uint64 { return hash%(1<<16-1) + 1 }

// evilPrefix is the first /64 prefix of evil's twins.
const evilPrefix uint64 = 0x20010db8000e0000

// twins returns n addresses with the same hash, each in another /64 prefix.
func twins(n int) (list []netip.Addr) {
	first := netip.MustParseAddr("2001:db8:d::1")
	for i := range n {
		list = append(list, twin(first, evilPrefix+uint64(i)))
	}
	return list
}

func TestTwinsShareAHash(t *testing.T) {
	for _, a := range twins(1000) {
		if got, want := hashOf(netip.AddrPortFrom(a, 8443)), hashOf(netip.MustParseAddrPort("[2001:db8:d::1]:8443")); got != want {
			t.Fatalf("%s has hash %x, want %x", a, got, want)
		}
	}
}
