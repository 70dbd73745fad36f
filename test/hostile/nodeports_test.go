package hostile

import (
	"bufio"
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// conversation is an open TCP connection to an echo server.
type conversation struct {
	net.Conn
	in *bufio.Reader
}

// converse opens a connection to an echo server, and reads its first line.
func (n *node) converse(from *lab.Host, to string) conversation {
	n.Helper()
	conn, err := from.Dial(n.Context(), inet.TCP, netip.MustParseAddrPort(to))
	lab.Must(n.T, err)
	n.Cleanup(func() { _ = conn.Close() })
	c := conversation{conn, bufio.NewReader(conn)}
	lab.Must(n.T, conn.SetReadDeadline(time.Now().Add(surely)))
	_, err = c.in.ReadString('\n')
	lab.Must(n.T, err)
	return c
}

// echoes sends a line, and returns an error unless it returns.
func (c conversation) echoes() error {
	if _, err := c.Write([]byte("x\n")); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(surely)); err != nil {
		return err
	}
	_, err := c.in.ReadString('\n')
	return err
}

// answer sends a UDP packet, and returns the name of the answering host.
func answer(c net.Conn) string {
	if err := c.SetReadDeadline(time.Now().Add(surely)); err != nil {
		return err.Error()
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err.Error()
	}
	b := make([]byte, 100)
	size, err := c.Read(b)
	if err != nil {
		return err.Error()
	}
	name, _, _ := bytes.Cut(b[:size], []byte(" "))
	return string(name)
}

// TestConnectionsThroughTheNodesAddress: the load balancer of a Service of bank has the node's address, as with
// ServiceLB. A Service of evil has node ports with the same numbers, asks for the termination of connections, and lists
// bank's pods as endpoints, then not. Connections through bank's load-balancer IP stay, and UDP flows keep their
// endpoint.
func TestConnectionsThroughTheNodesAddress(t *testing.T) {
	const flows = 12
	n := newNode(t, 1)
	n.serveVictims()
	udp := corev1.ProtocolUDP
	both := []netip.Addr{n.Pods[0].IPv4, n.Pods[1].IPv4}
	bank := service("bank/pay", "10.96.0.10")
	bank.CreationTimestamp, bank.Spec.Type = earlier, corev1.ServiceTypeLoadBalancer
	bank.Spec.Ports = ports(30_500, 2)
	bank.Spec.Ports[1].Protocol = udp
	bank.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: nodeIP}}
	open, dns := slice("bank/pay", 0, []string{"p30500"}, echoPort, both...),
		slice("bank/pay", 1, []string{"p30501"}, backendPort, both...)
	dns.Ports[0].Protocol = &udp
	n.synced("bank", bank, open, dns)

	conn := n.converse(n.Client, nodeIP+":30500")
	var clients []net.Conn
	var servers []string
	for range flows {
		c, err := n.Client.Dial(t.Context(), inet.UDP, netip.MustParseAddrPort(nodeIP+":30501"))
		lab.Must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		clients, servers = append(clients, c), append(servers, answer(c))
	}

	evil := service("evil/thief", evilIP)
	evil.CreationTimestamp, evil.Spec.Type = later, corev1.ServiceTypeNodePort
	evil.Spec.Ports = ports(80, 2)
	evil.Spec.Ports[1].Protocol = udp
	evil.Spec.Ports[0].NodePort, evil.Spec.Ports[1].NodePort = 30_500, 30_501
	annotated("terminate-connections", "gone")(evil)
	list := func(addrs ...netip.Addr) {
		t.Helper()
		e, u := slice("evil/thief", 0, []string{"p80"}, echoPort, addrs...),
			slice("evil/thief", 1, []string{"p81"}, backendPort, n.Pods[2].IPv4)
		u.Ports[0].Protocol = &udp
		n.synced("evil", evil, e, u)
	}
	list(append(both, n.Pods[2].IPv4)...)
	list(n.Pods[2].IPv4)
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if err := conn.echoes(); err != nil {
			t.Errorf("the connection through bank's load-balancer IP: %v", err)
			break
		}
	}
	for i, c := range clients {
		if got := answer(c); got != servers[i] {
			t.Errorf("flow %d: %s answers, before: %s", i, got, servers[i])
		}
	}
}
