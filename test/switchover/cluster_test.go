//go:build twin

package switchover

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	apiserver "github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/twin"
	"github.com/kube-nftproxy/kube-nftproxy/test/world"
)

// nodeName is the name of the Node object of each lab.
const nodeName = world.NodeName

const (
	servicePort = world.ServicePort
	webNodePort = 30080
	fillers     = 100
)

// The addresses of the Services web, changing and sticky.
var (
	webIPs      = []string{"10.96.0.10", "fd00:10:96::10"}
	balancerIPs = []string{"198.51.100.10", "2001:db8:1::10"}
	changingIPs = []string{"10.96.0.11", "fd00:10:96::11"}
	stickyIPs   = []string{"10.96.0.12", "fd00:10:96::12"}
)

// nodeIPs are the addresses of the node in every lab.
var nodeIPs = []string{"192.0.2.1", "2001:db8::1"}

// cluster is an API server with its objects, and the two programs that use it.
type cluster struct {
	*apiserver.Cluster
	kubeProxy, ours string
	kubeconfig      string
	life            context.Context
	// added counts the Services that were created after switches, changes the changes of the Service changing.
	added, changes int
}

// newCluster builds the programs, starts an API server and creates the objects.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{life: t.Context()}
	var err error
	if c.kubeProxy, c.ours, err = twin.Build(t.Context(), t.TempDir(), os.Stderr); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if c.Cluster, err = apiserver.Start(t.Context(), apiserver.Config{Dir: filepath.Join(dir, "cluster")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	c.kubeconfig = filepath.Join(dir, "kubeconfig")
	lab.Must(t, c.Kubeconfig(c.kubeconfig, false))
	objects := []runtime.Object{world.Node(), changing(), web()}
	objects = append(objects, endpoints("web", 0, 1, remote)...)
	objects = append(objects, endpoints("changing", 0)...)
	for i := range fillers {
		name := fmt.Sprintf("filler-%d", i)
		objects = append(objects, world.ServiceAt(name))
		objects = append(objects, endpoints(name, 50+i, 51+i, remote)...)
	}
	sticky := world.ServiceAt("sticky", stickyIPs...)
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	objects = append(append(objects, sticky), endpoints("sticky", 0, 1, remote)...)
	c.apply(t, objects...)
	return c
}

func (c *cluster) apply(t *testing.T, objects ...runtime.Object) {
	t.Helper()
	lab.Must(t, c.Apply(t.Context(), objects...))
}

// targets returns all addresses of the Service web: cluster IP, node port and load-balancer IP, in both families.
func targets() []netip.AddrPort {
	var out []netip.AddrPort
	for f := range inet.Families {
		out = append(out, at(webIPs[f], servicePort), at(nodeIPs[f], webNodePort), at(balancerIPs[f], servicePort))
	}
	return out
}

func at(ip string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port)
}

// web returns the Service that the traffic uses.
func web() *corev1.Service {
	s := world.ServiceAt("web", webIPs...)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = webNodePort
	}
	for _, ip := range balancerIPs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return s
}

// changing returns the Service whose only endpoint is replaced after a switch.
func changing() *corev1.Service { return world.ServiceAt("changing", changingIPs...) }

// remote stands for the pod on another node.
const remote = -1

// endpoints returns the EndpointSlices of a Service. Each endpoint is the number of a pod of the lab, or remote.
func endpoints(name string, pods ...int) []runtime.Object {
	var pairs [][2]discoveryv1.Endpoint
	for _, pod := range pods {
		// The addresses of the lab: pod-0 has 10.244.0.10 and fd00:10:244::10. IPv6 addresses count in hexadecimal.
		ips, host := []string{fmt.Sprintf("10.244.0.%d", 10+pod), fmt.Sprintf("fd00:10:244::%x", 0x10+pod)}, nodeName
		if pod == remote {
			ips, host = []string{"10.244.1.10", "fd00:10:244:1::10"}, world.OtherNode
		}
		pairs = append(pairs, world.Endpoints([2]netip.Addr{netip.MustParseAddr(ips[0]), netip.MustParseAddr(ips[1])}, host))
	}
	return world.Slices(name, echoPort, pairs...)
}

// effective is the longest time until a change takes effect: kube-proxy syncs once a second.
const effective = 3 * time.Second

// change replaces the endpoint of the Service changing, and creates another Service. It returns the time until new connections reach
// the right endpoints, or an error about the first wrong one if they do not within a limit.
func (n *node) change(t *testing.T, within time.Duration) (took time.Duration, wrong error) {
	t.Helper()
	n.added++
	name, begin := fmt.Sprintf("added-%d", n.added), time.Now()
	ip4, ip6 := fmt.Sprintf("10.96.0.%d", 100+n.added), fmt.Sprintf("fd00:10:96::%x", 0x100+n.added)
	pod := n.replace(t)
	n.apply(t, append([]runtime.Object{world.ServiceAt(name, ip4, ip6)}, endpoints(name, remote)...)...)
	for {
		wrong = n.reached(t, n.Pods[pod].Name, changingIPs...)
		if wrong == nil {
			wrong = n.reached(t, n.Remotes[0].Name, ip4, ip6)
		}
		if took = time.Since(begin); wrong == nil || took > within {
			return took, wrong
		}
		sleepUntil(t.Context(), time.Now().Add(10*time.Millisecond))
	}
}

// replace gives the Service changing another endpoint, and returns the number of its pod.
func (n *node) replace(t *testing.T) (pod int) {
	t.Helper()
	n.changes++
	pod = n.changes % 2
	n.apply(t, endpoints("changing", pod)...)
	return pod
}

// reached returns an error unless a server answers at all addresses, for an external client, the node and a pod.
func (n *node) reached(t *testing.T, server string, ips ...string) error {
	t.Helper()
	for _, ip := range ips {
		for _, from := range []*lab.Host{n.Client, n.Node, n.caller()} {
			answer := from.Probe(t.Context(), inet.TCP, at(ip, servicePort), lab.Options{})
			if answer.Server != server {
				return fmt.Errorf("%s -> %s: %s, want %s", from.Name, ip, answer, server)
			}
		}
	}
	return nil
}

// pins connects to the Service with session affinity from an external client, the node and a pod. It returns the answering server
// by client and address. The test fails if more than one server answers a client.
func (n *node) pins(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, ip := range stickyIPs {
		for _, from := range []*lab.Host{n.Client, n.Node, n.caller()} {
			const times = 5
			servers, err := from.Spread(t.Context(), inet.TCP, at(ip, servicePort), times, lab.Options{})
			lab.Must(t, err)
			if len(servers) != 1 {
				t.Errorf("session affinity: %s -> %s: %v", from.Name, ip, servers)
			}
			for server := range servers {
				out[from.Name+" -> "+ip] = server
			}
		}
	}
	return out
}
