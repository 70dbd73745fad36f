package apply

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// wire is a network namespace that forwards packets between two devices. The test writes packets of any number of clients to one device, and reads the
// packets to pods from the other.
type wire struct {
	testing.TB
	clients, pods int
	// to is the link-layer destination of the clients' frames.
	to net.HardwareAddr
	// port is the source port of the last packets. It differs for each call of ask, so that every packet starts a connection.
	port uint16
	// from returns the address and port of a client. If it is nil, these are [client] and port.
	from func(f inet.Family, i int) netip.AddrPort
}

const questionPort = 1024

func newWire(t testing.TB) *wire {
	t.Helper()
	lab.EnterNamespace(t)
	w := &wire{TB: t, port: questionPort}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		w.sysctl(key, "1")
	}
	w.sysctl("ipv4/conf/all/rp_filter", "0")
	w.clients, w.to = w.cable("in", "clients")
	w.must(unix.SetNonblock(w.clients, false))
	w.pods, _ = w.cable("out", "pods")
	// The address for node ports and masquerading, and a default route.
	for f, everywhere := range []string{"0.0.0.0/0", "::/0"} {
		addr := destinations(inet.Family(f), 0)[2].Addr()
		link := w.link("out")
		w.must(netlink.AddrAdd(link, &netlink.Addr{
			IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}, Flags: unix.IFA_F_NODAD,
		}))
		_, dst, err := net.ParseCIDR(everywhere)
		w.must(err)
		w.must(netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst}))
	}
	// The kernel sets up links and routes after the request has returned.
	for _, f := range inet.Families {
		eventually(t, func() bool { return w.passes(f) })
	}
	return w
}

func (w *wire) must(err error) {
	w.Helper()
	lab.Must(w, err)
}

func (w *wire) sysctl(key, value string) {
	w.Helper()
	w.must(os.WriteFile("/proc/sys/net/"+key, []byte(value), 0))
}

func (w *wire) link(name string) netlink.Link {
	w.Helper()
	link, err := netlink.LinkByName(name)
	w.must(err)
	return link
}

// cable adds a device without address resolution. It returns a socket at the other end, and the device's link-layer address.
func (w *wire) cable(name, end string) (fd int, to net.HardwareAddr) {
	w.Helper()
	w.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: end}))
	w.sysctl("ipv4/conf/"+name+"/rp_filter", "0")
	w.sysctl("ipv6/conf/"+end+"/disable_ipv6", "1")
	w.must(netlink.LinkSetARPOff(w.link(name)))
	for _, device := range []string{name, end} {
		w.must(netlink.LinkSetUp(w.link(device)))
	}
	return w.open(end), w.link(name).Attrs().HardwareAddr
}

// open opens a socket for all packets of a cable.
func (w *wire) open(device string) int {
	w.Helper()
	all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
	w.must(err)
	w.Cleanup(func() { _ = unix.Close(fd) })
	const room = 16 << 20
	w.must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room))
	w.must(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.link(device).Attrs().Index}))
	return fd
}

// passes reports whether a packet to a pod is forwarded.
func (w *wire) passes(f inet.Family) bool {
	w.send(f, 0, pod(f, 1))
	_, _, came := w.read(50 * time.Millisecond)
	return came
}

// client returns the address of one of many clients.
func client(f inet.Family, i int) netip.Addr {
	if f == inet.IPv4 {
		return netip.AddrFrom4([4]byte{20 + byte(i>>24), byte(i >> 16), byte(i >> 8), byte(i)})
	}
	a := netip.MustParseAddr("2001:db8:c::").As16()
	binary.BigEndian.PutUint32(a[12:], uint32(i))
	return netip.AddrFrom16(a)
}

// send sends a UDP packet of a client.
func (w *wire) send(f inet.Family, i int, to netip.AddrPort) {
	if _, err := unix.Write(w.clients, w.frame(f, i, to)); err != nil {
		w.Fatalf("send: %v", err)
	}
}

// frame returns a UDP packet of a client. Its payload is the client's number, because the source address may be translated.
func (w *wire) frame(f inet.Family, i int, to netip.AddrPort) []byte {
	const udpLen = 12
	source := netip.AddrPortFrom(client(f, i), w.port)
	if w.from != nil {
		source = w.from(f, i)
	}
	from := source.Addr()
	b := append(make([]byte, 0, 64), w.to...)
	b = append(b, 2, 0, 0, 0, 0, 1)
	if from.Is4() {
		const ipLen = 20
		b = append(b, 8, 0)
		ip := len(b)
		b = append(b, 0x45, 0, 0, ipLen+udpLen, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
		b = append(append(b, from.AsSlice()...), to.Addr().AsSlice()...)
		binary.BigEndian.PutUint16(b[ip+10:], checksum(b[ip:]))
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, udpLen, unix.IPPROTO_UDP, 64)
		b = append(append(b, from.AsSlice()...), to.Addr().AsSlice()...)
	}
	b = binary.BigEndian.AppendUint16(b, source.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	// The packet has no checksum.
	b = append(b, 0, udpLen, 0, 0)
	return binary.BigEndian.AppendUint32(b, uint32(i))
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// read waits until a client's packet arrives at a pod.
func (w *wire) read(patience time.Duration) (client int, at netip.AddrPort, ok bool) {
	var b [256]byte
	for {
		n, err := unix.Read(w.pods, b[:])
		switch {
		case err == unix.EAGAIN:
			timeout := unix.NsecToTimespec(int64(patience))
			if n, _ := unix.Ppoll([]unix.PollFd{{Fd: int32(w.pods), Events: unix.POLLIN}}, &timeout, nil); n == 0 {
				return 0, at, false
			}
		case err != nil:
			w.Fatalf("read: %v", err)
		default:
			if client, at, ok = parseFrame(b[:n]); ok {
				return client, at, true
			}
		}
	}
}

// parseFrame returns the client and the destination of a UDP packet.
func parseFrame(b []byte) (client int, to netip.AddrPort, ok bool) {
	const eth, ip4, ip6, udp = 14, 20, 40, 8
	var addr netip.Addr
	switch {
	case len(b) >= eth+ip4+udp+4 && b[12] == 8 && b[eth+9] == unix.IPPROTO_UDP:
		addr, b = netip.AddrFrom4([4]byte(b[eth+16:])), b[eth+ip4:]
	case len(b) >= eth+ip6+udp+4 && b[12] == 0x86 && b[eth+6] == unix.IPPROTO_UDP:
		addr, b = netip.AddrFrom16([16]byte(b[eth+24:])), b[eth+ip6:]
	default:
		return 0, to, false
	}
	return int(binary.BigEndian.Uint32(b[udp:])), netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[2:])), true
}

// ask starts a connection of each client, and returns their endpoints. It fails if a packet does not arrive.
func (w *wire) ask(f inet.Family, clients int, to netip.AddrPort) []netip.AddrPort {
	w.Helper()
	// Without this flush, connections without a reply would fill the kernel's table.
	w.must(netlink.ConntrackTableFlush(netlink.ConntrackTable))
	w.port++
	const atOnce = 128
	got := make([]netip.AddrPort, clients)
	for first := 0; first < clients; first += atOnce {
		here := min(atOnce, clients-first)
		for j := range here {
			w.send(f, first+j, to)
		}
		for came := range here {
			i, at, ok := w.read(5 * time.Second)
			if !ok || i < first || i >= first+here {
				w.Fatalf("of clients %d to %d of %s, %d reached an endpoint (and %d at %s)", first, first+here, to, came, i, at)
			}
			got[i] = at
		}
	}
	return got
}

// moved counts the clients whose endpoint has changed.
func moved(was, is []netip.AddrPort) int {
	n := 0
	for i := range was {
		if is[i] != was[i] {
			n++
		}
	}
	return n
}
