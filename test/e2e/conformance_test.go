//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestConformance covers those of Kubernetes' own tests that need more than a scenario's packets. make conformance runs
// all of them.
func TestConformance(t *testing.T) {
	w := ownWorld(t, lab.Config{Pods: 3, Remotes: 1})
	w.serve(w.Pods[0], w.Pods[1], w.Remotes[0])
	d := w.start()
	d.awaitIdle(patience)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *world, *daemon)
	}{
		{"urls", testURLs},
		{"kubernetes service", testKubernetesService},
		{"large requests", testLargeRequests},
		{"packets out of the window", testOutOfWindow},
		{"sctp module", testSCTPModule},
		{"host ports", testHostPorts},
		{"node ports are not bound", testNodePortsAreNotBound},
		{"service cidr", testServiceCIDR},
		{"close wait timeout", testCloseWait},
		{"an instance with a name beside it", func(t *testing.T, w *world, _ *daemon) { testBeside(t, asked{world: w, table: "kube-nftproxy"}) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			part := *w
			part.T = t
			tt.run(t, &part, d)
		})
	}
}

// testCloseWait: the kernel's default timeout is a minute, but a connection may be used for longer after one side has closed.
func testCloseWait(t *testing.T, w *world, _ *daemon) {
	for name, want := range map[string]string{"close_wait": "3600", "established": "86400"} {
		var got []byte
		err := w.Node.Do(func() (err error) {
			got, err = os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + name)
			return err
		})
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("the timeout %s is %q, want %s (%v)", name, got, want, err)
		}
	}
}

// testURLs sends the requests of kubelets and scripts, from the node.
func testURLs(t *testing.T, w *world, d *daemon) {
	for url, want := range map[string]string{
		"http://127.0.0.1:10256/healthz": "lastUpdated", "http://127.0.0.1:10249/proxyMode": "nftables",
	} {
		eventually(t, patience, func() error {
			status, body, err := d.get(url)
			if err != nil || status != http.StatusOK || !strings.Contains(string(body), want) {
				return fmt.Errorf("%s: status %d, %v: %s; want 200 and %q", url, status, err, body, want)
			}
			return nil
		})
	}
}

// testKubernetesService reaches the API server as every pod does.
func testKubernetesService(t *testing.T, w *world, _ *daemon) {
	api := slice("kubernetes", "kubernetes", endpoint(w.api.Server().Addr()))
	name, port := "https", int32(w.api.Server().Port())
	api.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: api.Ports[0].Protocol, Port: &port}}
	w.apply(api)
	to := netip.AddrPortFrom(w.clusterIPs("kubernetes")[0].Addr(), 443)
	for _, from := range []*lab.Host{w.Pods[2], w.Remotes[0], w.Node} {
		eventually(t, patience, func() error {
			conn, err := from.Dial(t.Context(), inet.TCP, to)
			if err != nil {
				return err
			}
			defer conn.Close()                                                                           //nolint:errcheck // only the connection matters
			return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context()) //nolint:gosec // any certificate will do
		})
	}
}

// testLargeRequests sends more than one packet holds, by TCP and in datagrams that are fragmented on their way.
func testLargeRequests(t *testing.T, w *world, _ *daemon) {
	server := w.Pods[0]
	serveEcho(t, echoPort, server)
	serveDatagrams(t, server, echoPort)
	port := int32(echoPort)
	svc := balanced()
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	w.apply(svc)
	for i, e := range endpointsOf(server) {
		s := slice("web", fmt.Sprintf("web-a-%d", i), e)
		s.Ports[0].Port, s.Ports[1].Port = &port, &port
		w.apply(s)
	}
	for _, from := range []*lab.Host{w.Pods[2], w.Client, server} {
		for _, to := range w.webAddrs() {
			eventually(t, patience, func() error {
				c, err := dialEcho(t.Context(), from, to)
				if err != nil {
					return err
				}
				defer c.Close() //nolint:errcheck // unused from here on
				var errs []error
				for range 16 {
					errs = append(errs, c.say(strings.Repeat("large", 10_000)))
				}
				return errors.Join(errs...)
			})
			for _, size := range []int{1, 1400, 1472, 1473, 2000, 9000, 60_000} {
				eventually(t, patience, func() error { return sendDatagram(t.Context(), from, to, size) })
			}
		}
	}
}

// serveDatagrams returns every datagram as it is.
func serveDatagrams(t *testing.T, h *lab.Host, port int) {
	t.Helper()
	var conn net.PacketConn
	must(t, h.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", fmt.Sprintf("[::]:%d", port))
		return err
	}))
	var serving sync.WaitGroup
	serving.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteTo(buf[:n], from) // the client notices a lost answer
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
}

func sendDatagram(ctx context.Context, from *lab.Host, to netip.AddrPort, size int) error {
	const soon = time.Second
	conn, err := from.Dial(ctx, inet.UDP, to)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // unused from here on
	if err := conn.SetDeadline(time.Now().Add(soon)); err != nil {
		return err
	}
	sent, got := bytes.Repeat([]byte("x"), size), make([]byte, 1<<16)
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	n, err := conn.Read(got)
	if err != nil || !bytes.Equal(sent, got[:n]) {
		return fmt.Errorf("%s -> udp %s: of %d bytes %d came back: %w", from.Name, to, size, n, err)
	}
	return nil
}

// testSCTPModule: an SCTP Service must not cause the kernel to load its module for SCTP sockets, which has had many
// vulnerabilities.
func testSCTPModule(t *testing.T, w *world, _ *daemon) {
	loaded := func() bool {
		t.Helper()
		protocols := mustRead(t, "/proc/net/protocols")
		return strings.Contains(protocols, "\nSCTP")
	}
	before := loaded()
	serve(t, inet.SCTP, backendPort, w.Pods[0])
	svc := service("sctp", corev1.IPv4Protocol, corev1.IPv6Protocol)
	svc.Spec.Ports = []corev1.ServicePort{{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: servicePort}}
	w.apply(svc)
	sctp, name := corev1.ProtocolSCTP, "sctp"
	for i, e := range endpointsOf(w.Pods[0]) {
		s := slice("sctp", fmt.Sprintf("sctp-%d", i), e)
		s.Ports = []discoveryv1.EndpointPort{{Name: &name, Protocol: &sctp, Port: s.Ports[0].Port}}
		w.apply(s)
	}
	for _, to := range w.clusterIPs("sctp") {
		eventually(t, patience, func() error { return reached(t.Context(), w.Pods[2], inet.SCTP, to, "pod-0") })
	}
	if !before && loaded() {
		t.Error("the module sctp was loaded")
	}
}

// testHostPorts has other rules translate ports of the node, as a network plugin does for hostPorts: beside node ports with other
// numbers, and with the same number and another protocol.
func testHostPorts(t *testing.T, w *world, _ *daemon) {
	svc := balanced()
	svc.Spec.Ports = svc.Spec.Ports[:1] // no UDP
	w.apply(svc)
	w.applySlices("a", endpointsOf(w.Pods[0]))
	for _, addr := range w.Node.Addrs() {
		plugin, name := hostPorts(addr, netip.AddrPortFrom(w.Pods[1].Addr(addr), backendPort))
		nft(t, w.Node, plugin)
		defer nft(t, w.Node, "delete table "+name)
		for _, from := range []*lab.Host{w.Client, w.Pods[2], w.Node} {
			eventually(t, patience, func() error {
				return errors.Join(
					reached(t.Context(), from, inet.TCP, netip.AddrPortFrom(addr, 30080), "pod-0"),
					reached(t.Context(), from, inet.TCP, netip.AddrPortFrom(addr, 8081), "pod-1"),
					reached(t.Context(), from, inet.UDP, netip.AddrPortFrom(addr, 30080), "pod-1"),
				)
			})
		}
		a := w.Client.Probe(t.Context(), inet.TCP, netip.AddrPortFrom(addr, 8081), lab.Options{})
		lab.Same(t, w.Client.Addr(addr), a.Source.Addr(), "host port: %s", a)
	}
}

// hostPorts returns the table of a plugin that translates TCP port 8081 and UDP port 30080 of an address to a pod, and its name.
func hostPorts(addr netip.Addr, pod netip.AddrPort) (table, name string) {
	family := "ip"
	if addr.Is6() {
		family = "ip6"
	}
	rules := fmt.Sprintf("%[1]s daddr %[2]s tcp dport 8081 dnat to %[3]s; %[1]s daddr %[2]s udp dport 30080 dnat to %[3]s",
		family, addr, pod)
	return fmt.Sprintf("table %s hostports { chain in { type nat hook prerouting priority dstnat; %s; }; "+
		"chain out { type nat hook output priority -100; %s; }; }", family, rules, rules), family + " hostports"
}

// testNodePortsAreNotBound: a process can listen on the number of a node port, and gets its packets after the Service is deleted.
func testNodePortsAreNotBound(t *testing.T, w *world, _ *daemon) {
	svc := balanced()
	w.apply(svc)
	w.applySlices("a", endpointsOf(w.Pods[0]))
	for _, proto := range protocols {
		server, err := w.Node.Serve(proto, 30080)
		if err != nil {
			t.Fatalf("while there is the node port: %v", err)
		}
		t.Cleanup(func() { _ = server.Close() })
	}
	w.reachWeb("pod-0")
	w.delete(svc)
	for _, addr := range w.Node.Addrs() {
		reach(t, w.Client, netip.AddrPortFrom(addr, 30080), "node")
	}
}

// testServiceCIDR adds a range of cluster IPs and has Services serve in it.
func testServiceCIDR(t *testing.T, w *world, _ *daemon) {
	more := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.123.0.0/24", "fd00:10:123::/112"}},
		// The test's cluster has no controller for this.
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
		}}},
	}
	w.apply(more)
	svc := service("more", corev1.IPv4Protocol, corev1.IPv6Protocol)
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.ClusterIPs = []string{"10.123.0.99", "fd00:10:123::99"}
	svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort = 30090, 30090
	eventually(t, patience, func() error { return w.api.Apply(t.Context(), svc) })
	for i, e := range endpointsOf(w.Pods[0]) {
		w.apply(slice("more", fmt.Sprintf("more-%d", i), e))
	}
	for i, ip := range w.clusterIPs("more") {
		reach(t, w.Pods[2], ip, "pod-0")
		reach(t, w.Client, netip.AddrPortFrom(w.Node.Addrs()[i], 30090), "pod-0")
	}
}

// TestRollingUpdateLosesNoConnection replaces a Service's only endpoint repeatedly, as a Deployment does whose old pod serves while it
// terminates: each datagram gets a reply and no connection is rejected, from any client, with either policy.
func TestRollingUpdateLosesNoConnection(t *testing.T) {
	const rounds = 6
	w := newWorld(t, lab.Config{Pods: 3})
	d := w.start()
	d.awaitIdle(patience)
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{
		corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal,
	} {
		svc := balanced()
		svc.Spec.ExternalTrafficPolicy = policy
		if policy == corev1.ServiceExternalTrafficPolicyLocal {
			svc.Spec.HealthCheckNodePort = 32100
		}
		w.apply(svc)
		old, next := w.Pods[0], w.Pods[1]
		servers := w.deploy(old)
		w.applySlices("a", endpointsOf(old))
		w.reachWeb(old.Name)
		stop := w.hammer()
		for range rounds {
			started := w.deploy(next)
			w.applySlices("a", endingOf(old), unready(endpointsOf(next)))
			w.reachWeb(old.Name)
			w.applySlices("a", endingOf(old), endpointsOf(next))
			w.reachWeb(next.Name)
			w.applySlices("a", endpointsOf(next))
			for _, s := range servers {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			servers, old, next = started, next, old
		}
		requests, err := stop()
		lab.Check(t, err, "policy %s", policy)
		t.Logf("policy %s: %d requests during %d replacements", policy, requests, rounds)
		if requests < 100*rounds {
			t.Errorf("policy %s: only %d requests", policy, requests)
		}
		for _, s := range servers {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// deploy starts a pod's servers.
func (w *world) deploy(h *lab.Host) (list []io.Closer) {
	w.Helper()
	for _, proto := range protocols {
		s, err := h.Serve(proto, backendPort)
		must(w, err)
		list = append(list, s)
	}
	return list
}

// endingOf describes a host as an endpoint that terminates and still serves.
func endingOf(h *lab.Host) [2]discoveryv1.Endpoint {
	e := endpointsOf(h)
	return [2]discoveryv1.Endpoint{terminating(e[0]), terminating(e[1])}
}

// hammer sends requests in sequence to all addresses of Service web until stop is called. stop returns their number and the first
// failure. TCP would repeat a lost SYN, but UDP repeats nothing.
func (w *world) hammer() (stop func() (int64, error)) {
	w.Helper()
	var requests atomic.Int64
	var mu sync.Mutex
	var lost []error
	ctx, cancel := context.WithCancel(w.Context())
	var clients sync.WaitGroup
	for i, to := range w.webAddrs() {
		from := w.Client
		if i%2 == 0 {
			from = w.Pods[2]
		}
		for _, proto := range protocols {
			clients.Go(func() {
				for ctx.Err() == nil {
					a := from.Probe(w.Context(), proto, to, lab.Options{Timeout: patience})
					if a.Outcome != lab.Answered {
						mu.Lock()
						lost = append(lost, fmt.Errorf("%s -> %s %s: %s (%w)", from.Name, proto, to, a, a.Err))
						mu.Unlock()
					}
					requests.Add(1)
					time.Sleep(time.Millisecond) // the processors have other work to do, too
				}
			})
		}
	}
	return func() (int64, error) {
		cancel()
		clients.Wait()
		return requests.Load(), errors.Join(lost[:min(len(lost), 5)]...)
	}
}
