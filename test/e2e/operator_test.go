//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// operator is an operator on call: a node with an original API server, and the commands.
type operator struct {
	*world
	socket string
	daemon *daemon
}

// newOperator has two pods on the node, one on another node, and the running program.
func newOperator(t *testing.T) *operator {
	t.Helper()
	w := newWorld(t, lab.Config{Pods: 2, Remotes: 1})
	w.serve(w.Pods[0], w.Remotes[0])
	o := &operator{world: w, socket: filepath.Join(w.dir, "control.sock")}
	o.restart(w.kubeconfig())
	return o
}

// restart stops the program and starts it with other flags.
func (o *operator) restart(kubeconfig string, flags ...string) {
	o.Helper()
	if o.daemon != nil {
		o.daemon.stop()
	}
	o.daemon = o.startOn(o.Node, kubeconfig, append([]string{"--control-socket", o.socket}, flags...)...)
}

// on returns the same operator for a subtest.
func (o *operator) on(t *testing.T) *operator {
	w := *o.world
	w.T = t
	return &operator{&w, o.socket, o.daemon}
}

// ask runs a command; trace has no socket.
func (o *operator) ask(args ...string) (text string, code int) {
	o.Helper()
	if args[0] != "trace" {
		args = append(args, "--control-socket", o.socket)
	}
	return runCommand(o.T, o.Node, args...)
}

// says waits until a command prints matches of the patterns, with this exit code.
func (o *operator) says(code int, command string, patterns ...string) {
	o.Helper()
	if err := await(o.Context(), patience, func() error {
		text, got := o.ask(strings.Fields(command)...)
		return fits(text, got, code, patterns)
	}); err != nil {
		o.Errorf("kube-nftproxy %s: %v", command, err)
	}
}

func fits(text string, got, code int, patterns []string) error {
	for _, p := range patterns {
		if got != code || !regexp.MustCompile(p).MatchString(text) {
			return fmt.Errorf("exit code %d, want %d, and %q in:\n%s", got, code, p, text)
		}
	}
	return nil
}

// live traces the first packet of a connection.
func (o *operator) live(from *lab.Host, to netip.AddrPort, outcome lab.Outcome, code int, patterns ...string) {
	o.Helper()
	text, got := traceLive(o.T, o.Node, from, to, outcome)
	if err := fits(text, got, code, patterns); err != nil {
		o.Errorf("kube-nftproxy trace --live: %v", err)
	}
}

// traceLive returns the output of trace --live for a connection that is opened as soon as the command waits for it.
func traceLive(
	t *testing.T, node, from *lab.Host, to netip.AddrPort, outcome lab.Outcome, flags ...string,
) (text string, code int) {
	t.Helper()
	args := append([]string{"trace", from.IPv4.String(), to.String(), "--live", "--timeout", "20s"}, flags...)
	cmd := node.Command(t.Context(), program, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	eventually(t, patience, func() error {
		if list := nft(t, node, "list", "tables"); !strings.Contains(list, "kube-nftproxy-trace") {
			return fmt.Errorf("trace --live doesn't listen yet: %s", list)
		}
		return nil
	})
	options := lab.Options{}
	if outcome != lab.TimedOut {
		options.Timeout = patience // the processors may be busy
	}
	if got := from.Probe(t.Context(), inet.TCP, to, options); got.Outcome != outcome {
		t.Errorf("%s to %s: %v, want %v", from.Name, to, got, outcome)
	}
	_ = cmd.Wait() // the caller checks the exit code
	return out.String(), cmd.ProcessState.ExitCode()
}

// web returns a Service with TCP port 80 and one endpoint, and a change.
func web(name string, change func(*corev1.Service)) *corev1.Service {
	s := service(name)
	s.Spec.Ports = s.Spec.Ports[:1]
	s.Spec.Selector = map[string]string{"app": name}
	if change != nil {
		change(s)
	}
	return s
}

// atPort changes the port of a slice's endpoints.
func atPort(s *discoveryv1.EndpointSlice, port int32) *discoveryv1.EndpointSlice {
	for i := range s.Ports {
		s.Ports[i].Port = &port
	}
	return s
}

// overUDP changes the protocol of a slice's first port.
func overUDP(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	udp := corev1.ProtocolUDP
	s.Ports[0].Protocol = &udp
	return s
}

// TestOperatorAsksAboutServices creates Services with faults that are not visible in the objects. One command, or a second one
// that the first one names, shows the cause.
func TestOperatorAsksAboutServices(t *testing.T) {
	o := newOperator(t)
	here, there := endpoint(o.Pods[0].IPv4), elsewhere(endpoint(o.Remotes[0].IPv4))
	nobody := endpoint(netip.MustParseAddr("10.244.0.99"))
	mode := corev1.LoadBalancerIPModeProxy
	balancer := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }
	situations := []struct {
		name, command string
		code          int
		says          string
		change        func(*corev1.Service)
		slices        []*discoveryv1.EndpointSlice
	}{
		{name: "typo", command: "services default/typo", code: 1, says: `its EndpointSlices have no IPv4 address: its selector matches no pod\n(.|\n)*get pods -l app=typo`,
			slices: []*discoveryv1.EndpointSlice{{ObjectMeta: slice("typo", "typo").ObjectMeta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{}}}},
		{name: "unwritten", command: "services default/unwritten", code: 1, says: `for it: it has no selector and needs an\s+EndpointSlice made by hand\n(.|\n)*it has no selector: create an EndpointSlice`,
			change: func(s *corev1.Service) { s.Spec.Selector = nil }},
		{name: "other-family", command: "services default/other-family", code: 1, says: `endpoints of another IP family only: its pods have no IPv4 address`,
			slices: []*discoveryv1.EndpointSlice{slice("other-family", "other-family", endpoint(o.Pods[0].IPv6))}},
		{name: "headless", command: "services default/headless", code: 2, says: `it is headless \(clusterIP: None\): DNS returns the addresses of its pods`,
			change: func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }},
		{name: "external-name", command: "services default/external-name", code: 2, says: `of type ExternalName: DNS returns the name db\.example\.com`,
			change: func(s *corev1.Service) {
				s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "db.example.com", Ports: s.Spec.Ports}
			}},
		{name: "others", command: "services default/others", code: 2, says: `its label service\.kubernetes\.io/service-proxy-name=cilium assigns it to another proxy`,
			change: func(s *corev1.Service) {
				s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "cilium"}
			}},
		{name: "checkout", command: "services default/chekcout", code: 2, says: `there is no Service default/chekcout in the cluster; did you mean default/checkout\?`},
		{name: "elsewhere", command: "services shop/elsewhere", code: 2, says: `no Service shop/elsewhere in the cluster; did you mean default/elsewhere\?`},
		{name: "waiting", command: "services default/waiting", code: 0, says: `it has no load balancer yet`, change: balancer,
			slices: []*discoveryv1.EndpointSlice{slice("waiting", "waiting", here)}},
		{name: "proxied", command: "services default/proxied", code: 0, says: `203\.0\.113\.50 is not served here \(its ipMode is Proxy\)`,
			change: func(s *corev1.Service) {
				balancer(s)
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.50", IPMode: &mode}}
			},
			slices: []*discoveryv1.EndpointSlice{slice("proxied", "proxied", here)}},
		{name: "hijack", command: "services default/hijack", code: 0, says: `192\.0\.2\.1 is an address of this node: packets to 192\.0\.2\.1:80 reach this`,
			change: func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} },
			slices: []*discoveryv1.EndpointSlice{slice("hijack", "hijack", here)}},
		{name: "chained", command: "services default/chained", code: 1, says: `endpoint 10\.96\.0\.1:8080 is an address of a Service: the kernel translates a packet only once`,
			slices: []*discoveryv1.EndpointSlice{slice("chained", "chained", endpoint(netip.MustParseAddr("10.96.0.1")))}},
		{name: "closed", command: "services default/closed --try", code: 1, says: `\+ 10\.244\.0\.10:8081 +ready +on this node +connection refused: nothing listens on this port`,
			slices: []*discoveryv1.EndpointSlice{atPort(slice("closed", "closed", here), 8081)}},
		{name: "closed-udp", command: "services default/closed-udp --try", code: 1,
			says:   `\+ 10\.244\.0\.10:8080 .*no refusal(.|\n)*\+ 10\.244\.0\.11:8080 .*connection refused: nothing listens on this port`,
			change: func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP },
			slices: []*discoveryv1.EndpointSlice{overUDP(slice("closed-udp", "closed-udp", here, endpoint(o.Pods[1].IPv4)))}},
		{name: "half-dead", command: "services default/half-dead --try", code: 1,
			says:   `\+ 10\.244\.0\.99:8080 .*no answer within 1s: the pod is gone or hangs(.|\n)*\+ 10\.244\.1\.10:8080 .*answers in `,
			slices: []*discoveryv1.EndpointSlice{slice("half-dead", "half-dead", nobody, there)}},
		{name: "fine", command: "services default/fine", code: 0, says: `No problem found\. If the Service does not work: --try`,
			slices: []*discoveryv1.EndpointSlice{slice("fine", "fine", here, there)}},
		{name: "refusing", command: "trace 10.244.0.11 VIP:81", code: 1, says: `without such a port(.|\n)*to list the ports of this address: kube-nftproxy services VIP`},
	}
	var objects []runtime.Object
	for _, s := range situations {
		objects = append(objects, web(s.name, s.change))
		for _, slice := range s.slices {
			slice.Ports = slice.Ports[:min(1, len(slice.Ports))]
			objects = append(objects, slice)
		}
	}
	o.apply(objects...)
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			o := o.on(t)
			if strings.Contains(s.command, "VIP") {
				vip := o.clusterIPs(s.name)[0].Addr().String()
				s.command, s.says = strings.ReplaceAll(s.command, "VIP", vip), strings.ReplaceAll(s.says, "VIP", regexp.QuoteMeta(vip))
			}
			o.says(s.code, s.command, s.says)
		})
	}
	t.Run("health check port", func(t *testing.T) { o.on(t).testHealthCheckPort() })
	t.Run("packets", func(t *testing.T) { o.on(t).testPackets() })
}

// testHealthCheckPort blocks the health check port first by another process and then by a firewall.
func (o *operator) testHealthCheckPort() {
	const port = 32123
	free := take(o, o.Node, fmt.Sprintf("192.0.2.1:%d", port))
	o.apply(web("checked", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal, port
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.51"}}
	}), slice("checked", "checked", endpoint(o.Pods[0].IPv4)))
	o.says(1, "services default/checked", `PROBLEM .* no answer at the health check node port(.|\n)*address already in use\n\(ss -ltnp sport = :32123 shows the process`)
	o.says(0, "status", `WARNING the health check node ports of 1 Service are not served.*address already in use`, `reason: +HealthCheckPortTaken, Service default/checked`)
	free()
	nft(o.T, o.Node, "add table inet guard; add chain inet guard in { type filter hook input priority 0; policy drop; }; add rule inet guard in tcp dport != 32123 accept")
	o.says(0, "services default/checked", `chain in of table inet guard drops (.|\n)*accept TCP port 32123 in this chain`)
	nft(o.T, o.Node, "delete table inet guard")
}

// testPackets blocks packets to a working Service, and to two with faulty endpoints.
func (o *operator) testPackets() {
	client := o.Pods[1]
	vip := func(name string) netip.AddrPort { return o.clusterIPs(name)[0] }
	o.live(client, vip("fine"), lab.Answered, 0, `The packet left this node by veth-\w+\. 10\.244\.[01]\.10:8080 answered\.`)
	o.live(client, vip("closed"), lab.Refused, 1, `10\.244\.0\.10:8081 refused the connection \(TCP reset\): nothing listens on port 8081`)
	o.apply(slice("half-dead", "half-dead", endpoint(netip.MustParseAddr("10.244.0.99"))))
	o.says(0, "services default/half-dead", `policy Cluster +1 endpoint `)
	o.daemon.awaitIdle(patience) // the command shows the plan, which precedes the commit
	o.live(client, vip("half-dead"), lab.TimedOut, 1, `left this node by eth0\. 10\.244\.0\.99:8080 has not answered within 1s`)
	for _, s := range []struct {
		nft     string
		outcome lab.Outcome
		says    string
	}{
		{"add table inet other; add chain inet other pass { type filter hook forward priority 0; }; add rule inet other pass tcp dport 8080 drop", lab.TimedOut,
			`Stopped by rule \d+ of chain pass of table inet other, which belongs to another program; to list it: nft -a list chain inet other pass`},
		{"add table ip other; add chain ip other pre { type filter hook prerouting priority raw; }; add rule ip other pre ip daddr 10.96.0.0/16 notrack", lab.TimedOut,
			`Connection tracking has no entry for it: a rule has exempted the packet \(notrack\)`},
		{"add table ip other; add chain ip other pre { type nat hook prerouting priority -150; }; add rule ip other pre tcp dport 80 dnat to 10.244.0.10:9999", lab.Refused,
			`translated to 10\.244\.0\.10:9999 by chain pre of table other, before the rules of kube-nftproxy`},
	} {
		nft(o.T, o.Node, s.nft)
		o.says(0, "trace 10.244.0.11 "+vip("fine").String(), `Chains of other programs on the path(.|\n)* other p`)
		o.live(client, vip("fine"), s.outcome, 1, s.says)
		nft(o.T, o.Node, "delete table "+strings.Fields(s.nft)[2]+" other")
	}
	o.nodeSysctl("ipv4/conf/veth-pod1/forwarding", "0")
	o.says(0, "status", `WARNING this node does not forward IPv4 packets that arrive by veth-pod1`, `fix: +on node node-1: sysctl -w net\.ipv4\.conf\.veth-pod1\.forwarding=1`)
	o.live(client, vip("fine"), lab.TimedOut, 1, `The kernel reported nothing more of this packet\. This node does not forward packets that arrive by veth-pod1`)
	o.nodeSysctl("ipv4/conf/veth-pod1/forwarding", "1")
	o.says(2, "trace 10.244.0.11 "+vip("fine").String()+" --live --timeout 20ms", `no matching packet within 20ms: it does not reach this node \(check the routes of 10\.244\.0\.11`)
}

func (o *operator) nodeSysctl(key, value string) {
	o.Helper()
	must(o, o.Node.Sysctl(key, value))
}

// TestOperatorAsksAboutTheNode runs the program with wrong settings, and expects the causes in status.
func TestOperatorAsksAboutTheNode(t *testing.T) {
	o := newOperator(t)
	right := o.kubeconfig()
	o.apply(web("web", nil), slice("web", "web", endpoint(o.Pods[0].IPv4)))
	o.says(0, "status", "health +healthy\n(.|\n)*No problem found on this node")

	t.Run("bridge", func(t *testing.T) { o.on(t).testBridge() })
	for _, c := range []struct {
		name, kubeconfig string
		flags            []string
		code             int
		says             []string
	}{
		{"another name", right, []string{"--hostname-override", "node1"}, 1, []string{`WRONG there is no Node "node1"`, `fix: +set --hostname-override to the name`}},
		{"other prefixes", right, []string{"--cluster-cidr", "10.99.0.0/16"}, 0,
			[]string{`WARNING pods on this node have addresses outside of --cluster-cidr \(10\.99\.0\.0/16\): 10\.244\.0\.10`}},
		{"no rights", o.withRights(), nil, 1, []string{`health +unhealthy: cannot read endpointslices`,
			`WRONG cannot read endpointslices: .*User "half-blind" cannot list`, `fix: +kubectl create clusterrolebinding kube-nftproxy-half-blind --clusterrole=system:node-proxier --user=half-blind\n`}},
		{"no token", o.withToken("nobody's"), nil, 1, []string{`WRONG cannot read endpointslices, nodes, servicecidrs, services: Unauthorized`, "fix: +the API server rejects"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.restart(c.kubeconfig, c.flags...)
			o.on(t).says(c.code, "status", c.says...)
			if c.name == "no rights" {
				o.on(t).says(2, "services default/web", `NOT READ YET endpointslices: .*kube-nftproxy status shows the reason`)
			}
		})
	}
	t.Run("another Node's name", func(t *testing.T) {
		other := node()
		other.Name, other.Status.Addresses[0].Address, other.Status.Addresses[1].Address = otherNode, "192.0.2.2", "2001:db8::2"
		o.on(t).apply(other)
		o.restart(right, "--hostname-override", otherNode)
		o.on(t).says(1, "status", `WRONG no interface of this host has an address of Node node-2 \(192\.0\.2\.2, 2001:db8::2\)`, `fix: +set hostNetwork: true`)
	})
	t.Run("two", func(t *testing.T) {
		o.restart(right)
		o.on(t).says(0, "status", "health +healthy\n")
		second := o.startOn(o.Node, right, "--hostname-override", otherNode, "--healthz-bind-address", "", "--metrics-bind-address", "")
		o.on(t).says(0, "status", fmt.Sprintf(`WARNING another instance \(kube-nftproxy, pid %d\) serves this node; this instance waits until it exits`, second.Pid()), "health +healthy, 1 warning\n")
		second.Kill()
	})
	t.Run("stopped", func(t *testing.T) {
		o.restart(right)
		o := o.on(t)
		o.says(0, "status", "health +healthy\n")
		must(t, o.daemon.Signal(syscall.SIGSTOP))
		o.says(2, "status", fmt.Sprintf(`\(pid %[1]d\) is stopped, by a signal or a debugger: kill -CONT %[1]d`, o.daemon.Pid()))
		must(t, o.daemon.Signal(syscall.SIGCONT))
		o.says(0, "status", "health +healthy\n")
	})
}

// testBridge has two pods on a bridge, where the node's rules need not see one pod's replies to the other.
func (o *operator) testBridge() {
	o.run("link add brpod type bridge", "addr add 10.244.7.1/24 dev brpod", "link set brpod up")
	for i, pod := range o.Pods {
		port := fmt.Sprintf("vb%d", i)
		o.run("link add "+port+" type veth peer name eth1 netns "+pod.Netns, "link set "+port+" master brpod up",
			fmt.Sprintf("-n %s addr add 10.244.7.1%d/24 dev eth1", pod.Netns, i), "-n "+pod.Netns+" link set eth1 up")
	}
	o.serve(o.Pods[1])
	o.apply(web("bridged", nil), slice("bridged", "bridged", endpoint(netip.MustParseAddr("10.244.7.11"))))
	vip := o.clusterIPs("bridged")[0]
	reaches := func(want lab.Outcome) {
		o.Helper()
		eventually(o.T, patience, func() error {
			options := lab.Options{Source: netip.MustParseAddr("10.244.7.10")}
			if got := o.Pods[0].Probe(o.Context(), inet.TCP, vip, options); got.Outcome != want {
				return fmt.Errorf("from pod to pod on one bridge: %v, want %v", got, want)
			}
			return nil
		})
	}
	const setting = "bridge/bridge-nf-call-iptables"
	err := o.Node.Sysctl(setting, "1")
	absent := errors.Is(err, fs.ErrNotExist) // without the module it is as with 0
	if err != nil && !absent {
		o.Fatal(err)
	}
	if !absent {
		reaches(lab.Answered)
		o.says(0, "status", "No problem found on this node")
		o.nodeSysctl(setting, "0")
	}
	reaches(lab.TimedOut)
	o.says(1, "status", `WRONG replies between pods on bridge brpod bypass the rules of this node`, `sysctl -w net\.bridge\.bridge-nf-call-iptables=1`)
	o.run("link del brpod")
}

// run runs ip on the node.
func (o *operator) run(commands ...string) {
	o.Helper()
	for _, c := range commands {
		if out, err := o.Node.Command(o.Context(), "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			o.Fatalf("ip %s: %v: %s", c, err, out)
		}
	}
}

// withRights returns a kubeconfig of a user who may read everything except EndpointSlices.
func (o *operator) withRights() string {
	o.Helper()
	o.allow("half-blind", "services", "nodes", "servicecidrs")
	return o.impersonate("half-blind")
}

// withToken returns a kubeconfig with another token.
func (o *operator) withToken(token string) string {
	o.Helper()
	text := mustRead(o, o.kubeconfig())
	path := filepath.Join(o.dir, "other-token.kubeconfig")
	must(o, os.WriteFile(path, []byte(regexp.MustCompile(`token: .*`).ReplaceAllString(text, "token: "+token)), 0o600))
	return path
}
