package scenario

import (
	"fmt"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// denyClient and denyNode drop packets of the client, and of the ingress node.
const (
	denyClient = "ip saddr 192.0.2.100 drop; ip6 saddr 2001:db8::100 drop"
	denyNode   = "ip saddr 10.0.0.11 drop; ip6 saddr fd00:10::11 drop"
	// isolate lets only new connections of the client to pods pass, as an engine of network policies does.
	isolate = `icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; ct state established,related accept
		ct state invalid drop; ip saddr 192.0.2.100 ip daddr 10.244.0.0/16 accept
		ip6 saddr 2001:db8::100 ip6 daddr fd00:10:244::/48 accept; drop`
)

// filter gives a node a chain of rules, as an engine of network policies or a firewall has, until the test ends.
func (f *fabric) filter(node int, hook, rules string) {
	f.Helper()
	n := f.nodes[node]
	n.Run(f, "nft", fmt.Sprintf("table inet firewall { chain c { type filter hook %s; %s; }; }", hook, rules))
	f.Cleanup(func() { n.Run(f, "nft", "delete table inet firewall") })
}

// TestPoliciesWithDirectReturn: a policy on the endpoint's node applies to the client. On the ingress node, only rules
// before the program's chain, and those for outgoing packets, apply to packets that it passes on. This chain is before
// connection tracking for load-balancer IPs, and after it for node ports.
func TestPoliciesWithDirectReturn(t *testing.T) {
	const ingress, endpoint = 0, 1
	f := newFabric(t, withNodePorts, withNodePorts)
	f.endpoints("2")
	for _, c := range []struct {
		name        string
		node        int
		hook, rules string
		// want is the outcome at a load-balancer IP, and atNodePort that at a node port.
		want, atNodePort lab.Outcome
	}{
		{"the endpoint's node drops", endpoint, "forward priority filter", denyClient, lab.TimedOut, lab.TimedOut},
		{"the endpoint's node refuses", endpoint, "forward priority filter", "ct state new reject", lab.Refused, lab.Refused},
		{"the endpoint's node drops before translation", endpoint, "prerouting priority raw", denyClient, lab.TimedOut, lab.TimedOut},
		{"the endpoint's node drops packets of nodes", endpoint, "forward priority filter", denyNode, lab.Answered, lab.Answered},
		{"the endpoint's node isolates pods", endpoint, "forward priority filter", isolate, lab.Answered, lab.Answered},
		{"the ingress node drops forwarded packets", ingress, "forward priority filter", denyClient, lab.Answered, lab.Answered},
		{"the ingress node drops before translation", ingress, "prerouting priority raw", denyClient, lab.Answered, lab.TimedOut},
		{"the ingress node drops before the program", ingress, "prerouting priority -310", denyClient, lab.TimedOut, lab.TimedOut},
		{"the ingress node drops outgoing packets", ingress, "output priority filter", denyClient, lab.TimedOut, lab.TimedOut},
	} {
		for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
			f.entries(fmt.Sprintf("%s, %s", c.name, p), func(f *fabric, family inet.Family) {
				f.filter(c.node, c.hook, c.rules)
				to := f.to(family, map[inet.Protocol]uint16{inet.TCP: 80, inet.UDP: 53}[p])
				got, want := f.lab.Client.Probe(f.Context(), p, to, lab.Options{Timeout: time.Second}), c.want
				if f.nodePorts {
					want = c.atNodePort
				}
				if got.Outcome != want {
					f.Errorf("the client gets %s, want %s", got, want)
				}
				if seen := f.lab.Client.Addrs()[family]; want == lab.Answered && got.Source.Addr() != seen {
					f.Errorf("the endpoint sees %s, want %s", got.Source, seen)
				}
			})
		}
	}
}

// TestConnectionsWithPoliciesAndZones: all nodes isolate their pods and track connections in a zone of their own, and
// open connections stay at a change of the endpoints.
func TestConnectionsWithPoliciesAndZones(t *testing.T) {
	const flag, connections = "--direct-server-return", 20
	for name, hook := range map[string][2]string{
		"policies": {"forward priority filter", isolate},
		"zones":    {"prerouting priority raw", "ct zone set 7"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t, flag, flag, flag)
			for node := range f.nodes {
				f.filter(node, hook[0], hook[1])
			}
			for _, family := range inet.Families {
				f.endpoints("2")
				seen := "pod-1 saw " + f.lab.Client.Addrs()[family].String()
				for _, p := range []inet.Protocol{inet.TCP, inet.UDP} {
					lab.Same(t, map[string]int{seen: 5}, f.ask(family, p, 5), "%s %s", family, p)
				}
				list := f.openAll(family, connections)
				again := f.passed(2)
				f.endpoints("2 3")
				for i, o := range list {
					lab.Check(t, o.ask(5*time.Second), "%s: connection %d", family, i)
				}
				if f.passed(2) == again {
					t.Errorf("%s: the slots of %d connections have not moved", family, connections)
				}
			}
		})
	}
}
