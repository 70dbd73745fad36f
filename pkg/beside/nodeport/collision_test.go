package nodeport

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var (
	web = types.NamespacedName{Namespace: "default", Name: "web"}
	dns = types.NamespacedName{Namespace: "kube-system", Name: "dns"}
)

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// key returns a node port in a family.
func key(p inet.Protocol, number uint16, f inet.Family) model.Key {
	return model.Key{Port: number, Protocol: p, Family: f}
}

// dual returns a node port in both families.
func dual(p inet.Protocol, number uint16) []model.Key {
	return []model.Key{key(p, number, inet.IPv4), key(p, number, inet.IPv6)}
}

func socket(p inet.Protocol, at string) Socket {
	return Socket{Protocol: p, Local: netip.MustParseAddrPort(at)}
}

// TestCollisions tests one socket at a time, against a Service with TCP 30080 in both families and one with UDP 30053
// in IPv4.
func TestCollisions(t *testing.T) {
	v6only, onLoopback, onVeth := socket(inet.TCP, "[::]:30080"), socket(inet.TCP, "0.0.0.0:30080"), socket(inet.TCP, "0.0.0.0:30080")
	v6only.V6Only, onLoopback.Device, onVeth.Device = true, 1, 2
	dnsV6Only := socket(inet.UDP, "[::]:30053")
	dnsV6Only.V6Only = true
	both := [2][]netip.Addr{addrs("192.0.2.1"), addrs("2001:db8::1")}
	none := ""
	for _, c := range []struct {
		name   string
		addrs  [2][]netip.Addr
		socket Socket
		want   string
	}{
		{"any IPv4 address", both, socket(inet.TCP, "0.0.0.0:30080"), "default/web 30080/TCP"},
		{"any address", both, socket(inet.TCP, "[::]:30080"), "default/web 30080/TCP"},
		{"any address, where only IPv4 is served", [2][]netip.Addr{both[0]}, socket(inet.TCP, "[::]:30080"), "default/web 30080/TCP"},
		{"IPv6 only, where only IPv4 is served", [2][]netip.Addr{both[0]}, v6only, none},
		{"IPv6 only", both, v6only, "default/web 30080/TCP"},
		{"any address, for a Service of IPv4", both, socket(inet.UDP, "[::]:30053"), "kube-system/dns 30053/UDP"},
		{"IPv6 only, for a Service of IPv4", both, dnsV6Only, none},
		{"the node's address", both, socket(inet.TCP, "192.0.2.1:30080"), "default/web 30080/TCP"},
		{"the node's IPv6 address", both, socket(inet.TCP, "[2001:db8::1]:30080"), "default/web 30080/TCP"},
		{"another address of the node", both, socket(inet.TCP, "198.51.100.1:30080"), none},
		{"loopback", both, socket(inet.TCP, "127.0.0.1:30080"), none},
		{"IPv6 loopback", both, socket(inet.TCP, "[::1]:30080"), none},
		{"loopback, where node ports are served there", [2][]netip.Addr{addrs("127.0.0.1")}, socket(inet.TCP, "127.0.0.1:30080"),
			"default/web 30080/TCP"},
		{"any address of the loopback device", both, onLoopback, none},
		{"any address of another device", both, onVeth, "default/web 30080/TCP"},
		{"another port", both, socket(inet.TCP, "0.0.0.0:30081"), none},
		{"another protocol", both, socket(inet.UDP, "0.0.0.0:30080"), none},
		{"multicast", both, socket(inet.UDP, "224.0.0.251:30053"), none},
		{"no address", [2][]netip.Addr{}, socket(inet.TCP, "0.0.0.0:30080"), none},
	} {
		s := served{addrs: c.addrs, services: map[model.Key][]types.NamespacedName{
			key(inet.TCP, 30080, inet.IPv4): {web}, key(inet.TCP, 30080, inet.IPv6): {web}, key(inet.UDP, 30053, inet.IPv4): {dns},
		}}
		got := none
		for _, found := range s.listeners([]Socket{c.socket}, func(*Socket) (counts, own bool) { return true, false }) {
			got += fmt.Sprintf("%s %s", found.service, found.port)
			if found.at != c.socket.Local {
				t.Errorf("%s: at %s", c.name, found.at)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		overlap := s.ephemeral(Ephemeral{Range: Range{1, 65535}})
		lab.Same(t, len(c.addrs[0]) == 0, len(overlap) == 0, "%s: no node port in the ephemeral range is served", c.name)
	}
}

// TestOneCollisionForEachPort: several sockets on one port, for example of a server with several workers, are one
// collision.
func TestOneCollisionForEachPort(t *testing.T) {
	s := served{addrs: [2][]netip.Addr{addrs("192.0.2.1"), addrs("2001:db8::1")}, services: map[model.Key][]types.NamespacedName{}}
	for _, k := range append(dual(inet.TCP, 30080), dual(inet.TCP, 30443)...) {
		s.services[k] = []types.NamespacedName{web}
	}
	sockets := []Socket{socket(inet.TCP, "[::]:30443"), socket(inet.TCP, "[::]:30080"), socket(inet.TCP, "0.0.0.0:30080"),
		socket(inet.TCP, "0.0.0.0:30080")}
	list := s.listeners(sockets, func(*Socket) (counts, own bool) { return true, false })
	want := "on node node-1 a local process listens on 30080/TCP (at 0.0.0.0:30080), 30443/TCP (at [::]:30443): packets to this " +
		"port of the node's addresses reach the Service, and the process does not receive them; move the process to another port, or " +
		"choose another node port (to find the process, run `ss -lntp sport = :30080` on the node)"
	if got := listenerProblem("node-1", list).Text(); got != want {
		t.Errorf("message (-want +got):\n%s", cmp.Diff(want, got))
	}
	if n := countPorts(list); n != 2 {
		t.Errorf("%d node ports collide, want 2", n)
	}
}

// TestMessagesFitAnEvent uses long names and many ports: the API server rejects notes above 1,024 characters.
func TestMessagesFitAnEvent(t *testing.T) {
	long := types.NamespacedName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63)}
	node := strings.Repeat("d", 253)
	var list []collision
	for i := range 100 {
		at := netip.AddrPortFrom(netip.MustParseAddr("2001:db8:1111:2222:3333:4444:5555:6666"), uint16(50000+i))
		list = append(list, collision{long, port{at.Port(), inet.UDP}, at, true})
	}
	e := Ephemeral{Range: Range{10000, 65535}}
	for _, p := range []model.Problem{listenerProblem(node, list), ephemeralProblem(node, e, list), nodeProblem(node, e, list)} {
		if n := len(p.Field) + 2 + len(p.Text()); n > 1024 {
			t.Errorf("%s about a %s: %d characters", p.Event, p.Kind, n)
		}
	}
}

func TestEphemeral(t *testing.T) {
	for _, c := range []struct {
		ports, reserved string
		want            Ephemeral
		err             bool
		in, out         []uint16
	}{
		{ports: "32768\t60999\n", reserved: "\n", want: Ephemeral{Range: Range{32768, 60999}},
			in: []uint16{32768, 60999}, out: []uint16{0, 30080, 32767, 61000}},
		{ports: "1024 65535", reserved: "30000-32767,40000\n",
			want: Ephemeral{Range{1024, 65535}, []Range{{30000, 32767}, {40000, 40000}}},
			in:   []uint16{1024, 29999, 32768, 39999, 40001, 65535}, out: []uint16{1023, 30000, 32767, 40000}},
		{ports: "32768", reserved: "", want: Ephemeral{Range: Range{32768, 32768}}},
		{ports: "", err: true},
		{ports: "1 2 3", err: true},
		{ports: "1 70000", err: true},
		{ports: "1 2", reserved: "x", err: true},
	} {
		got, err := parseEphemeral(c.ports, c.reserved)
		if (err != nil) != c.err {
			t.Errorf("parseEphemeral(%q, %q): %v", c.ports, c.reserved, err)
		}
		if c.err {
			continue
		}
		lab.Same(t, c.want, got, "parseEphemeral(%q, %q)", c.ports, c.reserved)
		for _, p := range c.in {
			if !got.Contains(p) {
				t.Errorf("%q, %q: the kernel may assign %d, but Contains is false", c.ports, c.reserved, p)
			}
		}
		for _, p := range c.out {
			if got.Contains(p) {
				t.Errorf("%q, %q: the kernel does not assign %d, but Contains is true", c.ports, c.reserved, p)
			}
		}
	}
}
