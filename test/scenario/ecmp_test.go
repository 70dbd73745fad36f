package scenario

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fleet is a cluster whose router spreads connections over the nodes by equal-cost routes, as a router with BGP does.
type fleet struct {
	*fabric
	// restart restarts the proxies of all nodes, and waits until they have synced.
	restart func()
	// publish changes the endpoints, and waits until all proxies have them.
	publish func(endpoints string)
}

// incident is an event between two exchanges of the same connections.
type incident struct {
	name string
	// before and after are the nodes in the router's routes.
	before, after []int
	happen        func(*fleet)
	// dead is the name of a pod whose connections cannot stay.
	dead string
	// most is the number of connections of 100 that may be lost with direct server return.
	most int
}

var (
	allNodes   = []int{0, 1, 2}
	otherNodes = []int{0, 2}
)

var incidents = []incident{
	{name: "A node leaves the routes. Its pod still serves.", before: allNodes, after: otherNodes},
	{name: "The node comes back.", before: otherNodes, after: allNodes},
	{name: "A node fails, with its pod.", before: allNodes, after: otherNodes, dead: "pod-1",
		happen: func(f *fleet) {
			f.script(f.lab.Node, "ip link set port2 down")
			f.publish("1 3")
		}},
	{name: "The program restarts on all nodes.", before: allNodes, after: allNodes,
		happen: func(f *fleet) { f.restart() }},
	{name: "Another program deletes all rules of a node.", before: allNodes, after: allNodes, most: 45,
		happen: func(f *fleet) { f.script(f.nodes[1], "nft flush ruleset") }},
}

// spread gives the router equal-cost routes to the nodes for the Service's load-balancer IPs.
func (f *fabric) spread(nodes []int) {
	f.Helper()
	for i, gateway := range []string{"10.0.0.1%d", "fd00:10::1%d"} {
		command := fmt.Sprintf("ip route replace %s", vip[i])
		for _, n := range nodes {
			command += " nexthop via " + fmt.Sprintf(gateway, n+1)
		}
		f.script(f.lab.Node, command)
	}
}

// hashPorts makes the router select the route of a packet by its addresses and ports.
func (f *fabric) hashPorts() {
	f.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		lab.Must(f, f.lab.Node.Sysctl(family+"/fib_multipath_hash_policy", "1"))
	}
}

// play opens connections, and counts those that an incident ends. It leaves out those to a dead pod.
func (f *fleet) play(e incident, family inet.Family, connections int) (lost, of int) {
	f.Helper()
	f.spread(e.before)
	list := f.openAll(family, connections)
	if e.happen != nil {
		e.happen(f)
	}
	f.spread(e.after)
	list = slices.DeleteFunc(list, func(o *opened) bool { return o.server == e.dead })
	errs := make([]error, len(list))
	var clients sync.WaitGroup
	for i, o := range list {
		// kube-proxy writes all rules again after at most 30 s.
		clients.Go(func() { errs[i] = o.ask(40 * time.Second) })
	}
	clients.Wait()
	for i, err := range errs {
		if err != nil {
			lost++
		}
		_ = list[i].Close()
	}
	f.repair(e)
	return lost, len(list)
}

// repair ends an incident.
func (f *fleet) repair(e incident) {
	f.Helper()
	if e.happen == nil {
		return
	}
	if e.dead != "" {
		f.script(f.lab.Node, "ip link set port2 up")
		f.publish("1 2 3")
	}
	f.restart()
}

// TestECMPWithDirectReturn: connections stay if a router with equal-cost routes sends them to another node, or if a
// node restarts or loses its rules. TestTwinECMP counts more of them, and those of kube-proxy.
func TestECMPWithDirectReturn(t *testing.T) {
	const flag, connections = "--direct-server-return", 100
	f := &fleet{fabric: newFabric(t, flag, flag, flag)}
	f.publish = func(endpoints string) { f.endpoints(endpoints) }
	f.restart = func() {
		for i, p := range f.proxies {
			f.stopProxy(i)
			f.proxies[i] = f.startProxy(i, flag, p.folder)
			lab.Must(f, f.proxies[i].load())
		}
	}
	f.hashPorts()
	f.publish("1 2 3")
	for _, e := range incidents {
		for _, family := range inet.Families {
			t.Run(strings.TrimSuffix(e.name, ".")+", "+family.String(), func(t *testing.T) {
				f.T = t
				lost, of := f.play(e, family, connections)
				t.Logf("%d of %d connections are lost", lost, of)
				if lost > e.most || of < connections/2 {
					t.Errorf("%d of %d connections are lost, want at most %d", lost, of, e.most)
				}
			})
		}
	}
}
