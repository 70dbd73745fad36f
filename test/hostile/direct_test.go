package hostile

import (
	"net"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestRepliesWithDirectReturn: a pod of bank and a process on the node have connections to a server outside of the
// cluster. A Service of evil with direct server return and an endpoint on another node claims the addresses and ports of
// these connections as external IPs, then the node's address as its load-balancer IP, as with ServiceLB. The replies
// still arrive.
func TestRepliesWithDirectReturn(t *testing.T) {
	n := newNode(t, 1, "--direct-server-return")
	_, err := n.Client.ServeEcho(echoPort)
	lab.Must(t, err)
	evil := service("evil/thief", evilIP)
	evil.CreationTimestamp = earlier
	annotated("forwarding-mode", "dsr")(evil)
	var open []conversation
	for _, h := range []*lab.Host{n.Node, n.Pods[0]} {
		c := n.converse(h, netip.AddrPortFrom(n.Client.IPv4, echoPort).String())
		at := c.LocalAddr().(*net.TCPAddr).AddrPort()
		evil.Spec.ExternalIPs = append(evil.Spec.ExternalIPs, at.Addr().String())
		evil.Spec.Ports = append(evil.Spec.Ports, ports(int(at.Port()), 1)...)
		open = append(open, c)
	}
	if len(evil.Spec.Ports) == 2 && evil.Spec.Ports[0].Port == evil.Spec.Ports[1].Port {
		evil.Spec.Ports = evil.Spec.Ports[:1]
	}
	e := slice("evil/thief", 0, portNames(evil.Spec.Ports), backendPort, netip.MustParseAddr("198.51.100.7"))
	other := "node-2"
	e.Endpoints[0].NodeName = &other
	check := func(how string) {
		n.synced("evil", evil, e)
		for _, c := range open {
			if err := c.echoes(); err != nil {
				t.Errorf("%s: the connection from %s: %v", how, c.LocalAddr(), err)
			}
		}
	}
	check("external IPs")
	evil.Spec.ExternalIPs, evil.Spec.Type = nil, corev1.ServiceTypeLoadBalancer
	evil.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: nodeIP}}
	check("a load-balancer IP")
}
