package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Packets are made by the thousand at the client's end of the node's cable. The kernel takes each through the node while
// the client is still sending it, so the time of sending is that of all that the node does: receiving, connection
// tracking, the rules, forwarding. What is measured is told apart by comparison with a packet that needs less of it.

// echoPort is where a pod answers over UDP: the flows that are established.
const echoPort = 5353

// The Services by which packets are timed, beside those of the cluster.
var (
	connectVIP  = netip.MustParseAddr("10.96.255.4")
	echoVIP     = netip.MustParseAddr("10.96.255.1")
	affinityVIP = map[int]netip.Addr{10: netip.MustParseAddr("10.96.255.2"), 1000: netip.MustParseAddr("10.96.255.3")}
)

func (w *world) putPacketServices() {
	echo := w.serviceAt("echo", echoVIP)
	echo.Spec.Ports[0].Protocol, echo.Spec.Ports[0].Port = corev1.ProtocolUDP, echoPort
	w.store.Put(echo)
	w.store.Put(endpointSlice("echo", 1, corev1.ProtocolUDP, echoPort, []netip.Addr{w.lab.Pods[0].IPv4}))
	w.store.Put(w.serviceAt("connect", connectVIP))
	w.store.Put(endpointSlice("connect", 1, corev1.ProtocolTCP, endpointPort, []netip.Addr{w.lab.Pods[0].IPv4}))
	for _, n := range []int{10, 1000} {
		name := fmt.Sprintf("affinity-%d", n)
		s := w.serviceAt(name, affinityVIP[n])
		timeout := int32(10800)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		w.store.Put(s)
		var addrs []netip.Addr
		for e := range n {
			addrs = append(addrs, netip.AddrFrom4([4]byte{10, 119, byte(e / 250), byte(1 + e%250)}))
		}
		for i := 0; i*perSlice < n; i++ {
			w.store.Put(endpointSlice(name, i+1, corev1.ProtocolTCP, endpointPort, addrs[i*perSlice:min(n, (i+1)*perSlice)]))
		}
	}
}

// timer times packets.
type timer struct {
	*world
	packets int
	// node is where the client's frames go; connections counts those of all streams, so that no two are the same.
	node        net.HardwareAddr
	connections int
}

// findNode runs on the node.
func (t *timer) findNode() error {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	t.node = eth0.HardwareAddr
	return nil
}

// stream is a kind of packets.
type stream struct {
	quantity
	// frame makes the packet of that number.
	frame func(i int) []byte
}

// measurePackets times streams of packets by turns, in several rounds. Without a proxy's rules only those that need none.
func measurePackets(ctx context.Context, w *world, e effort, f *Figures, proxy bool) error {
	if e.packets == 0 {
		return nil
	}
	say("%s, %s: packets", w.size, f.Program)
	t := &timer{world: w, packets: e.packets}
	if err := w.lab.Node.Do(t.findNode); err != nil {
		return err
	}
	for _, key := range []string{"all", "default", "eth0"} {
		for _, name := range []string{"send_redirects", "rp_filter"} {
			if err := w.lab.Node.Sysctl("ipv4/conf/"+key+"/"+name, "0"); err != nil {
				return err
			}
		}
	}
	server, err := w.lab.Pods[0].Serve(model.UDP, echoPort)
	if err != nil {
		return err
	}
	defer server.Close() //nolint:errcheck // its socket is gone in any case
	direct, stop, err := t.established(ctx, netip.AddrPortFrom(w.lab.Pods[0].IPv4, echoPort))
	if err != nil {
		return err
	}
	defer stop()
	flow, connection := establishedBare, newBare
	if proxy {
		flow, connection = establishedDirect, newDirect
	}
	streams := []stream{
		{flow, direct},
		{connection, func(i int) []byte { return t.syn(i, netip.AddrPortFrom(w.endpoint(i), endpointPort)) }},
	}
	if proxy {
		toService, stop, err := t.established(ctx, netip.AddrPortFrom(echoVIP, echoPort))
		if err != nil {
			return err
		}
		defer stop()
		streams = append(streams,
			stream{establishedService, toService},
			stream{newService, func(i int) []byte { return t.syn(i, netip.AddrPortFrom(vip(rand.IntN(w.services)), servicePort)) }},
			stream{newAffinity10, func(i int) []byte { return t.syn(i, netip.AddrPortFrom(affinityVIP[10], servicePort)) }},
			stream{newAffinity1000, func(i int) []byte { return t.syn(i, netip.AddrPortFrom(affinityVIP[1000], servicePort)) }},
		)
	}
	if proxy {
		if err := t.connect(ctx, f); err != nil {
			return err
		}
	}
	// The pod has answered once, and takes no more part in it.
	for _, line := range []string{"add table ip deaf", "add chain ip deaf c { type filter hook prerouting priority -400; policy drop; }"} {
		if out, err := w.lab.Pods[0].Command(ctx, "nft", line).CombinedOutput(); err != nil {
			return fmt.Errorf("nft %s: %w: %s", line, err, out)
		}
	}
	defer w.lab.Pods[0].Command(context.WithoutCancel(ctx), "nft", "delete table ip deaf").Run() //nolint:errcheck // the pod goes soon
	return t.time(ctx, streams, f)
}

// connect notes the time from a TCP connection's first packet to the server's answer.
func (t *timer) connect(ctx context.Context, f *Figures) error {
	server, err := t.lab.Pods[0].Serve(model.TCP, endpointPort)
	if err != nil {
		return err
	}
	defer server.Close() //nolint:errcheck // its socket is gone in any case
	for range t.packets / 20 {
		for q, to := range map[quantity]netip.AddrPort{
			connectDirect:  netip.AddrPortFrom(t.lab.Pods[0].IPv4, endpointPort),
			connectService: netip.AddrPortFrom(connectVIP, servicePort),
		} {
			a := t.lab.Client.Probe(ctx, model.TCP, to, lab.Options{})
			if a.Outcome != lab.Answered {
				return fmt.Errorf("connect to %s: %s", to, a)
			}
			f.add(q, a.RTT.Seconds())
		}
	}
	return nil
}

// endpoint is some endpoint of some Service.
func (w *world) endpoint(i int) netip.Addr {
	n := i * 7919 % (w.services * w.endpoints)
	return netip.AddrFrom4([4]byte{10, byte(128 + n/62500), byte(n / 250 % 250), byte(1 + n%250)})
}

// time sends all streams by turns. Between them the connections that they have left are forgotten, but the long-lived ones.
func (t *timer) time(ctx context.Context, streams []stream, f *Figures) error {
	const rounds = 7
	for range rounds {
		for _, s := range streams {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			frames := make([][]byte, t.packets)
			for i := range frames {
				frames[i] = s.frame(i)
			}
			each, err := send(t.lab.Client, frames)
			if err != nil {
				return err
			}
			f.add(s.quantity, each.Seconds())
			for _, port := range []int{servicePort, endpointPort} {
				// That there are none is an error to conntrack.
				_ = t.lab.Node.Command(ctx, "conntrack", "-D", "-p", "tcp", "--dport", strconv.Itoa(port)).Run()
			}
		}
	}
	return nil
}

// send puts frames on the client's cable, for a second at most, and returns the time that each took.
func send(client *lab.Host, frames [][]byte) (each time.Duration, err error) {
	const longest, between = time.Second, 64
	err = client.Do(func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing is left in it
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return err
		}
		to := &unix.SockaddrLinklayer{Ifindex: eth0.Index}
		if err := unix.Bind(fd, to); err != nil {
			return err
		}
		start := time.Now()
		for i, frame := range frames {
			if _, err := unix.Write(fd, frame); err != nil {
				return err
			}
			if i%between == between-1 || i == len(frames)-1 {
				spent := time.Since(start)
				each = spent / time.Duration(i+1)
				if spent > longest {
					break
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("send packets: %w", err)
	}
	return each, nil
}

// established opens a UDP flow, sees an answer, and returns a further packet of the flow.
func (t *timer) established(ctx context.Context, to netip.AddrPort) (frame func(int) []byte, stop func(), err error) {
	conn, err := t.lab.Client.Dial(ctx, model.UDP, to)
	if err != nil {
		return nil, nil, err
	}
	stop = func() { _ = conn.Close() }
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return nil, stop, err
	}
	if _, err = conn.Write([]byte("hello\n")); err == nil {
		_, err = conn.Read(make([]byte, 1500))
	}
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("no answer from %s: %w", to, err)
	}
	from := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	b := t.packet(unix.IPPROTO_UDP, from, to, []byte{0, 12, 0, 0, 'h', 'i', '!', '\n'})
	return func(int) []byte { return b }, stop, nil
}

// syn is the first packet of a connection of some client; no two have the same source.
func (t *timer) syn(i int, to netip.AddrPort) []byte {
	t.connections++
	from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(1 + i%250)}), uint16(1024+t.connections%60000))
	const seq, ack, offsetAndFlags, windowAndMore = 4, 4, 2, 6
	rest := make([]byte, seq+ack+offsetAndFlags+windowAndMore)
	rest[8], rest[9] = 5<<4, 2
	rest[10] = 0x40
	return t.packet(unix.IPPROTO_TCP, from, to, rest)
}

// packet is an Ethernet frame for the node: ports, and what follows them in the transport's header.
func (t *timer) packet(proto byte, from, to netip.AddrPort, rest []byte) []byte {
	const ipLen, ports = 20, 4
	b := append([]byte{}, t.node...)
	b = append(b, 2, 0, 0, 0, 0, 1, 8, 0)
	ip := len(b)
	b = append(b, 0x45, 0, 0, byte(ipLen+ports+len(rest)), 0, 0, 0x40, 0, 64, proto, 0, 0)
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(b[ip+10:], checksum(b[ip:], 0))
	transport := len(b)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, rest...)
	if proto == unix.IPPROTO_TCP {
		pseudo := uint32(proto) + uint32(len(b)-transport)
		for i := ip + 12; i < ip+ipLen; i += 2 {
			pseudo += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		binary.BigEndian.PutUint16(b[transport+16:], checksum(b[transport:], pseudo))
	}
	return b
}

// checksum is the Internet checksum of an even number of bytes.
func checksum(b []byte, sum uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
