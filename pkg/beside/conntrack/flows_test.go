package conntrack

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// searching is a plan whose flows are searched.
type searching struct {
	*Flows
	planner *plan.Planner
	synced  bool
	settled int
}

// newSearching returns a plan after a start at which an earlier process has left frontends.
func newSearching(earlier ...model.Key) *searching {
	s := &searching{planner: plan.New(plan.Options{Families: inet.Families[:]})}
	s.Flows = NewFlows(FlowsConfig{
		To: New(Config{}), Planned: s.planner.Flows(),
		Earlier: earlier, Change: func(change func()) {
			s.settled++
			change()
		},
	})
	s.node("192.0.2.1")
	return s
}

// start plans Services before the first sync.
func (s *searching) start(set func()) *Desired {
	s.planner.Begin(nil, nil, func([]types.NamespacedName) { set() })
	return s.sync(apply.Full)
}

// set plans a Service with endpoints.
func (s *searching) set(name string, protocol corev1.Protocol, mutate func(*corev1.Service), endpoints ...string) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
		Ports: []corev1.ServicePort{{Name: "x", Protocol: protocol, Port: 53}},
	}}
	if mutate != nil {
		mutate(svc)
	}
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("x"), Protocol: &protocol, Port: new(int32(8053))}},
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{e}})
	}
	m := model.Build(model.Objects{
		Service: svc, Slices: []*model.Slice{model.NewSlice(slice, model.Limits{}, model.Stored{})},
	}, model.Node{Name: "node-1"}, model.Options{})
	s.planner.Set(m.Name, m)
}

func (s *searching) remove(name string) {
	n := types.NamespacedName{Namespace: "shop", Name: name}
	s.planner.Set(n, nil)
}

// node reads a node with addresses.
func (s *searching) node(addrs ...string) {
	n := &beside.Node{}
	for _, a := range addrs {
		n.Addresses[0] = append(n.Addresses[0], netip.MustParseAddr(a))
	}
	s.planner.SetNodeAddresses(inet.IPv4, n.Addresses[0])
	s.Node(n)
}

// sync ends a successful sync, and returns the request, or nil if there was none.
func (s *searching) sync(kind apply.Kind) *Desired {
	s.Synced(&beside.Sync{First: !s.synced, Result: apply.Result{Kind: kind}})
	s.synced = true
	d, _ := s.To.take()
	return d
}

// stale reports whether a flow is stale by a request.
func (d *Desired) stale(p inet.Protocol, at, server string) bool {
	f := flow(p, at, server)
	f.Replied = p == inet.UDP
	return d != nil && d.Stale(&f)
}

func TestFlowsOfChangedFrontendsAreSearched(t *testing.T) {
	s := newSearching()
	first := s.start(func() { s.set("dns", corev1.ProtocolUDP, nil, "10.244.1.1", "10.244.1.2") })
	if first == nil || !first.Urgent {
		t.Fatalf("after the first sync: %+v, want a request for all flows", first)
	}
	if d := s.sync(apply.Partial); d != nil {
		t.Errorf("after a sync without a change: %+v, want no request", d)
	}
	s.set("web", corev1.ProtocolTCP, func(svc *corev1.Service) { svc.Spec.ClusterIP, svc.Spec.ClusterIPs[0] = "10.96.0.2", "10.96.0.2" }, "10.244.2.1")
	if d := s.sync(apply.Partial); d == nil || d.Urgent {
		t.Errorf("a TCP Service led to %+v, want a request that is not urgent", d)
	}
	stale := func(d *Desired, server string) bool { return d.stale(inet.UDP, "10.96.0.1:53", server) }
	s.set("dns", corev1.ProtocolUDP, nil, "10.244.1.2")
	if d := s.sync(apply.Partial); !stale(d, "10.244.1.1:8053") || stale(d, "10.244.1.2:8053") {
		t.Errorf("after an endpoint was removed: %+v, want a request in which only its flows are stale", d)
	}
	s.Synced(&beside.Sync{Err: context.Canceled})
	s.remove("dns")
	if d := s.sync(apply.Partial); !stale(d, "10.244.1.2:8053") {
		t.Errorf("after the Service was deleted: %+v, want a request in which its flows are stale", d)
	}
	if d := s.sync(apply.Full); d == nil || !d.Urgent {
		t.Errorf("after a repair: %+v, want a request for all flows", d)
	}
}

// A deleted UDP frontend leaves the plan when its flows are deleted, not before.
func TestDeletedFrontendsSettle(t *testing.T) {
	s := newSearching()
	s.start(func() { s.set("dns", corev1.ProtocolUDP, nil, "10.244.1.1") })
	s.remove("dns")
	s.sync(apply.Partial)
	deleted := func() (n int) {
		s.planner.Elements(func(e *nft.Element) {
			if e.Set.Family == inet.IPv4 && e.Set.Name == plan.DeletedUDPSet {
				n++
			}
		})
		return n
	}
	for range 3 {
		s.Serve(true)
	}
	if deleted() != 1 || s.settled != 0 {
		t.Errorf("before the pass: %d deleted frontends, settled %d times; want 1 and 0", deleted(), s.settled)
	}
	s.To.handled = s.To.number
	s.Serve(false)
	lab.Same(t, 0, s.settled, "settled while another instance serves")
	s.Serve(true)
	s.Serve(true)
	if deleted() != 0 || s.settled != 1 || len(s.owed) > 0 {
		t.Errorf("after the pass: %d deleted frontends, settled %d times; want 0 and 1", deleted(), s.settled)
	}
}

// If a Service was deleted while no process ran, its flows are found by the frontends in the earlier tables. Flows of
// another program stay, even to an address of a ServiceCIDR, for example to a Service of another proxy.
func TestFlowsOfServicesDeletedDuringDowntime(t *testing.T) {
	stale := func(d *Desired, at string) bool { return d.stale(inet.UDP, at, "10.244.1.1:8053") }
	s := newSearching(key(inet.UDP, "10.96.0.77:53"), key(inet.UDP, "10.96.0.1:53"))
	d := s.start(func() { s.set("dns", corev1.ProtocolUDP, nil, "10.244.1.1") })
	if !stale(d, "10.96.0.77:53") || stale(d, "10.96.0.1:53") || stale(d, "10.96.0.200:53") {
		t.Errorf("%+v, want a request in which only flows to the deleted frontend are stale", d)
	}
	s.set("dns", corev1.ProtocolUDP, nil, "10.244.1.1", "10.244.1.2")
	if d := s.sync(apply.Partial); d == nil || stale(d, "10.96.0.77:53") {
		t.Errorf("later: %+v, want a request without the frontends that were deleted before the start", d)
	}
}

// A slow read of earlier tables does not delay the start.
func TestSlowReadOfEarlierFrontends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		endless := make(chan struct{})
		begun := time.Now()
		got := ReadEarlier(t.Context(), func() ([]model.Key, error) { <-endless; return nil, nil })
		if waited := time.Since(begun); got != nil || waited != patienceWithEarlier {
			t.Errorf("%v after %v", got, waited)
		}
		close(endless)
		want := []model.Key{key(inet.UDP, "10.96.0.77:53")}
		if got := ReadEarlier(t.Context(), func() ([]model.Key, error) { return want, nil }); len(got) != 1 || got[0] != want[0] {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// Packets to a node port at an address that is not served yet are not translated. Once the address is served, flows and
// SYNs to its node ports are stale. Flows to other addresses are not searched.
func TestANodeAddressIsAdded(t *testing.T) {
	s := newSearching()
	s.start(func() {
		for i, p := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
			s.set("np-"+string(p), p, func(svc *corev1.Service) {
				ip := netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + i)}).String()
				svc.Spec.Type, svc.Spec.Ports[0].NodePort, svc.Spec.ClusterIP = corev1.ServiceTypeNodePort, 30080, ip
				svc.Spec.ClusterIPs[0] = ip
			}, "10.244.1.1")
		}
	})
	s.node("192.0.2.1", "fe80::1")
	if d := s.sync(apply.Partial); d != nil {
		t.Errorf("a link-local address led to %+v", d)
	}
	s.node("192.0.2.1", "192.0.2.2")
	d := s.sync(apply.Partial)
	stale := func(p inet.Protocol, at string) bool {
		f := flow(p, at, at)
		return d != nil && d.Stale(&f)
	}
	for _, p := range []inet.Protocol{inet.UDP, inet.TCP} {
		if !stale(p, "192.0.2.2:30080") || stale(p, "192.0.2.3:30080") || stale(p, "10.96.0.1:53") {
			t.Errorf("%s: %+v, want that flows to the node port at the new address are stale, and no others", p, d)
		}
	}
}

// A change of source ranges affects unreplied flows of every protocol.
func TestFlowsOfSourcesThatAreNoLongerAllowed(t *testing.T) {
	for _, p := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		s := newSearching()
		set := func(ranges ...string) {
			s.set("lb", p, func(svc *corev1.Service) {
				svc.Spec.Type, svc.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, ranges
				svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}}
			}, "10.244.1.1")
		}
		s.start(func() { set() })
		number := map[corev1.Protocol]inet.Protocol{corev1.ProtocolUDP: inet.UDP, corev1.ProtocolTCP: inet.TCP}[p]
		f := flow(number, "203.0.113.5:53", "10.244.1.1:8053") // from 10.244.0.99
		set("10.244.0.0/24")
		if d := s.sync(apply.Partial); d == nil || d.Stale(&f) {
			t.Errorf("%s: after ranges were added that allow the client: %+v, want a request that leaves its flow", p, d)
		}
		set("198.51.100.0/24")
		if d := s.sync(apply.Partial); d == nil || !d.Stale(&f) {
			t.Errorf("%s: after the ranges were narrowed: %+v, want a request in which its flow is stale", p, d)
		}
	}
}
