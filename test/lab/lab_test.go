package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// everything is a lab with one or two of each kind.
var everything = Config{Pods: 2, Remotes: 1, Clients: 2, NodeAddrs: []netip.Addr{
	netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2"),
}}

var protocols = []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}

// mustServe starts a server that stops with the test's lab.
func mustServe(t testing.TB, h *Host, proto inet.Protocol, port uint16) {
	t.Helper()
	Must(t, Err(h.Serve(proto, port)))
}

// mustNft loads a ruleset into the host.
func mustNft(t testing.TB, h *Host, ruleset string) {
	t.Helper()
	cmd := h.Command(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(ruleset)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

func TestEveryHostReachesEveryServer(t *testing.T) {
	for _, bridge := range []string{"", "cni0"} {
		t.Run("bridge="+bridge, func(t *testing.T) {
			config := everything
			config.Bridge = bridge
			everyHostReachesEveryServer(t, ForTest(t, config))
		})
	}
}

func everyHostReachesEveryServer(t *testing.T, l *Lab) {
	t.Helper()
	for _, server := range l.Hosts() {
		for _, proto := range protocols {
			mustServe(t, server, proto, 80)
		}
	}
	for _, from := range l.Hosts() {
		for _, to := range l.Hosts() {
			for _, addr := range to.Addrs() {
				for _, proto := range protocols {
					dst := netip.AddrPortFrom(addr, 80)
					got := from.Probe(t.Context(), proto, dst, Options{})
					if got.Outcome != Answered || got.Server != to.Name || got.Local != dst ||
						got.Source.Addr() != from.Addr(addr) {
						t.Errorf("%s -> %s %s %s: %s (%v)", from.Name, to.Name, proto, dst, got, got.Err)
					}
				}
				if got := from.Ping(t.Context(), addr, Options{}); got.Outcome != Answered {
					t.Errorf("ping %s -> %s: %s (%v)", from.Name, addr, got, got.Err)
				}
			}
		}
	}
}

func TestServersAnswerFromTheAddressThatWasAsked(t *testing.T) {
	l := ForTest(t, everything)
	for _, proto := range protocols {
		mustServe(t, l.Node, proto, 80)
		for _, addr := range everything.NodeAddrs {
			dst := netip.AddrPortFrom(addr, 80)
			if got := l.Client.Probe(t.Context(), proto, dst, Options{}); got.Local != dst {
				t.Errorf("%s %s: %s (%v)", proto, dst, got, got.Err)
			}
		}
	}
}

func TestProbeSourceOptions(t *testing.T) {
	l := ForTest(t, everything)
	for _, proto := range protocols {
		mustServe(t, l.Pods[0], proto, 80)
		for _, addr := range everything.NodeAddrs {
			want := netip.AddrPortFrom(addr, 4242)
			dst := netip.AddrPortFrom(l.Pods[0].Addr(addr), 80)
			for range 3 {
				got := l.Node.Probe(t.Context(), proto, dst, Options{Source: want.Addr(), SourcePort: want.Port()})
				if got.Source != want {
					t.Errorf("%s from %s: %s (%v)", proto, want, got, got.Err)
				}
			}
		}
	}
}

func TestOutcomesOfNetwork(t *testing.T) {
	l := ForTest(t, everything)
	dst := map[string][2]netip.Addr{
		"closed":  l.Pods[0].Addrs(),
		"nowhere": {netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")},
	}
	for _, from := range []*Host{l.Client, l.Pods[1], l.Node} {
		for _, proto := range protocols {
			for i := range inet.Families {
				ask := func(where string) Answer {
					to := netip.AddrPortFrom(dst[where][i], 81)
					return from.Probe(t.Context(), proto, to, Options{Timeout: 50 * time.Millisecond})
				}
				if got := ask("closed"); got.Outcome != Refused {
					t.Errorf("%s %s to closed port: %s (%v)", from.Name, proto, got, got.Err)
				}
				if got := ask("nowhere"); got.Outcome != TimedOut || got.RTT < 50*time.Millisecond {
					t.Errorf("%s %s to nowhere: %s (%v) after %s", from.Name, proto, got, got.Err, got.RTT)
				}
			}
		}
	}
}

func TestOutcomesOfRules(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	rules := `table inet t {
		chain c {
			meta l4proto { tcp, udp, sctp } th dport 1 reject
			meta l4proto { tcp, udp, sctp } th dport 2 reject with icmpx host-unreachable
			meta l4proto { tcp, udp, sctp } th dport 3 reject with icmpx admin-prohibited
			meta l4proto { tcp, udp, sctp } th dport 4 drop
			tcp dport 5 reject with tcp reset
		}
		chain f { type filter hook forward priority 0; jump c; }
		chain o { type filter hook output priority 0; jump c; }
	}`
	mustNft(t, l.Node, rules)
	want := map[uint16]Outcome{1: Refused, 2: Unreachable, 3: Unreachable, 4: TimedOut}
	for _, from := range []*Host{l.Client, l.Node} {
		for _, addr := range l.Pods[0].Addrs() {
			for _, proto := range protocols {
				for port, want := range want {
					dst := netip.AddrPortFrom(addr, port)
					got := from.Probe(t.Context(), proto, dst, Options{Timeout: 100 * time.Millisecond})
					if got.Outcome != want {
						t.Errorf("%s %s %s: %s (%v), want %s", from.Name, proto, dst, got, got.Err, want)
					}
				}
			}
			dst := netip.AddrPortFrom(addr, 5)
			if got := from.Probe(t.Context(), inet.TCP, dst, Options{}); got.Outcome != Refused {
				t.Errorf("%s tcp %s: %s (%v)", from.Name, dst, got, got.Err)
			}
		}
	}
}

func TestRefusalsAreNotRateLimited(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	for _, addr := range l.Pods[0].Addrs() {
		got, err := l.Client.Spread(t.Context(), inet.UDP, netip.AddrPortFrom(addr, 81), 300, Options{})
		Must(t, err)
		Same(t, map[string]int{"refused": 300}, got, "%s", addr)
	}
}

// A raw socket receives the errors about all packets to its destination. A probe must ignore those of other probes.
func TestRefusalsConcernOneProbe(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	mustNft(t, l.Node, `table inet t { chain c { type filter hook forward priority 0;
		meta l4proto { tcp, udp, sctp } th dport 1 reject
	}
	}`)
	for _, proto := range protocols {
		mustServe(t, l.Pods[0], proto, 80)
		for _, addr := range l.Pods[0].Addrs() {
			var wg sync.WaitGroup
			for port, want := range map[uint16]Outcome{80: Answered, 1: Refused} {
				wg.Go(func() {
					for range 200 {
						if got := l.Client.Probe(t.Context(), proto, netip.AddrPortFrom(addr, port), Options{}); got.Outcome != want {
							t.Errorf("%s %s port %d: %s (%v)", proto, addr, port, got, got.Err)
							return
						}
					}
				})
			}
			wg.Wait()
		}
	}
}

func TestNatSeesEveryProtocol(t *testing.T) {
	l := ForTest(t, Config{Pods: 2})
	vips := [2]netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:10:96::1")}
	mustNft(t, l.Node, `table inet t {
		chain pre { type nat hook prerouting priority -100; jump vip; }
		chain out { type nat hook output priority -100; jump vip; }
		chain post { type nat hook postrouting priority 100; ct status dnat masquerade; }
		chain vip {
			ip daddr 10.96.0.1 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to 10.244.0.10:8080
			ip6 daddr fd00:10:96::1 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to [fd00:10:244::10]:8080
		}
	}`)
	for _, proto := range protocols {
		mustServe(t, l.Pods[0], proto, 8080)
		for _, from := range []*Host{l.Client, l.Pods[1], l.Pods[0], l.Node} {
			for _, vip := range vips {
				got := from.Probe(t.Context(), proto, netip.AddrPortFrom(vip, 80), Options{})
				if got.Server != "pod-0" || got.Source.Addr() != l.Node.Addr(vip) {
					t.Errorf("%s %s %s: %s (%v)", from.Name, proto, vip, got, got.Err)
				}
			}
		}
	}
}

// A pod that reaches another pod at a translated address, with its own address kept, gets a reply only if that passes through the
// node, too. Redirects would take effect after the first packets.
func TestPodsTalkThroughTheNodeWithABridge(t *testing.T) {
	l := ForTest(t, Config{Pods: 2, Remotes: 1, Bridge: "cni0"})
	mustNft(t, l.Node, `table inet t {
		chain pre { type nat hook prerouting priority -100;
			iifname cni0 ip daddr 10.96.0.1 dnat ip to 10.244.0.10
			iifname cni0 ip6 daddr fd00:10:96::1 dnat ip6 to fd00:10:244::10
		}
		chain post { type nat hook postrouting priority 100;
			ip saddr 10.244.0.10 ip daddr 10.244.0.10 masquerade
			ip6 saddr fd00:10:244::10 ip6 daddr fd00:10:244::10 masquerade
		}
	}`)
	for _, proto := range protocols {
		mustServe(t, l.Pods[0], proto, 80)
		for _, vip := range []string{"10.96.0.1", "fd00:10:96::1"} {
			dst := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
			for range 20 {
				got := l.Pods[1].Probe(t.Context(), proto, dst, Options{})
				if got.Server != "pod-0" || got.Source.Addr() != l.Pods[1].Addr(dst.Addr()) {
					t.Errorf("pod-1 %s %s: %s (%v)", proto, dst, got, got.Err)
				}
			}
			got := l.Pods[0].Probe(t.Context(), proto, dst, Options{})
			if got.Server != "pod-0" || got.Source.Addr() != l.Node.Addr(dst.Addr()) {
				t.Errorf("pod-0 to itself, %s %s: %s (%v)", proto, dst, got, got.Err)
			}
			// A packet from another device does not match.
			got = l.Remotes[0].Probe(t.Context(), proto, dst, Options{Timeout: 50 * time.Millisecond})
			Same(t, TimedOut, got.Outcome, "remote-0 %s %s: %s (%v)", proto, dst, got, got.Err)
		}
	}
}

func TestSpreadCountsServers(t *testing.T) {
	l := ForTest(t, Config{Pods: 2})
	mustNft(t, l.Node, `table ip t { chain pre { type nat hook prerouting priority -100;
		ip daddr 10.96.0.1 dnat to numgen inc mod 2 map { 0 : 10.244.0.10, 1 : 10.244.0.11 }
	}
	}`)
	for _, proto := range protocols {
		for _, pod := range l.Pods {
			mustServe(t, pod, proto, 80)
		}
		dst := netip.MustParseAddrPort("10.96.0.1:80")
		got, err := l.Client.Spread(t.Context(), proto, dst, 1000, Options{})
		Must(t, err)
		Same(t, map[string]int{"pod-0": 500, "pod-1": 500}, got, "%s", proto)
	}
}

func TestDialKeepsTalkingToEcho(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	Must(t, Err(l.Pods[0].ServeEcho(7)))
	conn, err := l.Client.Dial(t.Context(), inet.TCP, netip.AddrPortFrom(l.Pods[0].IPv6, 7))
	Must(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	Must(t, err)
	if a, err := ParseAnswer(line); err != nil || a.Server != "pod-0" || a.Source.Addr() != l.Client.IPv6 {
		t.Errorf("greeting %q: %s, %v", line, a, err)
	}
	for i := range 3 {
		want := fmt.Sprintf("line %d\n", i)
		Must(t, Err(conn.Write([]byte(want))))
		if got, err := in.ReadString('\n'); got != want || err != nil {
			t.Errorf("echo: got %q, %v, want %q", got, err, want)
		}
	}
}

// A port that is reused for the same address may meet the conntrack entry of its first use. The kernel has few ports to choose
// from here, and would reuse them.
func TestPortsDoNotComeAgain(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	Must(t, l.Client.Sysctl("ipv4/ip_local_port_range", "40000 40031"))
	seen := map[netip.AddrPort]string{}
	note := func(who string, source netip.AddrPort) {
		if before, known := seen[source]; known {
			t.Errorf("%s has the port of %s: %s", who, before, source)
		}
		seen[source] = who
	}
	for _, proto := range protocols {
		mustServe(t, l.Pods[0], proto, 80)
		for _, addr := range l.Pods[0].Addrs() {
			dst := netip.AddrPortFrom(addr, 80)
			for i := range 40 {
				got := l.Client.Probe(t.Context(), proto, dst, Options{})
				if got.Outcome != Answered {
					t.Fatalf("%s %s: %s", proto, dst, got)
				}
				note(fmt.Sprintf("probe %d of %s", i, proto), got.Source)
			}
			if proto == inet.SCTP {
				continue
			}
			for i := range 40 {
				conn, err := l.Client.Dial(t.Context(), proto, dst)
				Must(t, err)
				note(fmt.Sprintf("connection %d of %s", i, proto), netip.MustParseAddrPort(conn.LocalAddr().String()))
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// A port of a server on the host is skipped.
func TestPortsThatAreTakenArePassedOver(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	mustServe(t, l.Pods[0], inet.TCP, 80)
	for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
		mustServe(t, l.Client, proto, firstPort)
	}
	for _, proto := range []inet.Protocol{inet.TCP, inet.UDP} {
		for _, addr := range l.Pods[0].Addrs() {
			l.Client.ports.Store(0)
			conn, err := l.Client.Dial(t.Context(), proto, netip.AddrPortFrom(addr, 80))
			Must(t, err)
			if got := netip.MustParseAddrPort(conn.LocalAddr().String()).Port(); got <= firstPort {
				t.Errorf("dial %s %s: from port %d, want a later one than %d", proto, addr, got, firstPort)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	l.Client.ports.Store(0)
	got := l.Client.Probe(t.Context(), inet.TCP, netip.AddrPortFrom(l.Pods[0].IPv4, 80), Options{})
	if got.Outcome != Answered || got.Source.Port() <= firstPort {
		t.Errorf("probe: %s, want an answer to a later port than %d", got, firstPort)
	}
}

func TestServerCloseFreesThePort(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	pod := l.Pods[0]
	for _, proto := range protocols {
		dst := netip.AddrPortFrom(pod.IPv4, 80)
		for range 2 {
			s, err := pod.Serve(proto, 80)
			Must(t, err)
			if got := l.Client.Probe(t.Context(), proto, dst, Options{}); got.Server != "pod-0" {
				t.Errorf("%s while served: %s (%v)", proto, got, got.Err)
			}
			Check(t, errors.Join(s.Close(), s.Close()), "close %s", proto)
			if got := l.Client.Probe(t.Context(), proto, dst, Options{}); got.Outcome != Refused {
				t.Errorf("%s after close: %s (%v)", proto, got, got.Err)
			}
		}
	}
}

func TestServeErrors(t *testing.T) {
	l := ForTest(t, Config{})
	mustServe(t, l.Node, inet.UDP, 53)
	if _, err := l.Node.Serve(inet.UDP, 53); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("port taken: %v", err)
	}
	if _, err := l.Node.Serve(inet.TCP, 0); err == nil {
		t.Error("port 0 was served")
	}
	if _, err := l.Node.Serve(inet.Protocol(1), 80); err == nil {
		t.Error("protocol 1 was served")
	}
}

func TestCommandRunsInsideOfTheHost(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	want, err := l.Node.namespace()
	Must(t, err)
	for name, run := range map[string]func(*Cmd) ([]byte, error){
		"Output":         (*Cmd).Output,
		"CombinedOutput": (*Cmd).CombinedOutput,
		"Run": func(c *Cmd) ([]byte, error) {
			var out strings.Builder
			c.Stdout = &out
			err := c.Run()
			return []byte(out.String()), err
		},
	} {
		got, err := run(l.Node.Command(t.Context(), "readlink", "/proc/self/ns/net"))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
}

// namespace returns the identity of the host's namespace.
func (h *Host) namespace() (id string, err error) {
	err = h.Do(func() error {
		id, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	return id, err
}

func TestDoReturnsErrorsPanicsAndThreads(t *testing.T) {
	l := ForTest(t, Config{Pods: 1})
	home, err := os.Readlink("/proc/thread-self/ns/net")
	Must(t, err)
	failure := errors.New("failure")
	if err := l.Node.Do(func() error { return failure }); err != failure {
		t.Errorf("got %v, want the function's error", err)
	}
	if err := l.Node.Do(func() error { runtime.Goexit(); return nil }); err != errEnded {
		t.Errorf("got %v, want %v", err, errEnded)
	}
	func() {
		defer func() {
			if p := recover(); !strings.Contains(fmt.Sprint(p), "oh") {
				t.Errorf("panic did not reach the caller: %v", p)
			}
		}()
		_ = l.Node.Do(func() error { panic("oh") })
	}()
	inner := ""
	Must(t, l.Node.Do(func() (err error) { inner, err = l.Pods[0].namespace(); return err }))
	if want, err := l.Pods[0].namespace(); inner != want || err != nil {
		t.Errorf("nested Do ran in %s, want %s (%v)", inner, want, err)
	}
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	Must(t, err)
	for _, task := range tasks {
		if got, err := os.Readlink(task); got != home && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is in %s, want %s (%v)", task, got, home, err)
		}
	}
}

func TestCancelledProbeFails(t *testing.T) {
	l := ForTest(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := l.Client.Probe(ctx, inet.UDP, netip.MustParseAddrPort("198.51.100.1:1"), Options{Timeout: time.Hour})
	if got.Outcome != Failed || !errors.Is(got.Err, context.Canceled) {
		t.Errorf("got %s, %v", got, got.Err)
	}
}

func TestTwoLabsDoNotDisturbOneAnother(t *testing.T) {
	a, b := ForTest(t, Config{Pods: 1}), ForTest(t, Config{Pods: 1})
	mustServe(t, a.Pods[0], inet.TCP, 80)
	dst := netip.AddrPortFrom(a.Pods[0].IPv4, 80)
	if got := b.Client.Probe(t.Context(), inet.TCP, dst, Options{}); got.Outcome != Refused {
		t.Errorf("other lab: %s (%v)", got, got.Err)
	}
	Must(t, b.Close())
	if got := a.Client.Probe(t.Context(), inet.TCP, dst, Options{}); got.Server != "pod-0" {
		t.Errorf("own lab after the other closed: %s (%v)", got, got.Err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	before := devices(t)
	l := ForTest(t, everything)
	for _, proto := range protocols {
		mustServe(t, l.Pods[0], proto, 80)
		dst := netip.AddrPortFrom(l.Pods[0].IPv4, 80)
		if got := l.Node.Probe(t.Context(), proto, dst, Options{}); got.Server != "pod-0" {
			t.Fatalf("%s: %s (%v)", proto, got, got.Err)
		}
	}
	// The test keeps the node's namespace, so it can observe that devices are deleted with the namespaces of their peers.
	node, err := l.Node.netlink()
	Must(t, err)
	defer node.Close()
	Must(t, errors.Join(l.Close(), l.Close()))
	if names, err := filepath.Glob(filepath.Join(namesDir, "*"+l.prefix+"*")); len(names) > 0 || err != nil {
		t.Errorf("names left behind: %v, %v", names, err)
	}
	Same(t, before, devices(t), "devices of the machine (-before +after)")
	if err := awaitOnlyLoopback(node); err != nil {
		t.Error(err)
	}
	if err := l.Node.Do(func() error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("do after close: %v", err)
	}
	if _, err := l.Node.Serve(inet.TCP, 80); !errors.Is(err, os.ErrClosed) {
		t.Errorf("serve after close: %v", err)
	}
}

// devices returns the names of the devices in the test's namespace.
func devices(t *testing.T) []string {
	t.Helper()
	links, err := netlink.LinkList()
	Must(t, err)
	var names []string
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	return names
}

// awaitOnlyLoopback returns when a namespace has only its loopback device left.
func awaitOnlyLoopback(h *netlink.Handle) error {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		links, err := h.LinkList()
		if err != nil || len(links) == 1 {
			return err
		}
		if time.Since(begin) > 10*time.Second {
			return fmt.Errorf("%d devices left, the namespaces at their other ends are still in use", len(links))
		}
	}
}

func TestNewSweepsNamesOfKilledPrograms(t *testing.T) {
	l := ForTest(t, Config{})
	if l.Node.Netns == "" {
		t.Log("namespaces have no names here, so none can be left behind")
		return
	}
	// No process can have this ID: it is the limit of pid_max.
	names := []string{"knp-4194304-0-node", ".knp-4194304-0-lock"}
	for _, name := range names {
		Must(t, os.WriteFile(filepath.Join(namesDir, name), nil, 0o444))
	}
	ForTest(t, Config{})
	for _, name := range append(names, l.Node.Netns) {
		_, err := os.Stat(filepath.Join(namesDir, name))
		Same(t, name == l.Node.Netns, err == nil, "%s: kept", name)
	}
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]Config{
		"negative":   {Pods: -1},
		"too many":   {Remotes: 201},
		"no address": {NodeAddrs: []netip.Addr{{}}},
		"bridge":     {Bridge: "a-name-too-long-for-a-device"},
		"zone":       {NodeAddrs: []netip.Addr{netip.MustParseAddr("fe80::1%eth0")}},
	} {
		if l, err := New(c); err == nil {
			t.Errorf("%s: made a lab", name)
			_ = l.Close()
		}
	}
}

func TestLargestLab(t *testing.T) {
	l := ForTest(t, Config{Pods: 200})
	last := l.Pods[199]
	mustServe(t, last, inet.TCP, 80)
	for _, addr := range last.Addrs() {
		if got := l.Pods[0].Probe(t.Context(), inet.TCP, netip.AddrPortFrom(addr, 80), Options{}); got.Server != "pod-199" {
			t.Errorf("%s: %s (%v)", addr, got, got.Err)
		}
	}
}
