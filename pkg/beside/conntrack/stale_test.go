package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

var (
	addr     = netip.MustParseAddr
	addrPort = netip.MustParseAddrPort
)

// key parses the key of a frontend, such as 10.0.0.1:53. 0.0.0.0:53 and [::]:53 are node ports.
func key(p inet.Protocol, s string) model.Key {
	at := addrPort(s)
	k := model.Key{Addr: at.Addr(), Port: at.Port(), Protocol: p, Family: inet.FamilyOf(at.Addr())}
	if k.Addr.IsUnspecified() {
		k.Addr = netip.Addr{}
	}
	return k
}

func endpoints(list ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range list {
		out = append(out, addrPort(s))
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// desired returns the state of services with endpoints, without endpoints, and deleted. Each kind includes a node port.
func desired() *Desired {
	d := &Desired{}
	for _, p := range []inet.Protocol{inet.UDP, inet.TCP, inet.SCTP} {
		two := endpoints("10.244.0.11:53", "10.244.0.10:53", "10.96.0.7:7")
		d.Frontend(key(p, "10.96.0.1:53"), serving(two))
		d.Frontend(key(p, "10.96.0.7:7"), serving(two))
		d.Frontend(key(p, "0.0.0.0:30053"), serving(two))
		d.Frontend(key(p, "[fd00::1]:53"), serving(endpoints("[fd00::10]:53")))
		d.Frontend(key(p, "10.96.0.2:53"), serving(nil))
		d.Frontend(key(p, "0.0.0.0:30054"), serving(nil))
		d.Gone(key(p, "10.96.0.3:53"))
		d.Gone(key(p, "0.0.0.0:30055"))
	}
	d.Nodes[inet.IPv4] = []netip.Addr{addr("192.0.2.1"), addr("192.0.2.9")}
	d.Networks[inet.IPv4] = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	return d
}

// serving returns the policy of a frontend with some endpoints.
func serving(endpoints []netip.AddrPort) plan.FlowPolicy {
	return plan.FlowPolicy{Endpoints: endpoints}
}

func flow(p inet.Protocol, to, server string) Flow {
	f := Flow{Protocol: p, Source: addrPort("10.244.0.99:4000"), Destination: addrPort(to), Server: addrPort(server)}
	if f.Destination.Addr().Is6() {
		f.Source = addrPort("[fd00::99]:4000")
	}
	f.Client, f.DNAT = f.Source, to != server
	return f
}

func TestStale(t *testing.T) {
	replied := func(f *Flow) { f.Replied = true }
	for _, tc := range []struct {
		name       string
		to, server string
		change     func(*Flow)
		// expected result for UDP; for TCP and SCTP, it applies only to flows without replies
		udp bool
	}{
		{name: "a present endpoint", to: "10.96.0.1:53", server: "10.244.0.10:53"},
		{name: "another present endpoint", to: "10.96.0.1:53", server: "10.244.0.11:53", change: replied},
		{name: "IPv6, present", to: "[fd00::1]:53", server: "[fd00::10]:53"},
		{name: "a removed endpoint", to: "10.96.0.1:53", server: "10.244.0.12:53", udp: true},
		{name: "a removed endpoint that answered", to: "10.96.0.1:53", server: "10.244.0.12:53", change: replied, udp: true},
		{name: "an endpoint's other port", to: "10.96.0.1:53", server: "10.244.0.10:54", udp: true},
		{name: "IPv6, removed", to: "[fd00::1]:53", server: "[fd00::11]:53", udp: true},
		{
			name: "translated by ipvs, without the flag", to: "10.96.0.1:53", server: "10.244.0.12:53",
			change: func(f *Flow) { f.DNAT = false }, udp: true,
		},
		{
			name: "translated in another zone", to: "10.96.0.1:53", server: "10.244.0.12:53",
			change: func(f *Flow) { f.Zone = 5 }, udp: true,
		},
		{name: "opened before there were endpoints", to: "10.96.0.1:53", server: "10.96.0.1:53", udp: true},
		{
			name: "opened before there were endpoints, and answered", to: "10.96.0.1:53", server: "10.96.0.1:53",
			change: replied, udp: true,
		},
		{
			name: "not translated, in the zone of a bridge", to: "10.96.0.1:53", server: "10.96.0.1:53", change: func(f *Flow) { f.Zone = 65520 },
		},
		{
			name: "an endpoint that has the frontend's address", to: "10.96.0.7:7", server: "10.96.0.7:7",
		},
		{name: "service scaled to zero", to: "10.96.0.2:53", server: "10.244.0.10:53", change: replied, udp: true},
		{name: "no endpoints, and opened without rules", to: "10.96.0.2:53", server: "10.96.0.2:53", udp: true},
		{name: "no endpoints, but replies", to: "10.96.0.2:53", server: "10.96.0.2:53", change: replied},
		{name: "service deleted", to: "10.96.0.3:53", server: "10.244.0.10:53", change: replied, udp: true},
		{name: "service deleted, never translated", to: "10.96.0.3:53", server: "10.96.0.3:53"},
		{name: "node port, present", to: "192.0.2.1:30053", server: "10.244.0.10:53"},
		{name: "node port, removed", to: "192.0.2.9:30053", server: "10.244.0.12:53", udp: true},
		{name: "node port, never translated", to: "192.0.2.9:30053", server: "192.0.2.9:30053", udp: true},
		{name: "node port, scaled to zero", to: "192.0.2.9:30054", server: "10.244.0.12:53", udp: true},
		{name: "node port deleted", to: "192.0.2.9:30055", server: "10.244.0.12:53", udp: true},
		{name: "another node's node port, present", to: "192.0.2.2:30053", server: "10.244.0.10:53"},
		{name: "another node's node port, removed", to: "192.0.2.2:30053", server: "10.244.0.12:53", udp: true},
		{name: "another node's node port, deleted", to: "192.0.2.2:30055", server: "10.244.0.12:53", udp: true},
		{name: "another node's node port, only forwarded", to: "192.0.2.2:30053", server: "192.0.2.2:30053"},
		{name: "a node port's number at another machine", to: "198.51.100.1:30053", server: "198.51.100.1:30053"},
		{name: "a node port's number, translated by another program", to: "198.51.100.1:30053", server: "10.9.9.9:53"},
		{name: "a frontend's address, other port", to: "10.96.0.1:54", server: "10.244.0.12:53"},
		{name: "unrelated", to: "203.0.113.5:53", server: "203.0.113.5:53"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, want := map[inet.Protocol]bool{}, map[inet.Protocol]bool{}
			for _, p := range []inet.Protocol{inet.UDP, inet.TCP, inet.SCTP} {
				f := flow(p, tc.to, tc.server)
				if tc.change != nil {
					tc.change(&f)
				}
				got[p], want[p] = desired().Stale(&f), tc.udp && (p == inet.UDP || !f.Replied)
			}
			lab.Same(t, want, got, "stale")
		})
	}
}

// A flow without replies is in state new, in which kube-proxy's rules check the source of each packet.
func TestSourcesThatAreNotAllowed(t *testing.T) {
	prefixes := func(list ...string) []model.AddrRange {
		out := []model.AddrRange{}
		for _, s := range list {
			out = append(out, model.RangeOf(netip.MustParsePrefix(s)))
		}
		return out
	}
	ranges := prefixes("10.0.0.0/8", "10.245.0.0/32", "192.0.2.128/25", "198.51.100.7/32")[1:]
	for _, tc := range []struct {
		name, source, server string
		change               func(*Flow)
		allowed, denied      []model.AddrRange
		want                 bool
	}{
		{name: "no ranges", source: "203.0.113.9:4000"},
		{name: "in the first range", source: "10.245.0.0:4000", allowed: ranges},
		{name: "first of a range", source: "192.0.2.128:4000", allowed: ranges},
		{name: "last of a range", source: "192.0.2.255:4000", allowed: ranges},
		{name: "in the last range", source: "198.51.100.7:4000", allowed: ranges},
		{name: "before all ranges", source: "10.244.255.255:4000", allowed: ranges, want: true},
		{name: "before a range", source: "192.0.2.127:4000", allowed: ranges, want: true},
		{name: "after a range", source: "192.0.3.0:4000", allowed: ranges, want: true},
		{name: "after all ranges", source: "198.51.100.8:4000", allowed: ranges, want: true},
		{name: "in a denied range", source: "192.0.2.200:4000", denied: ranges, want: true},
		{name: "outside of the denied ranges", source: "192.0.2.127:4000", denied: ranges},
		{name: "allowed and denied", source: "192.0.2.200:4000", allowed: ranges, denied: ranges, want: true},
		{name: "no source is allowed", source: "10.245.0.0:4000", allowed: prefixes(), want: true},
		{name: "answered", source: "203.0.113.9:4000", allowed: ranges, change: func(f *Flow) { f.Replied = true }},
		{name: "translated in another zone", source: "203.0.113.9:4000", allowed: ranges, change: func(f *Flow) { f.Zone = 5 }, want: true},
		{name: "not translated", source: "203.0.113.9:4000", server: "203.0.113.5:514", allowed: ranges, want: true},
		{
			name: "not translated, in the zone of a bridge", source: "203.0.113.9:4000", server: "203.0.113.5:514", allowed: ranges,
			change: func(f *Flow) { f.Zone = 65520 },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := tc.server
			if server == "" {
				server = "10.244.0.10:514"
			}
			for _, p := range []inet.Protocol{inet.UDP, inet.TCP, inet.SCTP} {
				f := flow(p, "203.0.113.5:514", server)
				f.Source = addrPort(tc.source)
				if tc.change != nil {
					tc.change(&f)
				}
				d := &Desired{}
				d.Frontend(key(p, "203.0.113.5:514"), plan.FlowPolicy{
					Endpoints: endpoints("10.244.0.10:514"),
					Sources:   &model.Sources{Allowed: tc.allowed, Denied: tc.denied},
				})
				lab.Same(t, tc.want, d.Stale(&f), "%s: stale", p)
			}
		})
	}
}

// If a source is allowed again during a pass for narrower ranges, the pass keeps its flow. A pass reads UDP entries,
// or entries without replies, only if a request contains frontends that may have stale ones.
func TestSourcesThatAreAllowedAgain(t *testing.T) {
	for _, p := range []inet.Protocol{inet.UDP, inet.TCP} {
		k := key(p, "203.0.113.5:514")
		d, later := &Desired{}, &Desired{}
		policy := serving(endpoints("10.244.0.10:514"))
		later.Frontend(k, policy)
		allowed := model.RangeOf(netip.MustParsePrefix("192.0.2.0/24"))
		policy.Sources = &model.Sources{Allowed: []model.AddrRange{allowed}}
		d.Frontend(k, policy)
		f := flow(p, "203.0.113.5:514", "10.244.0.10:514")
		if !d.Stale(&f) || d.welcomes(&f) || !later.welcomes(&f) {
			t.Errorf("%s: stale %v, welcome %v, later %v", p, d.Stale(&f), d.welcomes(&f), later.welcomes(&f))
		}
		want := []Selection{UDP}
		if p != inet.UDP {
			want = []Selection{Unreplied}
		}
		lab.Same(t, want, d.selections(), "%s: selections", p)
		d.merge(later)
		if d.Stale(&f) {
			t.Errorf("%s: stale after the request that allows the source", p)
		}
		gone := &Desired{}
		gone.Gone(k)
		d.merge(gone)
		d.forgetGone()
		if d.selections() != nil || d.count[inet.IPv4] != 0 {
			t.Errorf("%s: %d frontends are left, selections %v", p, d.count[inet.IPv4], d.selections())
		}
	}
}

func TestLaterRequestsOverrideEarlierOnes(t *testing.T) {
	k, other := key(inet.UDP, "10.96.0.1:53"), key(inet.UDP, "10.96.0.2:53")
	was := endpoints("10.244.0.1:53")
	old := flow(inet.UDP, "10.96.0.1:53", "10.244.0.1:53")
	oldOther := flow(inet.UDP, "10.96.0.2:53", "10.244.0.1:53")
	var d, removed, back Desired
	d.Frontend(k, serving(was))
	d.Frontend(other, serving(was))
	removed.Gone(k)
	back.Frontend(k, serving(was))
	say := func(want ...bool) {
		t.Helper()
		lab.Same(t, want, []bool{d.Stale(&old), d.Stale(&oldOther)}, "stale, other stale")
	}
	say(false, false)
	d.merge(&removed)
	say(true, false)
	d.merge(&back)
	say(false, false)
	if d.count[inet.IPv4] != 2 || d.gone != 0 {
		t.Errorf("%d frontends, %d gone; want 2, 0", d.count[inet.IPv4], d.gone)
	}
	d.merge(&removed)
	d.forgetGone()
	say(false, false)
	if d.count[inet.IPv4] != 1 || d.gone != 0 {
		t.Errorf("%d frontends, %d gone; want 1, 0", d.count[inet.IPv4], d.gone)
	}
}

func TestStaleAllocatesNothing(t *testing.T) {
	d := desired()
	gone, np := flow(inet.UDP, "10.96.0.1:53", "10.244.0.12:53"), flow(inet.TCP, "192.0.2.9:30053", "192.0.2.9:30053")
	if n := lab.Allocations(func() {
		if !d.Stale(&gone) || !d.Stale(&np) {
			t.Fatal("not stale")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// BenchmarkDesired measures the work of the syncing goroutine for 1,000 changed UDP frontends: it records the
// changes, and merges them into a pending request.
func BenchmarkDesired(b *testing.B) {
	const frontends = 1000
	keys, served := make([]model.Key, frontends), endpoints("10.244.0.1:53", "10.244.0.2:53")
	for i := range keys {
		keys[i] = model.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 53, Protocol: inet.UDP}
	}
	r := New(Config{})
	b.ReportAllocs()
	for b.Loop() {
		d := &Desired{}
		for _, k := range keys {
			d.Frontend(k, serving(served))
		}
		r.Request(d)
	}
}
