package matrix

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/oracle"
)

// outcome is the result of one connection: refused, dropped, echoed, or "HOST from SOURCE", in which SOURCE is kept, node, or an
// unexpected address.
type outcome string

const (
	refused outcome = "refused"
	dropped outcome = "dropped"
	echoed  outcome = "echoed"
)

const (
	kept     = "kept"
	fromNode = "node"
)

func reached(host, source string) outcome { return outcome(host + " from " + source) }

// wanted is the expected result of a cell: one verdict for all connections, or a set of endpoints, each of which gets some of the
// connections. With session affinity, one of these endpoints gets all connections.
type wanted struct {
	verdict   outcome
	endpoints map[string]outcome
}

// outcomes lists the possible outcomes, in order.
func (w wanted) outcomes() []outcome {
	if w.verdict != "" {
		return []outcome{w.verdict}
	}
	return slices.Sorted(maps.Values(w.endpoints))
}

// endpoint returns the endpoint of an outcome.
func (w wanted) endpoint(o outcome) string {
	for host, outcome := range w.endpoints {
		if outcome == o {
			return host
		}
	}
	return ""
}

func (w wanted) String() string { return list(w.outcomes()) }

func list(outcomes []outcome) string {
	var words []string
	for _, o := range outcomes {
		words = append(words, string(o))
	}
	return strings.Join(words, " | ")
}

// want returns the result that the oracle predicts for a cell.
func want(c cell) wanted {
	name, _ := c.host()
	from := lab.AddressOf(name, c.family)
	if c.client == secondary {
		from = secondaries[c.family]
	}
	v := oracleOf(c.mode).Ask(oracle.Packet{
		From: from, Device: c.mode.device(name), To: c.to(numbers()[c.service]), Protocol: apiProtocol(c.protocol),
	})
	switch v.Outcome {
	case oracle.Refused:
		return wanted{verdict: refused}
	case oracle.Echoed:
		return wanted{verdict: echoed}
	case oracle.Dropped, oracle.NotService: // the default route leads to the external client, which has no such address
		return wanted{verdict: dropped}
	}
	if !c.service.affinity {
		v = v.ForNewClient()
	}
	w := wanted{endpoints: map[string]outcome{}}
	for _, e := range v.Endpoints {
		host := nameOf(e.Addr())
		w.endpoints[host] = arrival(host, e.Sees, from)
	}
	return w
}

// numbers are the positions of the Services, which determine their addresses.
var numbers = sync.OnceValue(func() map[service]int {
	all := map[service]int{}
	for i, s := range services() {
		all[s] = i
	}
	return all
})

func nameOf(addr netip.Addr) string {
	for _, name := range hostNames {
		if lab.AddressOf(name, inet.FamilyOf(addr)) == addr {
			return name
		}
	}
	return addr.String()
}

// arrival returns the outcome at an endpoint that sees a source address; dropped if the endpoint does not get the packet.
func arrival(host string, sees, from netip.Addr) outcome {
	switch {
	case !sees.IsValid():
		return dropped
	case sees == lab.AddressOf("node", inet.FamilyOf(sees)):
		return reached(host, fromNode)
	case sees == from:
		return reached(host, kept)
	}
	return reached(host, sees.String())
}

// oracles holds one oracle for each mode.
var oracles sync.Map

func oracleOf(m mode) *oracle.Oracle {
	if o, ok := oracles.Load(m); ok {
		return o.(*oracle.Oracle)
	}
	var all oracle.Objects
	for _, o := range objects(m.choice) {
		switch o := o.(type) {
		case *corev1.Node:
			all.Node = o
		case *corev1.Service:
			all.Services = append(all.Services, o)
		case *discoveryv1.EndpointSlice:
			all.Slices = append(all.Slices, o)
		}
	}
	node := oracle.Machine{
		Name: "node-1", LocalPod: m.localPod(), MasqueradeAll: m.masqueradeAll,
		Out: func(netip.Addr) string { return m.device("client") }, // for addresses of Services
	}
	node.RefuseUnusedPorts, node.AnswerPing = m.vips()
	for f, addr := range secondaries {
		node.Addresses = append(node.Addresses, lab.AddressOf("node", inet.Family(f)), addr)
	}
	o, _ := oracles.LoadOrStore(m, oracle.New(all, node))
	return o.(*oracle.Oracle)
}

// localPod returns a function that reports whether the proxy treats the sender of a packet as a local pod; nil without detection.
// ClusterCIDR contains all pods of the cluster, so the proxy treats pods of other nodes as local, too.
func (m mode) localPod() func(oracle.Packet) bool {
	inside := func(prefixes ...string) func(oracle.Packet) bool {
		return func(p oracle.Packet) bool {
			return slices.ContainsFunc(prefixes, func(s string) bool { return netip.MustParsePrefix(s).Contains(p.From) })
		}
	}
	switch m.detector {
	case byClusterCIDR:
		return inside("10.244.0.0/16", "fd00:10:244::/48")
	case byNodeCIDR:
		return inside("10.244.0.0/24", "fd00:10:244::/64")
	case byBridge:
		return func(p oracle.Packet) bool { return p.Device == bridge }
	case byPrefix:
		return func(p oracle.Packet) bool { return strings.HasPrefix(p.Device, "veth-pod") }
	}
	return nil
}

// device returns the node's interface for a host's packets.
func (m mode) device(host string) string {
	kind, number, _ := strings.Cut(host, "-")
	switch {
	case host == "node":
		return ""
	case kind == "pod" && m.detector == byBridge:
		return bridge
	case kind == "client":
		return "eth0"
	}
	return "veth-" + kind + number
}

// TestWantedOutcomesTellEndpointsApart: different endpoints have different outcomes. Otherwise judge could not compare a client's
// endpoint at one address with that at the next.
func TestWantedOutcomesTellEndpointsApart(t *testing.T) {
	for _, m := range slices.Concat(modes(), rangedModes(), vipModes()) {
		all, _ := groups(m)
		for _, g := range all {
			for _, c := range g {
				w := want(c)
				if (w.verdict == "") == (len(w.endpoints) == 0) {
					t.Errorf("%s: verdict %q, endpoints %v", c, w.verdict, w.endpoints)
				}
				for host, outcome := range w.endpoints {
					if got := w.endpoint(outcome); got != host {
						t.Errorf("%s: %q belongs to %s and %s", c, outcome, host, got)
					}
				}
			}
		}
	}
}
