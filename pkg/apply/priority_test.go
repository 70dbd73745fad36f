package apply

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// TestPacketsLeaveWithTheirPriority: the scratch register is the packet's priority. A packet leaves with the priority that the kernel sets for its type of
// service, even if another program masquerades the packet first. Packets that only another program translates keep their priority.
func TestPacketsLeaveWithTheirPriority(t *testing.T) {
	w := newWire(t)
	p, k := newStickyPlanner(sticky(0, 0, 1, 2, 3)), open(t)
	mustSync(t, k, p, Full)
	vip := destinations(inet.IPv4, 0)[0]
	elsewhere, later := netip.MustParseAddrPort("198.51.100.9:99"), netip.MustParseAddrPort("198.51.100.10:99")
	run(t, "nft", fmt.Sprintf(`
		table ip other {
			chain output { type nat hook output priority -150; ip daddr %[1]s meta l4proto udp dnat to %[3]s; }
			chain later { type nat hook output priority -90; ip daddr %[2]s meta l4proto udp dnat to %[3]s; }
			chain postrouting { type nat hook postrouting priority -150; ip saddr 192.0.2.0/24 masquerade; }
		}
		table inet look {
			set seen { typeof meta priority; flags dynamic; }
			chain postrouting { type filter hook postrouting priority 300; oifname "out" meta l4proto udp update @seen { meta priority }; }
		}`, elsewhere.Addr(), later.Addr(), pod(inet.IPv4, 1)))
	for _, c := range []struct {
		name      string
		to        netip.AddrPort
		level     int
		option    int
		value     int
		leavesFor string
	}{
		{"no type of service", vip, unix.IPPROTO_IP, unix.IP_TOS, 0, "none"},
		{"bulk", vip, unix.IPPROTO_IP, unix.IP_TOS, 0x08, "0:2"},
		{"interactive", vip, unix.IPPROTO_IP, unix.IP_TOS, 0x10, "0:6"},
		{"both", vip, unix.IPPROTO_IP, unix.IP_TOS, 0x18, "0:4"},
		{"IPv6", destinations(inet.IPv6, 0)[0], unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 0x10, "none"},
		{"translated by another program", elsewhere, unix.SOL_SOCKET, unix.SO_PRIORITY, 5, "0:5"},
		{"translated later by another program", later, unix.SOL_SOCKET, unix.SO_PRIORITY, 5, "0:5"},
	} {
		run(t, "nft", "flush set inet look seen")
		for range 4 { // each socket starts a connection
			d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
				controlled := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), c.level, c.option, c.value) })
				if controlled != nil {
					return controlled
				}
				return err
			}}
			conn, err := d.Dial("udp", c.to.String())
			w.must(err)
			_, err = conn.Write([]byte("question"))
			w.must(err)
			w.must(conn.Close())
		}
		if got := run(t, "nft", "list set inet look seen"); !strings.Contains(got, "elements = { "+c.leavesFor+" }") {
			t.Errorf("%s: want priority %s, seen are\n%s", c.name, c.leavesFor, got)
		}
	}
}

// TestPacketsLeaveWithoutTheMark: a packet that the rules masquerade leaves without the bit of its mark, even if another program's chain is before all
// common priorities. A tunnel would copy the mark to its outer packet, and the rules would masquerade the outer packet, too.
func TestPacketsLeaveWithoutTheMark(t *testing.T) {
	w := newWire(t)
	p, k := newStickyPlanner(sticky(0, 0, 1, 2, 3)), open(t)
	mustSync(t, k, p, Full)
	run(t, "nft", `
		table inet other {
			chain postrouting { type nat hook postrouting priority -150; oifname "out" masquerade; }
		}
		table inet look {
			set seen { typeof meta mark; flags dynamic; }
			chain postrouting { type filter hook postrouting priority 300; oifname "out" meta l4proto udp update @seen { meta mark }; }
		}`)
	for _, f := range inet.Families {
		run(t, "nft", "flush set inet look seen")
		w.send(f, 1, destinations(f, 0)[2]) // a node port
		if _, _, came := w.read(time.Second); !came {
			t.Errorf("%s: no packet has left", f)
		}
		if got := run(t, "nft", "list set inet look seen"); !strings.Contains(got, "elements = { 0x00000000 }") {
			t.Errorf("%s: want no mark, seen are\n%s", f, got)
		}
	}
}

// TestPacketsTranslatedToAClusterIPStay: if another program translates a packet to a cluster IP, the packet is not translated again, and does not leave
// the node.
func TestPacketsTranslatedToAClusterIPStay(t *testing.T) {
	w := newWire(t)
	p, k := newStickyPlanner(sticky(0, 0, 1)), open(t)
	mustSync(t, k, p, Full)
	vip := destinations(inet.IPv4, 0)[0]
	run(t, "nft", fmt.Sprintf(`
		table ip other {
			chain prerouting { type nat hook prerouting priority -150; ip daddr 198.51.100.9 dnat to %s; }
		}`, vip.Addr()))
	w.send(inet.IPv4, 1, netip.MustParseAddrPort("198.51.100.9:53"))
	if _, to, came := w.read(300 * time.Millisecond); came {
		t.Errorf("a packet has left for %s", to)
	}
	w.send(inet.IPv4, 2, vip)
	if _, to, came := w.read(time.Second); !came || to != pod(inet.IPv4, 1) {
		t.Errorf("a packet to %s has left for %s (%t)", vip, to, came)
	}
}
