package hostile

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// sticky adds one port, 8443, and session affinity to a Service.
func sticky(s *corev1.Service) *corev1.Service {
	s.Spec.Ports = []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 8443}}
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	return s
}

// In earlier versions of the program, the number of a service port was a hash of its name. collide returns the name of a Service in a namespace
// whose port https had the same number as that of bank/pay.
func collide(namespace string) string {
	number := func(name string) uint64 { return number16(xxhash.Sum64String(name + ":https/tcp")) }
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s/a%d", namespace, i); number(name) == number("bank/pay") {
			return name
		}
	}
}

// TestTwins: evil adds and removes twins, which are endpoints with the same 64-bit hash. In earlier versions, an element of one of them was left, with
// the numbers that bank's Service and endpoint got later. No rule may contain a removed endpoint, and bank's clients must only reach bank's
// endpoint.
func TestTwins(t *testing.T) {
	n := newNode(t, 1)
	bank, trap := n.trap()
	double := twin(trap.Addr(), evilPrefix)
	name := collide("evil")
	base := addresses("2001:db8:d::1", 200, 1)
	named := func(want bool, a netip.Addr) {
		t.Helper()
		if got := strings.Contains(n.nft("list", "table", "ip6", "kube-nftproxy"), a.String()); got != want {
			t.Errorf("rules contain %s: %v, want %v", a, got, want)
		}
	}
	for _, more := range [][]netip.Addr{nil, {trap.Addr()}, {trap.Addr(), double}, {trap.Addr()}} {
		all := append(slices.Clone(base), more...)
		n.synced("evil", sticky(service(name, "fd00:10:96::666")), slice(name, 0, []string{"https"}, int32(trap.Port()), all...))
	}
	named(true, trap.Addr())
	named(false, double)
	n.drop("evil")
	n.settle()
	named(false, trap.Addr())
	n.synced("bank", sticky(service("bank/pay", "fd00:10:96::10")), slice("bank/pay", 0, []string{"https"}, backendPort, bank.IPv6))
	for range 20 {
		if got := n.ask(n.Client, "[fd00:10:96::10]:8443", surely); got != bank.Name {
			t.Fatalf("%q replies for bank/pay, want %s", got, bank.Name)
		}
	}
}

// trap returns a pod of bank, and an endpoint of evil whose hash gives the same number. The endpoint serves.
func (n *node) trap() (bank *lab.Host, trap netip.AddrPort) {
	n.Helper()
	for _, bank := range n.Pods[:2] {
		want := number16(hashOf(netip.AddrPortFrom(bank.IPv6, backendPort)))
		for _, h := range n.Pods[2:] {
			for port := uint16(backendPort + 1); port > 0; port++ {
				e := netip.AddrPortFrom(h.IPv6, port)
				if number16(hashOf(e)) != want {
					continue
				}
				if _, err := h.Serve(inet.TCP, port); err != nil {
					n.Fatal(err)
				}
				return bank, e
			}
		}
	}
	n.Fatal("no port of evil's pods gives the number")
	return nil, netip.AddrPort{}
}

// TestNamesOfOneNumber: evil has a Service whose name gave bank's number in earlier versions, and is sorted before bank's. After a restart of the
// program, each client of bank must keep its endpoint.
func TestNamesOfOneNumber(t *testing.T) {
	n := newNode(t, 12)
	n.synced("bank", sticky(service("bank/pay", "10.96.0.10")), slice("bank/pay", 0, []string{"https"}, backendPort, n.Pods[0].IPv4, n.Pods[1].IPv4))
	hosts := append(slices.Clone(n.Clients), n.Pods[2:]...)
	var with []string
	for _, h := range hosts {
		with = append(with, n.ask(h, "10.96.0.10:8443", surely))
	}
	name := collide("aaa")
	n.synced("evil", sticky(service(name, evilIP)), slice(name, 0, []string{"https"}, backendPort, n.Pods[2].IPv4))
	n.Kill()
	n.start()
	lost := 0
	for i, h := range hosts {
		if n.ask(h, "10.96.0.10:8443", surely) != with[i] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d clients of bank/pay lost their endpoint", lost, len(hosts))
	}
}

// TestForgedDigest: while the program does not run, bank's endpoint moves, and evil moves its own endpoint to an address with which the sum of the
// elements' unkeyed hashes is unchanged. After the start, bank's clients must reach bank's new endpoint.
func TestForgedDigest(t *testing.T) {
	for _, forged := range []bool{false, true} {
		t.Run(fmt.Sprintf("forged=%v", forged), func(t *testing.T) {
			n := newNode(t, 1)
			to := netip.MustParseAddrPort("[fd00:10:96::10]:8443")
			evilTo := netip.MustParseAddrPort("[fd00:10:96::66]:8443")
			first := netip.MustParseAddr("2001:db8:e::1")
			write := func(bank, evil netip.Addr) {
				for _, o := range []struct {
					name, ip string
					endpoint netip.Addr
				}{{"bank/pay", "fd00:10:96::10", bank}, {"evil/e", "fd00:10:96::66", evil}} {
					s := sticky(service(o.name, o.ip))
					s.Spec.SessionAffinity = ""
					e := slice(o.name, 0, []string{"https"}, backendPort, o.endpoint)
					e.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{o.endpoint.String()}}}
					namespace, _ := split(o.name)
					n.put(namespace, s, e)
				}
			}
			write(n.Pods[0].IPv6, first)
			n.settle()
			if got := n.ask(n.Client, to.String(), surely); got != "pod-0" {
				t.Fatalf("%s replies for bank/pay, want pod-0", got)
			}
			n.Kill()
			evil := first
			if forged {
				sum := digestOf(to, n.Pods[0].IPv6) + digestOf(evilTo, first)
				evil = forge(evilTo, first, sum-digestOf(to, n.Pods[1].IPv6))
			}
			write(n.Pods[1].IPv6, evil)
			n.start()
			lab.Same(t, "pod-1", n.ask(n.Client, to.String(), surely), "replies for bank/pay")
		})
	}
}

// element returns the bytes of the element with the only endpoint of a frontend, as earlier versions hashed them: set, key, data.
func element(frontend netip.AddrPort, endpoint netip.Addr) []byte {
	word := func(b []byte, values ...byte) []byte {
		return append(append(b, values...), make([]byte, 4-len(values))...)
	}
	vip, dst := frontend.Addr().As16(), endpoint.As16()
	b := append([]byte("endpoints\x00"), 28)
	b = word(append(b, vip[:]...), 6)
	b = word(b, byte(frontend.Port()>>8), byte(frontend.Port()))
	b = append(word(b), 0, 20)
	b = word(append(b, dst[:]...), backendPort>>8, backendPort&0xff)
	return append(b, 0)
}

func digestOf(frontend netip.AddrPort, endpoint netip.Addr) uint64 {
	return xxhash.Sum64(element(frontend, endpoint))
}

// The constants of xxHash64 for a remainder of less than eight bytes.
const prime3 uint64 = 0x165667B19E3779F9

// forge returns an endpoint whose element has the given digest. It differs from the endpoint like only in bytes 7 to 14, which are one lane of the
// hashed bytes. So forge computes the state of the hash before and after this lane.
func forge(frontend netip.AddrPort, like netip.Addr, digest uint64) netip.Addr {
	const lane = 48
	text := element(frontend, like)
	le := binary.LittleEndian
	// The state after the lane, backwards from the digest.
	h := digest
	h ^= h >> 32
	h *= inverse(prime3)
	h ^= h>>29 ^ h>>58
	h *= inverse(prime2)
	h ^= h >> 33
	end := text[lane+8:]
	for i := len(end) - 1; i >= 4; i-- {
		h = bits.RotateLeft64(h*inverse(prime1), -11) ^ uint64(end[i])*prime5
	}
	h = bits.RotateLeft64((h-prime3)*inverse(prime2), -23) ^ uint64(le.Uint32(end))*prime1
	after := bits.RotateLeft64((h-prime4)*inverse(prime1), -27)
	// The state before the lane: four accumulators of the first 32 bytes, then two lanes.
	seeds := [4]uint64{prime1, prime2, 0, 0}
	seeds[0] += prime2
	seeds[3] -= prime1
	v := func(i int) uint64 { return bits.RotateLeft64(seeds[i]+le.Uint64(text[8*i:])*prime2, 31) * prime1 }
	h = bits.RotateLeft64(v(0), 1) + bits.RotateLeft64(v(1), 7) + bits.RotateLeft64(v(2), 12) + bits.RotateLeft64(v(3), 18)
	for i := range 4 {
		h = (h^mixed(v(i)))*prime1 + prime4
	}
	h += uint64(len(text))
	for at := 32; at < lane; at += 8 {
		h = bits.RotateLeft64(h^mixed(le.Uint64(text[at:])), 27)*prime1 + prime4
	}
	b := like.As16()
	le.PutUint64(b[7:], unmixed(after^h))
	return netip.AddrFrom16(b)
}

func TestForge(t *testing.T) {
	to, like := netip.MustParseAddrPort("[fd00:10:96::66]:8443"), netip.MustParseAddr("2001:db8:e::1")
	for _, digest := range []uint64{0, 1, 0x123456789abcdef} {
		lab.Same(t, digest, digestOf(to, forge(to, like, digest)), "digest")
	}
}
