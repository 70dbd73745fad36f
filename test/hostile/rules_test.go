package hostile

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestThief: an older Service of evil claims bank's cluster IP and load-balancer IP as externalIPs, before bank's Service exists. Bank gets the
// packets to these addresses, also after a restart, and the source ranges of its load-balancer IP apply.
func TestThief(t *testing.T) {
	n := newNode(t, 1)
	thief := service("evil/thief", evilIP)
	thief.Spec.Ports, thief.Spec.ExternalIPs = ports(8443, 1), []string{"203.0.113.10", "10.96.0.10"}
	n.synced("evil", thief, slice("evil/thief", 0, portNames(thief.Spec.Ports), backendPort, n.Pods[2].IPv4))
	n.synced("bank", append(bankSlices(n.Pods[0]), bankService())...)
	n.until(patience, "bank's Service", n.bankServed)
	n.bank()
	n.Kill()
	n.start()
	n.until(patience, "bank's Service after a restart", n.bankServed)
	closed := bankService()
	closed.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	n.synced("bank", append(bankSlices(n.Pods[0]), closed)...)
	if got := n.ask(n.Client, "203.0.113.10:8443", silence); got != "timed out" {
		t.Errorf("a source outside of the ranges: %s, want it timed out", got)
	}
}

// TestOwnClusterIP: bank's load-balancer IP equals its cluster IP. The source ranges apply at this address.
func TestOwnClusterIP(t *testing.T) {
	n := newNode(t, 1)
	s := bankService()
	s.Status.LoadBalancer.Ingress[0].IP = s.Spec.ClusterIP
	s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	n.synced("bank", append(bankSlices(n.Pods[0]), s)...)
	if got := n.ask(n.Client, "10.96.0.10:8443", silence); got != "timed out" {
		t.Errorf("a source outside of the ranges: %s, want it timed out", got)
	}
}

// TestTooManyRanges: bank's load-balancer IP has more source ranges than the limit. Packets from sources outside all of them are dropped, and the
// cluster IP is served.
func TestTooManyRanges(t *testing.T) {
	n := newBank(t)
	s := bankService()
	s.Spec.LoadBalancerSourceRanges = ranges(1_500)
	n.put("bank", append(bankSlices(n.Pods[n.serving]), s)...)
	n.until(patience, "the ranges", func() error {
		if got := n.ask(n.Client, "203.0.113.10:8443", silence); got != "timed out" {
			return fmt.Errorf("a source outside of the ranges: %s, want it timed out", got)
		}
		return nil
	})
	lab.Same(t, n.Pods[n.serving].Name, n.ask(n.Client, "10.96.0.10:8443", surely), "the cluster IP")
}

// TestNarrowedRanges: if new source ranges exclude the source of a UDP flow without replies, the flow stops.
func TestNarrowedRanges(t *testing.T) {
	n := newNode(t, 1)
	sink := n.listen(n.Pods[0], 514)
	write := func(sources string) {
		s := bankService()
		s.Spec.Ports = []corev1.ServicePort{{Name: "syslog", Protocol: corev1.ProtocolUDP, Port: 514}}
		s.Spec.LoadBalancerSourceRanges = []string{sources}
		e := slice("bank/pay", 0, []string{"syslog"}, 514, n.Pods[0].IPv4)
		udp := corev1.ProtocolUDP
		e.Ports[0].Protocol = &udp
		n.synced("bank", s, e)
	}
	write("192.0.2.0/24")
	flow, err := n.Client.Dial(t.Context(), inet.UDP, netip.MustParseAddrPort("203.0.113.10:514"))
	lab.Must(t, err)
	defer flow.Close() //nolint:errcheck // write only
	arrives := func() error {
		if _, err := flow.Write([]byte("log")); err != nil {
			return err
		}
		if err := sink.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			return err
		}
		_, _, err := sink.ReadFrom(make([]byte, 10))
		return err
	}
	n.until(patience, "the first packet", arrives)
	write("198.51.100.0/24")
	n.until(patience, "the flow's end", func() error {
		for range 5 {
			if err := arrives(); err == nil {
				return errors.New("a packet arrives")
			}
		}
		return nil
	})
}

// listen opens a UDP socket on a host. The socket never replies.
func (n *node) listen(h interface{ Do(func() error) error }, port int) (conn *net.UDPConn) {
	n.Helper()
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		return err
	})
	lab.Must(n.T, err)
	n.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestTwoInstances starts a second instance beside the first one, with another name or other settings. Bank's changes must be served, and the
// instances must not rewrite each other's rules.
func TestTwoInstances(t *testing.T) {
	for _, second := range []struct {
		name, file string
		flags      []string
	}{
		{name: "same settings", file: "kube-nftproxy"},
		{name: "same settings, another name", file: "kube-proxy"},
		{name: "other settings", file: "kube-nftproxy", flags: []string{"--masquerade-all"}},
		{name: "other settings, another name", file: "kube-proxy", flags: []string{"--cluster-cidr="}},
	} {
		t.Run(second.name, func(t *testing.T) {
			t.Parallel()
			n := newBank(t)
			path, err := built()
			lab.Must(t, err)
			link := filepath.Join(t.TempDir(), second.file)
			lab.Must(t, os.Symlink(path, link))
			second := n.run(link, filepath.Join(t.TempDir(), "log"), slices.Concat(n.flags, second.flags,
				[]string{"--metrics-bind-address=127.0.0.1:10259", "--healthz-bind-address=127.0.0.1:10266"})...)
			n.until(10*time.Second, "the second instance", func() error {
				_, _, err := second.Get(t.Context(), "http://127.0.0.1:10266/livez")
				return err
			})
			n.bank()
			n.until(10*patience, "the end of conflicting commits", func() error {
				before := n.generation()
				time.Sleep(2 * time.Second) // no event shows the absence of commits; two conflicting instances make about eight commits in this time
				if commits := n.generation() - before; commits > 1 {
					return fmt.Errorf("%d commits in two seconds", commits)
				}
				return nil
			})
			n.bank()
		})
	}
}

// generation returns the number of commits to the node's ruleset so far, by any program.
func (n *node) generation() (g uint32) {
	n.Helper()
	err := n.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		g, err = conn.Generation()
		return err
	})
	lab.Must(n.T, err)
	return g
}

// TestFamilyOffAndOn starts the program while IPv6 is disabled on the node, and moves bank's endpoint meanwhile. After IPv6 is enabled again, the
// old rules must not be used, and bank must be served. For this, the program may exit, so that the kubelet restarts it.
func TestFamilyOffAndOn(t *testing.T) {
	n := newBank(t)
	n.Kill()
	restore := n.withoutIPv6()
	n.Program = n.run("", n.log, n.flags...)
	lab.Must(t, lab.Err(n.AwaitSync(t.Context(), n.Started(), inet.IPv4)))
	n.serving = 1 - n.serving
	n.put("bank", append(bankSlices(n.Pods[n.serving]), bankService())...)
	n.until(patience, "IPv4", func() error { return n.answered("10.96.0.10:8443", n.Pods[n.serving].Name) })
	restore()
	if got := n.ask(n.Client, "[fd00:10:96::10]:8443", silence); got == n.Pods[1-n.serving].Name {
		t.Errorf("after IPv6 was enabled: %s answers, which is no longer an endpoint of bank", got)
	}
	deadline := time.Now().Add(30 * time.Second)
	for n.bankServed() != nil {
		select {
		case <-n.Ended():
			n.start()
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("30 s after IPv6 was enabled: %v", n.bankServed())
		}
	}
}

// withoutIPv6 disables IPv6 on the node. The returned function enables it, and restores the previous addresses, routes and neighbours.
func (n *node) withoutIPv6() (restore func()) {
	n.Helper()
	const six = netlink.FAMILY_V6
	var addrs []netlink.Addr
	var routes []netlink.Route
	var neighbours []netlink.Neigh
	err := n.Node.Do(func() (err error) {
		if addrs, err = netlink.AddrList(nil, six); err != nil {
			return err
		}
		if routes, err = netlink.RouteList(nil, six); err != nil {
			return err
		}
		neighbours, err = netlink.NeighList(0, six)
		return err
	})
	if err = errors.Join(err, n.Node.Sysctl("ipv6/conf/all/disable_ipv6", "1")); err != nil {
		n.Fatal(err)
	}
	return func() {
		n.Helper()
		err := errors.Join(n.Node.Sysctl("ipv6/conf/all/disable_ipv6", "0"), n.Node.Do(func() (failed error) {
			for _, a := range addrs {
				link, err := netlink.LinkByIndex(a.LinkIndex)
				if err == nil && !a.IP.IsLoopback() {
					err = netlink.AddrReplace(link, &a)
				}
				failed = errors.Join(failed, err)
			}
			for _, r := range routes {
				failed = errors.Join(failed, netlink.RouteReplace(&r))
			}
			for _, x := range neighbours {
				failed = errors.Join(failed, netlink.NeighSet(&x))
			}
			return failed
		}))
		lab.Must(n.T, err)
	}
}

// TestFlagzHidesPasswords: /flagz does not show a password in the URL of a flag.
func TestFlagzHidesPasswords(t *testing.T) {
	n := newNode(t, 1)
	n.Kill()
	n.Program = n.run("", n.log, "--master", "https://user:hidden-one@127.0.0.1:1", "--hostname-override", "node-1", "--control-socket=")
	var page []byte
	n.until(patience, "the page", func() (err error) {
		_, page, err = n.Get(t.Context(), "http://127.0.0.1:10249/flagz")
		return err
	})
	if strings.Contains(string(page), "hidden-one") {
		t.Error("/flagz shows the password")
	}
}
