package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestClusterIPsNeedNoRoom: a node has room for fewer elements than the cluster IPs of its Services need, and Services
// of several namespaces have many addresses, endpoints and annotations. Each cluster IP with an endpoint answers, also
// after a restart, after a reboot, and on a new node. Load-balancer IPs with source ranges stay closed for other
// sources.
func TestClusterIPsNeedNoRoom(t *testing.T) {
	const namespaces, each = 6, 12
	n := newNode(t, 2, "--limits=node-elements=100,node-source-ranges=1,node-port-ranges=1")
	var objects []runtime.Object
	var clusterIPs, closed []string
	for i := range namespaces {
		for j := range each {
			at := i*each + j
			name := fmt.Sprintf("tenant-%d/s%d", i, j)
			s := service(name, fmt.Sprintf("10.96.1.%d", 1+at))
			s.CreationTimestamp.Time = earlier.Add(time.Duration(at) * time.Minute)
			s.Spec.Ports = ports(80, 1)
			switch j % 6 {
			case 1:
				s.Spec.ExternalIPs = texts(addresses(fmt.Sprintf("198.18.%d.1", at), 20, 1))
			case 2:
				remembers(10_800)(s)
			case 3:
				annotated("port-ranges", twoRanges)(s)
			case 4:
				annotated("max-connections", "10")(s)
			case 5:
				restricted(3)(s)
				closed = append(closed, s.Status.LoadBalancer.Ingress[0].IP+":80")
			}
			endpoints := addresses("10.244.16.1", 1+at%5, 1)
			objects = append(objects, s, slice(name, 0, portNames(s.Spec.Ports), backendPort, endpoints...))
			clusterIPs = append(clusterIPs, s.Spec.ClusterIP+":80")
		}
	}
	check := func(n *node, when string) {
		begin, lost := time.Now(), []string{}
		for _, to := range clusterIPs {
			for n.answered(to, "pod-2") != nil {
				if time.Since(begin) > patience {
					lost = append(lost, to)
					break
				}
			}
		}
		n.Logf("%s: %d of %d cluster IPs answer", when, len(clusterIPs)-len(lost), len(clusterIPs))
		if len(lost) > 0 {
			n.Errorf("%s: these cluster IPs do not answer: %v", when, lost)
		}
		for _, to := range closed {
			if got := n.ask(n.Client, to, soon/4); got != "timed out" {
				n.Errorf("%s: a source outside of the ranges of %s: %s, want it timed out", when, to, got)
			}
		}
	}
	n.absorbed(func() { n.put("tenants", objects...) }, namespaces*each)
	check(n, "after the creation")
	n.restart()
	check(n, "after a restart")
	n.reboot()
	check(n, "after a reboot")
	n.Kill()
	n.joined(func(j *node) { check(j, "on a new node") })
}

// TestPortsInsideOfRanges: younger Services of evil take single ports inside of the range of an older Service of bank,
// at its load-balancer IP and at its cluster IP, and all ports of the cluster IP of a Service without ranges. All
// packets to bank's addresses reach bank.
func TestPortsInsideOfRanges(t *testing.T) {
	const ssh, unused = 22, 2222
	n := newNode(t, 1)
	n.serve(ssh, unused)
	plain := service("bank/plain", "10.96.0.52")
	plain.CreationTimestamp, plain.Spec.Ports = earlier, ports(80, 1)
	n.synced("bank", append(n.wholeIP("10.96.0.51", "203.0.113.51"), plain,
		slice("bank/plain", 0, []string{"p80"}, backendPort, n.Pods[0].IPv4))...)
	thief, whole := service("evil/thief", "10.96.6.1"), service("evil/whole", "10.96.6.2")
	thief.Spec.Ports, thief.Spec.ExternalIPs = ports(ssh, 1), []string{"203.0.113.51", "10.96.0.51"}
	whole.Spec.Ports, whole.Spec.ExternalIPs = ports(ssh, 1), []string{"10.96.0.52"}
	annotated("port-ranges", "all")(whole)
	n.keepsPorts(map[string]string{
		"203.0.113.51:22": "pod-0", "10.96.0.51:22": "pod-0", "10.96.0.52:80": "pod-0", "10.96.0.52:2222": "refused",
	}, thief, whole)
}

// TestNodePortsInsideOfRanges: the whole load-balancer IP of an older Service of bank is an address of this node. A
// younger Service of evil has a node port, and no address. Packets to this port of bank's address reach bank.
func TestNodePortsInsideOfRanges(t *testing.T) {
	const nodePort, ip = 30_022, "203.0.113.53"
	n := newNode(t, 1, "--nodeport-addresses=0.0.0.0/0")
	n.serve(nodePort)
	lab.Must(t, n.Node.Do(func() error {
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, &netlink.Addr{IPNet: netlink.NewIPNet(netip.MustParseAddr(ip).AsSlice())})
	}))
	n.synced("bank", n.wholeIP("10.96.0.53", ip)...)
	evil := service("evil/node-port", "10.96.6.3")
	evil.Spec.Type, evil.Spec.Ports = corev1.ServiceTypeNodePort, ports(22, 1)
	evil.Spec.Ports[0].NodePort = nodePort
	n.keepsPorts(map[string]string{ip + ":30022": "pod-0", ip + ":80": "pod-0"}, evil)
}

// serve starts servers on further ports of all pods.
func (n *node) serve(ports ...uint16) {
	n.Helper()
	for _, h := range n.Pods {
		for _, port := range ports {
			_, err := h.Serve(inet.TCP, port)
			lab.Must(n.T, err)
		}
	}
}

// wholeIP returns the objects of a Service of bank with all ports of its addresses. Its endpoint is pod-0.
func (n *node) wholeIP(clusterIP, loadBalancerIP string) []runtime.Object {
	s := service("bank/vm", clusterIP)
	s.CreationTimestamp, s.Spec.Ports, s.Spec.Type = earlier, ports(80, 1), corev1.ServiceTypeLoadBalancer
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: loadBalancerIP}}
	annotated("port-ranges", "all")(s)
	return []runtime.Object{s, slice("bank/vm", 0, portNames(s.Spec.Ports), backendPort, n.Pods[0].IPv4)}
}

// keepsPorts compares the results of connections, see [node.keeps], while younger Services of evil have pod-2 as their
// endpoint.
func (n *node) keepsPorts(want map[string]string, evil ...*corev1.Service) {
	n.Helper()
	var objects []runtime.Object
	for _, s := range evil {
		s.CreationTimestamp = later
		objects = append(objects, s, slice("evil/"+s.Name, 0, portNames(s.Spec.Ports), backendPort, n.Pods[2].IPv4))
	}
	n.keeps(want, func() { n.absorbed(func() { n.put("evil", objects...) }, len(evil)) })
}

// TestSettingsOfLostAddresses: a Service of evil claims bank's load-balancer IP and cluster IP, and gets neither. Its
// annotations must not switch off ping and refusal there.
func TestSettingsOfLostAddresses(t *testing.T) {
	n := newNode(t, 1, "--answer-ping=ready", "--refuse-unused-ports=203.0.113.0/24")
	s := service("bank/pay", "10.96.0.54")
	s.CreationTimestamp, s.Spec.Ports, s.Spec.Type = earlier, ports(80, 1), corev1.ServiceTypeLoadBalancer
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.54"}}
	n.synced("bank", s, slice("bank/pay", 0, []string{"p80"}, backendPort, n.Pods[0].IPv4))
	check := func(when string) {
		t.Helper()
		for _, ip := range []string{"203.0.113.54", "10.96.0.54"} {
			got := n.Client.Ping(t.Context(), netip.MustParseAddr(ip), lab.Options{Timeout: surely})
			lab.Same(t, lab.Answered, got.Outcome, "%s, ping of %s: %v", when, ip, got)
			for port, want := range map[string]string{"80": "pod-0", "81": "refused"} {
				lab.Same(t, want, n.ask(n.Client, ip+":"+port, surely), "%s, %s:%s", when, ip, port)
			}
		}
	}
	check("without evil")
	e := service("evil/e", evilIP)
	e.CreationTimestamp, e.Spec.Ports, e.Spec.ExternalIPs = later, ports(80, 1), []string{"203.0.113.54", "10.96.0.54"}
	e.Annotations = map[string]string{
		"kube-nftproxy.io/answer-ping": "never", "kube-nftproxy.io/refuse-unused-ports": "false",
	}
	n.absorbed(func() { n.put("evil", e, slice("evil/e", 0, []string{"p80"}, backendPort, n.Pods[2].IPv4)) }, 1)
	check("with evil")
	n.restart()
	check("after a restart")
}

// TestProblemsOfOthersAreLogged: 30 Services of one namespace have 25 unusable external IPs each. A problem of another
// namespace still has its log line, and so has one of a third namespace after a change.
func TestProblemsOfOthersAreLogged(t *testing.T) {
	n := newNode(t, 1)
	var objects []runtime.Object
	for i := range 30 {
		s := service(fmt.Sprintf("evil/bad-%d", i), fmt.Sprintf("10.96.7.%d", 1+i))
		s.Spec.Ports, s.Spec.ExternalIPs = ports(80, 1), texts(addresses("239.1.1.1", 25, 1))
		objects = append(objects, s)
	}
	before := n.lines()
	n.absorbed(func() { n.put("evil", objects...) }, len(objects))
	n.atMost("log lines for evil", float64(n.lines()-before), 550)
	for _, name := range []string{"bank/pay", "office/edge"} {
		s := service(name, "10.96.0."+map[string]string{"bank/pay": "10", "office/edge": "11"}[name])
		s.Spec.Ports, s.Spec.Type = ports(80, 1), corev1.ServiceTypeLoadBalancer
		s.Spec.LoadBalancerSourceRanges = []string{"not-a-range"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
		namespace, _ := split(name)
		n.put(namespace, s)
		// The log is not an event of the loop: a goroutine writes it.
		if err := lab.Await(t.Context(), 2*patience, func() error {
			text, err := os.ReadFile(n.log)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, name) && strings.Contains(line, "not-a-range") {
					return nil
				}
			}
			return errors.New("no log line")
		}); err != nil {
			t.Errorf("the problem of %s: %v", name, err)
		}
	}
}

// TestVerifyAgreesAboutRoom: evil's Services use up the room of their namespace for source ranges, in an order other
// than that of their names. The command verify must report no difference, also after a restart.
func TestVerifyAgreesAboutRoom(t *testing.T) {
	flags := socket(t)
	n := newNode(t, 1, flags...)
	n.synced("bank", append(bankSlices(n.Pods[0]), bankService())...)
	wave := func(file string, services int) {
		var objects []runtime.Object
		for i := range services {
			number := len(file)*50 + i
			s := service(fmt.Sprintf("evil/%s%02d", file, i), fmt.Sprintf("10.96.%d.%d", 16+number/200, 1+number%200))
			s.Spec.Ports = ports(80, 1)
			restricted(62)(s)
			objects = append(objects, s, slice("evil/"+s.Name, 0, []string{"p80"}, backendPort, n.Pods[2].IPv4))
		}
		n.absorbed(func() { n.put(file, objects...) }, services)
	}
	verify := func(when string) {
		t.Helper()
		path, err := built()
		lab.Must(t, err)
		out, err := n.Node.Command(t.Context(), path, append([]string{"verify"}, flags...)...).CombinedOutput()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		t.Logf("%s: verify: %v: %.300s", when, err, bytes.TrimSpace(out))
		if err != nil {
			t.Errorf("%s: verify: %v, want exit code 0", when, err)
		}
	}
	wave("z", 44) // more than the share of a namespace, in any version
	verify("after the first Services")
	wave("aa", 3) // sorted first
	verify("after Services without room")
	n.restart()
	verify("after a restart")
	n.drop("z")
	n.settle()
	verify("after the deletion of the first Services")
}

// TestRememberedClients: evil's clients fill the kernel's memory of session affinity, with many ports and source
// addresses. New clients of bank are still remembered, and known clients keep their endpoint. The test sends a million
// packets, so it runs only in long runs: HOSTILE_STEPS.
func TestRememberedClients(t *testing.T) {
	if lab.Setting(t, "HOSTILE_STEPS", defaultSteps) <= defaultSteps {
		t.Skipf("runs with HOSTILE_STEPS above %d", defaultSteps)
	}
	const sources, portsOfAll, first = 4_000, 270, 1_000
	n := newNode(t, 12)
	lab.Must(t, n.Node.Sysctl("netfilter/nf_conntrack_udp_timeout", "1"))
	n.synced("bank", sticky(service("bank/pay", "10.96.0.10")),
		slice("bank/pay", 0, []string{"https"}, backendPort, n.Pods[0].IPv4, n.Pods[1].IPv4))
	known := n.ask(n.Client, "10.96.0.10:8443", surely)
	var objects []runtime.Object
	for i := range 2 {
		name := fmt.Sprintf("evil/s%d", i)
		s := service(name, fmt.Sprintf("10.96.6.%d", 1+i))
		s.Spec.Ports = ports(first, portsOfAll/2)
		remembers(86_400)(s)
		beyond := netip.MustParseAddr("198.51.100.7") // behind the client, which drops the packets
		e := slice(name, 0, portNames(s.Spec.Ports), 9, beyond)
		for j := range s.Spec.Ports {
			udp := corev1.ProtocolUDP
			s.Spec.Ports[j].Protocol, e.Ports[j].Protocol = udp, &udp
		}
		objects = append(objects, s, e)
	}
	n.synced("evil", objects...)
	begin, sent := time.Now(), 0
	lab.Must(t, n.Pods[2].Do(func() error {
		for _, source := range addresses("10.244.16.1", sources, 1) {
			count, err := spray(source, "10.96.6.1", "10.96.6.2", first, portsOfAll/2)
			if sent += count; err != nil {
				return err
			}
		}
		return nil
	}))
	t.Logf("%d packets in %v", sent, time.Since(begin).Round(time.Millisecond))
	remembered := func() error {
		lost := 0
		for _, h := range n.Clients[1:] {
			with := map[string]int{}
			for range 12 {
				with[n.ask(h, "10.96.0.10:8443", surely)]++
			}
			if len(with) != 1 {
				lost++
			}
		}
		if lost > 0 {
			return fmt.Errorf("%d of %d new clients of bank/pay are not remembered", lost, len(n.Clients)-1)
		}
		return nil
	}
	t.Logf("after the last packet: %v", remembered())
	t.Logf("new clients are remembered after %v", n.until(10*patience, "the memory", remembered))
	for range 12 {
		if got := n.ask(n.Client, "10.96.0.10:8443", surely); got != known {
			t.Fatalf("the known client of bank/pay: %s, want %s", got, known)
		}
	}
}

// spray sends one UDP datagram from an address to each of many ports of two addresses, in the namespace of the calling
// thread.
func spray(from netip.Addr, to1, to2 string, first, ports int) (sent int, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd) //nolint:errcheck // it only sends
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}); err != nil {
		return 0, err
	}
	for _, to := range []string{to1, to2} {
		for port := first; port < first+ports; port++ {
			dst := unix.SockaddrInet4{Addr: netip.MustParseAddr(to).As4(), Port: port}
			if unix.Sendto(fd, []byte("x"), 0, &dst) == nil {
				sent++
			}
		}
	}
	return sent, nil
}
