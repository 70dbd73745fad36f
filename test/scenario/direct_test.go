package scenario

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fabric is a cluster of three nodes on one segment, with a pod each, behind a router. The router sends packets for
// the Service's load-balancer IPs to one of the nodes, the ingress node. On each node, the proxy reads a folder of
// its own.
//
//	client - router - bridge 10.0.0.0/24 - node 1, 2, 3 (10.0.0.11 to 13) - pod 1, 2, 3 (10.244.N.5)
type fabric struct {
	*testing.T
	lab         *lab.Lab
	nodes, pods []*lab.Host
	proxies     []*pipeline
	// nodePorts makes clients use the node ports of the ingress node, instead of the load-balancer IPs. entry is its
	// index.
	nodePorts bool
	entry     int
	// annotations are those of the Service.
	annotations string
}

// vip are the load-balancer IPs.
var vip = [2]netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:113::10")}

// newFabric makes the cluster. flags are those of the proxy on each node.
func newFabric(t *testing.T, flags ...string) *fabric {
	t.Helper()
	t.Parallel()
	f := newNetwork(t, len(flags))
	for i := range f.nodes {
		f.proxies = append(f.proxies, f.startProxy(i, flags[i], t.TempDir()))
	}
	t.Cleanup(func() {
		for i := range f.proxies {
			f.stopProxy(i)
		}
	})
	f.ingress(0)
	return f
}

// startProxy starts the proxy of a node.
func (f *fabric) startProxy(node int, flags, folder string) *pipeline {
	f.Helper()
	s, err := parseSettings(strings.Fields(flags))
	lab.Must(f, err)
	s.node = fmt.Sprintf("node-%d", node+1)
	p, err := startPipeline(f.nodes[node], s, folder)
	lab.Must(f, err)
	return p
}

// stopProxy stops the proxy of a node, if it runs. Its rules stay.
func (f *fabric) stopProxy(node int) {
	f.Helper()
	if p := f.proxies[node]; p != nil {
		if err := p.close(); err != nil {
			f.Errorf("stop the proxy of node %d: %v", node+1, err)
		}
		f.proxies[node] = nil
	}
}

// newNetwork makes the network of a number of nodes, without proxies.
func newNetwork(t *testing.T, nodes int) *fabric {
	t.Helper()
	f := &fabric{T: t, lab: lab.ForTest(t, lab.Config{Pods: nodes, Remotes: nodes}), annotations: dsr}
	f.nodes, f.pods = f.lab.Remotes, f.lab.Pods
	router := f.lab.Node
	router.Run(t, "ip", "link", "add", "segment", "type", "bridge")
	f.script(router, `ip link set segment up; ip addr add 10.0.0.1/24 dev segment; ip addr add fd00:10::1/64 dev segment; ip addr add fe80::1/64 dev segment`)
	for i, n := range f.nodes {
		number, pod := i+1, f.pods[i]
		for _, h := range []*lab.Host{n, pod} {
			f.script(h, `ip link del eth0`)
		}
		lab.Must(t, errors.Join(n.Sysctl("ipv4/ip_forward", "1"), n.Sysctl("ipv6/conf/all/forwarding", "1")))
		f.script(router, fmt.Sprintf(`ip link add port%[1]d type veth peer name eth0 netns %[2]s; ip link set port%[1]d master segment up`, number, n.Netns))
		f.script(n, fmt.Sprintf(`ip link set eth0 up; ip addr add 10.0.0.1%[1]d/24 dev eth0; ip addr add fd00:10::1%[1]d/64 dev eth0
			ip route add default via 10.0.0.1; ip route add default via fd00:10::1
			ip link add pod type veth peer name eth0 netns %[2]s; ip link set pod up
			ip addr add 10.244.%[1]d.1/24 dev pod; ip addr add fd00:10:244:%[1]d::1/64 dev pod
			ip addr add fe80::1%[1]d/64 dev eth0; ip addr add fe80::1/64 dev pod`, number, pod.Netns))
		f.script(pod, fmt.Sprintf(`ip link set eth0 up; ip addr add fe80::5/64 dev eth0; ip addr add 10.244.%[1]d.5/24 dev eth0; ip addr add fd00:10:244:%[1]d::5/64 dev eth0
			ip route add default via 10.244.%[1]d.1; ip route add default via fd00:10:244:%[1]d::1`, number))
		mustServe(t, pod)
	}
	for i, n := range f.nodes {
		for j := range f.nodes {
			if i != j {
				f.script(n, fmt.Sprintf(`ip route add 10.244.%[1]d.0/24 via 10.0.0.1%[1]d; ip route add fd00:10:244:%[1]d::/64 via fd00:10::1%[1]d`, j+1))
			}
		}
	}
	return f
}

// script runs commands on a host, one after the other, without a shell, and returns their output. Semicolons and ends of
// lines separate the commands.
func (f *fabric) script(h *lab.Host, commands string) (out string) {
	f.Helper()
	for c := range strings.FieldsFuncSeq(commands, func(r rune) bool { return r == ';' || r == '\n' }) {
		if words := strings.Fields(c); len(words) > 0 {
			out += h.Run(f, words[0], words[1:]...)
		}
	}
	return out
}

// nodeIPs are the addresses of a node.
func nodeIPs(node int) [2]netip.Addr {
	return [2]netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + node)}), netip.MustParseAddr(fmt.Sprintf("fd00:10::1%d", node+1))}
}

// to returns the address and port at which clients reach a port of the Service.
func (f *fabric) to(family inet.Family, port uint16) netip.AddrPort {
	if f.nodePorts {
		return netip.AddrPortFrom(nodeIPs(f.entry)[family], nodePortBase+port)
	}
	return netip.AddrPortFrom(vip[family], port)
}

// nodePortBase is the difference of a port of the Service and its node port.
const nodePortBase = 30_000

// ingress makes the router send packets for the Service to a node.
func (f *fabric) ingress(node int) {
	f.Helper()
	f.entry = node
	f.script(f.lab.Node, fmt.Sprintf(`ip route replace %s via 10.0.0.1%[3]d; ip route replace %[2]s via fd00:10::1%[3]d`, vip[0], vip[1], node+1))
}

// service is the manifest of a node: the Service with its endpoints, such as "2 3" for the pods of nodes 2 and 3. The
// number of a node may have a weight and conditions.
func (f *fabric) service(node int, annotations, endpoints string) string {
	f.Helper()
	slice := [2]string{"shop/web-4", "shop/web-6"}
	for i := range slice {
		slice[i] += fmt.Sprintf(" http=%d echo=%d dns=%d/udp sizes=%d/udp:", firstPort, echoPort, firstPort, sizesPort)
	}
	for _, e := range strings.Fields(endpoints) {
		number, traits := e[:1], e[1:]
		slice[0] += fmt.Sprintf(" 10.244.%s.5@node-%[1]s%[2]s", number, traits)
		slice[1] += fmt.Sprintf(" fd00:10:244:%s::5@node-%[1]s%[2]s", number, traits)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: node-%[1]d}
status: {addresses: [{type: InternalIP, address: 10.0.0.1%[1]d}, {type: InternalIP, address: "fd00:10::1%[1]d"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {%[2]s}}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80, nodePort: 30080}, {name: echo, port: 70, nodePort: 30070},
    {name: dns, port: 53, protocol: UDP, nodePort: 30053}, {name: sizes, port: 54, protocol: UDP, nodePort: 30054}]
status: {loadBalancer: {ingress: [{ip: %[3]s}, {ip: "%[4]s"}]}}
---
`, node+1, annotations, vip[0], vip[1]) + mustSlices(f.T, slice[0]+"\n"+slice[1])
}

// sizesPort is the port of [fabric.serveSizes].
const sizesPort = 5353

const dsr = "kube-nftproxy.io/forwarding-mode: dsr"

// endpoints gives the endpoints to the proxies of some nodes, or of all nodes.
func (f *fabric) endpoints(endpoints string, nodes ...int) {
	f.Helper()
	if nodes == nil {
		nodes = []int{0, 1, 2}[:len(f.nodes)]
	}
	for _, i := range nodes {
		lab.Must(f, os.WriteFile(filepath.Join(f.proxies[i].folder, "web.yaml"), []byte(f.service(i, f.annotations,
			endpoints)), 0o600))
		lab.Must(f, f.proxies[i].load())
	}
	var want []string
	for _, e := range strings.Fields(endpoints) {
		if !strings.Contains(e, "!") {
			want = append(want, fmt.Sprintf("10.244.%s.5", e[:1]))
		}
	}
	for _, i := range nodes {
		lab.Eventually(f, lab.Patience, func() error {
			found := address.FindAllString(f.script(f.nodes[i], `nft list map ip kube-nftproxy endpoints`), -1)
			slices.Sort(found)
			if found = slices.Compact(found); !slices.Equal(found, want) {
				return fmt.Errorf("node %d has the endpoints %v, want %v", i+1, found, want)
			}
			return nil
		})
	}
}

// address matches the address of a pod.
var address = regexp.MustCompile(`10\.244\.[0-9]+\.5`)

// ask sends probes to a port of the Service, and returns the servers with the sources that they saw, such as "pod-1
// saw 192.0.2.100", and their number.
func (f *fabric) ask(family inet.Family, p inet.Protocol, times int) map[string]int {
	f.Helper()
	port := map[inet.Protocol]uint16{inet.TCP: 80, inet.UDP: 53}[p]
	out := map[string]int{}
	for range times {
		a := f.lab.Client.Probe(f.Context(), p, f.to(family, port), lab.Options{Timeout: 2 * time.Second})
		if a.Outcome != lab.Answered {
			out[a.String()]++
			continue
		}
		out[fmt.Sprintf("%s saw %s", a.Server, a.Source.Addr())]++
	}
	return out
}

// flows returns the number of entries of the Service in connection tracking: those of its address, or of its node
// ports. It reads them twice: before 6.18, the kernel skips the entry behind an expired one, which it deletes.
func (f *fabric) flows(node int) (n int) {
	f.Helper()
	f.script(f.nodes[node], `cat /proc/net/nf_conntrack`)
	out := f.script(f.nodes[node], `cat /proc/net/nf_conntrack`)
	for line := range strings.Lines(out) {
		atVIP := strings.Contains(line, "dst="+vip[0].String()) || strings.Contains(line, "0113:0000")
		if atVIP && !f.nodePorts || f.nodePorts && strings.Contains(line, "dport=300") {
			n++
		}
	}
	return n
}

// replies counts the packets from the Service's address that the router gets from a node.
func (f *fabric) replies(node int, family inet.Family) func() int {
	f.Helper()
	link := strings.Fields(f.script(f.nodes[node], `ip -br link show eth0`))
	match := fmt.Sprintf("ether saddr %s %s saddr %s meta l4proto { tcp, udp }", link[2], []string{"ip", "ip6"}[family],
		f.to(family, 0).Addr())
	return watchPackets(f.T, f.lab.Node, fmt.Sprintf("replies-%d", node), "prerouting", match)
}

var packets = regexp.MustCompile(`counter packets ([0-9]+)`)

// passed returns the number of packets that a node has passed on to other nodes.
func (f *fabric) passed(node int) (n int) {
	f.Helper()
	for line := range strings.Lines(f.script(f.nodes[node], `nft list ruleset`)) {
		if m := packets.FindStringSubmatch(line); m != nil && strings.Contains(line, "dup to") {
			i, err := strconv.Atoi(m[1])
			lab.Must(f, err)
			n += i
		}
	}
	return n
}

// withNodePorts are the flags of a node whose node ports have direct server return.
const withNodePorts = "--direct-server-return --direct-server-return-node-cidrs=10.0.0.0/24,fd00:10::/64"

// entries runs a test for each family, at the load-balancer IPs and at the node ports of the first node.
func (f *fabric) entries(name string, test func(f *fabric, family inet.Family)) {
	for _, nodePorts := range []bool{false, true} {
		for _, family := range inet.Families {
			at := "load-balancer IP"
			if nodePorts {
				at = "node port"
			}
			f.Run(strings.TrimPrefix(fmt.Sprintf("%s, %s at a %s", name, family, at), ", "), func(t *testing.T) {
				f := *f
				f.T, f.nodePorts = t, nodePorts
				f.ingress(0)
				test(&f, family)
			})
		}
	}
}

// TestDirectReturn: the ingress node passes packets on, the endpoint sees the client, and its node sends the replies.
// A node without direct server return serves with NAT.
func TestDirectReturn(t *testing.T) {
	f := newFabric(t, withNodePorts, withNodePorts, "")
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
		f.entries(p.String(), func(f *fabric, family inet.Family) { f.direct(family, p) })
	}
}

// TestDirectReturnByDefault: direct server return is the default of two nodes, and the Service has no annotation for
// it. The third node permits it, but its default is NAT.
func TestDirectReturnByDefault(t *testing.T) {
	all := strings.Replace(withNodePorts, "--direct-server-return", "--direct-server-return=all", 1)
	f := newFabric(t, all, all, withNodePorts)
	f.annotations = ""
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
		f.entries(p.String(), func(f *fabric, family inet.Family) { f.direct(family, p) })
	}
}

// direct checks the packets of a family and a protocol.
func (f *fabric) direct(family inet.Family, p inet.Protocol) {
	own := f.lab.Client.Addrs()[family].String()
	f.endpoints("1 2")
	got := f.ask(family, p, 30)
	if a, b := got["pod-0 saw "+own], got["pod-1 saw "+own]; a == 0 || b == 0 || a+b != 30 {
		f.Errorf("endpoints on both nodes: %v", got)
	}
	f.endpoints("2")
	replies := []func() int{f.replies(0, family), f.replies(1, family)}
	before, passed := f.flows(0), f.passed(0)
	lab.Same(f.T, map[string]int{"pod-1 saw " + own: 20}, f.ask(family, p, 20), "an endpoint on the second node")
	if a, b := replies[0](), replies[1](); a > 0 || b < 20 {
		f.Errorf("the router gets %d replies from the ingress node and %d from the endpoint's node", a, b)
	}
	if n := f.flows(0) - before; n > 0 {
		f.Errorf("the ingress node tracks %d connections", n)
	}
	if n := f.passed(0) - passed; n < 20 {
		f.Errorf("the ingress node has passed on %d packets", n)
	}
	f.ingress(1)
	lab.Same(f.T, map[string]int{"pod-1 saw " + own: 5}, f.ask(family, p, 5), "the second node is the ingress node")
	f.ingress(2)
	lab.Same(f.T, map[string]int{"pod-1 saw " + nodeIPs(2)[family].String(): 5}, f.ask(family, p, 5),
		"a node without direct server return is the ingress node")
	f.ingress(0)
	f.endpoints("3")
	// The endpoint's node translates the packet, or sends it back if it is to another node.
	translator := [...]string{inet.IPv4: "10.244.3.1", inet.IPv6: "fd00:10:244:3::1"}[family]
	if f.nodePorts {
		translator = nodeIPs(0)[family].String()
	}
	lab.Same(f.T, map[string]int{"pod-2 saw " + translator: 5}, f.ask(family, p, 5),
		"an endpoint on a node without direct server return")
}

// TestDirectReturnAtTheBorder: errors about the maximum size of packets reach the endpoint, and nodes that disagree
// pass a packet on only once.
func TestDirectReturnAtTheBorder(t *testing.T) {
	f := newFabric(t, withNodePorts, withNodePorts)
	f.endpoints("2")
	client := f.lab.Client
	f.script(f.lab.Node, fmt.Sprintf(`ip route replace %s dev eth0 mtu lock 1300; ip route replace %s dev eth0 mtu lock 1300`, client.IPv4, client.IPv6))
	f.entries("a smaller MTU behind the router", func(f *fabric, family inet.Family) { lab.Check(f, f.echo(family), "much data") })
	f.script(f.lab.Node, `ip route add 10.244.2.0/24 via 10.0.0.12; ip route add fd00:10:244:2::/64 via fd00:10::12`)
	f.script(f.nodes[0], `ip route replace 10.244.2.0/24 via 10.0.0.1; ip route replace fd00:10:244:2::/64 via fd00:10::1`)
	f.entries("a router between the nodes sends packets back", func(f *fabric, family inet.Family) {
		seen := nodeIPs(0)[family].String()
		lab.Same(f.T, map[string]int{"pod-1 saw " + seen: 5}, f.ask(family, inet.UDP, 5), "")
	})
	f.script(f.nodes[0], `ip route replace 10.244.2.0/24 via 10.0.0.12; ip route replace fd00:10:244:2::/64 via fd00:10::12`)
	f.endpoints("2", 0)
	f.endpoints("1", 1)
	f.entries("each node believes that the other one has the endpoint", func(f *fabric, family inet.Family) {
		by := []int{f.passed(0), f.passed(1)}
		seen := nodeIPs(1)[family].String()
		lab.Same(f.T, map[string]int{"pod-0 saw " + seen: 5}, f.ask(family, inet.UDP, 5), "")
		if a, b := f.passed(0)-by[0], f.passed(1)-by[1]; a != 5 || b != 0 {
			f.Errorf("the nodes pass 5 packets on %d and %d times, want 5 and 0", a, b)
		}
	})
}

// TestDirectReturnWithoutLease: a node whose lease has expired passes no packets on, neither those of new connections
// nor those of open ones, so that a proxy that has taken over serves them.
func TestDirectReturnWithoutLease(t *testing.T) {
	f := newFabric(t, "--direct-server-return", "--direct-server-return")
	f.endpoints("2")
	var open []*opened
	for _, family := range inet.Families {
		for range 10 {
			open = append(open, f.open(family))
		}
	}
	f.endpoints("1 2")
	f.stopProxy(0)
	node := f.nodes[0]
	f.script(node, `nft flush set ip kube-nftproxy lease; nft flush set ip6 kube-nftproxy lease`)
	node.Run(t, "nft", fmt.Sprintf(`table inet successor {
		chain prerouting {
			type nat hook prerouting priority dstnat
			meta l4proto { tcp, udp } ip daddr %s dnat ip to 10.244.1.5:%[3]d
			meta l4proto { tcp, udp } ip6 daddr %[2]s dnat ip6 to [fd00:10:244:1::5]:%[3]d
		}
	}`, vip[0], vip[1], firstPort))
	passed := f.passed(0)
	for _, family := range inet.Families {
		for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
			seen := "pod-0 saw " + f.lab.Client.Addrs()[family].String()
			lab.Same(t, map[string]int{seen: 10}, f.ask(family, p, 10), "%s %s, served by the successor", family, p)
		}
	}
	for _, o := range open {
		_, err := o.Write([]byte("x\n"))
		lab.Must(t, err)
	}
	time.Sleep(100 * time.Millisecond)
	if n := f.passed(0) - passed; n != 0 {
		t.Errorf("the node passes %d packets on", n)
	}
}

// echo sends much data to an endpoint, which sends them back.
func (f *fabric) echo(family inet.Family) error {
	conn, err := f.lab.Client.Dial(f.Context(), inet.TCP, f.to(family, 70))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the test is done with it
	const patience = 10 * time.Second
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	r, line := bufio.NewReader(conn), strings.Repeat("x", 50_000)+"\n"
	if _, err := r.ReadString('\n'); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(line)); err != nil {
		return err
	}
	got, err := r.ReadString('\n')
	if err == nil && got != line {
		err = fmt.Errorf("%d bytes came back", len(got))
	}
	return err
}

// TestOpenConnectionsWithDirectReturn: a change of the endpoints moves slots, and open connections stay with their
// endpoint: an endpoint is added, on another node or on the ingress node, and an endpoint terminates.
func TestOpenConnectionsWithDirectReturn(t *testing.T) {
	const each = 30
	f := newFabric(t, withNodePorts, withNodePorts, withNodePorts)
	for _, c := range []struct {
		name, before, after string
		// least is the number of connections that stay.
		least int
	}{
		{"an endpoint is added", "2", "2 3", each},
		{"an endpoint is added on the ingress node", "2 3", "1 2 3", each},
		{"an endpoint of the ingress node terminates", "1 2", "2 1!ready+terminating", each},
		{"an endpoint terminates", "2 3", "3 2!ready!serving+terminating", each},
		{"an endpoint is added, with weights", "2*3 3", "1 2*3 3", each},
		{"two endpoints are added at once", "2", "1 2 3", each / 3},
		{"an endpoint is replaced", "2 3", "1 3 2!ready+terminating", each / 2},
	} {
		f.entries(c.name, func(f *fabric, family inet.Family) {
			f.endpoints(c.before)
			list := f.openAll(family, each)
			f.endpoints(c.after)
			lost := 0
			for _, o := range list {
				if err := o.ask(5 * time.Second); err != nil {
					f.Log(err)
					lost++
				}
			}
			if each-lost < c.least {
				f.Errorf("%d of %d connections are lost", lost, each)
			}
			f.Logf("%d of %d connections stay", each-lost, each)
		})
	}
}

// opened is a connection to the Service's port that returns each line. server is the name of its pod.
type opened struct {
	net.Conn
	r      *bufio.Reader
	server string
}

// openAll opens a number of connections.
func (f *fabric) openAll(family inet.Family, n int) []*opened {
	f.Helper()
	list := make([]*opened, n)
	for i := range list {
		list[i] = f.open(family)
	}
	return list
}

// open opens a connection to an endpoint, and closes it at the end of the test.
func (f *fabric) open(family inet.Family) *opened {
	f.Helper()
	conn, err := f.lab.Client.Dial(f.Context(), inet.TCP, f.to(family, 70))
	lab.Must(f, err)
	f.Cleanup(func() { _ = conn.Close() })
	o := &opened{Conn: conn, r: bufio.NewReader(conn)}
	line, err := o.r.ReadString('\n')
	lab.Must(f, err)
	answer, err := lab.ParseAnswer(line)
	lab.Must(f, err)
	o.server = answer.Server
	lab.Must(f, o.ask(5*time.Second))
	return o
}

// ask sends a line, and waits until it comes back.
func (o *opened) ask(patience time.Duration) error {
	if err := o.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := o.Write([]byte("x\n")); err != nil {
		return err
	}
	_, err := o.r.ReadString('\n')
	return err
}

// TestErrorsWithDirectReturn: the router answers replies with ICMP errors. The ingress node passes the errors on, and
// the endpoint gets them.
func TestErrorsWithDirectReturn(t *testing.T) {
	f := newFabric(t, withNodePorts, withNodePorts)
	f.endpoints("2")
	pod, families := f.pods[1], [2]string{"ip", "ip6"}
	for _, c := range []struct {
		name string
		// reject is the router's answer to replies in each family. If it is empty, the TTL of the replies is too low.
		// want matches the error in the pod.
		reject, want [2]string
	}{
		{"port unreachable", [2]string{"icmp type port-unreachable", "icmpv6 type port-unreachable"},
			[2]string{"icmp type 3 icmp code 3", "icmpv6 type 1 icmpv6 code 4"}},
		{"host unreachable", [2]string{"icmp type host-unreachable", "icmpv6 type addr-unreachable"},
			[2]string{"icmp type 3 icmp code 1", "icmpv6 type 1 icmpv6 code 3"}},
		{"time exceeded", [2]string{}, [2]string{"icmp type 11", "icmpv6 type 3"}},
	} {
		for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
			f.entries(fmt.Sprintf("%s, %s", c.name, p), func(f *fabric, family inet.Family) {
				t := f.T
				if c.reject[family] == "" {
					setTTL(t, pod, "2")
					defer setTTL(t, pod, "64")
				} else {
					f.lab.Node.Run(t, "nft", fmt.Sprintf(`table inet errors { chain forward {
							type filter hook forward priority filter; %s saddr %s reject with %s; }; }`,
						families[family], f.to(family, 0).Addr(), c.reject[family]))
					defer f.lab.Node.Run(t, "nft", "delete table inet errors")
				}
				seen := watchPackets(t, pod, "errors", "input", c.want[family])
				to := f.to(family, map[inet.Protocol]uint16{inet.TCP: 80, inet.UDP: 53}[p])
				f.lab.Client.Probe(t.Context(), p, to, lab.Options{Timeout: 200 * time.Millisecond})
				lab.Eventually(t, lab.Patience, func() error {
					if seen() == 0 {
						return errors.New("the pod gets no error")
					}
					return nil
				})
			})
		}
	}
}

// TestErrorsAfterAChange: an ICMP error about an open connection whose slot has moved reaches the endpoint.
func TestErrorsAfterAChange(t *testing.T) {
	const flag, connections = withNodePorts, 20
	f := newFabric(t, flag, flag, flag)
	f.entries("", func(f *fabric, family inet.Family) {
		t := f.T
		f.endpoints("2")
		list := f.openAll(family, connections)
		f.endpoints("2 3")
		again := f.passed(2)
		moved := slices.IndexFunc(list, func(o *opened) bool {
			lab.Must(t, o.ask(5*time.Second))
			return f.passed(2) > again
		})
		if moved < 0 {
			t.Fatalf("none of %d connections has a slot that moved", connections)
		}
		f.lab.Node.Run(t, "nft", fmt.Sprintf(`table inet errors { chain forward {
			type filter hook forward priority filter; %s saddr %s reject with icmpx host-unreachable; }; }`,
			[]string{"ip", "ip6"}[family], f.to(family, 0).Addr()))
		defer f.lab.Node.Run(t, "nft", "delete table inet errors")
		seen := watchPackets(t, f.pods[1], "errors", "input",
			[]string{"icmp type 3 icmp code 1", "icmpv6 type 1 icmpv6 code 3"}[family])
		if err := list[moved].ask(500 * time.Millisecond); err == nil || seen() == 0 {
			t.Errorf("the pod gets %d errors, and the client gets %v", seen(), err)
		}
	})
}

// TestResetsAfterAChange: a client resets open connections, some of whose slots have moved. The endpoint gets all resets.
func TestResetsAfterAChange(t *testing.T) {
	const flag, connections = withNodePorts, 20
	f := newFabric(t, flag, flag, flag)
	f.entries("", func(f *fabric, family inet.Family) {
		t := f.T
		f.endpoints("2")
		list := f.openAll(family, connections)
		f.endpoints("2 3")
		for _, o := range list {
			lab.Must(t, errors.Join(o.Conn.(*net.TCPConn).SetLinger(0), o.Close()))
		}
		lab.Eventually(t, 5*time.Second, func() error {
			open := f.script(f.pods[1], fmt.Sprintf("ss -Htn state established sport = :%d", echoPort))
			if open != "" {
				return fmt.Errorf("the endpoint has open connections:\n%s", open)
			}
			return nil
		})
	})
}

// setTTL sets the TTL with which a host sends packets.
func setTTL(t *testing.T, h *lab.Host, ttl string) {
	t.Helper()
	lab.Must(t, errors.Join(h.Sysctl("ipv4/ip_default_ttl", ttl), h.Sysctl("ipv6/conf/eth0/hop_limit", ttl)))
}

// TestLargeDatagramsWithDirectReturn: requests and replies that need fragments arrive, behind a router with a smaller
// MTU. The errors that make the endpoint send smaller fragments quote a whole packet, or the first fragment.
func TestLargeDatagramsWithDirectReturn(t *testing.T) {
	const small, whole, fragments = 10, 1400, 3000
	f := newFabric(t, withNodePorts, withNodePorts)
	f.endpoints("2")
	client := f.lab.Client
	f.script(f.lab.Node, fmt.Sprintf(`ip route replace %s dev eth0 mtu lock 1300; ip route replace %s dev eth0 mtu lock 1300`,
		client.IPv4, client.IPv6))
	for _, addr := range []string{"10.244.2.5", "fd00:10:244:2::5"} {
		serveSizes(t, f.pods[1], addr)
	}
	f.entries("", func(f *fabric, family inet.Family) {
		for _, s := range [][2]int{{small, fragments}, {small, whole}, {whole, small}, {fragments, small}, {fragments, fragments}} {
			if err := f.exchange(family, s[0], s[1]); err != nil {
				f.Errorf("a request of %d bytes, a reply of %d: %v", s[0], s[1], err)
			}
		}
	})
}

// serveSizes answers a datagram, which is a number and a space, with so many bytes.
func serveSizes(t *testing.T, h *lab.Host, addr string) {
	t.Helper()
	var conn net.PacketConn
	lab.Must(t, h.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", netip.AddrPortFrom(netip.MustParseAddr(addr), sizesPort).String())
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for buf := make([]byte, 1<<16); ; {
			n, client, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			number, _, _ := strings.Cut(string(buf[:n]), " ")
			size, _ := strconv.Atoi(number)
			_, _ = conn.WriteTo(make([]byte, size), client) // the client notices a lost reply
		}
	}()
}

// exchange sends a request until its reply arrives. The first ones may be too large for the path.
func (f *fabric) exchange(family inet.Family, request, reply int) error {
	const tries, patience = 5, 500 * time.Millisecond
	conn, err := f.lab.Client.Dial(f.Context(), inet.UDP, f.to(family, 54))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the test is done with it
	number := fmt.Sprintf("%d ", reply)
	text := []byte(number + strings.Repeat("x", request-len(number)))
	for range tries {
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err = conn.Write(text); err != nil {
			continue
		}
		var n int
		if n, err = conn.Read(make([]byte, 1<<16)); err == nil && n != reply {
			return fmt.Errorf("the reply has %d bytes", n)
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// TestUDPFlowsWithDirectReturn: a change of the endpoints moves the UDP flows of some slots to another endpoint, which
// answers them.
func TestUDPFlowsWithDirectReturn(t *testing.T) {
	const each = 60
	f := newFabric(t, withNodePorts, withNodePorts, withNodePorts)
	for _, c := range []struct {
		name, before, after string
		most                int
	}{
		{"an endpoint is added", "2", "2 3", 45},
		{"an endpoint is added on the ingress node", "2 3", "1 2 3", 35},
		{"an endpoint terminates", "1 2 3", "1 3 2!ready!serving+terminating", 35},
	} {
		f.entries(c.name, func(f *fabric, family inet.Family) {
			t := f.T
			f.endpoints(c.before)
			flows, server := make([]net.Conn, each), make([]string, each)
			for i := range flows {
				conn, err := f.lab.Client.Dial(t.Context(), inet.UDP, f.to(family, 53))
				lab.Must(t, err)
				t.Cleanup(func() { _ = conn.Close() })
				flows[i], server[i] = conn, query(t, conn)
			}
			f.endpoints(c.after)
			moved := 0
			for i, conn := range flows {
				if query(t, conn) != server[i] {
					moved++
				}
			}
			t.Logf("%d of %d flows have another endpoint", moved, each)
			if moved > c.most {
				t.Errorf("%d of %d flows have another endpoint, want at most %d", moved, each, c.most)
			}
		})
	}
}

// query sends a datagram, and returns the name of the server that answers.
func query(t *testing.T, conn net.Conn) string {
	t.Helper()
	lab.Must(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	_, err := conn.Write([]byte("x\n"))
	lab.Must(t, err)
	line := make([]byte, 512)
	n, err := conn.Read(line)
	lab.Must(t, err)
	answer, err := lab.ParseAnswer(string(line[:n]))
	lab.Must(t, err)
	return answer.Server
}

// TestForgedErrorsWithDirectReturn: an ICMP error about an unknown connection is passed on. It travels fewer hops than
// its TTL, although the router sends it back to the ingress node each time.
func TestForgedErrorsWithDirectReturn(t *testing.T) {
	const most = 17
	f := newFabric(t, withNodePorts, withNodePorts)
	f.endpoints("2")
	client := f.lab.Client
	f.entries("", func(f *fabric, family inet.Family) {
		t := f.T
		port := f.to(family, 53).Port()
		header := make([]byte, []int{20, 40}[family])
		network, forged, at := "ip4:icmp", []byte{3, 3, 0, 0, 0, 0, 0, 0}, [...]int{9, 12, 16}
		if header[0] = 0x45; family == inet.IPv6 {
			network, forged[0], forged[1], at = "ip6:ipv6-icmp", 1, 4, [...]int{6, 8, 24}
			header[0] = 0x60
		}
		header[at[0]] = byte(inet.UDP)
		copy(header[at[1]:], f.to(family, 0).Addr().AsSlice())
		copy(header[at[2]:], client.Addrs()[family].AsSlice())
		forged = append(append(forged, header...), byte(port>>8), byte(port), 0x9c, 0x40, 0, 8, 0, 0)
		if family == inet.IPv4 {
			binary.BigEndian.PutUint16(forged[2:], checksum(forged))
		}
		passed, seen := f.passed(0), watchPackets(t, f.lab.Node, "forged", "prerouting",
			fmt.Sprintf("%s daddr %s", []string{"ip", "ip6"}[family], f.to(family, 0).Addr()))
		lab.Must(t, client.Do(func() error {
			conn, err := net.ListenPacket(network, client.Addrs()[family].String())
			if err != nil {
				return err
			}
			defer conn.Close() //nolint:errcheck // the test is done with it
			_, err = conn.WriteTo(forged, &net.IPAddr{IP: f.to(family, 0).Addr().AsSlice()})
			return err
		}))
		lab.Eventually(t, lab.Patience, func() error {
			if f.passed(0) == passed {
				return errors.New("the ingress node has not passed the error on")
			}
			return nil
		})
		time.Sleep(100 * time.Millisecond)
		n := seen()
		t.Logf("the router gets the error %d times", n)
		if n > most {
			t.Errorf("the router gets the error %d times, want at most %d", n, most)
		}
	})
}

// checksum is the checksum of the internet protocols.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// TestDirectReturnOverAnOverlay: packets reach the endpoint's node by the tunnel of the pod network, and replies leave
// without it. A packet that is too large for the tunnel becomes smaller.
func TestDirectReturnOverAnOverlay(t *testing.T) {
	f := newFabric(t, "--direct-server-return", "--direct-server-return")
	for i, n := range f.nodes {
		f.script(n, fmt.Sprintf(`ip link add overlay type vxlan id 1 local 10.0.0.1%[1]d remote 10.0.0.1%[2]d dstport 8472
			ip link set overlay address 02:00:00:00:00:0%[1]d up; ip addr add 10.244.%[1]d.0/32 dev overlay
			ip neigh replace 10.244.%[2]d.0 lladdr 02:00:00:00:00:0%[2]d dev overlay nud permanent
			ip neigh replace fe80::%[2]d lladdr 02:00:00:00:00:0%[2]d dev overlay nud permanent
			ip route replace 10.244.%[2]d.0/24 via 10.244.%[2]d.0 dev overlay onlink
			ip route replace fd00:10:244:%[2]d::/64 via fe80::%[2]d dev overlay onlink`, i+1, 2-i))
	}
	f.endpoints("2")
	tunnelled := watchPackets(t, f.nodes[1], "overlay", "prerouting", "iifname overlay")
	for _, family := range inet.Families {
		own := "pod-1 saw " + f.lab.Client.Addrs()[family].String()
		for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
			lab.Same(t, map[string]int{own: 10}, f.ask(family, p, 10), "%s %s", family, p)
		}
		lab.Check(t, f.echo(family), "%s: much data", family)
	}
	replies := watchPackets(t, f.nodes[0], "replies", "forward", "iifname overlay")
	before := tunnelled()
	for _, family := range inet.Families {
		f.ask(family, inet.UDP, 10)
	}
	if in, out := tunnelled()-before, replies(); in < 20 || out > 0 {
		t.Errorf("20 requests: %d packets in the tunnel to the endpoint's node, %d from it", in, out)
	}
}
