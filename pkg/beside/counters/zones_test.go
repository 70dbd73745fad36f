package counters

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// counted is a node whose elements of endpoints have counters, with the connections that each zone must have. Each host
// has its own zone.
type counted struct {
	*node
	zones map[string]uint64
	// in has the zone of each host. named has the zones that the EndpointSlices name.
	in    map[string]string
	named map[netip.Addr]string
}

func newCounted(t *testing.T) *counted {
	n := &counted{node: newNode(t), zones: map[string]uint64{}, in: map[string]string{}, named: map[netip.Addr]string{}}
	n.options.CountEndpoints = true
	n.start()
	n.counters.SetZones(func(name types.NamespacedName) map[netip.Addr]string {
		if name != service {
			return nil
		}
		return n.named
	})
	for i, h := range []*lab.Host{n.Pods[0], n.Pods[1], n.Remotes[0]} {
		n.move(h, fmt.Sprintf("zone-%d", i))
	}
	return n
}

// move makes the EndpointSlices name another zone of a host.
func (n *counted) move(h *lab.Host, zone string) {
	n.in[h.Name] = zone
	for _, f := range inet.Families {
		n.named[h.Addr(clusterIP[f])] = zone
	}
}

// connect opens connections to one address of the Service, in both families and with both protocols, and counts the
// zone of the endpoint that answered.
func (n *counted) connect(from *lab.Host, to [2]netip.Addr, port uint16, times int) {
	n.Helper()
	for _, f := range inet.Families {
		for _, proto := range protocols {
			for range times {
				a := from.Probe(n.Context(), proto, netip.AddrPortFrom(to[f], port), lab.Options{})
				if a.Outcome != lab.Answered {
					n.Fatalf("%s -> %s port %d/%s: %s (%v)", from.Name, to[f], port, proto, a, a.Err)
				}
				n.zones[n.in[a.Server]]++
			}
		}
	}
}

func (n *counted) verify(when string) {
	n.Helper()
	if _, err := n.fresh(nil); err != nil {
		n.Fatal(err)
	}
	zones := map[string]uint64{}
	for _, z := range n.counters.Zones() {
		if z.Namespace != service.Namespace || z.Service != service.Name {
			n.Errorf("%s: unexpected zone %+v", when, z)
		}
		zones[z.Zone] = z.Connections
	}
	if diff := cmp.Diff(n.zones, zones); diff != "" {
		n.Fatalf("zones %s (-want +got):\n%s", when, diff)
	}
}

// Each way to an endpoint counts once: random, by hash, by weight, of a remembered client, with a maximum, with
// policy Local.
func TestConnectionsOfZones(t *testing.T) {
	n := newCounted(t)
	all := []*lab.Host{n.Pods[0], n.Pods[1], n.Remotes[0]}
	kind := apply.Full
	for name, s := range map[string]shape{
		"random":           {},
		"maglev":           {method: balance.Method{Key: balance.Flow}},
		"source hash":      {method: balance.Method{Key: balance.Source, Prefixes: [2]uint8{32, 128}}},
		"weighted":         {method: balance.Method{Key: balance.Flow}, weighted: true},
		"affinity":         {affinity: time.Hour},
		"affinity, maglev": {affinity: time.Hour, method: balance.Method{Key: balance.Flow}},
		"maximum":          {most: 1000},
		"policy Local":     {local: true},
		"Local, affinity":  {local: true, affinity: time.Hour},
		"Local, maximum":   {local: true, most: 1000},
	} {
		s.endpoints, s.sources = all, n.firstClient
		n.set(s, kind)
		kind = apply.Partial
		n.connect(n.Pods[0], clusterIP, servicePort, 3)
		n.connect(n.Client, external, servicePort, 2)
		n.connect(n.Client, balanced, servicePort, 2)
		n.connect(n.Client, n.Node.Addrs(), nodePort, 2)
		n.connect(n.Node, clusterIP, servicePort, 1)
		n.verify(name)
	}
}

// A connection to a range of ports counts for the zone of its endpoint, whatever the port and the protocol.
func TestConnectionsOfRangesCountForTheZone(t *testing.T) {
	n := newCounted(t)
	all := []*lab.Host{n.Pods[0], n.Pods[1], n.Remotes[0]}
	kind := apply.Full
	for name, s := range map[string]shape{
		"random": {}, "maglev": {method: balance.Method{Key: balance.Flow}},
		"affinity": {affinity: time.Hour}, "policy Local": {local: true},
	} {
		s.endpoints, s.sources, s.ranged = all, n.firstClient, true
		n.set(s, kind)
		kind = apply.Partial
		n.connect(n.Pods[0], clusterIP, podPort, 3)
		n.connect(n.Client, external, podPort, 2)
		n.connect(n.Client, balanced, podPort, 2)
		n.verify(name)
	}
}

// Counts survive changes of the Service, without a reading between them, and full syncs.
func TestCountsOfZonesSurviveChanges(t *testing.T) {
	n := newCounted(t)
	all := []*lab.Host{n.Pods[0], n.Pods[1], n.Remotes[0]}
	n.set(shape{endpoints: all[:1], sources: allSources}, apply.Full)
	n.connect(n.Pods[0], clusterIP, servicePort, 2)
	for i, s := range []shape{
		{endpoints: all}, {endpoints: all, affinity: time.Hour}, {endpoints: all, affinity: time.Minute}, {endpoints: all, most: 100}, {endpoints: all, most: 50},
		{endpoints: all, method: balance.Method{Key: balance.Flow}}, {endpoints: all[:2]}, {endpoints: all[:2], local: true},
	} {
		s.sources = allSources
		n.set(s, apply.Partial)
		n.connect(n.Pods[0], clusterIP, servicePort, 2)
		if i%3 == 2 {
			n.planner.Rules().SetLocalPods(inet.IPv4, plan.LocalPods{Prefix: netip.PrefixFrom(n.Pods[0].IPv4, 17+i%2).Masked()})
			n.sync(apply.Full)
		}
	}
	n.verify("after all changes")

	// A zone keeps the count of an endpoint that left.
	n.set(shape{endpoints: all[:1], sources: allSources}, apply.Partial)
	n.verify("after endpoints left")
	for at := range n.counters.endpoints.known {
		if at.addr != all[0].IPv4 && at.addr != all[0].IPv6 {
			t.Errorf("%s left, and is known", at.addr)
		}
	}

	// Another pod gets the address in another zone, before the next reading.
	n.set(shape{endpoints: nil, sources: allSources}, apply.Partial)
	n.move(n.Pods[0], "zone-9")
	n.set(shape{endpoints: all[:1], sources: allSources}, apply.Partial)
	n.connect(n.Pods[1], clusterIP, servicePort, 2)
	n.verify("after the address moved")
}

// A Service has at most 16 zones with names, and one for all others. The zone of an endpoint in no slice is unknown.
func TestZonesAreLimited(t *testing.T) {
	s, names := newEndpoints(nil), map[string]uint64{otherZones: 7, unknownZone: 2}
	for i := range mostZones + 3 {
		at := endpoint{"shop/cart", netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}
		s.count(at, 1, 1)
		found := map[netip.Addr]string{at.addr: fmt.Sprint("zone-", i)}
		if i == 3 {
			clear(found)
		}
		s.settle(at, s.known[at], found)
		s.settle(at, s.known[at], nil) // it leaves the slices, and keeps its zone
		s.count(at, 1, 1)
		if i < mostZones && i != 3 {
			names[fmt.Sprint("zone-", i)] = 2
		}
	}
	again := endpoint{"shop/cart", netip.MustParseAddr("10.0.0.200")}
	s.count(again, 1, 1)
	s.settle(again, s.known[again], map[netip.Addr]string{again.addr: "zone-99"})
	lab.Same(t, names, s.zones["shop/cart"].by, "zones")
}

// A connection above the maximum of its endpoint does not count for the zone.
func TestConnectionsAboveTheMaximumDoNotCountForTheZone(t *testing.T) {
	n := newCounted(t)
	n.set(shape{endpoints: n.Pods[:1], sources: allSources, most: 1, at: model.Refuse}, apply.Full)
	for _, f := range inet.Families {
		conn, err := n.Pods[1].Dial(t.Context(), inet.TCP, netip.AddrPortFrom(clusterIP[f], servicePort))
		lab.Must(t, err)
		defer conn.Close()
		for _, outcome := range []lab.Outcome{lab.TimedOut, lab.Refused} {
			a := n.Pods[1].Probe(t.Context(), inet.TCP, netip.AddrPortFrom(clusterIP[f], servicePort), lab.Options{Timeout: patience(outcome)})
			if a.Outcome != outcome {
				t.Fatalf("%s: %s (%v), want %s", f, a, a.Err, outcome)
			}
		}
		n.zones[n.in[n.Pods[0].Name]]++
	}
	n.verify("at the maximum")
}
