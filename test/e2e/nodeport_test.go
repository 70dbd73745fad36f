//go:build e2e || twin

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// The node ports of the Services web, dns and quiet.
const webNodePort, dnsNodePort, quietNodePort = 30080, 30153, 30090

// onNodePort returns a dual-stack Service with a TCP node port, with all endpoints on the lab's pod.
func onNodePort(name string, number int32) *corev1.Service {
	s := service(name, corev1.IPv4Protocol, corev1.IPv6Protocol)
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.Ports = s.Spec.Ports[:1]
	s.Spec.Ports[0].NodePort = number
	return s
}

// TestNodePortCollision: a process of the node listens on a node port, and the kernel assigns node ports to processes. Both are
// reported once, by an Event and in the log, and counted while they last.
func TestNodePortCollision(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1})
	w.serve(w.Pods...)
	w.apply(onNodePort("web", webNodePort), onNodePort("dns", dnsNodePort), onNodePort("quiet", quietNodePort),
		slice("web", "web-4", endpoint(w.Pods[0].IPv4)))
	other, err := w.Node.Serve(inet.TCP, webNodePort)
	must(t, err)
	w.occupyQuiet()
	sysctl := func(name, value string) {
		t.Helper()
		must(t, w.Node.Sysctl("ipv4/"+name, value))
	}
	sysctl("ip_local_port_range", "30100 39999") // the node port of dns, and enough others
	reaches := func(server string) {
		t.Helper()
		to := netip.AddrPortFrom(w.Node.IPv4, webNodePort)
		if got := w.Client.Probe(t.Context(), inet.TCP, to, lab.Options{}); got.Server != server {
			t.Errorf("the client reaches %v, want %s", got, server)
		}
	}
	reaches(w.Node.Name)

	d := w.start()
	eventually(t, patience, func() error { return collisions(d, 1, 1) })
	// The Event's statement is true.
	reaches(w.Pods[0].Name)
	want := map[string]int{
		"NodePortCollision Service web": 1, "NodePortInEphemeralRange Service dns": 1, "NodePortInEphemeralRange Node node-1": 1,
	}
	eventually(t, patience, func() error { return compareEvents(w, "NodePort", want) })
	if got := d.lines("Part of an object cannot be used", "default/web", "30080/TCP (at 0.0.0.0:30080)", "on node node-1"); len(got) != 1 {
		t.Errorf("%d lines in the log tell of the process, want 1: %q", len(got), got)
	}

	// After a change, a search finds neither any more, and reports nothing.
	must(t, other.Close())
	sysctl("ip_local_reserved_ports", "30000-32767")
	w.apply(onNodePort("other", 30091))
	eventually(t, patience, func() error { return collisions(d, 0, 0) })
	if err := compareEvents(w, "NodePort", want); err != nil {
		t.Error(err)
	}
	d.stop()
}

// occupyQuiet uses the node port of quiet without a collision: a listener on loopback, a listener of another protocol, and a
// connected socket.
func (w *world) occupyQuiet() {
	w.Helper()
	must(w, w.Node.Do(func() error {
		for _, network := range []string{"tcp4", "udp4"} {
			at := net.JoinHostPort("127.0.0.1", fmt.Sprint(quietNodePort))
			if network == "udp4" {
				at = net.JoinHostPort("0.0.0.0", fmt.Sprint(quietNodePort))
			}
			if err := w.keep(network, at); err != nil {
				return err
			}
		}
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.Node.IPv4, quietNodePort))}
		conn, err := dialer.DialContext(w.Context(), "tcp4", netip.AddrPortFrom(w.Pods[0].IPv4, backendPort).String())
		if err == nil {
			w.Cleanup(func() { conn.Close() })
		}
		return err
	}))
}

// keep listens until the end of the test.
func (w *world) keep(network, at string) error {
	var c net.ListenConfig
	if strings.HasPrefix(network, "udp") {
		l, err := c.ListenPacket(context.Background(), network, at)
		if err == nil {
			w.Cleanup(func() { l.Close() })
		}
		return err
	}
	l, err := c.Listen(context.Background(), network, at)
	if err == nil {
		w.Cleanup(func() { l.Close() })
	}
	return err
}

// collisions returns nil if the numbers of colliding node ports match, after at least one search.
func collisions(d *daemon, listener, ephemeral float64) error {
	m, err := d.scrape()
	if err != nil {
		return err
	}
	const name = "kubenftproxy_node_port_collisions"
	got := [2]float64{m[name+`{cause="listener"}`], m[name+`{cause="ephemeral_range"}`]}
	if want := [2]float64{listener, ephemeral}; got != want || m[`kubenftproxy_node_port_searches_total{result="done"}`] == 0 {
		return fmt.Errorf("%v node ports collide, want %v", got, want)
	}
	return nil
}

// compareEvents compares the Events whose reason begins with a prefix, as numbers of occurrences by reason and object.
func compareEvents(w *world, prefix string, want map[string]int) error {
	list, err := w.api.Client().EventsV1().Events("").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	got := map[string]int{}
	for _, e := range list.Items {
		if !strings.HasPrefix(e.Reason, prefix) {
			continue
		}
		n := 1
		if e.Series != nil {
			n = int(e.Series.Count)
		}
		got[e.Reason+" "+e.Regarding.Kind+" "+e.Regarding.Name] += n
	}
	if !maps.Equal(want, got) {
		return fmt.Errorf("events (-want +got):\n%s", cmp.Diff(want, got))
	}
	return nil
}
