package conntrack

import (
	"net/netip"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestFlowsOfRanges: each row is a flow from its destination port to its server, and whether it is stale.
func TestFlowsOfRanges(t *testing.T) {
	vip, pod, other := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("10.244.0.2")
	key := func(first, last uint16) model.Key {
		return model.Key{Addr: vip, Port: first, Last: last, Protocol: inet.UDP}
	}
	var d Desired
	d.Frontend(key(100, 200), serving([]netip.AddrPort{netip.AddrPortFrom(pod, 0)}))
	d.Frontend(key(150, 0), serving([]netip.AddrPort{netip.AddrPortFrom(other, 150)}))
	d.Frontend(key(300, 400), plan.FlowPolicy{
		Endpoints: []netip.AddrPort{netip.AddrPortFrom(pod, 0)},
		Sources:   &model.Sources{Allowed: []model.AddrRange{}}, BeforeNodePorts: true,
	})
	d.Nodes[inet.IPv4] = []netip.Addr{vip}
	for _, port := range []uint16{180, 310} {
		d.Frontend(model.Key{Port: port, Protocol: inet.UDP}, serving([]netip.AddrPort{netip.AddrPortFrom(other, port)}))
	}
	d.Gone(key(500, 600))
	d.Gone(key(150, 500)) // it was replaced by other ranges
	d.Gone(key(170, 0))
	for _, tc := range []struct {
		port      uint16
		to        netip.AddrPort
		unreplied bool
		stale     bool
	}{
		{100, netip.AddrPortFrom(pod, 100), false, false},
		{200, netip.AddrPortFrom(pod, 200), false, false},
		{200, netip.AddrPortFrom(other, 200), false, true},
		{120, netip.AddrPortFrom(pod, 121), false, true},
		{99, netip.AddrPortFrom(other, 99), false, false},
		{150, netip.AddrPortFrom(other, 150), false, false},
		{150, netip.AddrPortFrom(pod, 150), false, true},
		{170, netip.AddrPortFrom(pod, 170), false, false}, // the range serves the port of the deleted Service
		{170, netip.AddrPortFrom(other, 170), false, true},
		{180, netip.AddrPortFrom(other, 180), false, false}, // a node port precedes the range
		{180, netip.AddrPortFrom(pod, 180), false, true},
		{250, netip.AddrPortFrom(pod, 250), false, true},
		{300, netip.AddrPortFrom(pod, 300), false, false},
		{300, netip.AddrPortFrom(pod, 300), true, true},
		{310, netip.AddrPortFrom(pod, 310), false, false}, // the range precedes a node port
		{310, netip.AddrPortFrom(other, 310), false, true},
		{555, netip.AddrPortFrom(pod, 555), false, true},
		{555, netip.AddrPortFrom(vip, 555), false, false},
		{601, netip.AddrPortFrom(pod, 601), false, false},
	} {
		f := &Flow{Protocol: inet.UDP, Source: netip.MustParseAddrPort("192.0.2.9:9"), Destination: netip.AddrPortFrom(vip, tc.port), Server: tc.to, DNAT: tc.to.Addr() != vip, Replied: !tc.unreplied}
		lab.Same(t, tc.stale, d.Stale(f), "flow to %d at %s, unreplied %v: stale", tc.port, tc.to, tc.unreplied)
		{
			tcp := *f
			if tcp.Protocol = inet.TCP; d.Stale(&tcp) {
				t.Errorf("TCP connection to %d is stale", tc.port)
			}
		}
	}
	departed := &Departed{}
	departed.Add(pod)
	var later Desired
	tcp := func(k model.Key) model.Key { k.Protocol = inet.TCP; return k }
	later.Terminate(tcp(key(100, 200)), departed)
	later.Terminate(tcp(key(160, 0)), departed)
	later.Exempt(tcp(key(150, 0)))
	later.Exempt(tcp(key(160, 0)))
	d.merge(&later)
	for port, want := range map[uint16]bool{99: false, 100: true, 150: false, 160: true, 200: true, 201: false} {
		f := &Flow{Protocol: inet.TCP, Destination: netip.AddrPortFrom(vip, port), Server: netip.AddrPortFrom(pod, port), DNAT: true, Replied: true, Established: true}
		lab.Same(t, want, d.Stale(f), "a connection to port %d and a departed endpoint: stale", port)
	}
	d.forgetGone()
	if f := (&Flow{Protocol: inet.UDP, Destination: netip.AddrPortFrom(vip, 555), Server: netip.AddrPortFrom(pod, 555), DNAT: true}); d.Stale(f) {
		t.Error("a flow to a forgotten range is stale")
	}
	to, server := netip.AddrPortFrom(vip, 180), netip.AddrPortFrom(other, 180)
	if f := (&Flow{Protocol: inet.UDP, Destination: to, Server: server, DNAT: true}); d.Stale(f) {
		t.Error("a flow to a node port is stale after a request without addresses of the node")
	}
}
