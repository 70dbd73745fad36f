package host

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestMasqueradeSource compares the predicted source of masqueraded packets with that of real packets, and reports the
// routes for which it differs from the source of the node's own packets.
func TestMasqueradeSource(t *testing.T) {
	lab.EnterNamespace(t)
	for _, command := range []string{
		"ip link set lo up", "ip link add eth0 type veth peer name end0", "ip link add tun0 type veth peer name end1", "ip link add tun1 type veth peer name end2",
		"ip link set eth0 up arp off", "ip link set end0 up", "ip link set tun0 up arp off", "ip link set end1 up", "ip link set tun1 up arp off", "ip link set end2 up",
		"ip address add 192.0.2.1/24 dev eth0", "ip address add 192.0.2.2/24 dev eth0", "ip address add 198.51.100.1/30 dev tun1", "ip address add 169.254.7.7/16 dev tun0 scope link",
		"ip route add default via 192.0.2.254", "ip route add 203.0.113.0/24 dev tun0 src 192.0.2.1", "ip route add 10.0.0.0/8 dev tun1 src 192.0.2.1",
		"ip route add 10.244.0.9 dev tun0",
	} {
		words := strings.Fields(command)
		lab.Run(t, words[0], words[1:]...)
	}
	lab.Run(t, "nft", `add table ip look
		add chain ip look nat { type nat hook postrouting priority 100; }
		add rule ip look nat masquerade
		add set ip look seen { typeof ip saddr; flags dynamic; }
		add chain ip look after { type filter hook postrouting priority 300; }
		add rule ip look after meta l4proto udp update @seen { ip saddr }`)
	for to, want := range map[string]string{"192.0.2.9": "192.0.2.1", "8.8.8.8": "192.0.2.1", "203.0.113.9": "192.0.2.1", "10.1.1.1": "198.51.100.1", "198.51.100.2": "198.51.100.1"} {
		lab.Run(t, "nft", "flush set ip look seen")
		conn, err := net.Dial("udp", to+":9")
		lab.Must(t, err)
		_, err = conn.Write([]byte("x"))
		lab.Must(t, err)
		lab.Must(t, conn.Close())
		if got := lab.Run(t, "nft", "list set ip look seen"); !strings.Contains(got, "elements = { "+want+" }") {
			t.Errorf("packets to %s leave with another source than %s: %s", to, want, got)
		}
		if got, err := (Routes{}).Masquerade(netip.MustParseAddr(to)); err != nil || got.String() != want {
			t.Errorf("Masquerade(%s) = %v, %v; want %s", to, got, err, want)
		}
	}
	list, err := Disguises()
	lab.Must(t, err)
	var got []string
	for _, d := range list {
		got = append(got, fmt.Sprintf("%s by %s: %s instead of %s", d.To, d.Device, d.Source, d.Wanted))
	}
	lab.Same(t, []string{"10.0.0.0/8 by tun1: 198.51.100.1 instead of 192.0.2.1", "203.0.113.0/24 by tun0: 192.0.2.1 instead of 192.0.2.1"}, got, "routes")
}
