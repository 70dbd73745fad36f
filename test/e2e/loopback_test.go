//go:build e2e || twin

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// onLoopback are the addresses of a node port on loopback.
func onLoopback(port uint16) [2]netip.AddrPort {
	return [2]netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), netip.AddrPortFrom(netip.IPv6Loopback(), port),
	}
}

// reachLoopback waits until a process of the node reaches exactly these servers by a node port on loopback, in both families.
func (w *world) reachLoopback(port uint16, servers ...string) {
	w.Helper()
	for _, to := range onLoopback(port) {
		eventually(w, patience, func() error { return reached(w.Context(), w.Node, inet.TCP, to, servers...) })
	}
}

// refusedOnLoopback waits until a node port is refused on loopback, in both families.
func (w *world) refusedOnLoopback(proto inet.Protocol, port uint16) {
	w.Helper()
	for _, to := range onLoopback(port) {
		eventually(w, patience, func() error {
			if a := w.Node.Probe(w.Context(), proto, to, lab.Options{}); a.Outcome != lab.Refused {
				return fmt.Errorf("%s %s: %v, want refused", proto, to, a)
			}
			return nil
		})
	}
}

// hold opens a connection from the node.
func (w *world) hold(to netip.AddrPort) conversation {
	w.Helper()
	c, err := dialEcho(w.Context(), w.Node, to)
	must(w, err)
	w.Cleanup(func() { _ = c.Close() })
	return c
}

// TestNodePortsOnLoopback follows a Service with a node port that processes of the node use by 127.0.0.1 and ::1.
func TestNodePortsOnLoopback(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1, Remotes: 1})
	serveEcho(t, backendPort, w.Pods[0], w.Remotes[0])
	here, there := endpointsOf(w.Pods[0]), endpointsOf(w.Remotes[0])
	web := onNodePort("web", webNodePort)
	w.apply(web)
	w.applySlices("a", here)
	socket := filepath.Join(w.dir, "control.sock")
	d := w.start("--nodeport-addresses", "primary,localhost", "--control-socket", socket)
	w.reachLoopback(webNodePort, "pod-0")
	for _, addr := range w.Node.Addrs() {
		if err := reached(t.Context(), w.Client, inet.TCP, netip.AddrPortFrom(addr, webNodePort), "pod-0"); err != nil {
			t.Error(err)
		}
	}
	w.listeners(d, 1)
	if out, err := w.Node.Command(t.Context(), "sh", "-c", "cat /proc/sys/net/ipv4/conf/*/route_localnet | sort -u").Output(); err != nil || string(out) != "0\n" {
		t.Errorf("route_localnet is %q, %v", out, err)
	}
	said := func(words string, args ...string) {
		t.Helper()
		args = append(args, "--control-socket", socket)
		out, err := w.Node.Command(t.Context(), program, args...).CombinedOutput()
		if text := strings.Join(strings.Fields(string(out)), " "); !strings.Contains(text, words) {
			t.Errorf("%v: %v; want %q in:\n%s", args, err, words, out)
		}
	}
	said("30080 on 192.0.2.1, 127.0.0.1 policy Cluster", "services", "default/web")
	said("30080 on 2001:db8::1, ::1 policy Cluster", "services", "default/web")
	said("loopback TCP node ports on 127.0.0.1 and ::1: 2 listeners, 0 connections", "status")
	said("100 % to 10.244.0.10:8080 masqueraded as 192.0.2.1", "trace", "node", "127.0.0.1:30080")
	said("100 % to [fd00:10:244::10]:8080 masqueraded", "trace", "node", "[::1]:30080")
	said("100 % untouched", "trace", "node", "127.0.0.1:30081")

	udp := onNodePort("dns", dnsNodePort)
	udp.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	w.apply(udp)
	serve(t, inet.UDP, dnsNodePort, w.Node)
	w.refusedOnLoopback(inet.UDP, dnsNodePort)
	m, err := d.scrape()
	for _, f := range inet.Families {
		if n := m[fmt.Sprintf(`kubeproxy_nftables_localhost_nodeport_rejected_packets_total{ip_family="%s",protocol="UDP"}`, f)]; n == 0 || err != nil {
			t.Errorf("%v packets of %s were refused; %v", n, f, err)
		}
	}
	said("100 % refused with ICMP port unreachable", "trace", "node", "127.0.0.1:30153/udp")

	var held []conversation
	for _, to := range onLoopback(webNodePort) {
		c := w.hold(to)
		lab.Same(t, "pod-0", c.server, "%s", to)
		held = append(held, c)
	}
	stay := func(after string) {
		t.Helper()
		for i, c := range held {
			lab.Check(t, c.goOn(), "connection %d after %s", i, after)
		}
	}

	other := onNodePort("other", 30081)
	w.apply(other, slice("other", "other-4", here[0]), slice("other", "other-6", here[1]))
	w.reachLoopback(30081, "pod-0")
	w.listeners(d, 2)
	w.delete(other)
	w.refusedOnLoopback(inet.TCP, 30081)
	stay("changes of another Service")

	w.applySlices("b", there)
	w.reachLoopback(webNodePort, "pod-0", "remote-0")
	stay("another endpoint was added")

	web.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.apply(web)
	w.oneServer(onLoopback(webNodePort))
	web.Spec.SessionAffinity = corev1.ServiceAffinityNone
	w.apply(web)
	w.reachLoopback(webNodePort, "pod-0", "remote-0")

	web.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	w.apply(web)
	w.reachLoopback(webNodePort, "pod-0")
	stay("a change of the policy")
	web.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	w.apply(web)
	w.reachLoopback(webNodePort, "pod-0", "remote-0")

	remove := func(name string) {
		w.delete(slice("web", "web-"+name+"-0"), slice("web", "web-"+name+"-1"))
	}
	remove("a")
	w.reachLoopback(webNodePort, "remote-0")
	stay("the removal of their endpoint")

	remove("b")
	w.refusedOnLoopback(inet.TCP, webNodePort)
	for i, c := range held {
		if _, err := c.in.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("connection %d ended with %v after the last endpoint has gone, want a reset", i, err)
		}
	}

	w.applySlices("b", [2]discoveryv1.Endpoint{terminating(here[0]), terminating(here[1])})
	w.reachLoopback(webNodePort, "pod-0")
	w.applySlices("b", here)
	eventually(t, patience, func() error { return collisions(d, 1, 0) }) // the node's server for UDP, not the program's listeners
	t.Run("limit", func(t *testing.T) { testLoopbackLimit(t, w, d) })
	t.Run("port in use", func(t *testing.T) {
		testLoopbackPortInUse(t, w, d, func() {
			said("PROBLEM not served at 127.0.0.1:30090: bind: address already in use", "services", "--wrong")
			said("a limit of file descriptors is reached: 1", "status")
		})
	})
	if n, _ := d.awaitIdle(patience).Sum("kubenftproxy_repairs_total"); n != 0 {
		t.Errorf("%v repairs: the program takes its own commits for another program's", n)
	}
	t.Run("upgrade", func(t *testing.T) { d = testLoopbackUpgrade(t, w, d) })
	d.noErrors()
	d.stop()
	if out := nft(t, w.Node, "list", "tables"); strings.Contains(out, "loopback") {
		t.Errorf("tables after the end:\n%s", out)
	}
	w.refusedOnLoopback(inet.TCP, webNodePort)
}

// testLoopbackUpgrade starts a second instance, which takes over and exits, and a third one, which stays. The first one keeps its connections.
func testLoopbackUpgrade(t *testing.T, w *world, d *daemon) *daemon {
	c := w.hold(onLoopback(webNodePort)[0])
	works := func() {
		t.Helper()
		w.reachLoopback(webNodePort, "pod-0")
		w.refusedOnLoopback(inet.UDP, dnsNodePort)
	}
	takesOver := func(times int) *daemon {
		t.Helper()
		next := w.start("--nodeport-addresses", "primary,localhost", "--healthz-bind-address", "127.0.0.1:10356", "--metrics-bind-address", "127.0.0.1:10349")
		eventually(t, patience, func() error {
			if n := len(d.lines("nother instance", "serves this node")); n < times {
				return fmt.Errorf("the first instance made way %d times, want %d", n, times)
			}
			return nil
		})
		works()
		if err := c.goOn(); err != nil {
			t.Error(err)
		}
		return next
	}
	second := takesOver(1)
	second.stop()
	works()
	third := takesOver(2)
	d.stop()
	works()
	for _, next := range []*daemon{second, third} {
		if lines := next.lines("cannot listen on"); len(lines) > 0 {
			t.Errorf("an instance reports ports of another one: %q", lines)
		}
	}
	return third
}

// listeners waits until the program says that it has so many listeners in each family.
func (w *world) listeners(d *daemon, n float64) {
	w.Helper()
	eventually(w, patience, func() error {
		m, err := d.scrape()
		if err != nil {
			return err
		}
		for _, f := range inet.Families {
			if got := m[fmt.Sprintf(`kubeproxy_nftables_localhost_nodeport_listeners{ip_family="%s"}`, f)]; got != n {
				return fmt.Errorf("%v listeners of %s, want %v", got, f, n)
			}
		}
		return nil
	})
}

// oneServer waits until all new connections of a family reach one server.
func (w *world) oneServer(to [2]netip.AddrPort) {
	w.Helper()
	for _, to := range to {
		eventually(w, patience, func() error {
			counts, err := w.Node.Spread(w.Context(), inet.TCP, to, 30, lab.Options{})
			if err == nil && len(counts) != 1 {
				err = fmt.Errorf("%s reaches %v with session affinity", to, counts)
			}
			return err
		})
	}
}

// testLoopbackLimit opens more connections than the Services of one namespace may have.
func testLoopbackLimit(t *testing.T, w *world, d *daemon) {
	const filesOfConnection = 6
	to := onLoopback(webNodePort)[0]
	w.reachLoopback(webNodePort, "pod-0")
	before, err := d.scrape()
	must(t, err)
	const failed = `kubenftproxy_loopback_connections_failed_total{reason="limit_of_namespace"}`
	listeners, _ := before.Sum("kubeproxy_nftables_localhost_nodeport_listeners")
	most := (descriptors.New().Error(room.OfNamespace, "default").Most - int(listeners)) / filesOfConnection
	open := make([]conversation, 0, most)
	eventually(t, patience, func() error { // until the earlier connections have ended
		m, err := d.scrape()
		if err == nil && m["kubenftproxy_loopback_connections"] != 0 {
			err = fmt.Errorf("%v connections", m["kubenftproxy_loopback_connections"])
		}
		return err
	})
	for range most {
		open = append(open, w.hold(to))
	}
	a := w.Node.Probe(t.Context(), inet.TCP, to, lab.Options{})
	if a.Outcome == lab.Answered {
		t.Errorf("connection %d: %v, want a reset", most+1, a)
	}
	after, err := d.scrape()
	if err != nil || after[failed] != before[failed]+1 || after["kubenftproxy_loopback_connections"] != float64(most) {
		t.Errorf("%v connections, %v above the limit; %v", after["kubenftproxy_loopback_connections"], after[failed], err)
	}
	for _, c := range open {
		must(t, c.goOn())
		c.Close()
	}
	w.reachLoopback(webNodePort, "pod-0")
}

// testLoopbackPortInUse has another process listen on one address of a node port.
func testLoopbackPortInUse(t *testing.T, w *world, d *daemon, whileInUse func()) {
	four, six := onLoopback(quietNodePort)[0], onLoopback(quietNodePort)[1]
	free := take(t, w.Node, four.String())
	quiet := onNodePort("quiet", quietNodePort)
	w.apply(quiet, slice("quiet", "quiet-4", endpoint(w.Pods[0].IPv4)), slice("quiet", "quiet-6", endpoint(w.Pods[0].IPv6)))
	eventually(t, patience, func() error { return reached(t.Context(), w.Node, inet.TCP, six, "pod-0") })
	told := func() error {
		list, err := w.api.Client().EventsV1().Events("default").List(w.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		n := 0
		for _, e := range list.Items {
			if e.Reason == "NodePortNotOnLoopback" && e.Regarding.Name == "quiet" && e.Series == nil {
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("%d Events, want 1", n)
		}
		return nil
	}
	eventually(t, patience, told)
	failures := func() float64 {
		m, err := d.scrape()
		must(t, err)
		return m[`kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total{ip_family="IPv4"}`]
	}
	n := failures()
	eventually(t, patience, func() error {
		if now := failures(); n == 0 || now == n {
			return fmt.Errorf("%v failures, and the program does not try again", now)
		}
		return nil
	})
	if lines := d.lines("NodePortNotOnLoopback"); len(lines) > 1 {
		t.Errorf("%d lines in the log: %q", len(lines), lines)
	}
	if lines := d.lines("Part of an object cannot be used", "default/quiet", four.String()); len(lines) != 1 {
		t.Errorf("%d lines in the log tell of the port, want 1: %q", len(lines), lines)
	}
	whileInUse()
	free()
	eventually(t, patience, func() error { return reached(t.Context(), w.Node, inet.TCP, four, "pod-0") })
	if err := told(); err != nil {
		t.Error(err)
	}
}
