package scenario

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestPacketsThatNodePortsDoNotClaim: packets that have the TTL of a packet that a node has passed on, but that no node
// has passed on, and packets of nodes.
func TestPacketsThatNodePortsDoNotClaim(t *testing.T) {
	const flag = "--direct-server-return --direct-server-return-node-cidrs="
	for _, networks := range []struct {
		name, flags string
		// otherHost is the answer to a packet to another host of the segment.
		otherHost [2]string
	}{
		{"the networks have other hosts and pods", flag + "10.0.0.0/8,fd00:10::/52,fd00:10:244::/52",
			[2]string{"pod-1 saw 192.0.2.100", "pod-1 saw 2001:db8::100"}},
		{"pods are recognised by their interface",
			flag + "10.0.0.0/28,fd00:10::/123 --cluster-cidr= --pod-interface-name-prefix=pod",
			[2]string{"no answer", "no answer"}},
	} {
		t.Run(networks.name, func(t *testing.T) {
			f := newFabric(t, networks.flags, networks.flags, networks.flags)
			f.script(f.lab.Node, `ip route add 10.244.2.0/24 via 10.0.0.12; ip route add fd00:10:244:2::/64 via fd00:10::12
				ip route add 10.0.0.99 via 10.0.0.12; ip route add fd00:10::99 via fd00:10::12`)
			f.endpoints("2")
			none := [2]string{"no answer", "no answer"}
			ofFirstNode := [2]string{"pod-1 saw 10.0.0.11", "pod-1 saw fd00:10::11"}
			toPod, toFirstNode := [2]string{"10.244.2.5", "fd00:10:244:2::5"}, [2]string{"10.0.0.11", "fd00:10::11"}
			toOther := [2]string{"10.0.0.99", "fd00:10::99"}
			for _, c := range []struct {
				name string
				from *lab.Host
				ttl  string
				// want is the answer in each family.
				to, want [2]string
			}{
				{"a client to another host", f.lab.Client, "17", toOther, networks.otherHost},
				{"a client to another host, with the usual TTL", f.lab.Client, "64", toOther, none},
				{"a client to the port of a pod", f.lab.Client, "17", toPod, none},
				{"a pod to the port of a pod", f.pods[0], "17", toPod, none},
				{"a pod to another node", f.pods[1], "16", toFirstNode, ofFirstNode},
				{"a process to another node", f.nodes[1], "16", toFirstNode, ofFirstNode},
				{"a process to another node, with the usual TTL", f.nodes[1], "64", toFirstNode, ofFirstNode},
			} {
				setTTL(t, c.from, c.ttl)
				for _, family := range inet.Families {
					for p, port := range map[inet.Protocol]uint16{inet.TCP: 30080, inet.UDP: 30053} {
						to := netip.AddrPortFrom(netip.MustParseAddr(c.to[family]), port)
						a, got := c.from.Probe(t.Context(), p, to, lab.Options{Timeout: time.Second}), "no answer"
						if a.Outcome == lab.Answered {
							got = fmt.Sprintf("%s saw %s", a.Server, a.Source.Addr())
						}
						lab.Same(t, c.want[family], got, "%s, %s %s", c.name, family, p)
					}
				}
				setTTL(t, c.from, "64")
			}
		})
	}
}

// TestStaleFlowsOfNodePorts: the endpoint's node deletes the UDP flows to the address of another node if their endpoint
// is gone, or the Service. It does not delete flows to such an address that it only forwards.
func TestStaleFlowsOfNodePorts(t *testing.T) {
	f := newFabric(t, withNodePorts, withNodePorts)
	f.nodePorts = true
	for _, family := range inet.Families {
		seen := map[string]int{"pod-1 saw " + f.lab.Client.Addrs()[family].String(): 3}
		f.endpoints("2")
		lab.Same(t, seen, f.ask(family, inet.UDP, 3), "")
		if n := f.flows(1); n != 3 {
			t.Errorf("%s: the endpoint's node has %d flows, want 3", family, n)
		}
		f.endpoints("1")
		const expires = 10 * time.Second // sooner than the entries would expire
		lab.Eventually(t, expires, func() error {
			if n := f.flows(1); n != 0 {
				return fmt.Errorf("%s: the endpoint's node still has %d flows", family, n)
			}
			return nil
		})
	}
}

// TestConnectionsFromThePortOfANodePort: a process on a node has opened connections from the port of a node port, as
// masquerading also may. Their replies reach the process.
func TestConnectionsFromThePortOfANodePort(t *testing.T) {
	f := newFabric(t, withNodePorts, withNodePorts)
	f.endpoints("2")
	mustServe(t, f.lab.Client)
	for _, family := range inet.Families {
		for p, port := range map[inet.Protocol]uint16{inet.TCP: 30080, inet.UDP: 30053} {
			to := netip.AddrPortFrom(f.lab.Client.Addrs()[family], firstPort)
			passed := f.passed(0)
			a := f.nodes[0].Probe(t.Context(), p, to, lab.Options{Timeout: 2 * time.Second, SourcePort: port})
			if a.Outcome != lab.Answered || a.Source.Port() != port || f.passed(0) > passed {
				t.Errorf("%s %s: %s, and %d packets were passed on", family, p, a, f.passed(0)-passed)
			}
		}
	}
}

// TestConnectionsBeforeDirectReturn: connections to a node port stay when the Service gets direct server return, because
// the ingress node knows them. Later connections are passed on.
func TestConnectionsBeforeDirectReturn(t *testing.T) {
	const connections = 20
	f := newFabric(t, withNodePorts, withNodePorts, withNodePorts)
	f.nodePorts = true
	f.endpoints("1 2 3")
	for i, p := range f.proxies {
		lab.Must(t, os.WriteFile(filepath.Join(p.folder, "web.yaml"), []byte(f.service(i, "", "1 2 3")), 0o600))
		lab.Must(t, p.load())
	}
	list := map[*opened]inet.Family{}
	for _, family := range inet.Families {
		for range connections {
			list[f.open(family)] = family
		}
	}
	passed := f.passed(0)
	f.endpoints("1 2 3")
	for o, family := range list {
		lab.Check(t, o.ask(5*time.Second), "%s: a connection to %s", family, o.server)
	}
	if n := f.passed(0) - passed; n > 0 {
		t.Errorf("%d packets of these connections are passed on", n)
	}
	for _, family := range inet.Families {
		f.ask(family, inet.TCP, connections)
	}
	if f.passed(0) == passed {
		t.Error("no packet of a later connection is passed on")
	}
}
