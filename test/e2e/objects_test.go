//go:build e2e || twin

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	objects "github.com/kube-nftproxy/kube-nftproxy/test/world"
)

const (
	// nodeName is the lab's node, otherNode stands for all others.
	nodeName, otherNode = objects.NodeName, objects.OtherNode
	// backendPort is the port of servers, servicePort that of Services.
	backendPort, servicePort = 8080, objects.ServicePort
)

var protocols = []inet.Protocol{inet.TCP, inet.UDP}

// node returns the lab's Node.
func node() *corev1.Node { return objects.Node() }

// service returns a Service in namespace default with ports 80/TCP and 80/UDP. The families default to IPv4.
func service(name string, families ...corev1.IPFamily) *corev1.Service {
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	return objects.Service(name, families...)
}

// slice returns an EndpointSlice of a Service with ready endpoints. Its address type is that of the first one.
func slice(service, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return objects.Slice(service, name, backendPort, endpoints...)
}

// endpoint returns a ready endpoint on node-1.
func endpoint(addr netip.Addr) discoveryv1.Endpoint { return objects.Endpoint(addr, nodeName) }

// elsewhere moves an endpoint to another node.
func elsewhere(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	name := otherNode
	e.NodeName = &name
	return e
}

// terminating makes an endpoint terminating and still serving.
func terminating(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	no, yes := false, true
	e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
	return e
}

// apply creates or replaces objects.
func (w *world) apply(objs ...runtime.Object) {
	w.Helper()
	must(w, w.api.Apply(w.Context(), objs...))
}

// delete deletes objects.
func (w *world) delete(objs ...runtime.Object) {
	w.Helper()
	must(w, w.api.Delete(w.Context(), objs...))
}

// service returns a Service from the API server.
func (w *world) service(name string) *corev1.Service {
	w.Helper()
	svc, err := w.api.Client().CoreV1().Services("default").Get(w.Context(), name, metav1.GetOptions{})
	must(w, err)
	return svc
}

// younger returns the name of the younger one of two Services. They may have been created in the same second.
func (w *world) younger(a, b string) string {
	w.Helper()
	age := func(name string) model.Age {
		s := w.service(name)
		return model.Age{Created: s.CreationTimestamp.Unix(), UID: string(s.UID)}
	}
	if age(a).Compare(age(b)) > 0 {
		return a
	}
	return b
}

// clusterIPs returns the cluster IPs that the API server allocated to a Service, with the Services' port.
func (w *world) clusterIPs(name string) []netip.AddrPort {
	w.Helper()
	svc := w.service(name)
	var out []netip.AddrPort
	for _, ip := range svc.Spec.ClusterIPs {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(ip), servicePort))
	}
	return out
}

// reached probes from a host until each of servers, and no other server, has answered. Without servers, there must be no answer.
func reached(ctx context.Context, from *lab.Host, proto inet.Protocol, to netip.AddrPort, servers ...string) error {
	n := 1
	if len(servers) > 1 {
		n = 30 * len(servers)
	}
	counts, err := from.Spread(ctx, proto, to, n, lab.Options{})
	if err != nil {
		return err
	}
	got := slices.Sorted(maps.Keys(counts))
	if len(servers) == 0 {
		if counts["refused"]+counts["timed out"]+counts["unreachable"] != n {
			return fmt.Errorf("%s -> %s %s: %v, want no answer", from.Name, proto, to, counts)
		}
		return nil
	}
	if want := slices.Sorted(slices.Values(servers)); !slices.Equal(got, want) {
		return fmt.Errorf("%s -> %s %s: %v, want %q", from.Name, proto, to, counts, want)
	}
	return nil
}

// reach waits until a host reaches exactly these servers, with TCP and UDP.
func reach(t testing.TB, from *lab.Host, to netip.AddrPort, servers ...string) {
	t.Helper()
	for _, proto := range protocols {
		eventually(t, patience, func() error { return reached(t.Context(), from, proto, to, servers...) })
	}
}

// never fails the test if check returns an error within the time.
func never(t testing.TB, during time.Duration, check func() error) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		must(t, check())
	}
}

// addrPort returns an address with the Services' port.
func addrPort(addr string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), servicePort)
}

// conversation is a TCP connection to a server that returns each line.
type conversation struct {
	net.Conn
	in *bufio.Reader
	// server is the name of the server.
	server string
}

// converse opens a connection to each address from each host, and closes them at the end of the test.
func (w *world) converse(to []netip.AddrPort, from ...*lab.Host) (open []conversation) {
	w.Helper()
	for _, h := range from {
		for _, addr := range to {
			var c conversation
			eventually(w, patience, func() (err error) {
				c, err = dialEcho(w.Context(), h, addr)
				return err
			})
			w.Cleanup(func() { _ = c.Close() })
			open = append(open, c)
		}
	}
	return open
}

func dialEcho(ctx context.Context, h *lab.Host, to netip.AddrPort) (c conversation, err error) {
	conn, err := h.Dial(ctx, inet.TCP, to)
	if err != nil {
		return c, err
	}
	c = conversation{Conn: conn, in: bufio.NewReader(conn)}
	if err = conn.SetDeadline(time.Now().Add(patience)); err == nil {
		c.server, err = c.in.ReadString('\n')
		c.server, _, _ = strings.Cut(c.server, " ")
	}
	if err == nil {
		err = c.goOn()
	}
	if err != nil {
		_ = conn.Close() // the first error matters more
	}
	return c, err
}

// goOn sends a line and reads it back.
func (c conversation) goOn() error { return c.say("still here") }

func (c conversation) say(line string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		return err
	}
	got, err := c.in.ReadString('\n')
	if err == nil && got != line+"\n" {
		err = fmt.Errorf("%d bytes were returned for %d, or others", len(got), len(line)+1)
	}
	return err
}
