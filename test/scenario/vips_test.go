package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// vipStep runs the program on a lab's node with the objects of the first step of vips-refuse-within, and with the given flags, until the test ends.
func vipStep(t *testing.T, l *lab.Lab, flags ...string) *pipeline {
	t.Helper()
	s, err := readScenario("testdata/vips-refuse-within.txtar")
	lab.Must(t, err)
	p := pipelineForTest(t, l, flags...)
	lab.Must(t, s.steps[0].enter(p.folder))
	lab.Must(t, p.load())
	return p
}

// within are the flags of vips-refuse-within.
const within = "--refuse-unused-ports=203.0.113.0/24,2001:db8:2::/64,192.0.2.0/24,2001:db8::/64"

// watchPackets counts the packets of a host that match an expression of nft at a hook, in a table of its own. It returns a function that returns the count.
func watchPackets(t *testing.T, h *lab.Host, name, hook, expression string) func() int {
	t.Helper()
	table := "watch-" + name
	h.Run(t, "nft", fmt.Sprintf("table inet %s { chain c { type filter hook %s priority -310; %s counter; }; }", table, hook, expression))
	t.Cleanup(func() {
		_, _ = h.Command(context.Background(), "nft", "delete", "table", "inet", table).CombinedOutput()
	})
	packets := regexp.MustCompile(`packets ([0-9]+)`)
	return func() int {
		t.Helper()
		match := packets.FindStringSubmatch(h.Run(t, "nft", "list", "table", "inet", table))
		if match == nil {
			t.Fatalf("%s: no counter", table)
		}
		n, err := strconv.Atoi(match[1])
		lab.Must(t, err)
		return n
	}
}

// mustPass sends the packets of lines as in a scenario, also during the cleanup of a test.
func mustPass(t *testing.T, l *lab.Lab, text string) {
	t.Helper()
	lines, err := parsePackets(text)
	lab.Must(t, err)
	lab.Must(t, l.Node.Do(forgetDatagrams))
	for _, err := range (&traffic{lab: l, pins: map[string]string{}}).run(context.WithoutCancel(t.Context()), lines) {
		t.Error(err)
	}
}

// addRules adds the rules of another program to the node until the test ends. Without them, the packets of alone pass.
func addRules(t *testing.T, l *lab.Lab, rules, alone string) {
	t.Helper()
	l.Node.Run(t, "nft", "table inet other { "+rules+"; }")
	t.Cleanup(func() { l.Node.Run(t, "nft", "delete", "table", "inet", "other"); mustPass(t, l, alone) })
}

// toProxy leads packets with the mark 1 to the node itself, as for a transparent proxy, until the test ends. It sends a datagram to a port of some addresses,
// and checks that all datagrams reach the node.
func toProxy(t *testing.T, l *lab.Lab, port uint16, addresses ...string) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		l.Node.Run(t, "ip", family, "rule", "add", "fwmark", "1", "lookup", "100")
		l.Node.Run(t, "ip", family, "route", "add", "local", "default", "dev", "lo", "table", "100")
		t.Cleanup(func() {
			l.Node.Run(t, "ip", family, "rule", "del", "fwmark", "1", "lookup", "100")
			l.Node.Run(t, "ip", family, "route", "flush", "table", "100")
		})
	}
	local := watchPackets(t, l.Node, "local", "input", fmt.Sprintf("udp dport %d", port))
	for _, to := range addresses {
		l.Client.Probe(t.Context(), inet.UDP, netip.AddrPortFrom(netip.MustParseAddr(to), port), lab.Options{Timeout: nothingIn})
	}
	lab.Same(t, len(addresses), local(), "packets to the transparent proxy")
}

// TestOtherProgramsKeepTheirAddresses: neither the refusal of unused ports nor answers to ping affect packets that another program handles.
func TestOtherProgramsKeepTheirAddresses(t *testing.T) {
	l := newLab(t)
	vipStep(t, l, within, "--answer-ping=always")
	const alone = `
{client,pod-0} {203.0.113.10,2001:db8:2::10}:{81/tcp,8080/tcp,81/udp} refused
{client,pod-0,node} {203.0.113.10,2001:db8:2::10}/icmp answers`
	mustPass(t, l, alone)
	other := func(t *testing.T, text string) { addRules(t, l, text, alone) }
	for _, priority := range []int{-150, 0, 900} {
		t.Run(fmt.Sprintf("DNAT at priority %d", priority), func(t *testing.T) {
			rules := ""
			for _, hook := range []string{"prerouting", "output"} {
				rules += fmt.Sprintf(`chain %[1]s { type nat hook %[1]s priority %[2]d;
					ip daddr 203.0.113.10 tcp dport 81 dnat ip to 10.244.1.11:8080
					ip6 daddr 2001:db8:2::10 tcp dport 81 dnat ip6 to [fd00:10:244:1::11]:8080
					ip daddr 203.0.113.10 icmp type echo-request dnat ip to 10.244.1.11
					ip6 daddr 2001:db8:2::10 icmpv6 type echo-request dnat ip6 to fd00:10:244:1::11; };`, hook, priority)
			}
			other(t, rules)
			pings := watchPackets(t, l.Remotes[1], "pings", "input", "meta l4proto { icmp, ipv6-icmp } @th,0,8 { 8, 128 }")
			mustPass(t, l, `
{client,pod-0} {203.0.113.10,2001:db8:2::10}:81/tcp = remote-1 from kept
node {203.0.113.10,2001:db8:2::10}:81/tcp = remote-1 from node
{client,pod-0,node} {203.0.113.10,2001:db8:2::10}/icmp answers`)
			if pings() < 6 {
				t.Errorf("the program's endpoint received %d echo requests, want all of 6 clients", pings())
			}
		})
	}
	// cozystack's proxy, which handles all ports of an address: cozystack #2327.
	t.Run("stateless NAT before conntrack", func(t *testing.T) {
		other(t, `chain raw { type filter hook prerouting priority -300;
			ip daddr 203.0.113.10 notrack ip daddr set 10.244.1.11
			ip saddr 10.244.1.11 notrack ip saddr set 203.0.113.10
			ip6 daddr 2001:db8:2::10 notrack ip6 daddr set fd00:10:244:1::11
			ip6 saddr fd00:10:244:1::11 ip6 daddr != fe80::/10 notrack ip6 saddr set 2001:db8:2::10; }`)
		mustPass(t, l, `
{client,pod-0} {203.0.113.10,2001:db8:2::10}:{8080/tcp,9090/udp} = remote-1 from kept
{client,pod-0} {203.0.113.10,2001:db8:2::10}/icmp answers`)
	})
	// The chain translated-near drops packets that another program has translated to a cluster IP.
	t.Run("DNAT to a load-balancer IP", func(t *testing.T) {
		other(t, `chain there { type nat hook prerouting priority -150; ip daddr 198.51.100.77 dnat ip to 203.0.113.10; ip6 daddr 2001:db8:1::77 dnat ip6 to 2001:db8:2::10; }`)
		passed := watchPackets(t, l.Client, "passed", "prerouting", "iifname eth0 tcp dport 81")
		mustPass(t, l, "pod-0 {198.51.100.77,2001:db8:1::77}:81/tcp timeout")
		if passed() < 2 {
			t.Errorf("%d packets left by the default route, want 2", passed())
		}
	})
	t.Run("policy routing by mark", func(t *testing.T) {
		other(t, `chain marks { type filter hook prerouting priority -150; ip daddr 203.0.113.10 udp dport 81 meta mark set 1; ip6 daddr 2001:db8:2::10 udp dport 81 meta mark set 1; }`)
		toProxy(t, l, 81, "203.0.113.10", "2001:db8:2::10")
	})
}

// beyondRouter makes the lab's client a router, and returns a host behind it. The node's default route leads to the router, and the router's to the node.
func beyondRouter(t *testing.T, l *lab.Lab) *lab.Host {
	t.Helper()
	far := lab.ForTest(t, lab.Config{}).Client
	l.Client.Run(t, "ip", "link", "add", "far0", "type", "veth", "peer", "name", "near0", "netns", far.Netns)
	t.Cleanup(func() { l.Client.Run(t, "ip", "link", "del", "far0") })
	for _, end := range []struct {
		h              *lab.Host
		device, v4, v6 string
	}{{l.Client, "far0", "198.18.0.1/30", "2001:db8:f::1/64"}, {far, "near0", "198.18.0.2/30", "2001:db8:f::2/64"}} {
		end.h.Run(t, "ip", "link", "set", end.device, "up")
		end.h.Run(t, "ip", "addr", "add", end.v4, "dev", end.device)
		end.h.Run(t, "ip", "addr", "add", end.v6, "dev", end.device, "nodad")
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			lab.Must(t, end.h.Sysctl(key, "1"))
		}
	}
	far.Run(t, "ip", "route", "add", "203.0.113.0/24", "via", "198.18.0.1")
	far.Run(t, "ip", "-6", "route", "add", "2001:db8:2::/64", "via", "2001:db8:f::1")
	return far
}

// TestRoutingLoop: a router leads the load-balancer IPs to the node, whose default route leads to the router. A packet to an unused port circles between the
// two until its time to live is over, unless the rules refuse it.
func TestRoutingLoop(t *testing.T) {
	l := newLab(t)
	far := beyondRouter(t, l)
	for _, to := range []string{"203.0.113.10", "2001:db8:2::10"} {
		vip := netip.MustParseAddr(to)
		daddr, exceeded := "ip daddr "+to+" th dport 81", "icmp type time-exceeded"
		if vip.Is6() {
			daddr, exceeded = "ip6 daddr "+to+" th dport 81", "icmpv6 type time-exceeded"
		}
		for _, tc := range []struct {
			flag    string
			refuses bool
		}{{"--refuse-unused-ports=cluster", false}, {"--refuse-unused-ports=all", true}, {within, true}} {
			t.Run(to+tc.flag[:min(len(tc.flag), 27)], func(t *testing.T) {
				vipStep(t, l, tc.flag)
				passes := watchPackets(t, l.Client, "passes", "forward", daddr)
				over := watchPackets(t, far, "over", "input", exceeded)
				// One datagram, and one segment: a lost segment is sent again after a second.
				for i, protocol := range []inet.Protocol{inet.UDP, inet.TCP} {
					a := far.Probe(t.Context(), protocol, netip.AddrPortFrom(vip, 81), lab.Options{Timeout: 600 * time.Millisecond})
					if refused := a.Outcome == lab.Refused; refused != tc.refuses {
						t.Errorf("%s: %v, want refused: %t", protocol, a, tc.refuses)
					}
					// A time to live of 64 lasts for 32 rounds: the router sees the packet once in each.
					least, most, errors := 30*(i+1), 64*(i+1), i+1
					if tc.refuses {
						least, most, errors = i+1, i+1, 0
					}
					if n := passes(); n < least || n > most || over() != errors {
						t.Errorf("%s: the router has forwarded %d packets to the address, want %d to %d; time exceeded %d times, want %d", protocol, n, least, most, over(), errors)
					}
				}
				// A used port, from behind the router.
				if a := far.Probe(t.Context(), inet.TCP, netip.AddrPortFrom(vip, 80), lab.Options{Timeout: patience}); a.Outcome != lab.Answered {
					t.Errorf("port 80: %v", a)
				}
			})
		}
	}
}

// TestICMPErrorsReachEndpoints: a router on the way to the client has a smaller MTU. Its ICMP errors are addressed to the load-balancer IP, and the endpoint
// receives them, whether the address answers ping and refuses unused ports or not.
func TestICMPErrorsReachEndpoints(t *testing.T) {
	for _, flags := range [][]string{nil, {within, "--answer-ping=always"}} {
		t.Run(fmt.Sprintf("%d flags", len(flags)), func(t *testing.T) {
			l := newLab(t)
			far := beyondRouter(t, l)
			l.Client.Run(t, "ip", "link", "set", "far0", "mtu", "1280")
			p := vipStep(t, l, flags...)
			step := &step{write: map[string][]byte{"endpoints.yaml": []byte(mustSlices(t, "shop/web http=7070: remote-0"))}}
			lab.Must(t, errors.Join(step.enter(p.folder), p.load()))
			for i, to := range []string{"203.0.113.10", "2001:db8:2::10"} {
				tooBig := [...]string{"icmp type destination-unreachable icmp code frag-needed", "icmpv6 type packet-too-big"}[i]
				came := watchPackets(t, l.Remotes[0], fmt.Sprint("mtu", i), "input", tooBig)
				conn, err := far.Dial(t.Context(), inet.TCP, netip.AddrPortFrom(netip.MustParseAddr(to), 80))
				lab.Must(t, err)
				defer conn.Close() //nolint:errcheck // the test has read all it needs
				lab.Must(t, conn.SetDeadline(time.Now().Add(lab.Patience)))
				const size = 20_000
				lab.Must(t, lab.Err(conn.Write([]byte(strings.Repeat("x", size)+"\n"))))
				for got, buf := 0, make([]byte, size); got < size; {
					n, err := conn.Read(buf)
					if err != nil {
						t.Fatalf("%s: after %d bytes: %v; the endpoint has received %d ICMP errors", to, got, err, came())
					}
					got += n
				}
				if came() == 0 {
					t.Errorf("%s: the endpoint has received no ICMP error about the MTU", to)
				}
			}
		})
	}
}
