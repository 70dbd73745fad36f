//go:build e2e

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestMain(m *testing.M) {
	if _, err := Build(context.Background(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestCluster(t *testing.T) {
	dir := t.TempDir()
	c := mustStart(t, Config{Dir: dir, Log: t.Output()})
	proxy := mustClient(t, c.Proxy())

	t.Run("objects", func(t *testing.T) { testObjects(t, c, proxy) })
	t.Run("allocation", func(t *testing.T) { testAllocation(t, c) })
	t.Run("permissions", func(t *testing.T) { testPermissions(t, proxy) })
	t.Run("service ranges", func(t *testing.T) { testServiceCIDRs(t, c, proxy) })
	t.Run("kubeconfig", func(t *testing.T) { testKubeconfig(t, c) })
	t.Run("transactions", func(t *testing.T) { testTransactions(t, c) })
	t.Run("rewind", func(t *testing.T) { testRewind(t, c) })
	t.Run("restart", func(t *testing.T) { testRestart(t, c) })

	if got := processesOf(t, dir); len(got) != 2 {
		t.Errorf("running before Stop: %q, want 2 processes", got)
	}
	c.Stop()
	c.Stop()
	if got := processesOf(t, dir); len(got) != 0 {
		t.Errorf("running after Stop: %q", got)
	}
}

// testObjects writes one object of each type, changes it, and deletes it, as seen by system:kube-proxy.
func testObjects(t *testing.T, c *Cluster, proxy kubernetes.Interface) {
	ctx := t.Context()
	node, service, slice := testNode(), testService(), testSlice()
	lab.Must(t, c.Apply(ctx, node, service, slice))
	node.Status.Addresses[0].Address = "192.0.2.2"
	service.Spec.Ports[0].Port = 81
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}}
	slice.Endpoints[0].Addresses = []string{"10.1.0.6"}
	lab.Must(t, c.Apply(ctx, node, service, slice))
	want := seen{
		NodeAddress: "192.0.2.2", ClusterIP: "10.96.7.7", Port: 81, NodePort: 30080, Ingress: "203.0.113.5",
		Endpoint: "10.1.0.6",
	}
	lab.Same(t, want, mustSee(t, proxy), "after the second Apply")
	service.Status = corev1.ServiceStatus{}
	lab.Must(t, c.Apply(ctx, service))
	want.Ingress = ""
	lab.Same(t, want, mustSee(t, proxy), "after the status was emptied")
	for range 2 { // the second time they are deleted already
		lab.Must(t, c.Delete(ctx, node, service, slice))
	}
	lab.Same(t, seen{}, mustSee(t, proxy), "after Delete")
}

// testRewind creates, changes and deletes objects. Afterwards they are as before, and a new Service may have the same addresses.
func testRewind(t *testing.T, c *Cluster) {
	ctx, services := t.Context(), c.Client().CoreV1().Services("default")
	kept, created := testNode(), testService()
	lab.Must(t, errors.Join(c.Apply(ctx, kept), c.Checkpoint(ctx)))
	for range 2 {
		changed, err := services.Get(ctx, "kubernetes", metav1.GetOptions{})
		lab.Must(t, err)
		changed.Labels["changed"] = "yes"
		lab.Must(t, errors.Join(c.Apply(ctx, created, changed), c.Delete(ctx, kept), c.Rewind(ctx)))
		if _, err := services.Get(ctx, created.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a created Service: got error %v, want NotFound", err)
		}
		lab.Check(t, lab.Err(c.Client().CoreV1().Nodes().Get(ctx, kept.Name, metav1.GetOptions{})), "a deleted Node")
		if s, err := services.Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil || s.Labels["changed"] != "" {
			t.Errorf("a changed Service: %v, %v", s.Labels, err)
		}
	}
}

func testAllocation(t *testing.T, c *Cluster) {
	dualStack := corev1.IPFamilyPolicyRequireDualStack
	service := testService()
	service.Name, service.Spec.ClusterIP, service.Spec.Ports[0].NodePort = "dual", "", 0
	service.Spec.IPFamilyPolicy = &dualStack
	lab.Must(t, c.Apply(t.Context(), service))
	live, err := c.Client().CoreV1().Services("default").Get(t.Context(), "dual", metav1.GetOptions{})
	lab.Must(t, err)
	var got []bool
	for i, prefix := range []string{"10.96.0.0/16", "fd00:10:96::/112"} {
		got = append(got, netip.MustParsePrefix(prefix).Contains(netip.MustParseAddr(live.Spec.ClusterIPs[i])))
	}
	lab.Same(t, []bool{true, true}, got, "cluster IPs %v in their ranges", live.Spec.ClusterIPs)
	outside := testService()
	outside.Name, outside.Spec.ClusterIP, outside.Spec.Ports[0].NodePort = "outside", "10.97.0.1", 0
	if err := c.Apply(t.Context(), outside); !apierrors.IsInvalid(err) {
		t.Errorf("cluster IP outside the range: got error %v, want Invalid", err)
	}
}

func testPermissions(t *testing.T, proxy kubernetes.Interface) {
	_, err := proxy.CoreV1().Services("default").Create(t.Context(), testService(), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("create a Service as system:kube-proxy: got error %v, want Forbidden", err)
	}
	_, err = proxy.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("list Secrets as system:kube-proxy: got error %v, want Forbidden", err)
	}
}

// testServiceCIDRs watches them as system:kube-proxy: the default one, then the one created here.
func testServiceCIDRs(t *testing.T, c *Cluster, proxy kubernetes.Interface) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := proxy.NetworkingV1().ServiceCIDRs().Watch(ctx, metav1.ListOptions{})
	lab.Must(t, err)
	defer w.Stop()
	want := []string{"10.96.0.0/16", "fd00:10:96::/112"}
	lab.Same(t, want, nextCIDRs(t, w, "kubernetes"), "default ServiceCIDR")
	more := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.98.0.0/24"}},
	}
	lab.Must(t, c.Apply(ctx, more))
	lab.Same(t, more.Spec.CIDRs, nextCIDRs(t, w, "more"), "further ServiceCIDR")
	lab.Must(t, c.Delete(ctx, more))
}

func testKubeconfig(t *testing.T, c *Cluster) {
	for _, admin := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		lab.Must(t, c.Kubeconfig(path, admin))
		config, err := clientcmd.BuildConfigFromFlags("", path)
		lab.Must(t, err)
		_, err = mustClient(t, config).CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{})
		if allowed := err == nil; allowed != admin {
			t.Errorf("admin %t: list Secrets: %v", admin, err)
		}
	}
	if version, err := c.Client().Discovery().ServerVersion(); err != nil || !strings.HasPrefix(version.GitVersion, "v1.") {
		t.Errorf("server version: %v, error %v", version, err)
	}
}

// A cluster in its own namespace can be reached from here through Admin, and in no other way.
func TestClusterInNetns(t *testing.T) {
	name := fmt.Sprintf("cluster-test-%d", os.Getpid())
	mustRun(t, "ip", "netns", "add", name)
	t.Cleanup(func() { mustRun(t, "ip", "netns", "delete", name) })
	mustRun(t, "ip", "-n", name, "link", "set", "lo", "up")

	dir := t.TempDir()
	c := mustStart(t, Config{Dir: dir, Netns: name, Log: t.Output()})
	if err := c.Apply(t.Context(), testNode()); err != nil {
		t.Error(err)
	}
	lab.Same(t, "192.0.2.1", mustSee(t, mustClient(t, c.Proxy())).NodeAddress, "node address")
	if conn, err := net.Dial("tcp", c.Server().String()); err == nil {
		conn.Close()
		t.Errorf("the API server answers outside its namespace at %s", c.Server())
	}
	c.Stop()
	if got := processesOf(t, dir); len(got) != 0 {
		t.Errorf("running after Stop: %q", got)
	}
}

// An error of the API server is returned at once, with its logged reason, and etcd is stopped.
func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	c, err := Start(t.Context(), Config{Dir: dir, ServiceCIDR: "10.96.0.0/16,10.97.0.0/16"})
	if err == nil {
		c.Stop()
		t.Fatal("started with two service ranges of one family")
	}
	if !strings.Contains(err.Error(), "service-cluster-ip-range") {
		t.Errorf("error without the API server's reason: %v", err)
	}
	if got := processesOf(t, dir); len(got) != 0 {
		t.Errorf("running after a failed start: %q", got)
	}
}

// seen is the state that system:kube-proxy can read of the objects below; fields of a missing object are empty.
type seen struct {
	NodeAddress, ClusterIP string
	Port, NodePort         int32
	Ingress, Endpoint      string
}

func mustSee(t *testing.T, client kubernetes.Interface) seen {
	t.Helper()
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	lab.Must(t, err)
	named := metav1.ListOptions{FieldSelector: "metadata.name=web"}
	services, err := client.CoreV1().Services("").List(t.Context(), named)
	lab.Must(t, err)
	slices, err := client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	lab.Must(t, err)
	var s seen
	for _, node := range nodes.Items {
		s.NodeAddress = node.Status.Addresses[0].Address
	}
	for _, service := range services.Items {
		s.ClusterIP = service.Spec.ClusterIP
		s.Port, s.NodePort = service.Spec.Ports[0].Port, service.Spec.Ports[0].NodePort
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			s.Ingress = ingress.IP
		}
	}
	for _, slice := range slices.Items {
		s.Endpoint = slice.Endpoints[0].Addresses[0]
	}
	return s
}

func testNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Spec:       corev1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24"}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
		},
	}
}

func testService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeLoadBalancer,
			ClusterIP: "10.96.7.7",
			Ports:     []corev1.ServicePort{{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func testSlice() *discoveryv1.EndpointSlice {
	port, protocol := int32(8080), corev1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.5"}}},
		Ports:       []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}},
	}
}

// nextCIDRs waits for the ServiceCIDR of that name to be added and returns its ranges.
func nextCIDRs(t *testing.T, w watch.Interface, name string) []string {
	t.Helper()
	for event := range w.ResultChan() {
		r, ok := event.Object.(*networkingv1.ServiceCIDR)
		if ok && event.Type == watch.Added && r.Name == name {
			return r.Spec.CIDRs
		}
	}
	t.Fatalf("the watch ended before ServiceCIDR %s arrived", name)
	return nil
}

func mustStart(t *testing.T, config Config) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := Start(ctx, config)
	lab.Must(t, err)
	t.Cleanup(c.Stop)
	return c
}

func mustClient(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	lab.Must(t, err)
	return client
}

func mustRun(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("run %q: %v: %s", argv, err, out)
	}
}

// processesOf returns the command lines of all processes that contain dir.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatalf("list processes: found %d, error %v", len(files), err)
	}
	var lines []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && bytes.Contains(line, []byte(dir)) {
			lines = append(lines, string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return lines
}
