package scenario

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// mostPasses is the number of passes that a test may leave unread.
const mostPasses = 100

// terminated receives the number of connections that each pass has terminated in a family, and the error of a failed pass.
type terminated chan pass

type pass struct {
	family  inet.Family
	deleted int
	err     error
}

func (t terminated) FlowsDeleted(f inet.Family, _ time.Duration, n int) {
	t.add(pass{family: f, deleted: n})
}

func (t terminated) FlowsSearched(f inet.Family, err error) {
	if err != nil {
		t.add(pass{family: f, err: err})
	}
}

func (t terminated) add(p pass) {
	select {
	case t <- p:
	default:
	}
}

// absence is longer than the time for which an endpoint must be absent.
const absence = 6 * time.Second

// departing has three Services, whose endpoints are hosts of a lab. Each has a cluster IP and a node port of each family.
type departing struct {
	*testing.T
	*pipeline
	lab *lab.Lab
}

const (
	gone  = iota // with the annotation
	off          // without the annotation
	stays        // with the annotation; its endpoints never leave
	services
)

// endpoints sets the endpoints, in the notation of README.md, of all Services but one, and waits until the kernel has them.
func (d *departing) endpoints(list string) {
	d.Helper()
	var text strings.Builder
	for n := range services {
		annotations := fmt.Sprintf("kube-nftproxy.io/port-ranges: tcp/%d", echoPort)
		if n != off {
			annotations += ", kube-nftproxy.io/terminate-connections: gone"
		}
		if n != stays {
			annotations += `, kube-nftproxy.io/scale-to-zero: "true"`
		}
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Service
metadata: {name: web-%d, namespace: shop, annotations: {%s}}
spec:
  type: NodePort
  clusterIPs: [10.96.0.1%[1]d, "fd00:10:96::1%[1]d"]
  ports: [{name: echo, port: 70, nodePort: 3007%[1]d}]
`, n, annotations)
		of := list
		if n == stays {
			of = "remote-0"
		}
		text.WriteString(documentSeparator + mustSlices(d.T, fmt.Sprintf("shop/web-%d echo=%d: %s", n, echoPort, of)))
	}
	lab.Must(d, os.WriteFile(filepath.Join(d.folder, "shop.yaml"), []byte(text.String()), 0o600))
	lab.Must(d, d.load())
}

// pass makes time pass.
func (d *departing) pass(t time.Duration) {
	d.Helper()
	d.clock.advance(t)
	lab.Must(d, d.settle())
}

// ends waits until n connections of each family are terminated.
func (d *departing) ends(n int) {
	d.Helper()
	var of [2]int
	timeout := time.After(patience)
	for of != [2]int{n, n} {
		select {
		case p := <-d.terminated:
			if p.err != nil {
				d.Fatal(p.err)
			}
			of[p.family] += p.deleted
		case <-timeout:
			d.Fatalf("%v connections of each family are terminated, want %d", of, n)
		}
	}
}

// client is an idle client of a Service.
type client struct {
	*connection
	from *lab.Host
	to   netip.AddrPort
	of   int
}

// clients opens connections from a pod, the node and outside, of both families, to all Services: to their ports, and to a port of their ranges.
func (d *departing) clients() (list []*client) {
	d.Helper()
	for n := range services {
		for f, format := range []string{"10.96.0.1%d", "fd00:10:96::1%d"} {
			inside := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(format, n)), 70)
			outside := netip.AddrPortFrom(d.lab.Node.Addrs()[f], 30070+uint16(n))
			inRange := netip.AddrPortFrom(inside.Addr(), echoPort)
			for from, to := range map[*lab.Host][]netip.AddrPort{d.lab.Pods[1]: {inside, inRange}, d.lab.Node: {inside}, d.lab.Client: {outside, inRange}} {
				for _, to := range to {
					c := &client{&connection{text: fmt.Sprintf("from %s to %s", from.Name, to)}, from, to, n}
					d.open(c)
					list = append(list, c)
				}
			}
		}
	}
	return list
}

func (d *departing) open(c *client) {
	d.Helper()
	var err error
	if c.conn, err = c.from.Dial(d.Context(), inet.TCP, c.to); err != nil {
		d.Fatalf("%s: %v", c.text, err)
	}
	d.Cleanup(func() { _ = c.conn.Close() })
	c.in = bufio.NewReader(c.conn)
	if _, err := c.in.ReadString('\n'); err != nil { // the server's greeting
		d.Fatalf("%s: %v", c.text, err)
	}
	if err := c.echo(); err != nil {
		d.Fatalf("%s: %v", c.text, err)
	}
}

// ending reports whether the endpoints of the client's Service leave.
func (c *client) ending() bool { return c.of == gone }

// acknowledge makes the kernel send a delayed acknowledgement of the last answer. Afterwards, the client is idle.
func (c *client) acknowledge() error {
	raw, err := c.conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
	return errors.Join(err, failed)
}

// live checks that all connections work, except those of the Service gone if cut is true: their clients get a reset.
func (d *departing) live(when string, list []*client, cut bool) {
	d.Helper()
	for _, c := range list {
		switch err := c.echo(); {
		case cut && c.ending() && !errors.Is(err, syscall.ECONNRESET):
			d.Errorf("%s, connection %s: %v, want a reset", when, c.text, err)
		case !(cut && c.ending()) && err != nil:
			d.Errorf("%s, connection %s: %v, want that it works", when, c.text, err)
		case err == nil:
			lab.Must(d, c.acknowledge())
		}
	}
}

// The next segment of an idle client gets a reset after its endpoint has left the slices, from another endpoint or, without one, from the node, also if
// the Service scales to zero. An endpoint that is unready, terminating or absent for a moment keeps its connections, and so does a Service without the annotation, and one that still
// has the endpoint.
func TestConnectionsToGoneEndpoints(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 2, Remotes: 1})
	for _, host := range []*lab.Host{l.Pods[0], l.Remotes[0]} {
		lab.Must(t, lab.Err(host.ServeEcho(echoPort)))
	}
	s, err := parseSettings(nil)
	lab.Must(t, err)
	d := &departing{T: t, lab: l}
	if d.pipeline, err = startPipeline(l.Node, s, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Check(t, errors.Join(d.close(), cleanUp(l.Node)), "clean up") })
	const perFamily = 5
	d.endpoints("remote-0")
	list := d.clients()

	d.endpoints("remote-0!ready!serving pod-0")
	d.pass(absence)
	d.live("with an unready endpoint", list, false)
	d.endpoints("remote-0!ready!serving+terminating pod-0")
	d.pass(absence)
	d.live("with a terminating endpoint", list, false)
	d.endpoints("pod-0")
	d.endpoints("remote-0!ready pod-0")
	d.pass(absence)
	d.live("with an endpoint that was absent for a moment", list, false)

	d.endpoints("pod-0")
	d.live("before the time of absence", list, false)
	d.pass(absence)
	d.ends(perFamily)
	d.live("with another endpoint", list, true)
	for _, c := range list {
		if c.ending() {
			d.open(c)
		}
	}
	d.live("after a new connection", list, false)

	d.endpoints("")
	d.pass(absence)
	d.ends(perFamily)
	d.live("without an endpoint", list, true)
	lab.Same(t, "", held(t, l), "segments of terminated connections are demand")

	d.endpoints("pod-0")
	for _, c := range list {
		if c.ending() {
			d.open(c)
		}
	}
	if d.pipeline, err = d.fault(l.Node, s, restart); err != nil {
		t.Fatal(err)
	}
	d.endpoints("remote-0")
	d.pass(absence)
	d.live("with an endpoint that left before the start", list, false)
}

// Another program translates a host port: a port of the node's address leads to a pod. A Service claims the address as
// its external IP, with the same port and with the annotation, and its slices name the pod, then not. The connection to
// the host port is older than the claim, and stays. Connections to the cluster IP of the Service are terminated in the
// same pass.
func TestConnectionsToAHostPortStay(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 2})
	lab.Must(t, lab.Err(l.Pods[0].ServeEcho(echoPort)))
	s, err := parseSettings(nil)
	lab.Must(t, err)
	d := &departing{T: t, lab: l}
	if d.pipeline, err = startPipeline(l.Node, s, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Node.Run(t, "nft", "delete table inet hostport")
		lab.Check(t, errors.Join(d.close(), cleanUp(l.Node)), "clean up")
	})
	const hostPort = 9100
	node, pod := l.Node.Addrs(), l.Pods[0].Addrs()
	l.Node.Run(t, "nft", fmt.Sprintf(`table inet hostport { chain prerouting { type nat hook prerouting priority dstnat;
		ip daddr %s tcp dport %d dnat ip to %s:%d
		ip6 daddr %s tcp dport %[2]d dnat ip6 to [%[6]s]:%[4]d; }; }`, node[0], hostPort, pod[0], echoPort, node[1], pod[1]))
	var list []*client
	open := func(from *lab.Host, of int, addr netip.Addr, port uint16) {
		to := netip.AddrPortFrom(addr, port)
		c := &client{&connection{text: fmt.Sprintf("from %s to %s", from.Name, to)}, from, to, of}
		d.open(c)
		list = append(list, c)
	}
	for _, a := range node {
		open(l.Client, stays, a, hostPort)
	}
	load := func(endpoints string) {
		text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: evil, namespace: evil, annotations: {kube-nftproxy.io/terminate-connections: gone}}
spec:
  clusterIPs: [10.96.0.66, "fd00:10:96::66"]
  externalIPs: [%q, %q]
  ports: [{name: echo, port: %d}]
`, node[0], node[1], hostPort)
		text += documentSeparator + mustSlices(t, fmt.Sprintf("evil/evil echo=%d: %s", echoPort, endpoints))
		lab.Must(t, os.WriteFile(filepath.Join(d.folder, "evil.yaml"), []byte(text), 0o600))
		lab.Must(t, d.load())
	}
	load("pod-0")
	for _, a := range []string{"10.96.0.66", "fd00:10:96::66"} {
		open(l.Pods[1], gone, netip.MustParseAddr(a), hostPort)
	}
	d.live("with the claim", list, false)
	load("")
	d.pass(absence)
	d.ends(1)
	d.live("after the endpoint left", list, true)
}

// At the connection limit, a Service with queue drops only packets that begin a connection: the next segment of a
// connection to an endpoint that left gets a reset.
func TestConnectionsToGoneEndpointsWithoutAPlace(t *testing.T) {
	l := lab.ForTest(t, lab.Config{Pods: 2, Remotes: 1})
	for _, host := range []*lab.Host{l.Pods[0], l.Remotes[0]} {
		lab.Must(t, lab.Err(host.ServeEcho(echoPort)))
	}
	d := &departing{T: t, lab: l, pipeline: pipelineForTest(t, l)}
	load := func(endpoints string) {
		text := `apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  annotations:
    kube-nftproxy.io/terminate-connections: gone
    kube-nftproxy.io/max-connections: "1"
    kube-nftproxy.io/at-max-connections: queue
spec:
  clusterIPs: [10.96.0.10, "fd00:10:96::10"]
  ports: [{port: 70}]
` + documentSeparator + mustSlices(t, fmt.Sprintf("shop/web %d: %s", echoPort, endpoints))
		lab.Must(t, os.WriteFile(filepath.Join(d.folder, "web.yaml"), []byte(text), 0o600))
		lab.Must(t, d.load())
	}
	var list []*client
	for _, endpoint := range []string{"pod-0", "remote-0"} {
		load(endpoint)
		for _, a := range []string{"10.96.0.10", "fd00:10:96::10"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(a), 70)
			c := &client{&connection{text: fmt.Sprintf("to %s of %s", endpoint, to)}, l.Pods[1], to, stays}
			if endpoint == "remote-0" {
				c.of = gone
			}
			d.open(c)
			list = append(list, c)
		}
	}
	load("pod-0 remote-0")
	d.live("with both endpoints", list, false)
	load("pod-0")
	d.pass(absence)
	d.ends(1)
	d.live("after one endpoint left", list, true)
}
