//go:build e2e || twin

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// The health check node ports, and the address of the load balancer that queries them.
const (
	checkPort, secondCheckPort = 32100, 32101
	balancerIP                 = "203.0.113.8"
)

// TestHealthCheckNodePort queries as a load balancer does which nodes have endpoints. It expects kube-proxy's answers, byte by
// byte: healthcheck_twin_test.go sends the same queries to kube-proxy.
func TestHealthCheckNodePort(t *testing.T) {
	testHealthChecks(t, asked{path: program, table: "kube-nftproxy"})
}

// asked is the program under test, on a node with a cluster.
type asked struct {
	*world
	path string
	// table is the name of its nftables tables.
	table string
	// theirs is set for kube-proxy, and ipvs for its mode ipvs.
	theirs, ipvs bool
}

// in returns the same for a part of the test.
func (a asked) in(t *testing.T) asked {
	w := *a.world
	w.T = t
	a.world = &w
	return a
}

func testHealthChecks(t *testing.T, a asked) {
	second := []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
	a.world = newWorld(t, lab.Config{Pods: 2, Remotes: 1, NodeAddrs: second})
	a.serve(a.Pods...)
	for _, part := range []struct {
		name string
		test func(asked)
	}{
		{"answers", asked.testAnswers},
		{"requests", asked.testRequests},
		{"addresses", asked.testAddresses},
		{"taken port", asked.testTakenPort},
		{"outdated rules", asked.testOutdatedRules},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(a.in(t)) })
	}
}

// run starts the program. The end of the test kills it and removes its rules.
func (a asked) run(flags ...string) *proxy.Program {
	a.Helper()
	args := proxy.Flags(a.kubeconfig(), nodeName,
		"--cluster-cidr=10.244.0.0/16,fd00:10:244::/56", "--proxy-mode=nftables", "--iptables-min-sync-period=10ms")
	a.Cleanup(func() { // after the program is killed
		if out, err := a.Node.Command(context.WithoutCancel(a.Context()), "nft", "flush", "ruleset").CombinedOutput(); err != nil {
			a.Errorf("remove the rules: %v\n%s", err, out)
		}
	})
	return proxy.ForTest(a.T, proxy.Config{Host: a.Node, Path: a.path, Args: append(args, flags...)})
}

// checked returns a Service with a health check node port.
func checked(port int32) *corev1.Service {
	s := service("web", corev1.IPv4Protocol, corev1.IPv6Protocol)
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.HealthCheckNodePort = port
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: balancerIP}}
	return s
}

// on returns a ready endpoint on a host.
func (a asked) on(h *lab.Host, f inet.Family) discoveryv1.Endpoint {
	e := endpoint(h.Addrs()[f])
	if h == a.Remotes[0] {
		e = elsewhere(e)
	}
	return e
}

// endpoints replaces the slices of Service web by ones with these endpoints. A family without endpoints has empty slices.
func (a asked) endpoints(of [2][]discoveryv1.Endpoint) {
	a.Helper()
	for _, f := range inet.Families {
		s := slice("web", "web-"+strings.ToLower(f.String()), of[f]...)
		s.AddressType = discoveryv1.AddressType(f.String())
		a.apply(s)
	}
}

// both returns endpoints on the same hosts in both families, with a change.
func (a asked) both(change func(discoveryv1.Endpoint) discoveryv1.Endpoint, hosts ...*lab.Host) (out [2][]discoveryv1.Endpoint) {
	for _, f := range inet.Families {
		for _, h := range hosts {
			out[f] = append(out[f], change(a.on(h, f)))
		}
	}
	return out
}

func asItIs(e discoveryv1.Endpoint) discoveryv1.Endpoint { return e }

// conditions returns a function that sets an endpoint's conditions.
func conditions(ready, serving, terminating bool) func(discoveryv1.Endpoint) discoveryv1.Endpoint {
	return func(e discoveryv1.Endpoint) discoveryv1.Endpoint {
		e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
		return e
	}
}

// refused is the result for a port without a listener, and for an address whose connections are reset.
const refused = "refused"

var date = regexp.MustCompile(`(?m)^Date: .*$`)

// exchange sends a request and returns the whole answer without the date, or "refused".
func exchange(ctx context.Context, from *lab.Host, to netip.AddrPort, request string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer func() {
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) && answer == "" {
			answer, err = refused, nil
		}
	}()
	conn, err := from.Dial(ctx, inet.TCP, to)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // unused from here on
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, request); err != nil {
		return "", err
	}
	text, err := io.ReadAll(conn)
	return date.ReplaceAllString(string(text), "Date: -\r"), err
}

const getRequest = "GET /healthz HTTP/1.1\r\nHost: balancer\r\nConnection: close\r\n\r\n"

// reply returns the expected answer for a Service with n local endpoints.
func reply(service string, n int, healthy bool) string {
	return head(service, n, healthy) + body(service, n, healthy)
}

func head(service string, n int, healthy bool) string {
	status := "503 Service Unavailable"
	if n > 0 && healthy {
		status = "200 OK"
	}
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n"+
		"X-Load-Balancing-Endpoint-Weight: %d\r\nDate: -\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
		status, n, len(body(service, n, healthy)))
}

func body(service string, n int, healthy bool) string {
	return strings.ReplaceAll(fmt.Sprintf(`{
>"service": {
>>"namespace": "default",
>>"name": %q
>},
>"localEndpoints": %d,
>"serviceProxyHealthy": %t
}`, service, n, healthy), ">", "\t")
}

// expect waits until a load balancer gets the expected answer at each address.
func (a asked) expect(when string, want map[netip.AddrPort]string) {
	a.Helper()
	eventually(a, patience, func() error {
		got := map[netip.AddrPort]string{}
		for at := range want {
			from := a.Client
			if at.Addr().IsLoopback() {
				from = a.Node
			}
			var err error
			if got[at], err = exchange(a.Context(), from, at, getRequest); err != nil {
				return fmt.Errorf("%s: ask %s: %w", when, at, err)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("%s: answers (-want +got):\n%s", when, diff)
		}
		return nil
	})
}

// at returns answers at a port of the node's two primary addresses.
func (a asked) at(port uint16, v4, v6 string) map[netip.AddrPort]string {
	return map[netip.AddrPort]string{
		netip.AddrPortFrom(a.Node.IPv4, port): v4, netip.AddrPortFrom(a.Node.IPv6, port): v6,
	}
}

// testAnswers makes all changes of a Service and its endpoints that affect the answer.
func (a asked) testAnswers() {
	a.run()
	pod, other, remote := a.Pods[0], a.Pods[1], a.Remotes[0]
	const none = 0 // as a port number
	set := func(port int32, change func(*corev1.Service)) func() {
		return func() {
			s := checked(port)
			change(s)
			a.apply(s)
		}
	}
	local := func(*corev1.Service) {}
	cluster := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster }
	nodePort := func(s *corev1.Service) {
		s.Spec.Type, s.Status = corev1.ServiceTypeNodePort, corev1.ServiceStatus{}
	}
	foreign := func(s *corev1.Service) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	single := func(s *corev1.Service) { s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack) }
	to := func(of [2][]discoveryv1.Endpoint) func() { return func() { a.endpoints(of) } }
	odd := slice("web", "web-more", a.on(pod, inet.IPv4), a.on(other, inet.IPv4))
	odd.Ports = odd.Ports[:1]
	odd.Ports[0].Name, odd.Ports[0].Port = new("nobody-asks-for-it"), new(int32(9999))
	mail := checked(secondCheckPort)
	mail.Name = "mail"
	maglev := func(s *corev1.Service) { s.Annotations = map[string]string{"kube-nftproxy.io/lb-algorithm": "maglev"} }
	weight := func(others string, own string) func() {
		return func() {
			for _, f := range inet.Families {
				s := slice("web", "web-"+strings.ToLower(f.String()), a.on(pod, f), a.on(other, f))
				s.AddressType = discoveryv1.AddressType(f.String())
				s.Annotations = map[string]string{"service.cilium.io/weight": others, "kube-nftproxy.io/weights": other.Addrs()[f].String() + "=" + own}
				a.apply(s)
			}
		}
	}
	weighed := func(n int) string { // kube-proxy has no weights
		if a.theirs {
			n = 2
		}
		return reply("web", n, true)
	}
	for _, step := range []struct {
		name   string
		do     func()
		v4, v6 string // at the port
		second string // at the second port, in both families
	}{
		{"no endpoints", set(checkPort, local), reply("web", 0, true), reply("web", 0, true), refused},
		{"each family has its own", to([2][]discoveryv1.Endpoint{
			{a.on(pod, inet.IPv4)}, {a.on(pod, inet.IPv6), a.on(other, inet.IPv6)},
		}), reply("web", 1, true), reply("web", 2, true), refused},
		{"an address counts once, whatever its ports are", func() { a.apply(odd) },
			reply("web", 2, true), reply("web", 2, true), refused},
		{"those elsewhere don't count", func() {
			a.delete(odd)
			a.endpoints(a.both(asItIs, pod, remote))
		}, reply("web", 1, true), reply("web", 1, true), refused},
		{"only elsewhere", to(a.both(asItIs, remote)), reply("web", 0, true), reply("web", 0, true), refused},
		{"ready, not serving", to(a.both(conditions(true, false, false), pod)), reply("web", 1, true), reply("web", 1, true), refused},
		{"terminating, still serving", func() {
			a.endpoints(a.both(terminating, pod))
			eventually(a, patience, func() error { return a.clientReaches(pod) })
		}, reply("web", 0, true), reply("web", 0, true), refused},
		{"published while terminating", to(a.both(conditions(true, false, true), pod)),
			reply("web", 1, true), reply("web", 1, true), refused},
		{"not ready", to(a.both(conditions(false, true, false), pod)), reply("web", 0, true), reply("web", 0, true), refused},
		{"ready again", to(a.both(asItIs, pod, other)), reply("web", 2, true), reply("web", 2, true), refused},
		{"policy Cluster", set(none, cluster), refused, refused, refused},
		{"policy Local, another number", set(secondCheckPort, local), refused, refused, reply("web", 2, true)},
		{"yet another number", func() {
			set(none, cluster)()
			set(checkPort, local)()
		}, reply("web", 2, true), reply("web", 2, true), refused},
		{"a second Service", func() { a.apply(mail) }, reply("web", 2, true), reply("web", 2, true), reply("mail", 0, true)},
		{"the second Service goes", func() { a.delete(mail) }, reply("web", 2, true), reply("web", 2, true), refused},
		{"type NodePort", set(none, nodePort), refused, refused, refused},
		{"type LoadBalancer", set(checkPort, local), reply("web", 2, true), reply("web", 2, true), refused},
		{"another proxy's", set(checkPort, foreign), refused, refused, refused},
		{"ours again", set(checkPort, local), reply("web", 2, true), reply("web", 2, true), refused},
		{"IPv4 only", set(checkPort, single), reply("web", 2, true), refused, refused},
		{"both families", set(checkPort, local), reply("web", 2, true), reply("web", 2, true), refused},
		{"with an algorithm", set(checkPort, maglev), reply("web", 2, true), reply("web", 2, true), refused},
		{"one of weight 0", weight("3", "0"), weighed(1), weighed(1), refused},
		{"all of weight 0", weight("0", "0"), weighed(0), weighed(0), refused},
		{"deleted", func() { a.delete(checked(none)) }, refused, refused, refused},
	} {
		step.do()
		want := a.at(checkPort, step.v4, step.v6)
		maps.Copy(want, a.at(secondCheckPort, step.second, step.second))
		a.expect(step.name, want)
	}
}

// clientReaches returns nil if a client reaches exactly that pod through the load balancer.
func (a asked) clientReaches(pod *lab.Host) error {
	to := netip.AddrPortFrom(netip.MustParseAddr(balancerIP), servicePort)
	if got := a.Client.Probe(a.Context(), inet.TCP, to, lab.Options{}); got.Server != pod.Name {
		return fmt.Errorf("the client reaches %v, want %s", got, pod.Name)
	}
	return nil
}

// provide creates Service web with one endpoint of each family on this node.
func (a asked) provide() {
	a.Helper()
	a.apply(checked(checkPort))
	a.endpoints(a.both(asItIs, a.Pods[0]))
	a.Cleanup(func() {
		if err := a.api.Delete(context.WithoutCancel(a.Context()), checked(checkPort)); err != nil {
			a.Error(err)
		}
	})
}

// testRequests varies the requests: the answer is the same.
func (a asked) testRequests() {
	a.run()
	a.provide()
	a.expect("at first", a.at(checkPort, reply("web", 1, true), reply("web", 1, true)))
	const rest = " HTTP/1.1\r\nHost: balancer\r\nConnection: close\r\n"
	whole := reply("web", 1, true)
	old := strings.NewReplacer("HTTP/1.1", "HTTP/1.0", "Connection: close\r\n", "").Replace(whole)
	for request, want := range map[string]string{
		"GET /" + rest + "\r\n":                           whole,
		"GET /healthz" + rest + "\r\n":                    whole,
		"GET /no/such/path?really=yes" + rest + "\r\n":    whole,
		"GET //twice/../up" + rest + "\r\n":               whole,
		"GET http://balancer/absolute" + rest + "\r\n":    whole,
		"POST /" + rest + "Content-Length: 4\r\n\r\nbody": whole,
		"PUT /" + rest + "Content-Length: 0\r\n\r\n":      whole,
		"DELETE /" + rest + "\r\n":                        whole,
		"OPTIONS /" + rest + "\r\n":                       whole,
		"ODD /" + rest + "\r\n":                           whole,
		"GET /" + rest + "Accept: text/plain\r\n\r\n":     whole,
		"GET /" + rest + "Accept-Encoding: gzip\r\n\r\n":  whole,
		"HEAD /" + rest + "\r\n":                          head("web", 1, true),
		"GET / HTTP/1.0\r\n\r\n":                          old,
		"OPTIONS *" + rest + "\r\n":                       "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nDate: -\r\nConnection: close\r\n\r\n",
		"nonsense\r\n\r\n":                                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request",
	} {
		for at := range a.at(checkPort, "", "") {
			got, err := exchange(a.Context(), a.Client, at, request)
			if err != nil {
				a.Errorf("%q: %v", request, err)
			}
			lab.Same(a, want, got, "%q at %s", request, at)
		}
	}
}

// testAddresses queries all addresses of the node: only those that serve node ports answer.
func (a asked) testAddresses() {
	a.provide()
	const (
		primary4, primary6 = "192.0.2.1", "2001:db8::1"
		second4, second6   = "192.0.2.2", "2001:db8::2"
		loop4, loop6       = "127.0.0.1", "::1"
	)
	everywhere := []string{primary4, primary6, second4, second6, loop4, loop6}
	for _, tc := range []struct {
		flag  string
		where []string
		// theirs are kube-proxy's addresses if they differ.
		theirs []string
	}{
		{"", []string{primary4, primary6}, nil},
		{"primary", []string{primary4, primary6}, nil},
		{"192.0.2.2/32,2001:db8::2/128", []string{second4, second6}, nil},
		{"192.0.2.0/24,2001:db8::/64", []string{primary4, second4, primary6, second6}, nil},
		{"192.0.2.2/32", []string{second4, primary6, second6, loop6}, nil},
		{"198.51.100.0/24,2001:db8::2/128", []string{second6}, nil},
		{"0.0.0.0/0,::/0", everywhere, nil},
		{"192.0.2.2/32,0.0.0.0/0,2001:db8::2/128,::/0", everywhere, nil},
		{"127.0.0.0/8,::1/128", nil, []string{loop4, loop6}},
	} {
		a.Run("nodeport-addresses="+tc.flag, func(t *testing.T) {
			a := a.in(t)
			var flags []string
			if tc.flag != "" {
				flags = []string{"--nodeport-addresses=" + tc.flag}
			}
			running := a.run(flags...)
			running.Synced(a)
			want := map[netip.AddrPort]string{}
			for _, addr := range everywhere {
				want[netip.AddrPortFrom(netip.MustParseAddr(addr), checkPort)] = refused
			}
			where := tc.where
			if a.theirs && tc.theirs != nil {
				where = tc.theirs
			}
			for _, addr := range where {
				want[netip.AddrPortFrom(netip.MustParseAddr(addr), checkPort)] = reply("web", 1, true)
			}
			a.expect("with that flag", want)
		})
	}
	a.Run("an address that comes later", func(t *testing.T) { a.in(t).testLateAddress() })
}

// testLateAddress adds an address to the node while the program runs. kube-proxy keeps the addresses from its start.
func (a asked) testLateAddress() {
	a.run("--nodeport-addresses=192.0.2.0/24")
	const late = "192.0.2.3"
	at := func(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), checkPort) }
	a.expect("before", map[netip.AddrPort]string{at("192.0.2.2"): reply("web", 1, true)})
	must(a, a.Node.Do(func() error {
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(late + "/32")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, addr)
	}))
	want := reply("web", 1, true)
	if a.theirs {
		a.endpoints(a.both(asItIs, a.Pods...))
		a.expect("its next sync", map[netip.AddrPort]string{at("192.0.2.2"): reply("web", 2, true)})
		want = refused
	}
	a.expect("after", map[netip.AddrPort]string{at(late): want})
}

// testTakenPort has another process listen on the port. This is reported, and the port is served as soon as it is free.
func (a asked) testTakenPort() {
	free := take(a, a.Node, netip.AddrPortFrom(a.Node.IPv4, checkPort).String())
	a.run()
	a.provide()
	a.expect("while the port is taken", map[netip.AddrPort]string{
		netip.AddrPortFrom(a.Node.IPv6, checkPort): reply("web", 1, true),
	})
	eventually(a, patience, a.takenPortIsReported)
	free()
	const soon = 5 * time.Second // a sixth of the time between two syncs without a change
	freed, n := time.Now(), 1
	if a.theirs {
		n = 2 // it tries again after a change
		a.endpoints(a.both(asItIs, a.Pods...))
	}
	a.expect("after it has become free", a.at(checkPort, reply("web", n, true), reply("web", n, true)))
	if took := time.Since(freed); took > soon {
		a.Errorf("the port is served %v after it has become free, want %v at most", took, soon)
	}
}

// takenPortIsReported looks for the Event of a port that cannot be opened.
func (a asked) takenPortIsReported() error {
	list, err := a.api.Client().EventsV1().Events("default").List(a.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	note := fmt.Sprintf("failed to start healthcheck %q on port %d: listen tcp4 %[3]s:%[2]d: bind: address already in use",
		"default/web", checkPort, a.Node.IPv4)
	for _, e := range list.Items {
		if e.Reason == "FailedToStartServiceHealthcheck" && e.Action == "Listen" && e.Type == corev1.EventTypeWarning &&
			e.Regarding.Kind == "Service" && e.Regarding.Name == "web" && strings.HasSuffix(e.Note, note) {
			return nil
		}
	}
	return fmt.Errorf("none of %d Events ends with %q", len(list.Items), note)
}

// testOutdatedRules makes the kernel reject the program's rules: another process owns its tables. Load balancers learn that the
// node is unhealthy, although it has endpoints.
func (a asked) testOutdatedRules() {
	a.run("--iptables-sync-period=1s") // twice this is the limit for outdated rules
	a.provide()
	a.expect("at first", a.at(checkPort, reply("web", 1, true), reply("web", 1, true)))
	release := a.seizeTables()
	defer release()
	a.endpoints(a.both(asItIs, a.Pods...))
	// The second endpoint is not in the rules, so it is not counted.
	a.expect("rules can't be written", a.at(checkPort, reply("web", 1, false), reply("web", 1, false)))
	release()
	a.expect("rules can be written", a.at(checkPort, reply("web", 2, true), reply("web", 2, true)))
}

// seizeTables replaces the program's tables by empty ones of another process, until release.
func (a asked) seizeTables() (release func()) {
	a.Helper()
	owner := a.Node.Command(context.WithoutCancel(a.Context()), "nft", "--interactive")
	commands, err := owner.StdinPipe()
	must(a, err)
	must(a, owner.Start())
	released := false
	release = func() {
		if !released {
			released = true
			_ = commands.Close()
			_ = owner.Wait() // the status of its last command
		}
	}
	// If the program writes its table between the two commands, they are repeated.
	eventually(a, patience, func() error {
		for _, family := range []string{"ip", "ip6"} {
			if strings.Contains(nft(a, a.Node, "list", "ruleset", family), "flags owner") {
				continue
			}
			if _, err := fmt.Fprintf(commands, "delete table %s %s; add table %[1]s %[2]s { flags owner; }\n", family, a.table); err != nil {
				return err
			}
			return fmt.Errorf("table %s %s is still the program's", family, a.table)
		}
		return nil
	})
	return release
}
