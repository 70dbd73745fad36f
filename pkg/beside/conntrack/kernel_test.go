package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/netlink"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// enterNamespace gives the test its own network namespace. In it, pod addresses are local, and the default route
// leads to a link without a receiver. The test's thread is not reused.
func enterNamespace(t testing.TB) {
	t.Helper()
	lab.EnterNamespace(t)
	for _, args := range []string{
		"link set lo up", "link add out type veth peer name nowhere", "link set out arp off up", "link set nowhere arp off up",
		"addr add 192.0.2.1/24 dev out", "-6 addr add 2001:db8::1/64 dev out nodad",
		"route add default dev out", "-6 route add default dev out",
		"route add local 10.244.0.0/16 dev lo",
		"-6 addr add fd00:10:244::a/128 dev lo nodad", "-6 addr add fd00:10:244::b/128 dev lo nodad",
	} {
		run(t, "ip", strings.Fields(args)...)
	}
	// The kernel sets up the link and the addresses asynchronously, and drops packets to them until then.
	await(t, "state UP", "ip", "link", "show", "out")
	for _, local := range []string{"fd00:10:244::a", "fd00:10:244::b", "2001:db8::1"} {
		await(t, "local "+local+" ", "ip", "-6", "route", "show", "table", "local")
	}
	run(t, "nft", "add table inet nowhere; add chain inet nowhere c { type filter hook prerouting priority -400; }; "+
		"add rule inet nowhere c iifname nowhere drop")
}

var run = lab.Run

// await runs a command until its output contains a text.
func await(t testing.TB, want, name string, args ...string) {
	t.Helper()
	lab.Eventually(t, 10*time.Second, func() error {
		if got := run(t, name, args...); !strings.Contains(got, want) {
			return fmt.Errorf("no %q in %s", want, got)
		}
		return nil
	})
}

// A node is a namespace with the program's rules and one Service.
type node struct {
	testing.TB
	kernel  *apply.Kernel
	planner *plan.Planner
	table   *Netlink
}

var nodeAddresses = [2]netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}

func newNode(t testing.TB) *node {
	t.Helper()
	enterNamespace(t)
	kernel, err := apply.Open()
	lab.Must(t, err)
	t.Cleanup(func() { kernel.Close() })
	n := &node{TB: t, kernel: kernel, table: openTable(t), planner: plan.New(plan.Options{
		Families: inet.Families[:], MasqueradeMark: 0x4000,
	})}
	for _, f := range inet.Families {
		n.planner.SetNodeAddresses(f, []netip.Addr{nodeAddresses[f]})
	}
	return n
}

func openTable(t testing.TB) *Netlink {
	t.Helper()
	table, err := OpenNetlink()
	lab.Must(t, err)
	t.Cleanup(func() { table.Close() })
	return table
}

var service = types.NamespacedName{Namespace: "default", Name: "dns"}

// frontends returns a cluster IP, a load-balancer IP and a node port of a family.
func frontends(f inet.Family, p inet.Protocol) []model.Frontend {
	at := [2][]string{
		{"10.96.0.1:53", "10.96.0.2:53", "0.0.0.0:30053"},
		{"[fd00:10:96::1]:53", "[fd00:10:96::2]:53", "[::]:30053"},
	}[f]
	var out []model.Frontend
	for i, kind := range []model.Kind{model.ClusterIP, model.LoadBalancer, model.NodePort} {
		k := key(p, at[i])
		k.Family = f
		out = append(out, model.Frontend{Key: k, Kind: kind})
	}
	return out
}

// destinations returns the addresses at which clients reach the frontends.
func destinations(f inet.Family) []netip.AddrPort {
	var out []netip.AddrPort
	for _, fe := range frontends(f, inet.UDP) {
		to := fe.Addr
		if !to.IsValid() {
			to = nodeAddresses[f]
		}
		out = append(out, netip.AddrPortFrom(to, fe.Port))
	}
	return out
}

// serve programs the Service with endpoints of one family and returns the state for the reconciler.
func (n *node) serve(f inet.Family, p inet.Protocol, endpoints ...netip.AddrPort) *Desired {
	n.Helper()
	return n.restrict(f, p, nil, endpoints...)
}

// restrict does the same as serve, with source ranges for the load-balancer IP; nil permits all sources.
func (n *node) restrict(f inet.Family, p inet.Protocol, allowed []model.AddrRange, endpoints ...netip.AddrPort) *Desired {
	n.Helper()
	d := &Desired{}
	sp := &model.ServicePort{
		Name: model.PortName{NamespacedName: service}, Protocol: p, Family: f, Cluster: endpoints,
		HasEndpoints: len(endpoints) > 0, Frontends: frontends(f, p),
	}
	if allowed != nil {
		sp.Frontends[1].Sources = &model.Sources{Allowed: allowed}
	}
	n.planner.Set(service, &model.Service{Name: service, Ports: []*model.ServicePort{sp}})
	if _, err := n.kernel.Sync(n.planner); err != nil {
		n.Fatal(err)
	}
	for _, fe := range sp.Frontends {
		d.Frontend(fe.Key, plan.FlowPolicy{Endpoints: endpoints, Sources: fe.Sources})
	}
	d.Nodes[f] = []netip.Addr{nodeAddresses[f]}
	return d
}

// served programs one UDP endpoint. It returns the endpoint, and clients that have received a reply from it.
func (n *node) served(f inet.Family) (endpoint netip.AddrPort, clients []*net.UDPConn) {
	n.Helper()
	endpoint = n.pod(f, 10)
	n.serve(f, inet.UDP, endpoint)
	clients = n.clients(f)
	n.expect(clients, endpoint.String())
	return endpoint, clients
}

// withdraw deletes the Service.
func (n *node) withdraw() {
	n.Helper()
	n.planner.Set(service, nil)
	if _, err := n.kernel.Sync(n.planner); err != nil {
		n.Fatal(err)
	}
}

// pass deletes stale flows and checks their number.
func (n *node) pass(f inet.Family, d *Desired, deleted int) {
	n.Helper()
	var out Outcome
	for _, s := range d.selections() {
		part, err := n.table.Delete(n.Context(), f, s, d.Stale)
		lab.Must(n, err)
		out.add(part)
	}
	if out.Deleted != deleted {
		n.Errorf("%d flows deleted of %d seen, want %d\n%s", out.Deleted, out.Seen, deleted, n.entries())
	}
}

func (n *node) entries() string {
	if _, err := exec.LookPath("conntrack"); err != nil {
		return ""
	}
	return run(n, "conntrack", "-L") + run(n, "conntrack", "-L", "-f", "ipv6")
}

// pod starts a server that replies to every packet with its own address.
func (n *node) pod(f inet.Family, i int) netip.AddrPort {
	n.Helper()
	at := addrPort([...]string{fmt.Sprintf("10.244.0.%d:5353", i), fmt.Sprintf("[fd00:10:244::%x]:5353", i)}[f])
	n.answer(at)
	return at
}

// answer starts a server that replies to every packet with its own address, at.
func (n *node) answer(at netip.AddrPort) {
	n.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	lab.Must(n, err)
	n.Cleanup(func() { conn.Close() })
	go func() {
		var b [16]byte
		for {
			_, from, err := conn.ReadFromUDPAddrPort(b[:])
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort([]byte(at.String()), from)
			}
		}
	}()
}

// clients opens a socket for every frontend.
func (n *node) clients(f inet.Family) []*net.UDPConn {
	n.Helper()
	var out []*net.UDPConn
	for _, to := range destinations(f) {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		lab.Must(n, err)
		n.Cleanup(func() { conn.Close() })
		out = append(out, conn)
	}
	return out
}

const (
	refused  = "refused"
	noAnswer = "no answer"
)

// ask sends one packet and returns the server that replied.
func (n *node) ask(c *net.UDPConn, patience time.Duration) string {
	n.Helper()
	// The sender gets this error if the rules reject or drop a local packet.
	if _, err := c.Write([]byte("who")); err != nil && !errors.Is(err, unix.EPERM) {
		n.Fatalf("write to %s: %v", c.RemoteAddr(), err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 64)
	size, err := c.Read(b)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return refused
	case err != nil:
		return noAnswer
	}
	return string(b[:size])
}

func (n *node) expect(clients []*net.UDPConn, want string) {
	n.Helper()
	patience := 5 * time.Second
	if want == noAnswer {
		patience = 50 * time.Millisecond
	}
	for _, c := range clients {
		if got := n.ask(c, patience); got != want {
			n.Errorf("packet to %s: %s, want %s\n%s", c.RemoteAddr(), got, want, n.entries())
		}
	}
}

// trackBefore adds nat chains of another program. So before the program's rules exist, the kernel tracks connections
// and decides about their translation. (Without any nat chain, the kernel would evaluate nat chains that are added
// later for existing flows without replies. They could then reject a flow, but not translate it.)
func (n *node) trackBefore() {
	run(n, "nft", "add table inet other; add chain inet other c { type nat hook output priority -100; }; "+
		"add chain inet other d { type nat hook postrouting priority 100; }; add rule inet other c ct state new counter")
}

func forFamilies(t *testing.T, f func(n *node, f inet.Family)) {
	for _, family := range inet.Families {
		t.Run(family.String(), func(t *testing.T) { f(newNode(t), family) })
	}
}

func TestClientFromBeforeTheRulesIsServed(t *testing.T) {
	forFamilies(t, func(n *node, f inet.Family) {
		n.trackBefore()
		clients := n.clients(f)[:2]
		n.expect(clients, noAnswer)
		a := n.pod(f, 10)
		d := n.serve(f, inet.UDP, a)
		n.expect(clients, noAnswer)
		n.pass(f, d, len(clients))
		n.expect(clients, a.String())
	})
}

// Two kinds of flows are not stale. The first is a flow that a network plugin has translated, to a port of this node
// that is not a node port. The second is a flow to the number of a node port at another machine's address.
func TestForeignTranslationsAreLeftAlone(t *testing.T) {
	n := newNode(t)
	run(t, "nft", "add table ip portmap; add chain ip portmap out { type nat hook output priority -101; }; "+
		"add rule ip portmap out ip daddr 192.0.2.1 udp dport 8053 dnat to 10.244.0.12:5353; "+
		"add rule ip portmap out ip daddr 198.51.100.7 udp dport 30053 dnat to 10.244.0.12:5353")
	f := inet.IPv4
	a, b, plugin := n.pod(f, 10), n.pod(f, 11), n.pod(f, 12)
	n.serve(f, inet.UDP, a)
	clients := n.clients(f)
	n.expect(clients, a.String())
	var others []*net.UDPConn
	for _, to := range []string{"192.0.2.1:8053", "198.51.100.7:30053"} {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addrPort(to)))
		lab.Must(t, err)
		defer conn.Close()
		others = append(others, conn)
	}
	n.expect(others, plugin.String())
	d := n.serve(f, inet.UDP, b)
	n.pass(f, d, len(clients))
	n.expect(clients, b.String())
	n.expect(others, plugin.String())
}

// Masquerading changes the destination of replies, not their source. So a pass still finds the endpoint of a
// masqueraded flow.
func TestMasqueradedClientFollows(t *testing.T) {
	n := newNode(t)
	run(t, "nft", "add table inet masq; add chain inet masq c { type nat hook postrouting priority 100; }; "+
		"add rule inet masq c ct status dnat masquerade")
	f := inet.IPv4
	a, b := n.pod(f, 10), n.pod(f, 11)
	n.serve(f, inet.UDP, a)
	clients := n.clients(f)
	n.expect(clients, a.String())
	n.pass(f, n.serve(f, inet.UDP, a, b), 0)
	n.pass(f, n.serve(f, inet.UDP, b), len(clients))
	n.expect(clients, b.String())
}

// sources returns the range of one address.
func sources(a netip.Addr) []model.AddrRange { return []model.AddrRange{{First: a, Last: a}} }

// A TCP connection without a reply to its SYN is in state new, too. If its source is no longer allowed, a repeated
// SYN does not reach the endpoint.
func TestSYNOfASourceThatIsNotAllowedAnyMore(t *testing.T) {
	forFamilies(t, func(n *node, f inet.Family) {
		at := addrPort([...]string{"10.244.0.10:5353", "[fd00:10:244::a]:5353"}[f])
		drop := fmt.Sprintf("add table inet endpoint; add chain inet endpoint c { type filter hook input priority 0; }; "+
			"add rule inet endpoint c %s daddr %s tcp dport 5353 drop", [...]string{"ip", "ip6"}[f], at.Addr())
		run(n, "nft", drop)
		here, elsewhere := sources(nodeAddresses[f]), sources(addr([...]string{"198.51.100.9", "2001:db8:9::9"}[f]))
		n.echo(at)
		n.restrict(f, inet.TCP, here, at)
		// The kernel repeats the SYN after a second.
		stopped, free := n.connect(destinations(f)[1]), n.connect(destinations(f)[0])
		n.pass(f, n.restrict(f, inet.TCP, here, at), 0)
		n.pass(f, n.restrict(f, inet.TCP, elsewhere, at), 1)
		run(n, "nft", "delete table inet endpoint")
		if !connected(free, 10*time.Second) {
			n.Error("the repeated SYN does not connect a client of the cluster IP")
		}
		if connected(stopped, 500*time.Millisecond) {
			n.Error("a repeated SYN connects a source that is no longer allowed")
		}
	})
}

// The endpoint of a TCP connection leaves before it replies. The repeated SYN reaches another endpoint.
func TestSYNToADepartedEndpoint(t *testing.T) {
	n := newNode(t)
	f, gone, other := inet.IPv4, addrPort("10.244.0.10:5353"), addrPort("10.244.0.11:5353")
	run(n, "nft", "add table ip endpoint; add chain ip endpoint c { type filter hook input priority 0; }; "+
		"add rule ip endpoint c ip daddr 10.244.0.10 tcp dport 5353 drop")
	n.echo(other)
	n.serve(f, inet.TCP, gone)
	client := n.connect(destinations(f)[0])
	n.pass(f, n.serve(f, inet.TCP, gone, other), 0)
	n.pass(f, n.serve(f, inet.TCP, other), 1)
	if !connected(client, 10*time.Second) {
		t.Errorf("the repeated SYN does not connect the client\n%s", n.entries())
	}
}

// connect starts a TCP connection, and returns its socket without waiting.
func (n *node) connect(to netip.AddrPort) int {
	n.Helper()
	family, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port())})
	if to.Addr().Is6() {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	} else {
		at.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	lab.Must(n, err)
	n.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Connect(fd, at); err != unix.EINPROGRESS {
		n.Fatalf("connect: %v, want that it is in progress", err)
	}
	return fd
}

// connected reports whether the connection is established within a time limit.
func connected(fd int, patience time.Duration) bool {
	events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	count, err := unix.Poll(events, int(patience/time.Millisecond))
	if err != nil || count != 1 {
		return false
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	return err == nil && errno == 0
}

// If a Service was deleted while no process ran, the new process finds its frontends in the earlier tables, and
// deletes its flows. It keeps a flow to another address of the same ServiceCIDR that another program has translated.
func TestClientOfServiceDeletedDuringDowntimeIsCutOff(t *testing.T) {
	forFamilies(t, func(n *node, f inet.Family) {
		another := addrPort([...]string{"10.96.0.200:53", "[fd00:10:96::200]:53"}[f])
		plugin := n.pod(f, 11)
		run(n, "nft", fmt.Sprintf("add table inet another; add chain inet another out { type nat hook output priority -101; }; "+
			"add rule inet another out %s daddr %s udp dport 53 dnat to %s", [...]string{"ip", "ip6"}[f], another.Addr(), plugin))
		foreign, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(another))
		lab.Must(n, err)
		n.Cleanup(func() { foreign.Close() })
		if got := n.ask(foreign, 5*time.Second); got != plugin.String() {
			n.Fatalf("%s replies to the other program's client, want %s", got, plugin)
		}
		_, clients := n.served(f)
		earlier, err := apply.EarlierUDP(inet.Families[:], "")
		if err != nil || len(earlier) != len(clients) {
			n.Fatalf("frontends of the earlier tables: %v, %v; want %d", earlier, err, len(clients))
		}
		n.withdraw()
		if now, err := apply.EarlierUDP(inet.Families[:], ""); err != nil || len(now) > 0 {
			n.Errorf("after the Service was deleted: %v, %v", now, err)
		}
		d := &Desired{}
		for _, k := range earlier {
			d.Gone(k)
		}
		d.Nodes[f] = []netip.Addr{nodeAddresses[f]}
		n.pass(f, d, len(clients))
		n.expect(clients[:2], noAnswer)
		n.expect(clients[2:], refused)
		left := false
		if _, err := n.table.Delete(n.Context(), f, UDP, func(flow *Flow) bool {
			left = left || flow.Destination == another
			return false
		}); err != nil || !left {
			n.Errorf("the other program's flow was deleted (%v)", err)
		}
		n.expect([]*net.UDPConn{foreign}, plugin.String())
	})
}

// If another process accepted a connection at the frontend's address before the rules existed, this connection is kept.
func TestUntranslatedTCPThatIsEstablishedIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.trackBefore()
	n.echo(addrPort("192.0.2.1:30053"))
	conn, err := net.Dial("tcp", "192.0.2.1:30053")
	lab.Must(t, err)
	defer conn.Close()
	n.echoes(conn)
	d := n.serve(inet.IPv4, inet.TCP, addrPort("10.244.0.10:5353"))
	n.pass(inet.IPv4, d, 0)
	n.echoes(conn)
}

func TestConnectFromBeforeTheRulesSucceeds(t *testing.T) {
	n := newNode(t)
	n.trackBefore()
	client := n.connect(destinations(inet.IPv4)[0])
	at := addrPort("10.244.0.10:5353")
	n.echo(at)
	d := n.serve(inet.IPv4, inet.TCP, at)
	n.pass(inet.IPv4, d, 1)
	// The kernel repeats the SYN after a second.
	if !connected(client, 10*time.Second) {
		t.Errorf("the repeated SYN does not connect the client\n%s", n.entries())
	}
}

func (n *node) echo(at netip.AddrPort) net.Listener {
	n.Helper()
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	lab.Must(n, err)
	n.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener
}

func (n *node) echoes(conn net.Conn) {
	n.Helper()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	sent, got := []byte("hello"), make([]byte, 5)
	if _, err := conn.Write(sent); err != nil {
		n.Fatalf("write to %s: %v", conn.RemoteAddr(), err)
	}
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(sent, got) {
		n.Fatalf("connection to %s echoed %q, %v", conn.RemoteAddr(), got, err)
	}
}

// insert adds entries to the kernel's table, translated to server if that is valid.
func insert(t testing.TB, n *Netlink, flows func(yield func(Flow, uint16) bool)) {
	t.Helper()
	const assured, confirmed, timeout = 1 << 2, 1 << 3, 7
	var b batch
	flush := func() {
		if b.count == 0 {
			return
		}
		if refused, err := sendBatch(n.write, &b); err != nil || refused > 0 {
			t.Fatalf("insert entries: %d refused: %v", refused, err)
		}
		b.reset()
	}
	for f, zone := range flows {
		b.last = b.Begin(unix.NFNL_SUBSYS_CTNETLINK<<8, unix.NLM_F_CREATE|unix.NLM_F_EXCL, 0,
			inet.FamilyOf(f.Source.Addr()).Number())
		appendTuple(&b.Encoder, attrTupleOrig, f.Protocol, f.Source, f.Destination)
		appendTuple(&b.Encoder, attrTupleReply, f.Protocol, f.Server, f.Source)
		b.Uint32(attrStatus, statusReplied|assured|confirmed)
		b.Uint32(timeout, 3600)
		if zone != 0 {
			b.Attr(attrZone, binary.BigEndian.AppendUint16(nil, zone))
		}
		if f.Protocol == inet.TCP {
			appendEstablished(&b.Encoder)
		}
		b.Finish(b.last)
		if b.count++; b.count == 128 {
			flush()
		}
	}
	flush()
}

func appendEstablished(e *netlink.Encoder) {
	info := e.Nest(attrProtoInfo)
	tcp := e.Nest(protoInfoTCP)
	e.Attr(protoTCPState, []byte{tcpEstablished})
	e.Unnest(tcp)
	e.Unnest(info)
}

// synthetic yields entries of many services. Each service has the given number of entries, whose endpoints are ten by
// turns.
func synthetic(p inet.Protocol, services, each int) func(yield func(Flow, uint16) bool) {
	return func(yield func(Flow, uint16) bool) {
		for i := range services {
			for j := range each {
				f := Flow{
					Protocol: p, Source: netip.AddrPortFrom(syntheticClient, uint16(1024+j)),
					Destination: syntheticVIP(i), Server: syntheticPod(i, j%10),
				}
				if !yield(f, 0) {
					return
				}
			}
		}
	}
}

var syntheticClient = addr("10.245.0.1")

func syntheticVIP(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 53)
}

func syntheticPod(i, e int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte((i*10 + e) >> 8), byte(i*10 + e)}), 5353)
}

func TestManyEntries(t *testing.T) {
	enterNamespace(t)
	table := openTable(t)
	const services, each = 40, 100
	insert(t, table, synthetic(inet.UDP, services, each))
	insert(t, table, synthetic(inet.TCP, services, each))
	d := changed(services)
	for _, tc := range []struct {
		name       string
		selection  Selection
		unfiltered bool
		seen       int
		deleted    int
	}{
		{name: "kernel filters", selection: UDP, seen: services * each, deleted: services * each / 10},
		{name: "again", selection: UDP, seen: services * each * 9 / 10},
		{name: "old kernel", selection: UDP, unfiltered: true, seen: services*each*9/10 + services*each},
		{name: "all protocols", seen: services*each*9/10 + services*each},
		{name: "unreplied", selection: Unreplied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table.unfiltered = tc.unfiltered
			deletes(t, table, tc.selection, d.Stale, tc.seen, tc.deleted)
		})
	}
}

// deletes deletes the stale entries of IPv4 in a part of the table, and checks the numbers of seen and deleted ones.
func deletes(t *testing.T, table *Netlink, s Selection, stale func(*Flow) bool, seen, deleted int) {
	t.Helper()
	out, err := table.Delete(t.Context(), inet.IPv4, s, stale)
	if want := (Outcome{Seen: seen, Deleted: deleted}); err != nil || out != want {
		t.Errorf("got %+v, %v; want %d seen, %d deleted", out, err, seen, deleted)
	}
}

func all(*Flow) bool { return true }

// With the selection TCP, an entry no longer exists when the next one is read.
func TestEntriesOfTCPAreDeletedAtOnce(t *testing.T) {
	enterNamespace(t)
	table := openTable(t)
	const each = 300
	insert(t, table, synthetic(inet.UDP, 1, each))
	insert(t, table, synthetic(inet.TCP, 1, each))
	var last *Flow
	deletes(t, table, TCP, func(f *Flow) bool {
		if last != nil {
			left, err := Lookup(inet.TCP, last.Source, last.Destination)
			if lab.Must(t, err); left != nil {
				t.Errorf("the entry of %s exists", last.Source)
			}
		}
		if f.Expires == 0 || f.Expires > 3600 {
			t.Errorf("the entry expires in %d s", f.Expires)
		}
		last = &Flow{Source: f.Source, Destination: f.Destination}
		return true
	}, each, each)
}

// selection returns All or UDP.
func selection(all bool) Selection {
	if all {
		return All
	}
	return UDP
}

// list returns the endpoints of a synthetic service, without the first ones.
func list(i, without int) (out []netip.AddrPort) {
	for e := without; e < 10; e++ {
		out = append(out, syntheticPod(i, e))
	}
	return out
}

func TestEntryInAnotherZone(t *testing.T) {
	enterNamespace(t)
	table := openTable(t)
	insert(t, table, func(yield func(Flow, uint16) bool) {
		f := flow(inet.UDP, "10.96.0.1:53", "10.244.0.10:53")
		_ = yield(f, 0) && yield(f, 7)
	})
	deletes(t, table, UDP, func(f *Flow) bool { return f.Zone == 7 }, 2, 1)
	deletes(t, table, UDP, func(f *Flow) bool { return f.Zone == 0 }, 1, 1)
}

// If an entry expires before its deletion, it does not count as deleted, and this is no error.
func TestExpiredEntry(t *testing.T) {
	enterNamespace(t)
	table, other := openTable(t), openTable(t)
	insert(t, table, func(yield func(Flow, uint16) bool) { yield(flow(inet.UDP, "10.96.0.1:53", "10.244.0.10:53"), 0) })
	deletes(t, table, UDP, func(*Flow) bool {
		deletes(t, other, UDP, all, 1, 1)
		return true
	}, 1, 0)
}

// If the receive buffer is small and cannot be enlarged, the kernel drops errors, but processes all deletions.
func TestLostErrors(t *testing.T) {
	enterNamespace(t)
	table, other := openTable(t), openTable(t)
	// The kernel raises the size to its minimum, which a few errors fill.
	lab.Must(t, unix.SetsockoptInt(table.write.FD(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	const services, each = 10, 100
	insert(t, other, synthetic(inet.UDP, services, each))
	gone := false
	out, err := table.Delete(t.Context(), inet.IPv4, UDP, func(f *Flow) bool {
		// The entries of all services but one expire before the first deletion is sent.
		if !gone {
			gone = true
			if _, err := other.Delete(t.Context(), inet.IPv4, UDP, func(f *Flow) bool { return f.Destination != syntheticVIP(0) }); err != nil {
				t.Error(err)
			}
		}
		return true
	})
	if err != nil {
		t.Errorf("got %+v, %v; want no error", out, err)
	}
	deletes(t, other, UDP, all, 0, 0)
}

// If the entry to delete has expired, and a new one with the same addresses and ports exists, the new entry is kept.
func TestEntryOfAnotherIDStays(t *testing.T) {
	enterNamespace(t)
	table := openTable(t)
	f := flow(inet.UDP, "10.96.0.1:53", "10.244.0.10:53")
	insert(t, table, func(yield func(Flow, uint16) bool) { yield(f, 0) })
	var tuple netlink.Encoder
	appendTuple(&tuple, attrTupleOrig, f.Protocol, f.Source, f.Destination)
	e := entry{tuple: tuple.Buf[unix.SizeofNlAttr:], id: []byte{1, 2, 3, 4}}
	table.batch = batch{family: unix.NFPROTO_IPV4}
	table.batch.add(e)
	var out Outcome
	if err := table.deleteBatch(&out); err != nil || out.Deleted != 0 {
		t.Errorf("got %+v, %v; want 0 deleted", out, err)
	}
	deletes(t, table, UDP, all, 1, 1)
}

// unrelated yields entries of connections to other machines, which belong to no Service.
func unrelated(p inet.Protocol, n int) func(yield func(Flow, uint16) bool) {
	return func(yield func(Flow, uint16) bool) {
		for i := range n {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), 443)
			if !yield(Flow{Protocol: p, Source: addrPort("10.245.0.2:40000"), Destination: at, Server: at}, 0) {
				return
			}
		}
	}
}

// changed returns the state of services that have lost the first of their ten endpoints.
func changed(services int) *Desired {
	d := &Desired{}
	for i := range services {
		d.Frontend(key(inet.UDP, syntheticVIP(i).String()), serving(list(i, 1)))
	}
	return d
}

// allocated returns the bytes that f allocates: an upper bound of its memory.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// For 100,000 entries and 1,000 services that have lost an endpoint, a pass reads the table once. Its memory has the
// same limit for 1,000 and for 100,000 entries.
func TestHundredThousandEntriesAreOnePass(t *testing.T) {
	const services, most = 1000, 512 << 10
	each := 100
	if testing.Short() {
		each = 50 // a machine with 2 GiB tracks at most 65,536 connections
	}
	for _, tc := range []struct {
		name          string
		ours, foreign int
		all           bool
		seen, deleted int
	}{
		{name: "few", ours: 1, seen: services, deleted: services},
		{name: "all are the services'", ours: each, seen: services * each, deleted: services * each / 10},
		// In all cases except the last one, the kernel skips TCP entries.
		{name: "mostly unrelated", ours: 1, foreign: services * (each - 1) / 2, seen: services + services*(each-1)/2, deleted: services},
		{
			name: "at the start", ours: 1, foreign: services * (each - 1) / 2, all: true,
			seen: services + services*(each-1), deleted: services,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			enterNamespace(t)
			filler := openTable(t)
			insert(t, filler, synthetic(inet.UDP, services, tc.ours))
			insert(t, filler, unrelated(inet.UDP, tc.foreign))
			insert(t, filler, unrelated(inet.TCP, tc.foreign))
			d := changed(services)
			var out Outcome
			var table *Netlink
			bytes := allocated(func() {
				table = openTable(t)
				var err error
				if out, err = table.Delete(t.Context(), inet.IPv4, selection(tc.all), d.Stale); err != nil {
					t.Fatal(err)
				}
			})
			if out.Seen != tc.seen || out.Deleted != tc.deleted || out.Partial {
				t.Errorf("got %+v, want %d seen, %d deleted", out, tc.seen, tc.deleted)
			}
			if table.read.Seq != 1 {
				t.Errorf("the table was read %d times, want once", table.read.Seq)
			}
			t.Logf("%d entries, %d deleted, %d KiB allocated", out.Seen, out.Deleted, bytes>>10)
			if bytes > most {
				t.Errorf("%d bytes were allocated, want at most %d", bytes, most)
			}
		})
	}
}

// BenchmarkPass reads tables of several sizes. Each of 1,000 UDP services has lost one of ten endpoints.
//
//   - ours: all entries belong to the services, and every tenth entry is deleted.
//   - foreign: all entries except 1,000 are unrelated, half of them UDP, half TCP.
//   - start: the same, but the pass includes all protocols, as after the first sync.
//
// The benchmark skips tables that are larger than nf_conntrack_max.
func BenchmarkPass(b *testing.B) {
	const services = 1000
	limit, err := strconv.Atoi(strings.TrimSpace(run(b, "sysctl", "-n", "net.netfilter.nf_conntrack_max")))
	lab.Must(b, err)
	for _, tc := range []struct {
		name          string
		ours, foreign int
		all           bool
	}{
		{name: "ours/10000", ours: 10},
		{name: "ours/100000", ours: 100},
		{name: "ours/200000", ours: 200},
		{name: "ours/1000000", ours: 1000},
		{name: "foreign/10000", ours: 1, foreign: 9_000},
		{name: "foreign/100000", ours: 1, foreign: 99_000},
		{name: "foreign/200000", ours: 1, foreign: 199_000},
		{name: "start/100000", ours: 1, foreign: 99_000, all: true},
	} {
		entries := services*tc.ours + tc.foreign
		b.Run(tc.name, func(b *testing.B) {
			if entries >= limit {
				b.Skipf("the kernel tracks only %d connections", limit)
			}
			enterNamespace(b)
			filler := openTable(b)
			insert(b, filler, unrelated(inet.UDP, tc.foreign/2))
			insert(b, filler, unrelated(inet.TCP, tc.foreign/2))
			d := changed(services)
			out, spent, bytes := Outcome{}, time.Duration(0), uint64(0)
			for b.Loop() {
				b.StopTimer()
				insertMissing(b, filler, services, tc.ours)
				before := lab.ProcessorTime(b)
				b.StartTimer()
				bytes = allocated(func() {
					table, err := OpenNetlink()
					lab.Must(b, err)
					if out, err = table.Delete(b.Context(), inet.IPv4, selection(tc.all), d.Stale); err != nil {
						b.Fatal(err)
					}
					if table.read.Seq != 1 {
						b.Fatalf("the table was read %d times, want once", table.read.Seq)
					}
					lab.Must(b, table.Close())
				})
				spent += lab.ProcessorTime(b) - before
				if want := services * max(tc.ours/10, 1); out.Deleted != want {
					b.Fatalf("got %+v, want %d deleted", out, want)
				}
			}
			b.ReportMetric(float64(out.Deleted), "deleted/op")
			b.ReportMetric(float64(out.Seen), "seen/op")
			b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N*entries), "cpu-ns/entry")
			b.ReportMetric(float64(spent.Microseconds())/float64(b.N)/1000, "cpu-ms/op")
			b.ReportMetric(float64(bytes), "alloc-B/pass")
		})
	}
}

// insertMissing inserts the services' entries that the last pass has deleted; before the first pass, all entries.
func insertMissing(b *testing.B, table *Netlink, services, each int) {
	ours := 0
	_, err := table.Delete(b.Context(), inet.IPv4, UDP, func(f *Flow) bool {
		if f.Source.Addr() == syntheticClient {
			ours++
		}
		return false
	})
	lab.Must(b, err)
	insert(b, table, func(yield func(Flow, uint16) bool) {
		i := 0
		for f := range synthetic(inet.UDP, services, each) {
			lost := i%each%10 == 0
			i++
			if (ours == 0 || lost) && !yield(f, 0) {
				return
			}
		}
	})
}
