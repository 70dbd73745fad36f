package apply

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// newRoutedWire writes a Service and a ServiceCIDR to the kernel. It returns two destinations that no Service serves: another port of the Service's
// cluster IP, and an unused address of the ServiceCIDR.
func newRoutedWire(t *testing.T, f inet.Family) (w *wire, unused []netip.AddrPort) {
	t.Helper()
	w = newWire(t)
	run(t, "ip", "link", "set", "lo", "up")
	p, k := newStickyPlanner(sticky(0, 0, 1)), open(t)
	p.SetServiceCIDRs(f, []netip.Prefix{netip.PrefixFrom(vip(f, 0), 16+int(f)*96).Masked()})
	mustSync(t, k, p, Full)
	return w, []netip.AddrPort{netip.AddrPortFrom(vip(f, 0), 7), netip.AddrPortFrom(vip(f, 777), 7)}
}

// nothingLeft fails if an earlier packet has left this node. It sends a packet to the Service, which must be the first packet that arrives at the pods.
func (w *wire) nothingLeft(f inet.Family, when string) {
	w.Helper()
	const last = 99
	w.send(f, last, destinations(f, 0)[0])
	if from, to, came := w.read(5 * time.Second); !came || from != last || to != pod(f, 1) {
		w.Errorf("%s: a packet of client %d has left for %s (%t), want the one of client %d to the Service", when, from, to, came, last)
	}
}

// TestPolicyRoutingByMark: if policy routing by mark leads to a transparent proxy on this node, the proxy receives packets to cluster IPs and service
// addresses that no Service serves. Packets without a mark are refused or dropped, also if policy routing by interface leads to the proxy. The
// same is true for packets with a mark whose route does not lead to this node.
func TestPolicyRoutingByMark(t *testing.T) {
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			w, unused := newRoutedWire(t, f)
			command, nf := [...]string{"-4", "-6"}[f], [...]string{"ip", "ip6"}[f]
			run(t, "ip", command, "rule", "add", "fwmark", "1", "lookup", "100")
			run(t, "ip", command, "route", "add", "local", "default", "dev", "lo", "table", "100")
			mark := func(value int) {
				run(t, "nft", fmt.Sprintf(`table %[1]s other { chain prerouting { type filter hook prerouting priority -150; }; };
					flush chain %[1]s other prerouting; add rule %[1]s other prerouting udp dport 7 meta mark set %[2]d`, nf, value))
			}
			local, err := net.ListenUDP([...]string{"udp4", "udp6"}[f], &net.UDPAddr{Port: 7})
			w.must(err)
			defer local.Close() //nolint:errcheck // the test only reads from it
			raw, err := local.SyscallConn()
			w.must(err)
			if f == inet.IPv6 { // the packets have no checksum
				w.must(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1) }))
				w.must(err)
			}
			sent := 0
			send := func(to netip.AddrPort) {
				sent++
				w.send(f, sent, to)
			}
			comes := func(to netip.AddrPort) {
				t.Helper()
				mark(1)
				send(to)
				w.must(local.SetReadDeadline(time.Now().Add(5 * time.Second)))
				payload := make([]byte, 8)
				if n, _, err := local.ReadFrom(payload); err != nil || n != 4 || int(payload[3]) != sent {
					t.Errorf("%s: received % x, %v, want the packet of client %d", to, payload[:n], err, sent)
				}
			}
			for _, to := range unused {
				comes(to)
				for _, other := range []int{0, 2} {
					mark(other)
					send(to)
					w.nothingLeft(f, fmt.Sprintf("%s with mark %d", to, other))
				}
			}
			run(t, "ip", command, "rule", "add", "iif", "in", "lookup", "100")
			for _, to := range unused {
				mark(0)
				send(to)
				comes(to) // the earlier packet does not arrive
			}
		})
	}
}

// TestForeignRulesTranslateUnusedAddresses: another program may translate packets to cluster IPs and service addresses that no Service serves, at any
// priority. The tables refuse or drop such packets only after the chains of all other programs.
func TestForeignRulesTranslateUnusedAddresses(t *testing.T) {
	for _, f := range inet.Families {
		for _, priority := range []int{-150, -95, -90, -80, 0, 200} {
			t.Run(fmt.Sprintf("%s/%d", f, priority), func(t *testing.T) {
				w, unused := newRoutedWire(t, f)
				for i, to := range unused {
					w.send(f, 2*i, to)
					w.nothingLeft(f, to.String())
				}
				foreign := pod(f, 77)
				run(t, "nft", fmt.Sprintf(`table %[1]s other {
					chain prerouting { type nat hook prerouting priority %[2]d; udp dport 7 dnat to %[3]s; };
					chain output { type nat hook output priority %[2]d; udp dport 7 dnat to %[3]s; }; }`, [...]string{"ip", "ip6"}[f], priority, foreign))
				for i, to := range unused {
					w.send(f, 2*i+1, to)
					if from, at, came := w.read(5 * time.Second); !came || from != 2*i+1 || at != foreign {
						t.Errorf("a packet to %s arrived at %s (%t), want %s", to, at, came, foreign)
					}
					conn, err := net.Dial("udp", to.String())
					w.must(err)
					defer conn.Close() //nolint:errcheck // the test only writes to it
					_, err = conn.Write([]byte{0, 0, 0, 42})
					w.must(err)
					if from, at, came := w.read(5 * time.Second); !came || from != 42 || at != foreign {
						t.Errorf("a packet of this node to %s arrived at %s (%t), want %s", to, at, came, foreign)
					}
				}
			})
		}
	}
}
