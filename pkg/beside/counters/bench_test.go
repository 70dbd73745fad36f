package counters

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// plain returns a Service with a cluster IP and ten endpoints.
func plain(i int) *model.Service {
	s := &model.Service{Name: types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}}
	p := &model.ServicePort{
		Name: model.PortName{NamespacedName: s.Name, Port: "dns"}, Protocol: inet.UDP, Family: inet.IPv4, HasEndpoints: true,
		Frontends: []model.Frontend{{Kind: model.ClusterIP, Key: model.Key{
			Addr: netip.AddrFrom4([4]byte{10, 97 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 53, Protocol: inet.UDP}}},
	}
	for e := range 10 {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), byte(e)}), 8053))
	}
	s.Ports = []*model.ServicePort{p}
	return s
}

// program writes a number of Services into the kernel, in a new network namespace for the calling goroutine.
func program(b *testing.B, services int) (*plan.Planner, *apply.Kernel) {
	b.Helper()
	lab.EnterNamespace(b)
	p := plan.New(plan.Options{Families: inet.Families[:], MasqueradeMark: 1 << 14})
	for i := range services {
		s := plain(i)
		p.Set(s.Name, s)
	}
	k, err := apply.Open()
	lab.Must(b, err)
	b.Cleanup(func() { k.Close() })
	if _, err := k.Sync(p); err != nil {
		b.Fatal(err)
	}
	return p, k
}

// BenchmarkRead reads all counters, as a scrape does.
func BenchmarkRead(b *testing.B) {
	for _, services := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			p, _ := program(b, services)
			c, err := Open(p.Rules().Counters())
			lab.Must(b, err)
			b.ReportAllocs()
			for b.Loop() {
				c.next = time.Time{}
				lab.Must(b, c.Await(time.Minute))
			}
			lab.Must(b, c.Close())
		})
	}
}

// BenchmarkNewConnection sends the first packet of a connection from this node to a Service. The packet leaves
// through a veth device, and no host answers.
func BenchmarkNewConnection(b *testing.B) {
	program(b, 1000)
	must := func(err error) {
		lab.Must(b, err)
	}
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "far"}))
	for _, name := range []string{"lo", "far", "out"} {
		link, err := netlink.LinkByName(name)
		must(err)
		must(netlink.LinkSetARPOff(link))
		must(netlink.LinkSetUp(link))
		if name == "out" {
			addr := &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}
			must(netlink.AddrAdd(link, &netlink.Addr{IPNet: addr}))
			must(netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	must(err)
	defer unix.Close(fd) //nolint:errcheck // write only
	packet := make([]byte, 28)
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
	copy(packet[12:], []byte{192, 0, 2, 1})
	binary.BigEndian.PutUint16(packet[22:], 53)
	binary.BigEndian.PutUint16(packet[24:], 8)
	to := &unix.SockaddrInet4{}
	const ports = 1 << 15
	for i := 0; b.Loop(); i++ {
		// Each packet begins a new connection: 32,768 source ports for each of 1,000 Services.
		service := i / ports % 1000
		to.Addr = [4]byte{10, 97, byte(service >> 8), byte(service)}
		copy(packet[16:], to.Addr[:])
		binary.BigEndian.PutUint16(packet[20:], uint16(ports+i%ports))
		must(unix.Sendto(fd, packet, 0, to))
	}
}
