package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Packets are sent on the client's end of a node's veth pair. The kernel processes each in the node during the client's system
// call, so the time of sending includes all work of the node: receiving, connection tracking, the rules, forwarding. Comparisons
// separate the parts: with another kind of packets, and with other nodes without a proxy. Bursts of all kinds take turns within
// milliseconds, and a cost is the median of the differences of two bursts of the same turn: other load of the machine affects
// both.

// perBurst is the number of packets in a burst.
const perBurst = 64

// echoPort is the UDP port on which a pod replies: for established flows.
const echoPort = 5353

// echoVIP is the cluster IP of the Service for established flows.
func (z size) echoVIP() netip.Addr { return z.addr(96, 255, 1) }

// affinityVIP is the cluster IP of a Service with session affinity. It has 10 or 1,000 endpoints.
func (z size) affinityVIP(endpoints int) netip.Addr {
	return z.addr(96, 255, map[int]byte{10: 2, 1000: 3}[endpoints])
}

// connectVIP is the cluster IP of the Service for connections to a real server.
func (z size) connectVIP() netip.Addr { return z.addr(96, 255, 4) }

func (w *world) putPacketServices() {
	pod := w.lab.Pods[0].Addrs()[w.family]
	echo := serviceOf(special("echo"), w.echoVIP())
	echo.Spec.Ports[0].Protocol, echo.Spec.Ports[0].Port = corev1.ProtocolUDP, echoPort
	w.store.Put(echo)
	w.store.Put(sliceOf(echo, 1, echoPort, []netip.Addr{pod}))
	connect := serviceOf(special("connect"), w.connectVIP())
	w.store.Put(connect)
	w.store.Put(sliceOf(connect, 1, endpointPort, []netip.Addr{pod}))
	for _, n := range []int{10, 1000} {
		s := serviceOf(special(fmt.Sprintf("affinity-%d", n)), w.affinityVIP(n))
		timeout := int32(10800)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		w.store.Put(s)
		var addrs []netip.Addr
		for e := range n {
			addrs = append(addrs, w.addr(119, byte(e/250), byte(1+e%250)))
		}
		for i := 0; i*perSlice < n; i++ {
			w.store.Put(sliceOf(s, i+1, endpointPort, addrs[i*perSlice:min(n, (i+1)*perSlice)]))
		}
	}
}

// place is one of the nodes that packets pass.
type place uint8

const (
	// atProxy is the proxy's node.
	atProxy place = iota
	// atBare is a node without any rules.
	atBare
	// atTracked is a node that tracks connections, without rules that match a packet.
	atTracked
	// atSingle is a node with a single rule for each kind of packets: the minimum for address translation.
	atSingle
	places
)

// rules returns the rules of the nodes without a proxy.
func (p place) rules(w *world) string {
	ip := w.family.Keyword()
	switch p {
	case atTracked:
		return "table " + ip + " tracked {\n chain unused {\n  ct state new\n }\n}\n"
	case atSingle:
		return fmt.Sprintf(`table %s single {
 chain prerouting {
  type nat hook prerouting priority dstnat
  %s daddr %s udp dport %d dnat to %s
  %s daddr %s tcp dport %d dnat to %s
 }
 chain postrouting {
  type nat hook postrouting priority srcnat
  meta l4proto udp ct status dnat masquerade fully-random
 }
}
`, ip, ip, w.echoVIP(), echoPort, netip.AddrPortFrom(w.lab.Pods[0].Addrs()[w.family], echoPort),
			ip, serviceCIDRs[w.family], servicePort, netip.AddrPortFrom(w.endpoint(0), endpointPort))
	}
	return ""
}

// stream is a kind of packets at one of the nodes.
type stream struct {
	quantity
	at place
	// frame returns a packet.
	frame func(t *timer, s *site) []byte
}

var streams = []stream{
	{establishedDirect, atProxy, (*timer).ofFlow},
	{establishedBare, atBare, (*timer).ofFlow},
	{establishedTracked, atTracked, (*timer).ofFlow},
	{establishedSingle, atSingle, (*timer).ofFlow},
	{establishedService, atProxy, (*timer).ofServiceFlow},
	{establishedServiceSingle, atSingle, (*timer).ofServiceFlow},
	{newDirect, atProxy, (*timer).toEndpoint},
	{newBare, atBare, (*timer).toEndpoint},
	{newTracked, atTracked, (*timer).toEndpoint},
	{newSingle, atSingle, (*timer).toEndpoint},
	{newService, atProxy, (*timer).toService},
	{newServiceSingle, atSingle, (*timer).toService},
	{newAffinity10, atProxy, func(t *timer, s *site) []byte { return t.syn(s, t.affinityVIP(10), servicePort) }},
	{newAffinity1000, atProxy, func(t *timer, s *site) []byte { return t.syn(s, t.affinityVIP(1000), servicePort) }},
}

// timer measures the packets of streams at sites. The field at of a stream is the index of its site.
type timer struct {
	*world
	streams []stream
	sites   []*site
	// connections counts the connections of all streams, so that all are different.
	connections int
}

// newTimer returns a timer of all streams, without sites.
func newTimer(w *world) *timer {
	return &timer{world: w, streams: streams, sites: make([]*site, places)}
}

// measurePackets measures a number of packets of each stream.
func measurePackets(ctx context.Context, w *world, packets int, f *Figures) error {
	log.Printf("%s, %s: packets", w.size, f.Program)
	t := newTimer(w)
	defer t.close()
	for p := range places {
		if err := t.open(ctx, p); err != nil {
			return err
		}
	}
	bursts := &Figures{Values: map[quantity][]float64{}}
	if err := t.time(ctx, packets/perBurst, bursts); err != nil {
		return err
	}
	for _, s := range t.sites {
		if err := s.allArrived(ctx); err != nil {
			return err
		}
	}
	f.addCosts(bursts)
	return nil
}

// addCosts records the cost of a packet of each stream, and all extras: the median, and its 95 % confidence range. The values of
// all bursts would be ten thousand.
func (f *Figures) addCosts(bursts *Figures) {
	for _, s := range streams {
		if v, ok := bursts.median(s.quantity); ok {
			f.add(s.quantity, v)
		}
	}
	for _, e := range extras {
		list := e.differences(bursts)
		n := len(list)
		if n == 0 {
			continue
		}
		aside := int(0.98 * math.Sqrt(float64(n)))
		for _, i := range []int{max(0, n/2-aside), n / 2, min(n-1, n/2+aside)} {
			f.add(quantity(e.name), list[i])
		}
	}
}

// differences returns the differences within each round, sorted.
func (e extra) differences(bursts *Figures) []float64 {
	more, less := bursts.Values[e.more], bursts.Values[e.less]
	list := make([]float64, min(len(more), len(less)))
	for i := range list {
		list[i] = more[i] - less[i]
	}
	slices.Sort(list)
	return list
}

// median returns the median difference within each round, and false without a round.
func (e extra) median(bursts *Figures) (float64, bool) {
	list := e.differences(bursts)
	if len(list) == 0 {
		return 0, false
	}
	return list[len(list)/2], true
}

// time sends a burst of every stream in each round. It discards the first round: caches are cold.
func (t *timer) time(ctx context.Context, rounds int, f *Figures) error {
	const between = 8
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := range 1 + rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, i := range rand.Perm(len(t.streams)) {
			each, err := t.burst(&t.streams[i])
			if err != nil {
				return err
			}
			if n > 0 {
				f.add(t.streams[i].quantity, each)
			}
		}
		if n%between == 0 {
			t.forget(ctx)
		}
	}
	return nil
}

// burst sends packets of a stream, and returns the seconds for each.
func (t *timer) burst(st *stream) (each float64, err error) {
	s := t.sites[st.at]
	var frames [perBurst][]byte
	for i := range frames {
		frames[i] = st.frame(t, s)
	}
	start := time.Now()
	for _, frame := range frames {
		if _, err := unix.Write(s.socket, frame); err != nil {
			return 0, fmt.Errorf("send packets: %w", err)
		}
	}
	each = time.Since(start).Seconds() / perBurst
	s.sent += perBurst
	return each, nil
}

// forget deletes the conntrack entries of bursts on the nodes, except the established flows. With UDP Services, there
// are no such flows.
func (t *timer) forget(ctx context.Context) {
	which := []string{"-D", "-f", strings.ToLower(t.family.String()), "-p", "tcp", "--state", "SYN_SENT"}
	if t.udp {
		which = []string{"-F"}
	}
	for _, s := range t.sites {
		_ = s.lab.Node.Command(ctx, "conntrack", which...).Run() // without entries, conntrack fails
	}
}

// site is a node with its client and a pod.
type site struct {
	lab *lab.Lab
	// own is true if the lab only serves the packets.
	own bool
	// socket sends frames on the sender's veth; node is their destination.
	socket int
	node   net.HardwareAddr
	// flow and serviceFlow are packets of established flows.
	flow, serviceFlow []byte
	// sent is the number of sent packets.
	sent int
	stop []func()
}

// open prepares a node.
func (t *timer) open(ctx context.Context, p place) (err error) {
	s := &site{lab: t.world.lab, socket: -1}
	if p != atProxy {
		if s.lab, err = lab.New(packetLab); err != nil {
			return err
		}
		s.own = true
	}
	t.sites[p] = s
	if rules := p.rules(t.world); rules != "" {
		if err := load(ctx, s.lab.Node, rules); err != nil {
			return err
		}
	}
	if err := s.connect(); err != nil {
		return err
	}
	if err := t.establish(ctx, s, p); err != nil {
		return err
	}
	return s.deafen(ctx)
}

// addSite adds a node without rules: that of a lab, or a new one.
func (t *timer) addSite(ctx context.Context, l *lab.Lab) (_ *site, err error) {
	s := &site{lab: l, own: l == nil, socket: -1}
	if s.own {
		if s.lab, err = lab.New(packetLab); err != nil {
			return nil, fmt.Errorf("make network namespaces: %w", err)
		}
	}
	t.sites, t.world.lab = append(t.sites, s), s.lab
	return s, errors.Join(s.connect(), s.deafen(ctx))
}

// connect prepares the sender.
func (s *site) connect() error {
	if err := s.lab.Node.Do(s.readNode); err != nil {
		return err
	}
	return s.sender().Do(s.openSocket)
}

// deafen adds the rules at the ends.
func (s *site) deafen(ctx context.Context) error {
	for _, h := range s.ends() {
		if err := load(ctx, h, deaf); err != nil {
			return err
		}
		s.stop = append(s.stop, func() {
			_ = h.Command(context.WithoutCancel(ctx), "nft", "delete table inet deaf").Run() // the lab is removed anyway
		})
	}
	return nil
}

// packetLab has a second client, which sends the packets. If a node forwards an IPv6 packet to the device of its arrival, Linux
// looks up the destination among all those for which it limits redirects (ip6_forward). That would be measured, too.
var packetLab = lab.Config{Pods: 1, Clients: 2}

// sender returns the host that sends the packets.
func (s *site) sender() *lab.Host { return s.lab.Clients[1] }

// ends returns the hosts that receive packets: flows lead to the pod, and unused endpoints to the destination of the node's
// default route.
func (s *site) ends() []*lab.Host { return []*lab.Host{s.lab.Pods[0], s.lab.Client} }

// deaf are the rules at the ends: after one reply, they drop packets, so that the ends send no rejections. They count packets of
// clients, also those that the node masquerades.
const deaf = `table inet deaf {
 chain prerouting {
  type filter hook prerouting priority -400; policy drop
  ip daddr 10.96.0.0/16 drop
  ip6 daddr fd00:10:96::/112 drop
  ip saddr 10.200.0.0/16 counter
  ip6 saddr fd00:10:200::/112 counter
  ip saddr 192.0.2.1 tcp dport 8080 counter
  ip6 saddr 2001:db8::1 tcp dport 8080 counter
  udp dport 5353 counter
 }
}
`

// load adds rules to those of a host.
func load(ctx context.Context, h *lab.Host, rules string) error {
	cmd := h.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft -f: %w: %s", err, out)
	}
	return nil
}

// readNode runs on the node.
func (s *site) readNode() error {
	device, err := net.InterfaceByName(s.sender().Device)
	if err != nil {
		return err
	}
	s.node = device.HardwareAddr
	return nil
}

// openSocket runs on the sender.
func (s *site) openSocket() error {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	if s.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open a socket for packets: %w", err)
	}
	s.stop = append(s.stop, func() { _ = unix.Close(s.socket) }) // it holds no data
	if err := unix.SetsockoptInt(s.socket, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return err
	}
	return unix.Bind(s.socket, &unix.SockaddrLinklayer{Ifindex: eth0.Index})
}

// establish opens the flows of a site.
func (t *timer) establish(ctx context.Context, s *site, p place) error {
	server, err := s.lab.Pods[0].Serve(inet.UDP, echoPort)
	if err != nil {
		return err
	}
	s.stop = append(s.stop, func() { _ = server.Close() }) // its socket is closed already
	if s.flow, err = t.established(ctx, s, s.lab.Pods[0].Addrs()[t.family]); err != nil {
		return err
	}
	if p == atProxy || p == atSingle {
		s.serviceFlow, err = t.established(ctx, s, t.echoVIP())
	}
	return err
}

// established opens a UDP flow, awaits a reply, and returns another packet of the flow.
func (t *timer) established(ctx context.Context, s *site, addr netip.Addr) ([]byte, error) {
	to := netip.AddrPortFrom(addr, echoPort)
	conn, err := s.sender().Dial(ctx, inet.UDP, to)
	if err != nil {
		return nil, err
	}
	s.stop = append(s.stop, func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return nil, err
	}
	if _, err = conn.Write([]byte("hello\n")); err == nil {
		_, err = conn.Read(make([]byte, 1500))
	}
	if err != nil {
		return nil, fmt.Errorf("no answer from %s: %w", to, err)
	}
	from := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	return s.packet(unix.IPPROTO_UDP, from, to, []byte{0, 12, 0, 0, 'h', 'i', '!', '\n'}), nil
}

// allArrived returns an error if packets did not arrive at their ends: on other ways they have another cost.
func (s *site) allArrived(ctx context.Context) error {
	arrived := 0
	for _, h := range s.ends() {
		out, err := h.Command(ctx, "nft", "list", "table", "inet", "deaf").Output()
		if err != nil {
			return fmt.Errorf("count packets: %w", err)
		}
		for _, counter := range counters.FindAllSubmatch(out, -1) {
			n, err := strconv.Atoi(string(counter[1]))
			if err != nil {
				return fmt.Errorf("count packets: %w", err)
			}
			arrived += n
		}
	}
	const percent, enough = 100, 99
	if arrived*percent < s.sent*enough {
		return fmt.Errorf("%d of %d packets arrived", arrived, s.sent)
	}
	return nil
}

var counters = regexp.MustCompile(`counter packets ([0-9]+)`)

// close removes the hosts that only serve the packets.
func (t *timer) close() {
	for _, s := range t.sites {
		if s == nil {
			continue
		}
		for _, stop := range s.stop {
			stop()
		}
		if s.own {
			_ = s.lab.Close() // the rest is deleted with the process
		}
	}
}

// ofFlow returns a packet of the flow to the pod.
func (t *timer) ofFlow(s *site) []byte { return s.flow }

// ofServiceFlow returns a packet of the flow to a Service.
func (t *timer) ofServiceFlow(s *site) []byte { return s.serviceFlow }

// toEndpoint returns the first packet of a connection to a random endpoint of a random Service.
func (t *timer) toEndpoint(s *site) []byte {
	return t.first(s, netip.AddrPortFrom(t.endpoint(rand.IntN(t.firstOf(t.services))), endpointPort))
}

// toService returns the first packet of a connection to a random Service.
func (t *timer) toService(s *site) []byte {
	return t.first(s, t.frontend(rand.IntN(t.services)))
}

// first returns the first packet of a connection of a random client.
func (t *timer) first(s *site, to netip.AddrPort) []byte {
	if t.udp {
		datagram := []byte{0, 12, 0, 0, 'h', 'i', '!', '\n'}
		return s.packet(unix.IPPROTO_UDP, t.client(), to, datagram)
	}
	return t.syn(s, to.Addr(), to.Port())
}

// client returns the source of a new connection; no two have the same.
func (t *timer) client() netip.AddrPort {
	const clients, firstPort, ports = 1000, 1024, 60000
	t.connections++
	client := t.connections % clients
	return netip.AddrPortFrom(t.addr(200, byte(client/250), byte(1+client%250)),
		uint16(firstPort+t.connections/clients%ports))
}

// syn returns the first packet of a TCP connection.
func (t *timer) syn(s *site, addr netip.Addr, port uint16) []byte {
	const seq, ack, offsetAndFlags, windowAndMore = 4, 4, 2, 6
	rest := make([]byte, seq+ack+offsetAndFlags+windowAndMore)
	rest[8], rest[9] = 5<<4, 2
	rest[10] = 0x40
	return s.packet(unix.IPPROTO_TCP, t.client(), netip.AddrPortFrom(addr, port), rest)
}

// packet returns an Ethernet frame for the node, with the ports and the rest of the transport header.
func (s *site) packet(proto byte, from, to netip.AddrPort, rest []byte) []byte {
	const portsLen = 4
	length := byte(portsLen + len(rest))
	b := append([]byte{}, s.node...)
	b = append(b, 2, 0, 0, 0, 0, 1)
	v4 := from.Addr().Is4()
	if v4 {
		const ipLen = 20
		b = append(b, 8, 0, 0x45, 0, 0, ipLen+length, 0, 0, 0x40, 0, 64, proto, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, length, proto, 64)
	}
	addrs := len(b)
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	if v4 {
		binary.BigEndian.PutUint16(b[addrs-2:], checksum(b[addrs-12:], 0))
	}
	transport := len(b)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, rest...)
	field := transport + map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[proto]
	binary.BigEndian.PutUint16(b[field:], checksum(b[addrs:], uint32(proto)+uint32(length)))
	return b
}

// checksum returns the Internet checksum of an even number of bytes.
func checksum(b []byte, sum uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
