//go:build e2e

package switchover

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// TestServiceDeletedJustBeforeTheEnd deletes a Service, and ends the program before its pass over the conntrack table. With SIGTERM, the UDP flows of
// the Service are deleted before the program exits, so also if no process follows. After SIGKILL, the next process deletes them: the tables do not have
// the Service any more.
func TestServiceDeletedJustBeforeTheEnd(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			w := newRestarting(t, rand.New(rand.NewPCG(1, 1)))
			w.write(t, "others")
			w.write(t, "changing")
			w.write(t, "still", world.Node())
			first, second := w.Pods[0], w.Pods[1]
			other := func(server *lab.Host) []runtime.Object { return numbered("other", 20, server) }
			w.write(t, "web", exposed(first)...)
			w.write(t, "other", other(first)...)
			w.start(t)
			w.awaitSync(t)
			var flows []net.Conn
			dial := func(to string) net.Conn {
				conn, err := w.Client.Dial(t.Context(), inet.UDP, netip.MustParseAddrPort(to))
				lab.Must(t, err)
				t.Cleanup(func() { _ = conn.Close() })
				lab.Eventually(t, 5*time.Second, answeredBy(conn, first.Name))
				return conn
			}
			for _, to := range w.targets() {
				flows = append(flows, dial(to.String()))
			}
			busy := dial("10.96.0.20:80")

			// After this pass, the namespace has to wait for a second until its next one.
			w.write(t, "other", other(second)...)
			lab.Eventually(t, 10*time.Second, answeredBy(busy, second.Name))
			w.write(t, "web")
			lab.Eventually(t, 10*time.Second, func() error {
				if a := w.Client.Probe(t.Context(), inet.UDP, netip.MustParseAddrPort("192.0.2.1:30080"), lab.Options{}); a.Outcome == lab.Answered {
					return fmt.Errorf("a new client is answered: %s", a)
				}
				return nil
			})
			lab.Must(t, w.running.Signal(signal))
			<-w.running.Ended()
			if signal == syscall.SIGKILL {
				for _, conn := range flows {
					if err := answeredBy(conn, first.Name)(); err != nil {
						t.Errorf("the program had deleted a flow before its end: %v", err)
					}
				}
				w.start(t)
				w.awaitSync(t)
			}
			for _, conn := range flows {
				lab.Eventually(t, 5*time.Second, func() error {
					if answeredBy(conn, first.Name)() == nil {
						return fmt.Errorf("the client of %s still reaches an endpoint of the deleted Service", conn.RemoteAddr())
					}
					return nil
				})
			}
			if signal == syscall.SIGKILL {
				lab.Eventually(t, 5*time.Second, func() error {
					if set := w.Node.Run(t, "nft", "list", "set", "ip", "kube-nftproxy", "deleted-udp"); strings.Contains(set, "elements") {
						return fmt.Errorf("the flows are deleted, and the set is not empty: %s", set)
					}
					return nil
				})
			}
		})
	}
}

// exposed returns a Service at the targets of a restarting node.
func exposed(servers ...*lab.Host) []runtime.Object {
	web := numbered("web", 10, servers...)
	svc := web[0].(*corev1.Service)
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	for i := range svc.Spec.Ports {
		svc.Spec.Ports[i].NodePort = 30080
	}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.10"}, {IP: "2001:db8:1::10"}}
	return web
}

// answeredBy returns a function that sends a datagram, and fails unless a server answers.
func answeredBy(conn net.Conn, server string) func() error {
	return func() error {
		a, err := lab.AskOnce(conn)
		if err == nil && a.Server != server {
			err = fmt.Errorf("%s answers, want %s", a.Server, server)
		}
		return err
	}
}
