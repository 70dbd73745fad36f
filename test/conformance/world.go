package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Addresses of the cluster.
const (
	controlAddress = "172.31.77.1"
	controlIPv6    = "fd00:77::1"
	dnsAddress     = "10.96.0.10"
	clusterCIDR    = "10.88.0.0/16,fd00:88::/32"
)

// world is a running cluster.
type world struct {
	settings
	dir                   string
	control               string // network namespace of the control plane
	version, proxyVersion string
	images                []string // archives
	api                   *cluster.Cluster
	processes             []*cluster.Process
	nodes                 []*node
	inotify               string // the machine's number of inotify instances, if it was raised
}

// node is a machine of the cluster.
type node struct {
	name, netns, dir string
	ipv4, ipv6       netip.Addr
	pods4, pods6     netip.Prefix
	zone             string
	process          *cluster.Process
	orders           *json.Encoder
}

// newWorld makes the folder of a cluster, and removes what a killed run has left.
func newWorld(s settings) (*world, error) {
	folders := filepath.Dir(s.root)
	sweep(folders)
	dir, err := os.MkdirTemp(folders, folderOf(os.Getpid()))
	if err != nil {
		return nil, err
	}
	// e2e.test leaves temporary folders, also when it only lists tests.
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return nil, err
	}
	w := &world{settings: s, dir: dir, control: fmt.Sprintf("knc-%d-control", os.Getpid())}
	for i := 1; i <= s.nodes; i++ {
		name := fmt.Sprintf("node-%d", i)
		w.nodes = append(w.nodes, &node{
			name: name, netns: fmt.Sprintf("knc-%d-%s", os.Getpid(), name), dir: w.path(name),
			ipv4: netip.AddrFrom4([4]byte{172, 31, 77, byte(10 + i)}), ipv6: netip.MustParseAddr(fmt.Sprintf("fd00:77::1%d", i)),
			pods4: netip.MustParsePrefix(fmt.Sprintf("10.88.%d.0/24", i)), pods6: netip.MustParsePrefix(fmt.Sprintf("fd00:88:%d::/64", i)),
			zone: fmt.Sprintf("zone-%d", (i-1)%3+1),
		})
	}
	return w, nil
}

// folderOf is the beginning of the name of a run's folder.
func folderOf(pid int) string { return fmt.Sprintf("run-%d-", pid) }

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// program returns the path of a program of Kubernetes: of the release, or else common to all releases.
func (w *world) program(name string) string {
	if path := filepath.Join(w.programs, w.kubernetes, name); w.kubernetes != "" {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return filepath.Join(w.programs, name)
}

// start starts everything, and returns when all nodes are ready and the proxy on each is healthy.
func (w *world) start(ctx context.Context, proxy string) error {
	for _, step := range []func(context.Context) error{
		w.raiseInotify, w.makeImages, w.connect, w.startControl, w.startNodes,
		func(ctx context.Context) error { return w.startProxy(ctx, proxy) },
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// inotifyInstances is the machine's setting: a kubelet and a containerd need more than a hundred for the containers of a node.
const (
	inotifyInstances = "/proc/sys/fs/inotify/max_user_instances"
	enoughInotify    = 8192
)

func (w *world) raiseInotify(context.Context) error {
	text, err := os.ReadFile(inotifyInstances)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n >= enoughInotify {
		return err
	}
	w.inotify = string(text)
	return os.WriteFile(inotifyInstances, fmt.Append(nil, enoughInotify), 0o644)
}

// connect lays the network: a bridge in the control plane's namespace, and routes to the pods of each node.
func (w *world) connect(ctx context.Context) error {
	lines := func(format string, args ...any) string { return fmt.Sprintf(format+"\n", args...) }
	control := lines("link set lo up") + lines("link add br0 type bridge") + lines("addr add %s/24 dev br0", controlAddress) +
		lines("addr add %s/64 dev br0 nodad", controlIPv6) + lines("link set br0 up")
	// Packets to addresses of load balancers are lost until the load balancer routes them. Their clients are beyond the nodes' network.
	control += lines("link add void type veth peer name void-peer") + lines("link set void arp off up") + lines("link set void-peer up") +
		lines("addr add %s/32 dev void", clientIPv4) + lines("addr add %s/128 dev void nodad", clientIPv6) +
		lines("route add 172.31.78.0/24 dev void src %s", clientIPv4) + lines("route add fd00:78::/64 dev void src %s", clientIPv6)
	settings := []string{"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"}
	if err := addNetns(ctx, w.control, append(settings, "net.ipv4.fib_multipath_hash_policy=1", "net.ipv6.fib_multipath_hash_policy=1")); err != nil {
		return err
	}
	for i, n := range w.nodes {
		if err := addNetns(ctx, n.netns, settings); err != nil {
			return err
		}
		control += lines("link add node%d type veth peer name eth0 netns %s", i+1, n.netns) + lines("link set node%d master br0 up", i+1)
	}
	for _, n := range w.nodes {
		control += lines("route add %s via %s", n.pods4, n.ipv4) + lines("route add %s via %s", n.pods6, n.ipv6)
	}
	if err := ipBatch(ctx, w.control, control); err != nil {
		return err
	}
	for _, n := range w.nodes {
		batch := lines("link set lo up") + lines("link set eth0 up") + lines("addr add %s/24 dev eth0", n.ipv4) + lines("addr add %s/64 dev eth0 nodad", n.ipv6) +
			lines("route add default via %s", controlAddress) + lines("route add default via %s", controlIPv6)
		for _, other := range w.nodes {
			if other != n {
				batch += lines("route add %s via %s", other.pods4, other.ipv4) + lines("route add %s via %s", other.pods6, other.ipv6)
			}
		}
		if err := ipBatch(ctx, n.netns, batch); err != nil {
			return err
		}
	}
	return nil
}

func addNetns(ctx context.Context, name string, sysctls []string) error {
	if err := command(ctx, "ip", "netns", "add", name); err != nil {
		return err
	}
	return command(ctx, "ip", append([]string{"netns", "exec", name, "sysctl", "-qw"}, sysctls...)...)
}

func ipBatch(ctx context.Context, netns, batch string) error {
	cmd := exec.CommandContext(ctx, "ip", "-n", netns, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip -n %s: %w\n%s", netns, err, out)
	}
	return nil
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// startControl starts the control plane.
func (w *world) startControl(ctx context.Context) (err error) {
	w.api, err = cluster.Start(ctx, cluster.Config{
		Dir: w.path("control"), BinDir: w.programs, Release: w.kubernetes, Netns: w.control, Address: netip.MustParseAddr(controlAddress),
		Flags: []string{
			// As in a real cluster, unlike in other tests.
			"--endpoint-reconciler-type=lease", "--enable-priority-and-fairness=true", "--max-requests-inflight=400", "--max-mutating-requests-inflight=200",
			"--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
		},
	})
	if err != nil {
		return err
	}
	version, err := w.api.Client().Discovery().ServerVersion()
	if err != nil {
		return err
	}
	if w.version = version.GitVersion; w.kubernetes != "" && w.version != w.kubernetes {
		return fmt.Errorf("kube-apiserver is %s, want %s", w.version, w.kubernetes)
	}
	admin := w.path("admin.conf")
	err = errors.Join(
		w.api.Kubeconfig(admin, true), w.api.Kubeconfig(w.path("proxy.conf"), false),
		os.WriteFile(w.path("ca.crt"), w.api.Authority(), 0o644),
		os.WriteFile(w.path("Corefile"), fmt.Appendf(nil, corefile, admin), 0o644),
		os.WriteFile(w.path("kube-proxy.yaml"), fmt.Appendf(nil, proxyConfiguration, clusterCIDR, loopback(w.version)), 0o644),
		os.WriteFile(w.path("kubelet.yaml"), fmt.Appendf(nil, kubeletConfiguration, dnsAddress), 0o644),
		os.WriteFile(w.path("containerd.toml"), []byte(containerdConfiguration), 0o644),
	)
	if err != nil {
		return err
	}
	for _, program := range [][]string{
		{
			"kube-controller-manager", "--kubeconfig=" + admin, "--leader-elect=false", "--use-service-account-credentials", "--allocate-node-cidrs=false",
			"--root-ca-file=" + w.path("ca.crt"), "--service-account-private-key-file=" + w.path("control/service-account.key"),
			"--bind-address=127.0.0.1", "--cert-dir=" + w.path("control"),
		},
		{"kube-scheduler", "--kubeconfig=" + admin, "--leader-elect=false", "--bind-address=127.0.0.1", "--cert-dir=" + w.path("control")},
		{"coredns", "-conf", w.path("Corefile")},
	} {
		argv := append([]string{"netns", "exec", w.control, w.program(program[0])}, program[1:]...)
		p, err := cluster.StartProcess(program[0], w.path("control/"+program[0]+".log"), exec.Command("ip", argv...))
		if err != nil {
			return err
		}
		w.processes = append(w.processes, p)
	}
	go w.balance(context.WithoutCancel(ctx)) // until the program exits
	// The API server is ready before it has made its namespaces.
	return w.processes[0].Await(ctx, func(ctx context.Context) error { return w.api.Apply(ctx, dnsService()...) })
}

const corefile = `.:53 {
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig %s test
    pods insecure
    ttl 5
  }
}
`

// startNodes starts all nodes and waits until they are ready.
func (w *world) startNodes(ctx context.Context) error {
	for _, n := range w.nodes {
		if err := w.startNode(n); err != nil {
			return fmt.Errorf("start %s: %w", n.name, err)
		}
	}
	for _, n := range w.nodes {
		err := n.process.Await(ctx, func(ctx context.Context) error { return n.containerdServes(ctx) })
		if err != nil {
			return err
		}
		for _, image := range w.images {
			if err := n.run(ctx, "/programs/ctr", "-n", "k8s.io", "images", "import", "--local", "/images/"+image); err != nil {
				return err
			}
		}
		err = n.orders.Encode(order{Log: "/logs/kubelet.log", Argv: []string{
			"/programs/kubelet", "--config=/configuration/kubelet.yaml", "--kubeconfig=/configuration/admin.conf", "--hostname-override=" + n.name,
			fmt.Sprintf("--node-ip=%s,%s", n.ipv4, n.ipv6), "--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki",
			"--node-labels=topology.kubernetes.io/zone=" + n.zone, "--v=2",
		}})
		if err != nil {
			return err
		}
	}
	for _, n := range w.nodes {
		if err := n.process.Await(ctx, func(ctx context.Context) error { return w.nodeReady(ctx, n) }); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) startNode(n *node) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(n.dir, "logs"), 0o755), w.collect(n)); err != nil {
		return err
	}
	cmd := exec.Command(self, nodeCommand)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	n.orders = json.NewEncoder(input)
	if n.process, err = cluster.StartProcess(n.name, filepath.Join(n.dir, "logs", "init.log"), cmd); err != nil {
		return err
	}
	if err := join(n.netns, n.process.Pid()); err != nil {
		return err
	}
	err = n.orders.Encode(order{Name: n.name, Netns: n.netns, Dir: n.dir, Root: w.root, Binds: map[string]string{
		"var/lib/containerd": filepath.Join(n.dir, "containerd"), "var/lib/kubelet": filepath.Join(n.dir, "kubelet"),
		"var/log/pods": filepath.Join(n.dir, "logs/pods"), "logs": filepath.Join(n.dir, "logs"),
		"programs": filepath.Join(n.dir, "programs"), "images": w.path("images"), "configuration": filepath.Join(n.dir, "configuration"),
	}})
	if err != nil {
		return err
	}
	return n.orders.Encode(order{Log: "/logs/containerd.log", Argv: []string{"/programs/containerd", "--config", "/configuration/containerd.toml"}})
}

// collect puts what a node needs into its folders: hard links to programs, and files.
func (w *world) collect(n *node) error {
	programs := map[string]string{kubeNftproxy: w.ours, kubeProxy: w.program(kubeProxy)}
	for _, name := range []string{"kubelet", "containerd", "containerd-shim-runc-v2", "ctr"} {
		programs[name] = w.program(name)
	}
	for _, dir := range []string{"programs", "configuration"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			return err
		}
	}
	for name, from := range programs {
		if err := os.Link(from, filepath.Join(n.dir, "programs", name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"admin.conf", "proxy.conf", "kube-proxy.yaml", "kubelet.yaml", "containerd.toml"} {
		if err := os.Link(w.path(name), filepath.Join(n.dir, "configuration", name)); err != nil {
			return err
		}
	}
	return nil
}

// containerdServes returns nil when the node has its network plugin's configuration, and its container runtime accepts connections.
func (n *node) containerdServes(ctx context.Context) error {
	root := fmt.Sprintf("/proc/%d/root", n.process.Pid())
	conn, err := new(net.Dialer).DialContext(ctx, "unix", root+"/run/containerd/containerd.sock")
	if err != nil {
		return err
	}
	conn.Close() //nolint:errcheck // it was opened for nothing else
	return os.WriteFile(root+"/etc/cni/net.d/10-pods.conflist", fmt.Appendf(nil, podNetwork, n.pods4, n.pods6), 0o644)
}

// podNetwork connects each pod to its node by a veth pair and routes.
const podNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "mtu": 1500, "ipam": {"type": "host-local", "ranges": [[{"subnet": "%s"}], [{"subnet": "%s"}]],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "dataDir": "/run/cni"}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

const containerdConfiguration = `version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "` + pauseImage + `"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`

const kubeletConfiguration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: ["%s"]
clusterDomain: cluster.local
failSwapOn: false
evictionHard: {nodefs.available: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
resolvConf: /etc/resolv.conf
volumePluginDir: /var/lib/kubelet/volume-plugins
registryPullQPS: 0
`

// nodeReady returns nil when the Node is ready. It gives the Node its pod ranges, as the controller manager would, which has no say here.
func (w *world) nodeReady(ctx context.Context, n *node) error {
	nodes := w.api.Client().CoreV1().Nodes()
	live, err := nodes.Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if live.Spec.PodCIDR == "" {
		patch := fmt.Appendf(nil, `{"spec": {"podCIDR": "%s", "podCIDRs": ["%s", "%s"]}}`, n.pods4, n.pods4, n.pods6)
		if _, err := nodes.Patch(ctx, n.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	for _, c := range live.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s is not ready", n.name)
}

// output runs a program in the node's namespaces, and returns its standard output.
func (n *node) output(ctx context.Context, argv ...string) ([]byte, error) {
	inside := append([]string{"-t", strconv.Itoa(n.process.Pid()), "-m", "-u", "-i", "-n", "-p", "-C", "--wd=/", "env", "-i"}, environment...)
	out, err := exec.CommandContext(ctx, "nsenter", append(inside, argv...)...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w\n%s", err, failed.Stderr)
	}
	if err != nil {
		return out, fmt.Errorf("%s: %s: %w", n.name, strings.Join(argv, " "), err)
	}
	return out, nil
}

func (n *node) run(ctx context.Context, argv ...string) error {
	_, err := n.output(ctx, argv...)
	return err
}

// close ends all processes, and removes all that the cluster has made on the machine.
func (w *world) close() error {
	var errs []error
	for _, n := range w.nodes {
		if n.process != nil {
			n.process.Kill() // and with it, the kernel kills all processes of its PID namespace
			errs = append(errs, leave(n.netns))
		}
	}
	for _, p := range w.processes {
		p.Kill()
	}
	if w.api != nil {
		w.api.Stop()
	}
	if w.inotify != "" {
		errs = append(errs, os.WriteFile(inotifyInstances, []byte(w.inotify), 0o644))
	}
	for _, name := range append([]string{w.control}, netnsOf(w.nodes)...) {
		errs = append(errs, lab.Unbind(name))
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

func netnsOf(nodes []*node) (names []string) {
	for _, n := range nodes {
		names = append(names, n.netns)
	}
	return names
}

// sweep removes the namespaces, cgroups and folders that a killed run has left. Errors are ignored: no other run needs the names.
func sweep(folders string) {
	left := func(folder, format string) (names []string) {
		entries, _ := os.ReadDir(folder) // an error leaves them empty
		for _, e := range entries {
			var pid int
			if n, err := fmt.Sscanf(e.Name(), format, &pid); n == 1 && err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				names = append(names, e.Name())
			}
		}
		return names
	}
	for _, name := range left("/run/netns", "knc-%d-") {
		_ = leave(name)
		_ = lab.Unbind(name)
	}
	for _, name := range left(folders, "run-%d-") {
		_ = os.RemoveAll(filepath.Join(folders, name))
	}
}

// keepLogs copies the logs of the control plane and of all nodes, and a bundle of each kube-nftproxy, into a folder.
func (w *world) keepLogs(ctx context.Context, folder string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	err := copyLogs(w.path("control"), filepath.Join(folder, "control"))
	for _, n := range w.nodes {
		to := filepath.Join(folder, n.name)
		err = errors.Join(err, copyLogs(filepath.Join(n.dir, "logs"), to))
		if n.process == nil {
			continue
		}
		for name, argv := range map[string][]string{
			"nft.txt": {"nft", "list", "ruleset"}, "conntrack.txt": {"conntrack", "-L"}, "routes.txt": {"ip", "route", "show", "table", "all"},
		} {
			out, runErr := n.output(ctx, argv...)
			if runErr != nil {
				out = append(out, runErr.Error()...)
			}
			err = errors.Join(err, os.WriteFile(filepath.Join(to, name), out, 0o644))
		}
	}
	if strings.HasPrefix(w.proxyVersion, kubeNftproxy) {
		err = errors.Join(err, w.keepBundles(ctx, folder))
	}
	log.Printf("logs: %s", folder)
	return err
}

// keepBundles keeps a bundle of each pod of kube-nftproxy, in the folder of its node.
func (w *world) keepBundles(ctx context.Context, folder string) error {
	pods, err := w.api.Client().CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy"})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		out, runErr := exec.CommandContext(ctx, "ip", "netns", "exec", w.control, w.program("kubectl"), "--kubeconfig="+w.path("admin.conf"),
			"--namespace="+pod.Namespace, "exec", pod.Name, "--", "/programs/"+kubeNftproxy, "bundle", "-f", "-").Output()
		if runErr != nil { // of a pod that does not run, for example
			log.Printf("bundle of %s: %v", pod.Name, runErr)
			continue
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, pod.Spec.NodeName, "bundle.tar.gz"), out, 0o644))
	}
	return err
}

// copyLogs copies all files below a folder whose names end in .log.
func copyLogs(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !strings.HasSuffix(path, ".log") || !d.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, relative)
		return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, text, 0o644))
	})
}

// dnsService is the Service of the cluster's name server, which runs beside the API server.
func dnsService() []runtime.Object {
	meta := metav1.ObjectMeta{Name: "kube-dns", Namespace: metav1.NamespaceSystem, Labels: map[string]string{"k8s-app": "kube-dns"}}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: dnsAddress}}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{controlAddress}}},
	}
	for name, protocol := range map[string]corev1.Protocol{"dns": corev1.ProtocolUDP, "dns-tcp": corev1.ProtocolTCP} {
		port := int32(53)
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Port: port, Protocol: protocol})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
	}
	return []runtime.Object{service, slice}
}
