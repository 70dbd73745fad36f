package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/trace"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const tracedManifests = `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  type: LoadBalancer
  loadBalancerSourceRanges: [198.51.100.0/24]
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: shop}
spec: {clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11], sessionAffinity: ClientIP, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {clusterIP: 10.96.0.12, clusterIPs: [10.96.0.12], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: near, namespace: shop}
spec: {clusterIP: 10.96.0.13, clusterIPs: [10.96.0.13], internalTrafficPolicy: Local, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.10], nodeName: node-1}, {addresses: [10.244.1.10], nodeName: node-2}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-1, namespace: shop, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.10], nodeName: node-1}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: near-1, namespace: shop, labels: {kubernetes.io/service-name: near}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.10], nodeName: node-2}, {addresses: [10.244.1.11], nodeName: node-2}, {addresses: [10.244.1.12], nodeName: node-2}]
---
apiVersion: v1
kind: Service
metadata: {name: twice, namespace: shop}
spec: {clusterIP: 10.96.0.14, clusterIPs: [10.96.0.14], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: twice-1, namespace: shop, labels: {kubernetes.io/service-name: twice}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.96.0.11], nodeName: node-1}]
`

// tracedLab is a lab whose node has the tables for a file of manifests.
type tracedLab struct {
	*lab.Lab
	file string
}

// tracedFlags are the flags of the daemon that planned the tables.
var tracedFlags = []string{"--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56"}

func newTracedLab(t *testing.T) *tracedLab {
	t.Helper()
	l := &tracedLab{lab.ForTest(t, lab.Config{Pods: 2, Remotes: 1}), filepath.Join(t.TempDir(), "all.yaml")}
	l.write(t, tracedManifests)
	l.program(t)
	return l
}

func (l *tracedLab) write(t *testing.T, manifests string) {
	t.Helper()
	lab.Must(t, os.WriteFile(l.file, []byte(manifests), 0o600))
}

// program writes the tables as the daemon would.
func (l *tracedLab) program(t *testing.T) {
	t.Helper()
	err := l.Node.Do(func() error {
		o := config.NewOptions()
		cmd := &cobra.Command{}
		o.AddFlags(cmd.Flags())
		if err := cmd.ParseFlags(tracedFlags); err != nil {
			return err
		}
		p, err := planManifests(o, cmd, l.file, nil, nil)
		if err != nil {
			return err
		}
		kernel, err := apply.Open()
		if err != nil {
			return err
		}
		_, err = kernel.Sync(p)
		return errors.Join(err, kernel.Close())
	})
	lab.Must(t, err)
}

// run runs a command on the node. A program that runs on the test's machine does not answer it.
func (l *tracedLab) run(cmd *cobra.Command, args ...string) (out string, err error) {
	if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--service-proxy-name") }) {
		args = append(slices.Clone(args), "--control-socket="+l.file+".sock")
	}
	var stdout bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = l.Node.Do(cmd.Execute)
	return stdout.String(), err
}

func TestTraceShowsThePath(t *testing.T) {
	l := newTracedLab(t)
	for _, c := range []struct {
		name  string
		args  []string
		want  string
		wrong bool
	}{
		{name: "a pod to a cluster IP", args: []string{"10.244.0.10", "10.96.0.10:80"}, want: `10.244.0.10 -> 10.96.0.10:80/tcp, arrives by veth-pod0
Service port: shop/web:http

any endpoint; one of 2 at random
  50 %  to 10.244.0.10:8080  masqueraded as 192.0.2.1: an endpoint that reaches itself
  50 %  to 10.244.1.10:8080  source kept: 10.244.0.10
`},
		{name: "the node, rule by rule", args: []string{"node", "10.96.0.11:80/tcp", "-o", "wide"}, want: `192.0.2.1 -> 10.96.0.11:80/tcp, sent by this node
Service port: shop/sticky

any endpoint; a client stays with its endpoint, and is remembered for 3h0m0s
  100 %  to 10.244.0.10:8080  masqueraded as 192.0.2.1: not from a local pod

Rules that act on the packet, on the first of these paths:
  output output: ip daddr & 255.255.240.0 == @regions meta l4proto @lease goto services
      regions: 10.96.0.0
      lease: tcp
  output services: ip saddr & 255.255.0.0 != 10.244.0.0 meta mark set meta mark | 0x00004000 comment "not from a local pod"
      marks it for masquerading
  output services: ip saddr & 255.255.0.0 != 10.244.0.0 meta mark & 0x00004000 == 0x00004000 meta mark set meta mark ^ 0x00004000 comment "not a cluster IP with one endpoint"
  output services: meta priority set ip daddr . meta l4proto . th dport map @services meta priority & 8000:7ff vmap @dispatch
      services: 10.96.0.11 . tcp . 80 : c000:1aa  # shop/sticky
      dispatch: 8000:1aa : goto affinity-for-10800
  output affinity-for-10800: ip saddr & 255.255.0.0 != 10.244.0.0 meta priority & 0:700 == 0:100 meta mark set meta mark | 0x00004000 comment "not from a local pod"
      marks it for masquerading
`},
		{name: "from outside to a node port", args: []string{"192.0.2.100", "192.0.2.1:30080"}, want: `192.0.2.100 -> 192.0.2.1:30080/tcp, arrives by eth0
Service port: shop/web:http

any endpoint; one of 2 at random
  50 %  to 10.244.0.10:8080  masqueraded as 192.0.2.1: from outside: replies return by this node
  50 %  to 10.244.1.10:8080  masqueraded as 192.0.2.1: from outside: replies return by this node
`},
		{name: "source ranges", args: []string{"192.0.2.100", "203.0.113.10:80"}, wrong: true, want: `192.0.2.100 -> 203.0.113.10:80/tcp, arrives by eth0
Service port: shop/web:http

not in loadBalancerSourceRanges
  100 %  dropped
`},
		{name: "no endpoints", args: []string{"node", "10.96.0.12:80"}, wrong: true, want: `192.0.2.1 -> 10.96.0.12:80/tcp, sent by this node
Service port: shop/empty

no endpoints
  100 %  refused with a TCP reset
`},
		{name: "no local endpoints", args: []string{"10.244.0.11", "10.96.0.13:80"}, wrong: true, want: `10.244.0.11 -> 10.96.0.13:80/tcp, arrives by veth-pod1
Service port: shop/near

there are endpoints, but none for this traffic: its policy is Local, and none of them is on this node
  100 %  dropped
`},
		{name: "an endpoint with a cluster IP", args: []string{"10.244.0.11", "10.96.0.14:80"}, wrong: true, want: `10.244.0.11 -> 10.96.0.14:80/tcp, arrives by veth-pod1
Service port: shop/twice

translated to a cluster IP, by an endpoint with such an address or by another program
  100 %  dropped
`},
		{name: "another protocol", args: []string{"10.244.0.11", "10.96.0.10:80/udp"}, wrong: true, want: `10.244.0.11 -> 10.96.0.10:80/udp, arrives by veth-pod1

a cluster IP without such a port
  100 %  refused with an ICMP error

Hints:
  shop/web:http has this address and port for tcp
`},
		{name: "an unused address, in mode iptables", args: []string{"10.244.0.11", "10.96.7.7:80"}, wrong: true, want: `10.244.0.11 -> 10.96.7.7:80/tcp, arrives by veth-pod1

not a Service's address and port
  100 %  untouched  continues to 10.96.7.7:80 with source 10.244.0.11
`},
		{name: "no Service, but a node port elsewhere", args: []string{"10.244.0.11", "192.0.2.77:30080"}, wrong: true,
			want: `10.244.0.11 -> 192.0.2.77:30080/tcp, arrives by veth-pod1

not a Service's address and port
  100 %  untouched  continues to 192.0.2.77:30080 with source 10.244.0.11

Hints:
  the port is a node port of shop/web:http, but node ports are not served at this address (--nodeport-addresses)
`},
		{name: "the other family", args: []string{"fd00:10:244::10", "[fd00:10:96::10]:80"}, wrong: true,
			want: `fd00:10:244::10 -> [fd00:10:96::10]:80/tcp, arrives by veth-pod0

not a Service's address and port
  100 %  untouched  continues to [fd00:10:96::10]:80 with source fd00:10:244::10
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := l.run(traceCommand(), c.args...)
			if !strings.HasPrefix(out, c.want) || !strings.Contains(strings.Join(c.args, " "), "wide") && out != c.want {
				t.Errorf("output (-want +got):\n%s", cmp.Diff(c.want, out))
			}
			if got := errors.Is(err, errWrong); got != c.wrong || err != nil && !got {
				t.Errorf("error %v, want something wrong: %v", err, c.wrong)
			}
		})
	}
	out, err := l.run(traceCommand(), "10.244.0.11", "10.96.0.10:80", "-o", "json")
	var v packetTrace
	if failed := json.Unmarshal([]byte(out), &v); failed != nil || err != nil {
		t.Fatalf("-o json: %v, %v:\n%s", err, failed, out)
	}
	if v.Frontend != "shop/web:http" || len(v.Ways) != 2 || len(v.Ways[0].Steps) == 0 || v.Ways[1].Probability != 0.5 {
		t.Errorf("-o json:\n%s", out)
	}
	for _, args := range [][]string{{"pod", "10.96.0.10:80"}, {"node", "10.96.0.10"}, {"node", "10.96.0.10:80/icmp"}, {"fd00::1", "10.96.0.10:80"}} {
		if _, err := l.run(traceCommand(), args...); err == nil || errors.Is(err, errWrong) {
			t.Errorf("trace %v: error %v, want one about the arguments", args, err)
		}
	}
}

// TestTraceNamesOtherTables: the output names the chains of other tables that may translate the packet before the rule that decides, a chain with policy
// drop, and a dormant table.
func TestTraceNamesOtherTables(t *testing.T) {
	l := newTracedLab(t)
	nftDo(t, l, "add table inet guard; add chain inet guard pass { type filter hook forward priority 0; policy drop; }; "+
		"add chain inet guard post { type filter hook input priority 0; policy drop; }; "+
		"add table ip early; add chain ip early nat { type nat hook prerouting priority -110; }; add rule ip early nat counter; "+
		"add chain ip early empty { type nat hook prerouting priority -110; }; "+
		"add table ip late; add chain ip late nat { type nat hook prerouting priority dstnat; }; add rule ip late nat counter")
	out, err := l.run(traceCommand(), "10.244.0.11", "10.96.0.10:80")
	want := `
Chains of other programs on the path (not evaluated):
  chain ip early nat (hook prerouting, priority -110) may translate it first
  chain inet guard pass (hook forward, priority 0) drops packets that it does not accept
`
	if err != nil || !strings.HasSuffix(out, want) {
		t.Errorf("error %v, output ends otherwise (-want +got):\n%s", err, cmp.Diff(want, out))
	}
	out, err = l.run(traceCommand(), "10.244.0.11", "10.96.0.10:81")
	want = `
Chains of other programs on the path (not evaluated):
  chain ip early nat (hook prerouting, priority -110) may translate it first
  chain ip late nat (hook prerouting, priority -100) may translate it first
`
	if !errors.Is(err, errWrong) || !strings.HasSuffix(out, want) {
		t.Errorf("a port that is refused after all translations: error %v, output ends otherwise (-want +got):\n%s", err, cmp.Diff(want, out))
	}
	nftDo(t, l, "add table ip kube-nftproxy { flags dormant; }")
	out, err = l.run(traceCommand(), "010.244.0.11", "10.096.0.10:80")
	if !errors.Is(err, errWrong) || !strings.Contains(out, "table ip kube-nftproxy is dormant") {
		t.Errorf("error %v, output %q, want that the table is dormant", err, out)
	}
}

func nftDo(t *testing.T, l *tracedLab, input string) {
	t.Helper()
	cmd := l.Node.Command(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// TestTraceLive follows a real packet to its endpoint, and leaves no table behind.
func TestTraceLive(t *testing.T) {
	l := newTracedLab(t)
	lab.Must(t, lab.Err(l.Pods[0].Serve(inet.TCP, 8080)))
	type result struct {
		out string
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := l.run(traceCommand(), "10.244.0.11", "10.96.0.11:80", "--live", "--timeout=10s")
		done <- result{out, err}
	}()
	awaitTable(t, l, true)
	to := netip.MustParseAddrPort("10.96.0.11:80")
	if a := l.Pods[1].Probe(t.Context(), inet.TCP, to, lab.Options{Timeout: 3 * time.Second}); a.Outcome != lab.Answered {
		t.Errorf("the packet that is traced got %v", a)
	}
	r := <-done
	lab.Must(t, r.err)
	for _, want := range []string{
		"Service port: shop/sticky\n",
		" -> 10.96.0.11:80\n  kube-nftproxy prerouting: the lease is valid; on to services: finds the Service of a packet's destination\n",
		"pick one; on to pick-of-1: a new client: one of 1 at random\n", "the client is remembered\n",
		"the endpoint is known, is translated to that endpoint\n", " -> 10.244.0.10:8080\n", "The packet left this node by veth-pod0. 10.244.0.10:8080 answered.\n",
	} {
		lab.Contains(t, r.out, "output", want)
	}
	awaitTable(t, l, false)
	nftDo(t, l, "add table inet guard; add chain inet guard pass { type filter hook forward priority 0; policy drop; }")
	go func() {
		out, err := l.run(traceCommand(), "10.244.0.11", "10.96.0.11:80", "--live", "--timeout=10s")
		done <- result{out, err}
	}()
	awaitTable(t, l, true)
	if a := l.Pods[1].Probe(t.Context(), inet.TCP, to, lab.Options{}); a.Outcome != lab.TimedOut {
		t.Errorf("the packet that is dropped got %v", a)
	}
	want := "  guard pass: policy: drop\nStopped by the policy of chain pass of table inet guard, which belongs to another program; to list it: nft -a list chain inet guard pass.\n"
	if r := <-done; !errors.Is(r.err, errWrong) || !strings.HasSuffix(r.out, want) {
		t.Errorf("a packet that is dropped: error %v, output that doesn't end with %q:\n%s", r.err, want, r.out)
	}
	if out, err := l.run(traceCommand(), "10.244.0.11", "10.96.0.11:80", "--live", "--timeout=20ms"); err == nil || errors.Is(err, errWrong) {
		t.Errorf("without a packet: error %v, output %q", err, out)
	}
	awaitTable(t, l, false)
}

// TestTraceLiveOfPacketsInAnotherWay: a packet of another conntrack zone, and one by a bridge with br_netfilter, whose trace the kernel does not end,
// reach the endpoint. A rule of iptables-legacy, which no trace shows, is suspected. A loss of the answer is no success.
func TestTraceLiveOfPacketsInAnotherWay(t *testing.T) {
	for _, c := range []struct {
		name, shell, want string
		stops             bool
	}{
		{"another zone", "nft 'add table ip z; add chain ip z c { type filter hook prerouting priority -350; }; add rule ip z c ct zone set 7'",
			"10.244.0.10:8080 answered.\n", false},
		{"a bridge", "ip link add br0 type bridge && ip addr flush dev veth-pod1 && ip link set veth-pod1 master br0 && ip link set br0 up && " +
			"ip addr add 10.244.0.1/32 dev br0 && ip route add 10.244.0.11/32 dev br0 && test -e /proc/sys/net/bridge/bridge-nf-call-iptables && " +
			"sysctl -qw net.bridge.bridge-nf-call-iptables=1", "one of its processes. 10.244.0.10:8080 answered.\n", false},
		{"the answer is dropped", "nft 'table ip z { chain c { type filter hook forward priority 10; ip saddr 10.244.0.10 drop; }; }'",
			"10.244.0.10:8080 answered, but the client has not confirmed the answer within 1s: the answer was lost on the way back. A chain of another program " +
				"may drop packets from 10.244.0.10:8080 (nft list ruleset), or a route to 10.244.0.11 may be wrong (ip route get 10.244.0.11).\n", true},
		{"the next hop is dead",
			"ip neigh del 10.244.0.10 dev veth-pod0; ip route replace 10.244.0.10/32 via 192.0.2.77 dev eth0 onlink",
			"10.244.0.10:8080 has not answered within 1s: its next hop 192.0.2.77 does not answer ARP or NDP on eth0. " +
				"The host or the pod is gone, its link is " +
				"down, or the route is wrong (ip route get 10.244.0.10).\n", true},
		{"the answer is exempt", "nft 'table ip z { chain c { type filter hook prerouting priority -300; ip saddr 10.244.0.10 notrack; }; }'",
			"a rule exempts the answer from connection tracking (notrack).\n", true},
		{"the answer bypasses the rules",
			"ip link add br0 type bridge && ip addr flush dev veth-pod0 && ip addr flush dev veth-pod1 && " +
				"ip link set veth-pod0 master br0 && ip link set veth-pod1 master br0 && ip link set br0 up && " +
				"ip addr add 10.244.0.1/24 dev br0 && " +
				"{ ! test -e /proc/sys/net/bridge || sysctl -qw net.bridge.bridge-nf-call-iptables=0; }",
			"10.244.0.10:8080 has not answered by this node within 1s: answers from 10.244.0.10 to 10.244.0.11 " +
				"bypass the rules, because both are on bridge br0 " +
				"and net.bridge.bridge-nf-call-iptables is not 1 (kube-nftproxy status has the fix).\n", true},
		{"iptables-legacy", "iptables-legacy -A FORWARD -p tcp --dport 8080 -j DROP",
			"A trace does not show the rules of iptables-legacy, which may drop it; to list them: iptables-legacy-save.\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newTracedLab(t)
			if _, err := l.Pods[0].Serve(inet.TCP, 8080); err != nil {
				t.Fatal(err)
			}
			if out, err := l.Node.Command(t.Context(), "bash", "-c", c.shell).CombinedOutput(); err != nil {
				if c.name == "a bridge" {
					t.Skipf("without br_netfilter: %s", out)
				}
				t.Fatalf("%v: %s", err, out)
			}
			if strings.Contains(c.name, "bypasses") { // the pods are in one subnet
				lab.Must(t, lab.Err(l.Pods[0].Command(t.Context(), "ip", "route", "replace", "10.244.0.11/32", "dev",
					"eth0").CombinedOutput()))
			}
			done := make(chan string, 1)
			go func() {
				out, _ := l.run(traceCommand(), "10.244.0.11", "10.96.0.11:80", "--live", "--timeout=10s")
				done <- out
			}()
			awaitTable(t, l, true)
			a := l.Pods[1].Probe(t.Context(), inet.TCP, netip.MustParseAddrPort("10.96.0.11:80"), lab.Options{})
			if (a.Outcome == lab.TimedOut) != c.stops {
				t.Errorf("the packet got %v", a)
			}
			if out := <-done; !strings.HasSuffix(out, c.want) {
				t.Errorf("output that doesn't end with %q:\n%s", c.want, out)
			}
		})
	}
}

// TestTraceLiveUnderLoad: packets that follow without a pause do not delay the end of the command.
func TestTraceLiveUnderLoad(t *testing.T) {
	l := newTracedLab(t)
	lab.Must(t, lab.Err(l.Pods[0].Serve(inet.TCP, 8080)))
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() { stop(); clients.Wait() }()
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				l.Pods[1].Probe(ctx, inet.TCP, netip.MustParseAddrPort("10.96.0.11:80"), lab.Options{})
			}
		})
	}
	done := make(chan error, 1)
	go func() {
		out, err := l.run(traceCommand(), "10.244.0.11", "10.96.0.11:80", "--live", "--timeout=10s")
		if want := "10.244.0.10:8080 answered.\n"; err == nil && !strings.HasSuffix(out, want) {
			err = fmt.Errorf("output that does not end with %q:\n%s", want, out)
		}
		done <- err
	}()
	select {
	case err := <-done:
		lab.Must(t, err)
	case <-time.After(lab.Patience):
		t.Error("the command follows other packets, and does not end")
		stop()
		<-done
	}
}

// TestTraceLiveEndsAtItsDeadline: the deadline may pass just before the wait for packets.
func TestTraceLiveEndsAtItsDeadline(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	lab.Must(t, l.Node.Do(func() error {
		what := read.Traced{To: netip.MustParseAddrPort("10.96.0.11:80"), Protocol: inet.TCP}
		tracer, err := read.Trace("deadline", what)
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() {
			_, err := tracer.Next(-time.Millisecond)
			ended <- err
		}()
		select {
		case err = <-ended:
		case <-time.After(lab.Patience):
			err = errors.New("it waits for a packet after the deadline")
		}
		return errors.Join(err, tracer.Close())
	}))
}

// TestTraceLiveNamesTheRoute: the kernel drops a translated packet when it routes it, and the output has the reason.
func TestTraceLiveNamesTheRoute(t *testing.T) {
	for _, c := range []struct {
		name, key, value, route, want string
	}{
		{"strict reverse path filtering", "ipv4/conf/veth-pod1/rp_filter", "1", "add 10.244.0.11/32 dev eth0 metric 0",
			"The kernel drops it by strict reverse path filtering (rp_filter = 1 on veth-pod1): it arrives by veth-pod1, but the route back to 10.244.0.11 leaves by eth0. " +
				"Correct the routes of this node or of the sender, or make the filter loose: sysctl -w net.ipv4.conf.veth-pod1.rp_filter=2.\n"},
		{"the end of its hops", "ipv4/ip_default_ttl", "1", "",
			"It arrived with the TTL or hop limit 1, so this node does not forward it. " +
				"Its sender gets the ICMP error \"time exceeded\".\n"},
		{"no forwarding", "ipv4/conf/veth-pod1/forwarding", "0", "",
			"This node does not forward packets that arrive by veth-pod1 (forwarding = 0; kube-nftproxy status has the fix).\n"},
		{"no route", "ipv4/conf/veth-pod1/rp_filter", "0", "add unreachable 10.244.0.10/32 metric 0", "This node has no route to 10.244.0.10, or one of type unreachable, prohibit or " +
			"blackhole (ip route get 10.244.0.10).\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newTracedLab(t)
			setter := l.Node
			if strings.HasSuffix(c.key, "ttl") {
				setter = l.Pods[1]
			}
			lab.Must(t, setter.Sysctl(c.key, c.value))
			if c.route != "" {
				args := append([]string{"route"}, strings.Fields(strings.Replace(c.route, "add", "replace", 1))...)
				if out, err := l.Node.Command(t.Context(), "ip", args...).CombinedOutput(); err != nil {
					t.Fatalf("ip %v: %v: %s", args, err, out)
				}
			}
			done := make(chan string, 1)
			go func() {
				out, _ := l.run(traceCommand(), "10.244.0.11", "10.96.0.11:80", "--live", "--timeout=10s") // the exit code of a dropped packet has a test
				done <- out
			}()
			awaitTable(t, l, true)
			_ = l.Pods[1].Probe(t.Context(), inet.TCP, netip.MustParseAddrPort("10.96.0.11:80"), lab.Options{})
			if out := <-done; !strings.HasSuffix(out, "The kernel reported nothing more of this packet. "+c.want) {
				t.Errorf("output that doesn't end with %q:\n%s", c.want, out)
			}
			if strings.HasPrefix(c.name, "strict") {
				lab.Must(t, l.Node.Do(func() error {
					if n, ok := host.ReversePathDrops(); n == 0 || !ok {
						t.Errorf("the kernel has dropped %d packets by reverse path filtering, %v", n, ok)
					}
					return nil
				}))
			}
		})
	}
}

// awaitTable waits until the table that marks packets exists, or until it does not.
func awaitTable(t *testing.T, l *tracedLab, wanted bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	err := l.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		for {
			found := false
			chains, err := read.BaseChains(conn, inet.IPv4)
			for _, ch := range chains {
				found = found || strings.HasPrefix(ch.Table, liveTable)
			}
			if err != nil || found == wanted {
				return err
			}
			if time.Now().After(deadline) {
				return errors.New("waited too long")
			}
		}
	})
	if err != nil {
		t.Fatalf("wait until the table of --live exists (%v): %v", wanted, err)
	}
}

// TestDiff: diff prints differences in both directions, and its exit code is then 1.
func TestDiff(t *testing.T) {
	l := newTracedLab(t)
	args := append([]string{"-f", l.file}, tracedFlags...)
	if out, err := l.run(diffCommand(), args...); err != nil || out != "" {
		t.Errorf("nothing differs: error %v, output:\n%s", err, out)
	}
	l.write(t, strings.ReplaceAll(strings.Replace(tracedManifests, "{port: 80}", "{port: 81}", 1), "internalTrafficPolicy: Local, ", ""))
	nftDo(t, l, "insert rule ip kube-nftproxy endpoints-of-2 counter accept\nadd table ip kube-nftproxy { set mine { type ipv4_addr; }; }")
	out, err := l.run(diffCommand(), args...)
	if !errors.Is(err, errWrong) {
		t.Errorf("error %v, want that something differs", err)
	}
	for _, line := range []string{
		`- ip map services: 10.96.0.11 . tcp . 80 comment "shop/sticky" : c000:1aa`, `+ ip map services: 10.96.0.11 . tcp . 81 comment "shop/sticky" : c000:1aa`,
		`- ip map services: 10.96.0.13 . tcp . 80 comment "shop/near" : 8000:1002`, `+ ip map services: 10.96.0.13 . tcp . 80 comment "shop/near" : 8000:1103`,
		`+ ip map dispatch: 8000:103 : goto endpoints-of-3`, `+ ip chain endpoints-of-3`, `- ip set mine`, `- ip chain endpoints-of-2: counter accept`,
		`+ ip map endpoints: tcp . 8000:1000 . 1 : 10.244.1.10 . 8080`,
		`+ ip chain endpoints-of-3: dnat ip to meta l4proto . meta priority . numgen random mod 3 map @endpoints`,
	} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("output lacks %q:\n%s", line, out)
		}
	}
	if strings.Contains(out, "map state") || strings.Contains(out, "set state") {
		t.Errorf("the state is shown, which holds a secret key:\n%s", out)
	}
	if strings.Contains(out, "ip6") {
		t.Errorf("nothing of IPv6 differs:\n%s", out)
	}
	nftDo(t, l, "delete table ip kube-nftproxy")
	l.program(t)
	if out, err := l.run(diffCommand(), args...); err != nil || out != "" {
		t.Errorf("nothing differs any more: error %v, output:\n%s", err, out)
	}
	if out, err := l.run(diffCommand()); err == nil || errors.Is(err, errWrong) {
		t.Errorf("without -f: error %v, output %q", err, out)
	}
	if _, err := l.run(diffCommand(), "--service-proxy-name=nosuch"); err == nil || !strings.Contains(err.Error(), "control-nosuch.sock") {
		t.Errorf("error %v, want that no program with this name answers", err)
	}
}

// TestRender: a folder, a file and standard input give the same output, and nft accepts it.
func TestRender(t *testing.T) {
	l := newTracedLab(t)
	stdin := renderCommand()
	stdin.SetIn(strings.NewReader(tracedManifests))
	first, err := l.run(renderCommand(), append([]string{"-f", l.file}, tracedFlags...)...)
	lab.Must(t, err)
	for _, other := range []struct {
		cmd  *cobra.Command
		from string
	}{{renderCommand(), filepath.Dir(l.file)}, {stdin, "-"}} {
		out, err := l.run(other.cmd, append([]string{"-f", other.from}, tracedFlags...)...)
		if diff := cmp.Diff(first, out); err != nil || diff != "" {
			t.Errorf("-f %s: error %v, output (-of a file +got):\n%s", other.from, err, diff)
		}
	}
	cmd := l.Client.Command(t.Context(), "nft", "-c", "-f", "-")
	cmd.Stdin = strings.NewReader(first)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("nft -c: %v: %s", err, out)
	}
	lab.Contains(t, first, "first", "\t\t\t10.96.0.12 . tcp . 80 comment \"shop/empty\" : 8000:801")
	if regexp.MustCompile(`key [0-9a-f]{32}`).MatchString(first) {
		t.Errorf("output has the state, which holds a secret key:\n%s", first)
	}
	if _, err := l.run(renderCommand(), "-f", "/nowhere"); err == nil {
		t.Error("no error for missing manifests")
	}
}

// TestTraceArguments: the errors for wrong arguments have no words of Go, and NAMESPACE/NAME is a Service.
func TestTraceArguments(t *testing.T) {
	cmd := traceCommand()
	lab.Fails(t, cmd.Args(cmd, nil), "trace needs a source and a destination", "without arguments")
	for _, c := range [][3]string{
		{"pod2", "10.96.0.1:80", `"pod2" is not an IP address`}, {"10.0.0.1", "10.96.0.1", `"10.96.0.1" is not an address with a port`},
		{"10.0.0.1", "10.96.0.1:80/udb", `unknown protocol "udb"`},
	} {
		if _, err := parsePacket(c[0], c[1]); err == nil || !strings.Contains(err.Error(), c[2]) || strings.Contains(err.Error(), "Parse") {
			t.Errorf("%s -> %s: %v, want %q", c[0], c[1], err, c[2])
		}
	}
	for text, want := range map[string]bool{
		"svc/shop/web": true, "shop/web": true, "shop/web:http": true, "shop/web:80/udp": true, "10.96.0.1:80/tcp": false, "[fd00::1]:80/tcp": false, "10.96.0.1:80": false, "web": false,
	} {
		lab.Same(t, want, namesService(text), "%s names a Service", text)
	}
}

// TestTraceWithoutARoute: a packet without a source address has none in JSON.
func TestTraceWithoutARoute(t *testing.T) {
	got, err := json.Marshal(packetTrace{Protocol: "tcp", Trace: &trace.Trace{}})
	if want := `{"from":"","to":"","protocol":"tcp","frontend":"","ways":null}`; err != nil || string(got) != want {
		t.Errorf("%s, error %v, want %s", got, err, want)
	}
}
