//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestPodCIDRsOfTheNode runs in mode NodeCIDR. Nothing is programmed before the Node has podCIDRs. Afterwards pods with other
// addresses are masqueraded at cluster IPs, and the rules follow a Node that registers again with other podCIDRs.
func TestPodCIDRsOfTheNode(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 2, Remotes: 1})
	w.serve(w.Pods[0])
	serveEcho(t, echoPort, w.Pods[0])
	w.apply(balanced(), echoService())
	w.applySlices("a", endpointsOf(w.Pods[0]))
	w.apply(echoSlices(w.Pods[0])...)
	ips := w.clusterIPs("web")

	d := w.start("--detect-local-mode", "NodeCIDR")
	eventually(t, patience, func() error {
		// Load balancers choose other nodes, but the kubelet has no reason for a restart.
		return errors.Join(answer(d, "healthz", http.StatusServiceUnavailable), answer(d, "livez", http.StatusOK))
	})
	never(t, time.Second, func() error {
		if rules := nft(t, w.Node, "list", "ruleset"); rules != "" {
			return fmt.Errorf("programmed without podCIDRs:\n%s", rules)
		}
		return answer(d, "livez", http.StatusOK)
	})

	w.apply(nodeWithPods("10.244.0.0/24", "fd00:10:244::/64"))
	w.expectSources("podCIDRs were assigned", ips, w.Pods[1], w.Remotes[0])
	eventually(t, patience, func() error { return answer(d, "healthz", http.StatusOK) })
	open := w.converse(w.clusterIPs("echo"), w.Pods[1], w.Remotes[0])

	// podCIDRs are immutable: the Node must register again.
	w.delete(node())
	never(t, time.Second, func() error { return w.sources(ips, w.Pods[1], w.Remotes[0]) })
	w.apply(node())
	never(t, time.Second, func() error { return w.sources(ips, w.Pods[1], w.Remotes[0]) })
	changed := time.Now()
	w.apply(nodeWithPods("10.244.1.0/24", "fd00:10:244:1::/64"))
	w.expectSources("other podCIDRs were assigned", ips, w.Remotes[0], w.Pods[1])
	t.Logf("the sources followed after %v", time.Since(changed))
	for _, c := range open {
		lab.Check(t, c.goOn(), "a connection from before the change")
	}
	d.noErrors()
}

// nodeWithPods returns the Node with these prefixes of pods.
func nodeWithPods(cidrs ...string) *corev1.Node {
	n := node()
	n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
	return n
}

// expectSources waits until sources returns nil.
func (w *world) expectSources(when string, ips []netip.AddrPort, kept, masqueraded *lab.Host) {
	w.Helper()
	if err := await(w.Context(), patience, func() error { return w.sources(ips, kept, masqueraded) }); err != nil {
		w.Fatalf("%s: %v", when, err)
	}
}

// sources returns an error unless the servers see one host's own address, and the node's instead of the other's.
func (w *world) sources(ips []netip.AddrPort, kept, masqueraded *lab.Host) error {
	for _, ip := range ips {
		for _, proto := range protocols {
			for from, want := range map[*lab.Host]netip.Addr{kept: kept.Addr(ip.Addr()), masqueraded: w.Node.Addr(ip.Addr())} {
				a := from.Probe(w.Context(), proto, ip, lab.Options{})
				if a.Outcome != lab.Answered || a.Source.Addr() != want {
					return fmt.Errorf("%s -> %s %s: %s, want to be seen as %s", from.Name, proto, ip, a, want)
				}
			}
		}
	}
	return nil
}

// echoPort is the port of servers that return each line.
const echoPort = 7070

// echoService returns a dual-stack Service for these servers.
func echoService() *corev1.Service {
	s := service("echo", corev1.IPv4Protocol, corev1.IPv6Protocol)
	s.Spec.Ports = s.Spec.Ports[:1]
	return s
}

// echoSlices returns the slices of Service echo.
func echoSlices(h *lab.Host) (list []runtime.Object) {
	for i, e := range endpointsOf(h) {
		s := slice("echo", fmt.Sprintf("echo-%d", i), e)
		port := int32(echoPort)
		s.Ports = []discoveryv1.EndpointPort{{Name: s.Ports[0].Name, Protocol: s.Ports[0].Protocol, Port: &port}}
		list = append(list, s)
	}
	return list
}

// TestNodeRegistersAgain deletes the Node, as when a machine leaves a cluster and joins it again: addresses and zone stay in
// effect until there are new ones.
func TestNodeRegistersAgain(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1, Remotes: 2, NodeAddrs: []netip.Addr{
		netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2"),
	}})
	w.serve(w.Pods[0], w.Remotes[0])
	here := nodeAt("zone-a", "192.0.2.1", "2001:db8::1")
	w.apply(here, balanced())
	w.applySlices("a", inZone(endpointsOf(w.Pods[0]), "zone-a"), inZone(endpointsOf(w.Remotes[0]), "zone-b"))
	d := w.start()
	ports := func(v4, v6 string) []netip.AddrPort {
		return []netip.AddrPort{netip.MustParseAddrPort(v4 + ":30080"), netip.MustParseAddrPort("[" + v6 + "]:30080")}
	}
	first, second := ports("192.0.2.1", "2001:db8::1"), ports("192.0.2.2", "2001:db8::2")
	serving := func(at, notAt []netip.AddrPort, server string) error {
		var errs []error
		for _, proto := range protocols {
			for i := range at {
				errs = append(errs, reached(t.Context(), w.Client, proto, at[i], server),
					reached(t.Context(), w.Client, proto, notAt[i]))
			}
		}
		return errors.Join(append(errs, answer(d, "healthz", http.StatusOK))...)
	}
	eventually(t, patience, func() error { return serving(first, second, "pod-0") })
	w.delete(here)
	never(t, time.Second, func() error { return serving(first, second, "pod-0") })
	w.apply(nodeAt("zone-a"))
	never(t, time.Second, func() error { return serving(first, second, "pod-0") })
	w.apply(nodeAt("zone-b", "192.0.2.2", "2001:db8::2"))
	eventually(t, patience, func() error { return serving(second, first, "remote-0") })
}

// nodeAt returns the Node in a zone, with these addresses.
func nodeAt(zone string, addrs ...string) *corev1.Node {
	n := node()
	n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	n.Status.Addresses = nil
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// inZone adds a hint for a zone to endpoints.
func inZone(e [2]discoveryv1.Endpoint, zone string) [2]discoveryv1.Endpoint {
	for i := range e {
		e[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	return e
}

// TestAddressesOfInterfacesAreFollowed adds and removes addresses of the node: those within --nodeport-addresses serve node ports
// while they exist.
func TestAddressesOfInterfacesAreFollowed(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 1})
	w.serve(w.Pods[0])
	w.publishWeb(w.Pods[0])
	d := w.start("--nodeport-addresses", "192.0.2.0/24,198.51.100.0/24,2001:db8::/64,2001:db8:5::/64")
	at := func(addrs ...string) (list []netip.AddrPort) {
		for _, a := range addrs {
			list = append(list, netip.AddrPortFrom(netip.MustParseAddr(a), 30080))
		}
		return list
	}
	serving := func(list []netip.AddrPort, servers ...string) {
		t.Helper()
		for _, to := range list {
			reach(t, w.Client, to, servers...)
		}
	}
	always, inside, outside := at("192.0.2.1", "2001:db8::1"), at("198.51.100.5", "2001:db8:5::5"), at("203.0.113.5", "2001:db8:6::5")
	serving(always, "pod-0")
	serving(inside)
	for range 2 {
		w.addresses(netlink.AddrAdd, inside)
		w.addresses(netlink.AddrAdd, outside)
		added := time.Now()
		serving(inside, "pod-0")
		t.Logf("served after %v", time.Since(added))
		serving(outside)
		serving(always, "pod-0")
		w.addresses(netlink.AddrDel, inside)
		w.addresses(netlink.AddrDel, outside)
		eventually(t, patience, func() error {
			for _, to := range inside {
				if listed := nft(t, w.Node, "list", "ruleset"); strings.Contains(listed, to.Addr().String()) {
					return fmt.Errorf("%s is still in the tables", to.Addr())
				}
			}
			return nil
		})
		serving(inside)
	}
	d.noErrors()
}

// addresses adds addresses to the node's device for clients, or deletes them.
func (w *world) addresses(do func(netlink.Link, *netlink.Addr) error, list []netip.AddrPort) {
	w.Helper()
	must(w, w.Node.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, a := range list {
			addr, err := netlink.ParseAddr(netip.PrefixFrom(a.Addr(), a.Addr().BitLen()).String())
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD // usable at once
			if err := do(link, addr); err != nil {
				return err
			}
		}
		return nil
	}))
}
