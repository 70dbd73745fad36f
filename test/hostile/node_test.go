package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// patience is the longest permitted time from a change of bank until it is served, during any attack. On an idle node, it takes a fortieth of this. The
// attacks are so large that a cost that is a product takes at least twice as long.
const patience = 3 * time.Second

const backendPort = 8080

// built builds the program once, and returns its path. KNP_PROGRAM selects another program, for example an earlier version.
var built = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("KNP_PROGRAM"); path != "" {
		return path, nil
	}
	return program.Build(context.Background(), scratch)
})

// scratch is the folder of the built program.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "knp-hostile-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// node is a lab whose node runs the program with a folder of manifests. pod-0 and pod-1 belong to bank, the other pods to evil.
type node struct {
	*testing.T
	*lab.Lab
	folder, log string
	flags       []string
	*program.Program
	// serving is the number of the pod in bank's slices.
	serving int
	// marks counts the calls of settle.
	marks int
	// usual is the latency of a change of bank without an attack.
	usual time.Duration
}

// newNode returns a lab with the given number of clients. All pods serve, and the program runs with a Node, a
// ServiceCIDR, and the given flags beside the usual ones.
func newNode(t *testing.T, clients int, flags ...string) *node {
	t.Helper()
	n := newLab(t, clients, t.TempDir())
	n.put("cluster", clusterObjects()...)
	n.flags = append([]string{
		"--manifests", n.folder, "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56",
		"--control-socket=",
	}, flags...)
	n.start()
	return n
}

// newLab returns a lab whose pods serve, without the program.
func newLab(t *testing.T, clients int, folder string) *node {
	t.Helper()
	n := &node{T: t, Lab: lab.ForTest(t, lab.Config{Pods: 4, Clients: clients}), folder: folder}
	n.log = filepath.Join(t.TempDir(), "log")
	for _, h := range n.Pods {
		for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
			lab.Must(t, lab.Err(h.Serve(proto, backendPort)))
		}
	}
	n.giveEvil("10.244.16.0/20")
	return n
}

// giveEvil routes all addresses of a prefix to pod-2, which accepts them.
func (n *node) giveEvil(prefix string) {
	n.Helper()
	_, dst, err := net.ParseCIDR(prefix)
	lab.Must(n.T, err)
	pod := n.Pods[2]
	route := func(h *lab.Host, device string, r netlink.Route) error {
		return h.Do(func() error {
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			r.LinkIndex, r.Dst = link.Attrs().Index, dst
			return netlink.RouteAdd(&r)
		})
	}
	err = errors.Join(
		route(pod, "lo", netlink.Route{Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}),
		route(n.Node, pod.Device, netlink.Route{Gw: pod.IPv4.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
	lab.Must(n.T, err)
}

// newBank does the same as newNode, and adds bank's Service.
func newBank(t *testing.T, flags ...string) *node {
	t.Helper()
	n := newNode(t, 1, flags...)
	n.put("bank", bankService())
	for range 3 {
		n.usual = max(n.usual, n.bank())
	}
	return n
}

// start starts the program and waits for its first sync.
func (n *node) start() {
	n.Helper()
	n.Program = n.run("", n.log, n.flags...)
	n.Synced(n.T)
}

// run starts an instance of the program, from path unless that is empty, and kills it at the end of the test.
func (n *node) run(path, log string, flags ...string) *program.Program {
	n.Helper()
	if path == "" {
		var err error
		if path, err = built(); err != nil {
			n.Fatal(err)
		}
	}
	return program.ForTest(n.T, program.Config{Host: n.Node, Path: path, Args: flags, Log: log})
}

// put writes a file of objects atomically, and replaces an existing one.
func (n *node) put(name string, objects ...runtime.Object) {
	n.Helper()
	var b bytes.Buffer
	for _, o := range objects {
		lab.Must(n.T, json.NewEncoder(&b).Encode(o))
	}
	hidden := filepath.Join(n.folder, "."+name)
	err := os.WriteFile(hidden, b.Bytes(), 0o600)
	lab.Must(n.T, errors.Join(err, os.Rename(hidden, n.file(name))))
}

// drop removes a file of objects.
func (n *node) drop(name string) {
	n.Helper()
	lab.Must(n.T, os.Remove(n.file(name)))
}

func (n *node) file(name string) string { return filepath.Join(n.folder, name+".json") }

// synced writes a file of objects and waits until they are programmed.
func (n *node) synced(name string, objects ...runtime.Object) {
	n.Helper()
	n.put(name, objects...)
	n.settle()
}

// settle waits until all objects so far are programmed: it writes one more Service, and waits until it is served and
// no other Service waits.
func (n *node) settle() {
	n.Helper()
	n.marks++
	s := service("mark/mark", "10.96.0.99")
	s.Spec.Ports = ports(n.marks, 1)
	n.put("mark", s, slice("mark/mark", 0, portNames(s.Spec.Ports), backendPort, n.Pods[3].IPv4))
	n.until(10*patience, "a mark", func() error { return n.answered(fmt.Sprintf("10.96.0.99:%d", n.marks), "pod-3") })
	n.until(10*patience, "the other Services", func() error {
		if _, pending := n.changes(); pending > 0 {
			return fmt.Errorf("%.0f Services wait", pending)
		}
		return nil
	})
}

// changes returns the number of changes of Services since the start of the program, and the number of those that are
// not programmed yet.
func (n *node) changes() (total, pending float64) {
	n.Helper()
	samples, err := n.Metrics(n.Context())
	lab.Must(n.T, err)
	total, _ = samples.Sum("kubeproxy_sync_proxy_rules_service_changes_total")
	pending, _ = samples.Sum("kubeproxy_sync_proxy_rules_service_changes_pending")
	return total, pending
}

// until repeats check until it returns nil, and fails the test after limit.
func (n *node) until(limit time.Duration, what string, check func() error) time.Duration {
	n.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(n.Context(), limit)
	defer cancel()
	if err := n.Await(ctx, 5*time.Millisecond, what, func(context.Context) error { return check() }); err != nil {
		n.Fatalf("after %v: %v", time.Since(begin).Round(time.Millisecond), err)
	}
	return time.Since(begin)
}

// Timeouts of connections: soon if the test repeats the connection, surely if it must be answered, silence if it must not be answered.
const (
	soon    = 100 * time.Millisecond
	surely  = 2 * time.Second
	silence = lab.DefaultTimeout
)

// ask opens one TCP connection and returns the name of the answering host, or the outcome.
func (n *node) ask(from *lab.Host, to string, wait time.Duration) string {
	a := from.Probe(n.Context(), inet.TCP, netip.MustParseAddrPort(to), lab.Options{Timeout: wait})
	if a.Outcome == lab.Failed {
		n.Errorf("probe %s: %v", to, a.Err)
	}
	if a.Server != "" {
		return a.Server
	}
	return a.Outcome.String()
}

// answered returns an error unless a host answers the client soon.
func (n *node) answered(to, host string) error {
	if got := n.ask(n.Client, to, soon); got != host {
		return fmt.Errorf("%s: %s, want %s", to, got, host)
	}
	return nil
}

// bank moves bank's Service to its other pod, and returns the time until clients reach it. Meanwhile, only bank's pods may answer.
func (n *node) bank() time.Duration {
	n.Helper()
	n.serving = 1 - n.serving
	n.put("bank", append(bankSlices(n.Pods[n.serving]), bankService())...)
	return n.until(patience, "bank's change", n.bankServed)
}

// bankServed connects to each of bank's addresses once, and returns an error unless the serving pod answers. The test fails if a pod of evil
// answers.
func (n *node) bankServed() error {
	for _, to := range bankAddresses {
		got := n.ask(n.Client, to, soon)
		if got == "pod-2" || got == "pod-3" {
			n.Fatalf("bank's %s: %s answers, which belongs to evil", to, got)
		}
		if want := n.Pods[n.serving].Name; got != want {
			return fmt.Errorf("%s: %s, want %s", to, got, want)
		}
	}
	return nil
}

// nft runs a command of nft on the node.
func (n *node) nft(args ...string) string {
	n.Helper()
	return n.Node.Run(n.T, "nft", args...)
}

// elements returns the number of elements in the program's sets, without elements that packets add and without classes. Kernels before 6.16 do
// not report the number. Then elements queries the program's metrics.
func (n *node) elements() (count int) {
	n.Helper()
	err := n.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // it was only read from
		for _, family := range inet.Families {
			sets, err := conn.Sets(family, "kube-nftproxy")
			if err != nil {
				return err
			}
			for i := range sets {
				if plan.FilledByPackets(sets[i].Name) || strings.HasPrefix(sets[i].Name, "dispatch") { // unused classes stay for a while
					continue
				}
				if sets[i].Count < 0 {
					count = -1
					return nil
				}
				count += sets[i].Count
			}
		}
		return nil
	})
	lab.Must(n.T, err)
	if count < 0 {
		samples, err := n.Metrics(n.Context())
		lab.Must(n.T, err)
		sum, _ := samples.Sum("kubenftproxy_elements")
		count = int(sum)
	}
	return count
}

// lines counts the lines of the program's log.
func (n *node) lines() int {
	n.Helper()
	text, err := os.ReadFile(n.log)
	lab.Must(n.T, err)
	return bytes.Count(text, []byte("\n"))
}

// memory returns a field of the program's /proc/PID/status in MiB.
func (n *node) memory(field string) float64 {
	n.Helper()
	mib, err := n.Memory(field)
	lab.Must(n.T, err)
	return mib
}

// forgetPeak resets VmHWM to the program's current memory (proc_pid_clear_refs(5)).
func (n *node) forgetPeak() {
	n.Helper()
	lab.Must(n.T, os.WriteFile("/proc/"+strconv.Itoa(n.Pid())+"/clear_refs", []byte("5"), 0o200))
}

func clusterObjects() []runtime.Object {
	return []runtime.Object{
		&corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
			}},
		},
		&networkingv1.ServiceCIDR{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:10:96::/112"}},
		},
	}
}

// bankAddresses are bank's frontends: cluster IPs, a load-balancer IP that a controller has assigned, node ports.
var bankAddresses = []string{
	"10.96.0.10:8443", "[fd00:10:96::10]:8443", "203.0.113.10:8443", "192.0.2.1:30443", "[2001:db8::1]:30443",
}

func bankService() *corev1.Service {
	s := service("bank/pay", "10.96.0.10", "fd00:10:96::10")
	s.CreationTimestamp = metav1.Unix(1_700_000_000, 0) // evil's Services are older
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports = []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 8443, NodePort: 30443}}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
	s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	return s
}

func bankSlices(h *lab.Host) []runtime.Object {
	return []runtime.Object{slice("bank/pay", 0, []string{"https"}, backendPort, h.IPv4), slice("bank/pay", 1, []string{"https"}, backendPort, h.IPv6)}
}

// split splits NAMESPACE/NAME.
func split(name string) (string, string) {
	namespace, name, _ := strings.Cut(name, "/")
	return namespace, name
}
