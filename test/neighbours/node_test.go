//go:build neighbours

package neighbours

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// Ports and addresses of the Services. The IPv6 address of a Service follows its IPv4 address.
const (
	backendPort = 8080
	nodePort    = 30080
	localPort   = 30090
	healthPort  = 32100
	// ownPort is the port of a server of the node itself.
	ownPort = 9999
)

var (
	clusterIPs = []netip.Addr{netip.MustParseAddr("10.96.0.20"), netip.MustParseAddr("fd00:10:96::20")}
	lbIPs      = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:1::10")}
	localIPs   = []netip.Addr{netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("2001:db8:1::11")}
)

// node is a node on which kube-nftproxy and a neighbour run. Its dir also has the objects.
type node struct {
	*lab.Lab
	machine
	// path is kube-nftproxy.
	path    string
	running *program.Program
	// args are further arguments of kube-nftproxy.
	args []string
	// other is the second node, of networks over two.
	other *machine
	// objects are those of the Services.
	objects []runtime.Object
	// old are established connections.
	old []net.Conn
}

// container returns the pod that network plugins and container engines connect.
func (n *node) container() *lab.Host { return n.Pods[3] }

// caller returns a pod that is only a client.
func (n *node) caller() *lab.Host { return n.Pods[2] }

// banned returns the external client that policies deny.
func (n *node) banned() *lab.Host { return n.Clients[1] }

func newNode(t *testing.T, path string) *node {
	t.Helper()
	n := &node{Lab: lab.ForTest(t, lab.Config{Pods: 4, Remotes: 2, Clients: 3}), path: path}
	n.t, n.host = t, n.Node
	// The mount options of an overlay cannot contain the commas of a test's name.
	var err error
	if n.dir, err = os.MkdirTemp("", "neighbours"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(n.dir); err != nil {
			t.Error(err)
		}
	})
	n.serve(n.Pods[0], n.Pods[1], n.Remotes[0], n.container())
	lab.Must(t, lab.Err(n.Node.ServeEcho(ownPort)))
	lab.Must(t, os.Mkdir(n.manifests(), 0o700))
	web, local := loadBalancer("web", lbIPs, nodePort), loadBalancer("local", localIPs, localPort)
	web.Spec.ClusterIP, web.Spec.ClusterIPs = clusterIPs[0].String(), []string{clusterIPs[0].String(), clusterIPs[1].String()}
	local.Spec.ClusterIP, local.Spec.ClusterIPs = "10.96.0.21", []string{"10.96.0.21", "fd00:10:96::21"}
	local.Spec.ExternalTrafficPolicy, local.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, healthPort
	pairs := func(hosts ...*lab.Host) (out [][2]discoveryv1.Endpoint) {
		for _, h := range hosts {
			on := world.NodeName
			if h == n.Remotes[0] {
				on = world.OtherNode
			}
			out = append(out, world.Endpoints(h.Addrs(), on))
		}
		return out
	}
	n.objects = append(world.Slices("web", backendPort, pairs(n.Pods[0], n.Pods[1], n.Remotes[0])...),
		world.Slices("local", backendPort, pairs(n.Pods[0], n.Remotes[0])...)...)
	n.objects = append(n.objects, web, local, world.Node(), world.ServiceCIDR())
	lab.Must(t, world.Write(n.manifests(), "objects", n.objects...))
	t.Cleanup(func() {
		for _, conn := range n.old {
			_ = conn.Close() // the test is over
		}
	})
	n.mount()
	return n
}

// loadBalancer returns a Service of type LoadBalancer with a node port.
func loadBalancer(name string, ips []netip.Addr, port int32) *corev1.Service {
	s := world.Service(name)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = port, port
	for _, ip := range ips {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip.String()})
	}
	return s
}

func (n *node) manifests() string { return filepath.Join(n.dir, "manifests") }

// start starts kube-nftproxy, and waits for its first sync.
func (n *node) start() {
	n.t.Helper()
	n.running = n.startOn(&n.machine, world.NodeName)
}

// startOn starts kube-nftproxy on a machine, and waits for its first sync.
func (n *node) startOn(m *machine, name string) *program.Program {
	n.t.Helper()
	p := program.ForTest(n.t, program.Config{
		Host: m.host, Path: n.path, Log: filepath.Join(m.dir, "kube-nftproxy.log"), Args: append([]string{
			"--manifests=" + n.manifests(), "--hostname-override=" + name, "--proxy-mode=nftables",
			"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48", "--control-socket=" + filepath.Join(m.dir, "control"),
			// Other values would set sysctls of the whole machine.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		}, n.args...),
	})
	p.Synced(n.t)
	return p
}

func (n *node) stop() {
	n.t.Helper()
	lab.Must(n.t, n.running.Signal(syscall.SIGTERM))
	lab.Must(n.t, n.running.Wait())
}

// own runs a command of kube-nftproxy, which must succeed.
func (n *node) own(args ...string) string {
	n.t.Helper()
	out, err := n.Node.Command(n.t.Context(), n.path, args...).CombinedOutput()
	if err != nil {
		n.t.Errorf("kube-nftproxy %q: %v: %s", args, err, out)
	}
	return string(out)
}

// check is a packet, or an exchange of packets, with the outcome that it must have.
type check struct {
	name  string
	from  *lab.Host
	proto inet.Protocol
	to    netip.AddrPort
	// server is the name of the answering host; "-" for no answer, "*" for any.
	server string
	// source is the source address that the server must see; the zero value for any.
	source netip.Addr
	// act replaces the exchange, for other protocols. Its connections are not kept.
	act func(context.Context) error
}

func (c check) run(ctx context.Context) error {
	if c.act != nil {
		return c.act(ctx)
	}
	if c.to.Port() == healthPort || c.to.Port() == 10256 {
		return c.connect(ctx)
	}
	a := c.from.Probe(ctx, c.proto, c.to, lab.Options{})
	switch {
	case a.Outcome == lab.Failed && c.server != "-":
		return a.Err
	case (a.Outcome == lab.Answered) == (c.server == "-"):
		return fmt.Errorf("%s", a)
	case c.server == "-":
		return nil
	case c.server != "*" && a.Server != c.server:
		return fmt.Errorf("%s, want an answer of %s", a, c.server)
	case c.source.IsValid() && a.Source.Addr() != c.source:
		return fmt.Errorf("%s, want the source %s", a, c.source)
	}
	return nil
}

// connect is run for servers that do not send a line first.
func (c check) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lab.DefaultTimeout)
	defer cancel()
	conn, err := c.from.Dial(ctx, inet.TCP, c.to)
	if err != nil {
		return err
	}
	return conn.Close()
}

// services returns the checks of all Services.
func (n *node) services() (list []check) {
	for i, f := range inet.Families {
		own := n.Node.Addrs()[i]
		add := func(name string, from *lab.Host, to netip.Addr, port uint16, server string, source netip.Addr) {
			for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
				list = append(list, check{name: name, from: from, proto: proto, to: netip.AddrPortFrom(to, port), server: server, source: source})
			}
		}
		add("cluster IP, from a pod", n.caller(), clusterIPs[i], 80, "*", netip.Addr{})
		add("cluster IP, from the node", n.Node, clusterIPs[i], 80, "*", netip.Addr{})
		add("node port", n.Client, own, nodePort, "*", netip.Addr{})
		add("load-balancer IP", n.Client, lbIPs[i], 80, "*", netip.Addr{})
		add("load-balancer IP with policy Local", n.Client, localIPs[i], 80, "pod-0", n.Client.Addrs()[i])
		add("node port with policy Local", n.Client, own, localPort, "pod-0", n.Client.Addrs()[i])
		if f == inet.IPv4 {
			list = append(list, check{name: "health check node port", from: n.Client, to: netip.AddrPortFrom(own, healthPort)})
		}
	}
	return list
}

// settle is the time for which a wrong outcome may become right: kube-nftproxy repairs its tables within a second.
const settle = 4 * time.Second

// failing returns the names of the checks that fail, with the families; none as soon as all succeed.
func (n *node) failing(checks []check) (names []string) {
	n.t.Helper()
	var why []string
	for begin := time.Now(); ; {
		names, why = nil, nil
		for _, c := range checks {
			if err := c.run(n.t.Context()); err != nil {
				why = append(why, fmt.Sprintf("%s, %s %s to %s: %v", c.name, c.from.Name, c.proto, c.to, err))
				names = append(names, c.name)
			}
		}
		slices.Sort(names)
		if names = slices.Compact(names); len(names) == 0 || time.Since(begin) > settle {
			if len(why) > 0 {
				n.t.Log(strings.Join(why, "\n"))
			}
			return names
		}
	}
}

// must fails if a check fails.
func (n *node) must(when string, checks []check) {
	n.t.Helper()
	for _, name := range n.failing(checks) {
		n.t.Errorf("%s: failed: %s", when, name)
	}
}

// rules lists all rules that are not of kube-nftproxy, and the policy rules of routing.
func (n *node) rules() string {
	n.t.Helper()
	var b strings.Builder
	for _, table := range strings.Split(n.sh("nft list tables"), "\n") {
		if table == "" || strings.Contains(table, "kube-nftproxy") {
			continue
		}
		// Two listings of the same rules may differ in the order of the chains.
		parts := strings.Split(n.sh("nft -s list %s", table), "\n\tchain ")
		for i := range parts {
			parts[i] = strings.TrimRight(parts[i], "}\n\t ") + "\n"
		}
		slices.Sort(parts[1:])
		b.WriteString(strings.Join(parts, "chain "))
	}
	for _, line := range strings.Split(n.sh("xtables-legacy-multi iptables-save; xtables-legacy-multi ip6tables-save"), "\n") {
		if !strings.HasPrefix(line, "#") {
			chain, _, _ := strings.Cut(line, " [")
			b.WriteString(chain + "\n")
		}
	}
	return b.String() + n.sh("ip rule; ip -6 rule")
}

func (n *node) unchanged(when, before string) {
	n.t.Helper()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(n.rules(), "\n")); diff != "" {
		n.t.Errorf("%s: rules of the neighbour (-before +after):\n%s", when, diff)
	}
}

// during runs f while new connections are opened to all kinds of addresses, and to further ones. It fails for none: the caller judges the numbers.
func (n *node) during(further []check, f func()) (s Step) {
	n.t.Helper()
	checks := append(slices.DeleteFunc(n.services(), func(c check) bool { return c.proto != inet.TCP || c.to.Port() == healthPort }), further...)
	n.connect(checks)
	s.Flows = len(n.old)
	failed := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(n.t.Context())
	defer stop()
	// rest waits until each source has opened some connections.
	ticks := make(chan struct{})
	sources := 0
	for _, c := range checks {
		sources++
		all.Go(func() {
			for ctx.Err() == nil {
				err := c.run(context.WithoutCancel(ctx))
				mu.Lock()
				if s.Made++; err != nil {
					s.Failed++
					failed[fmt.Sprintf("%s: %v", c.name, err)]++
				}
				mu.Unlock()
				select {
				case ticks <- struct{}{}:
				case <-time.After(10 * time.Millisecond):
				}
			}
		})
	}
	rest := func() {
		for range 5 * sources {
			<-ticks
		}
	}
	rest()
	f()
	rest()
	stop()
	all.Wait()
	if len(failed) > 0 {
		n.t.Logf("failed connections: %v", failed)
	}
	// The next step may end the paths of the further ones.
	ended := func(conn net.Conn) bool {
		return slices.ContainsFunc(further, func(c check) bool { return c.to.String() == conn.RemoteAddr().String() })
	}
	n.old = slices.DeleteFunc(n.old, func(conn net.Conn) bool {
		err := exchange(conn)
		if err != nil {
			n.t.Logf("established connection to %s: %v", conn.RemoteAddr(), err)
			s.Broken++
		}
		if err == nil && !ended(conn) {
			return false
		}
		_ = conn.Close() // it has served
		return true
	})
	return s
}

// connect opens the TCP connections of old that do not exist.
func (n *node) connect(checks []check) {
	n.t.Helper()
	for _, c := range checks {
		if c.proto != inet.TCP || c.act != nil || slices.ContainsFunc(n.old, func(o net.Conn) bool { return o.RemoteAddr().String() == c.to.String() }) {
			continue
		}
		ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Second)
		conn, err := c.from.Dial(ctx, inet.TCP, c.to)
		cancel()
		if err == nil {
			err = exchange(conn)
		}
		if err != nil {
			n.t.Errorf("connect to %s: %v", c.to, err)
			continue
		}
		n.old = append(n.old, conn)
	}
}

// exchange sends a line over a connection, and reads until it is returned.
func exchange(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	line := fmt.Sprintf("line %d\n", time.Now().UnixNano())
	if _, err := io.WriteString(conn, line); err != nil {
		return err
	}
	var got strings.Builder
	for buf := make([]byte, 256); !strings.Contains(got.String(), line); {
		k, err := conn.Read(buf)
		got.Write(buf[:k])
		if err != nil {
			return errors.Join(err, fmt.Errorf("after %q", got.String()))
		}
	}
	return nil
}
