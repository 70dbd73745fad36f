package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// nodeName is the Node of the measured proxy.
const nodeName = "node-1"

// world is the cluster with its Services.
type world struct {
	*cluster.Cluster
	size
	lab   *lab.Lab
	store *cluster.Store
	// rounds counts versions of EndpointSlices, rolled the rounds of rolling updates.
	rounds, rolled int
	// annotations are those of all Services.
	annotations map[string]string
	// udp selects the protocol of all Services. With nodePorts, all have node ports.
	udp, nodePorts bool
}

// inWorld calls measure with a new cluster of a size, a kubeconfig for it, and a folder for logs. fill stores the
// objects. flags are further ones of kube-apiserver.
func inWorld(
	ctx context.Context, z size, c lab.Config, fill func(w *world) error,
	measure func(w *world, kubeconfig, dir string) error, flags ...string,
) error {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := lab.New(c)
	if err != nil {
		return fmt.Errorf("make network namespaces: %w", err)
	}
	defer l.Close()
	log.Printf("%s: starting etcd and kube-apiserver", z)
	api, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster"), Netns: l.Node.Netns, Address: l.Node.IPv4, Flags: flags})
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	defer api.Stop()
	w := &world{Cluster: api, lab: l, size: z}
	log.Printf("%s: making Services and EndpointSlices", z)
	if err := fill(w); err != nil {
		return fmt.Errorf("fill the cluster: %w", err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := api.Kubeconfig(kubeconfig, false); err != nil {
		return err
	}
	return measure(w, kubeconfig, dir)
}

// fill stores the Node, the Services with one EndpointSlice each, and more objects.
func (w *world) fill(ctx context.Context, more ...func()) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: w.lab.Node.Addrs()[w.family].String()}}},
	}
	if err := w.Apply(ctx, node); err != nil {
		return err
	}
	w.store = w.Store(ctx)
	for i := range w.services {
		w.store.Put(w.service(i))
		w.store.Put(w.slice(i, 0, w.endpointsOf(i)))
	}
	for _, put := range more {
		put()
	}
	return w.store.Flush()
}

// servicePort is the port of all Services, endpointPort that of their endpoints.
const (
	servicePort  = 80
	endpointPort = 8080
)

// addr returns an address of the family: 10.96.1.7, or fd00:10:96::107. The second byte keeps its decimal digits, so that cluster IPs
// are in the range of test/cluster, and pods have addresses like those of test/lab.
func (z size) addr(second, third, fourth byte) netip.Addr {
	if z.family == inet.IPv4 {
		return netip.AddrFrom4([4]byte{10, second, third, fourth})
	}
	return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, second / 100, second/10%10<<4 | second%10, 14: third, 15: fourth})
}

// serviceCIDRs are the ranges of all cluster IPs, clusterCIDRs ranges of clients inside the cluster, for each family.
var (
	serviceCIDRs = [...]string{inet.IPv4: "10.96.0.0/16", inet.IPv6: "fd00:10:96::/112"}
	clusterCIDRs = [...]string{inet.IPv4: "10.128.0.0/9", inet.IPv6: "fd00:10::/32"}
)

// vip is the cluster IP of a Service.
func (z size) vip(i int) netip.Addr { return z.addr(96, byte(1+i/250), byte(1+i%250)) }

// next returns the number of the next version of an EndpointSlice.
func (w *world) next() int {
	w.rounds++
	return w.rounds
}

// spread permutes the Services, so that their order gives no advantage.
func (w *world) spread(i int) int { return i * 7919 % w.services }

// firstNodePort is the node port of the first Service, if Services have node ports.
const firstNodePort = 30000

// frontend returns the node port of a Service, or else its cluster IP with its port.
func (w *world) frontend(i int) netip.AddrPort {
	if w.nodePorts {
		return netip.AddrPortFrom(w.lab.Node.Addrs()[w.family], uint16(firstNodePort+i))
	}
	return netip.AddrPortFrom(w.vip(i), servicePort)
}

// service returns a Service with a cluster IP.
func (w *world) service(i int) *corev1.Service {
	s := serviceOf(nameOf(i), w.vip(i))
	maps.Copy(s.Annotations, w.annotations)
	if w.udp {
		s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	}
	if w.nodePorts {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(firstNodePort+i)
	}
	return s
}

// flipped returns a Service with internal traffic policy Local, and at every second call the same Service with Cluster.
func (w *world) flipped(k int) *corev1.Service {
	s := w.service(w.spread(k / 2))
	if k%2 == 0 {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
	}
	return s
}

// slice returns the endpoints of a Service; two rounds differ by one endpoint.
func (w *world) slice(i, round, endpoints int) *discoveryv1.EndpointSlice {
	var addrs []netip.Addr
	for e := range endpoints {
		addr := w.endpoint(w.firstOf(i) + e)
		if e == 0 && round > 0 {
			addr = w.addr(byte(120+round/62500), byte(round/250%250), byte(1+round%250))
		}
		addrs = append(addrs, addr)
	}
	s := sliceOf(w.service(i), 1, endpointPort, addrs)
	if round > 0 {
		s.Annotations[corev1.EndpointsLastChangeTriggerTime] = time.Now().UTC().Format(time.RFC3339)
	}
	return s
}

// endpointsOf returns the number of endpoints of a Service.
func (z size) endpointsOf(i int) int {
	if z.endpoints == mixed {
		return mix[i%len(mix)]
	}
	return z.endpoints
}

// firstOf returns the number of endpoints of all Services before a Service.
func (z size) firstOf(i int) (n int) {
	for at := range i % len(mix) {
		n += z.endpointsOf(at)
	}
	for at := range mix {
		n += i / len(mix) * z.endpointsOf(at)
	}
	return n
}

// endpoint returns an endpoint of a Service.
func (z size) endpoint(n int) netip.Addr {
	return z.addr(byte(128+n/62500), byte(n/250%250), byte(1+n%250))
}
