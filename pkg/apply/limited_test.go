package apply

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// limited returns a Service with a connection limit of each endpoint.
func limited(i int, method string, most uint16, endpoints ...int) *model.Service {
	s := sticky(i, 0, endpoints...)
	for _, p := range s.Ports {
		p.Method, _ = balance.Parse(method)
		p.MaxConnections, p.AtMaximum = most, model.Refuse
	}
	return s
}

// offer sends a packet of each of some clients, and returns the endpoints of the clients whose packets arrived.
func (w *wire) offer(f inet.Family, first, clients int, to netip.AddrPort) map[int]netip.AddrPort {
	w.Helper()
	const last = 1 << 24 // this client's packet is addressed to a pod, and is the last to arrive
	for i := range clients {
		w.send(f, first+i, to)
	}
	w.send(f, last, pod(f, 9999))
	got := map[int]netip.AddrPort{}
	for {
		i, at, ok := w.read(5 * time.Second)
		if !ok {
			w.Fatal("the last packet did not arrive")
		}
		if i == last {
			return got
		}
		got[i] = at
	}
}

// perEndpoint counts the clients of each endpoint.
func perEndpoint(of map[int]netip.AddrPort) map[netip.AddrPort]int {
	n := map[netip.AddrPort]int{}
	for _, e := range of {
		n[e]++
	}
	return n
}

// finish ends the connections of a family to an endpoint, and returns their number.
func (w *wire) finish(f inet.Family, endpoint netip.AddrPort) (n uint) {
	w.Helper()
	filter := &netlink.ConntrackFilter{}
	w.must(filter.AddIP(netlink.ConntrackReplySrcIP, endpoint.Addr().AsSlice()))
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.Number()), filter)
	w.must(err)
	return n
}

// occupy offers connections until the endpoints have accepted n, and returns the endpoints of the clients. Each round has new clients, as if dropped
// or refused clients retried with another port.
func (w *wire) occupy(f inet.Family, n int, destinations []netip.AddrPort) map[int]netip.AddrPort {
	w.Helper()
	w.port++
	of := map[int]netip.AddrPort{}
	first := 0
	eventually(w, func() bool {
		for _, to := range destinations {
			for i, e := range w.offer(f, first, 64, to) {
				of[i] = e
			}
			first += 64
		}
		return len(of) >= n
	})
	return of
}

// Each endpoint reaches its connection limit, at all addresses of a Service together. After the connections of an
// endpoint have ended, new connections fill all their places: the endpoint does not count clients that found it full
// and reached another endpoint.
func TestEndpointsGetTheirMaximumOfConnections(t *testing.T) {
	cases := []*model.Service{
		limited(0, "random", 5, 0, 1, 2),
		limited(1, "random", 20, 10),
		limited(2, "maglev", 30, 20, 21, 22, 23),
		limited(3, "source-hash", 5, 30, 31, 32),
		limited(4, "source-hash/24,56", 1, 40, 41),
		limited(5, "random", 3, 50, 51, 52),
		limited(6, "random", 2, numbers(100, 118)...),
	}
	for _, p := range cases[5].Ports {
		p.ClusterWeights = []uint16{1, 2, 4}
	}
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			w, k := newWire(t), open(t)
			mustSync(t, k, newStickyPlanner(cases...), Full)
			for i, s := range cases {
				p := s.Ports[f]
				want, all := map[netip.AddrPort]int{}, 0
				for _, e := range p.Cluster {
					want[e] = int(p.MaxConnections)
					all += int(p.MaxConnections)
				}
				if got := perEndpoint(w.occupy(f, all, destinations(f, i))); !cmp.Equal(want, got, cmp.Comparer(sameAddrPort)) {
					t.Fatalf("%s: connections of each endpoint: %v, want %v", s.Name, got, want)
				}
				for to, over := range destinations(f, i) {
					if got := w.offer(f, 1<<20+64*to, 64, over); len(got) > 0 {
						t.Errorf("%s: all endpoints are full, and %d connections to %s reach %v", s.Name, len(got), over, got)
					}
				}
				if n := w.finish(f, p.Cluster[0]); int(n) != int(p.MaxConnections) {
					t.Fatalf("%s: %d connections ended, want %d", s.Name, n, p.MaxConnections)
				}
				want = map[netip.AddrPort]int{p.Cluster[0]: int(p.MaxConnections)}
				if got := perEndpoint(w.occupy(f, int(p.MaxConnections), destinations(f, i))); !cmp.Equal(want, got, cmp.Comparer(sameAddrPort)) {
					t.Errorf("%s: after the connections of one endpoint have ended, connections reach %v, want %v", s.Name, got, want)
				}
			}
		})
	}
}

func sameAddrPort(a, b netip.AddrPort) bool { return a == b }

// An endpoint in the lists of both policies has one count of connections.
func TestOneCountForBothPolicies(t *testing.T) {
	s := limited(0, "random", 5, 0, 1)
	for _, p := range s.Ports {
		p.Local = slices.Clone(p.Cluster[:1])
		p.Frontends[1].Local = true
	}
	w, k := newWire(t), open(t)
	mustSync(t, k, newStickyPlanner(s), Full)
	for _, f := range inet.Families {
		to := destinations(f, 0)
		here := s.Ports[f].Cluster[0]
		if got := perEndpoint(w.occupy(f, 5, to[1:2])); got[here] != 5 || len(got) != 1 {
			t.Fatalf("%s: policy Local: %v, want 5 connections of %s", f, got, here)
		}
		if got := perEndpoint(w.occupy(f, 5, to[:1])); got[here] != 0 || got[s.Ports[f].Cluster[1]] != 5 {
			t.Errorf("%s: policy Cluster: %v, want only connections of the other endpoint", f, got)
		}
	}
}

// Changes of a Service, a restart and a second planner keep the counts of the endpoints that stay.
func TestCountsSurvive(t *testing.T) {
	w, k := newWire(t), open(t)
	s := limited(0, "random", 5, 0, 1)
	p := newStickyPlanner(s, limited(1, "maglev", 5, 10))
	mustSync(t, k, p, Full)
	for _, f := range inet.Families {
		w.occupy(f, 10, destinations(f, 0))
	}
	full := func(when string, endpoints ...netip.AddrPort) {
		t.Helper()
		for _, f := range inet.Families {
			for range 20 { // some draws
				for _, e := range w.offer(f, 1<<20, 16, destinations(f, 0)[0]) {
					if slices.Contains(endpoints, e) {
						t.Fatalf("%s: %s exceeds its connection limit", when, e)
					}
				}
			}
		}
	}
	old := append(slices.Clone(s.Ports[0].Cluster), s.Ports[1].Cluster...)
	full("before a change", old...)
	s = limited(0, "random", 5, 0, 1, 2)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	full("an endpoint is added", old...)
	s = limited(0, "maglev", 5, 0, 1, 2)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	full("another algorithm", old...)
	s = limited(0, "maglev", 5, 1, 2) // the ids differ from the ids of a first start
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	full("an endpoint is removed", old...)
	restarted := open(t)
	if r := mustSync(t, restarted, resumeSticky(t, restarted, s, limited(1, "maglev", 5, 10)), Adopted); r.Elements != 0 {
		t.Errorf("a restart sends %d elements", r.Elements)
	}
	full("a restart", old...)
}

// An endpoint keeps its count while it gets no connections, also across a restart: while it is not ready, and for a while after it left. With session
// affinity, it has no maximum, and keeps its count.
func TestCountsSurviveAbsence(t *testing.T) {
	ready := func() *model.Service { return limited(0, "random", 5, 0, 1) }
	changed := func(change func(*model.ServicePort)) *model.Service {
		s := ready()
		for _, p := range s.Ports {
			change(p)
		}
		return s
	}
	for name, absent := range map[string]*model.Service{
		"not ready": changed(func(p *model.ServicePort) { p.Cluster, p.Idle = p.Cluster[1:], p.Cluster[:1] }),
		"left":      changed(func(p *model.ServicePort) { p.Cluster = p.Cluster[1:] }),
		"none":      changed(func(p *model.ServicePort) { p.Cluster, p.HasEndpoints = nil, false }),
		"affinity":  changed(func(p *model.ServicePort) { p.Affinity = time.Hour }),
	} {
		t.Run(name, func(t *testing.T) {
			w, k := newWire(t), open(t)
			p := newStickyPlanner(ready())
			mustSync(t, k, p, Full)
			for _, f := range inet.Families {
				w.occupy(f, 10, destinations(f, 0))
			}
			for range 3 {
				p.Set(absent.Name, absent)
				mustSync(t, k, p, Partial)
				k = open(t)
				p = resumeSticky(t, k, absent)
				if r := mustSync(t, k, p, Adopted); r.Elements != 0 {
					t.Fatalf("a restart sends %d elements", r.Elements)
				}
				p.Set(absent.Name, ready())
				mustSync(t, k, p, Partial)
				for _, f := range inet.Families {
					for range 20 { // some draws
						if got := w.offer(f, 1<<20, 16, destinations(f, 0)[0]); len(got) > 0 {
							t.Fatalf("endpoints at their connection limit get more: %v", got)
						}
					}
				}
			}
			lab.Same(t, planned(k, p), inKernel(t, k, p), "elements (-planned +in the kernel)")
		})
	}
}

// An endpoint that left loses its count after two rounds, and an endpoint that is not ready does not.
func TestCountsOfGoneEndpointsEnd(t *testing.T) {
	newWire(t)
	k := open(t)
	s := limited(0, "random", 5, 0, 1, 2)
	p := newStickyPlanner(s)
	mustSync(t, k, p, Full)
	for _, port := range s.Ports {
		port.Idle = port.Cluster[1:2]
		port.Cluster = port.Cluster[:1] // and the third one left
	}
	counts := func() int {
		return strings.Count(run(t, "nft", "list", "map", "ip", "kube-nftproxy", "limited"), "ct count 5")
	}
	for round, want := range []int{3, 3, 2, 2} {
		if names := p.Age(); round > 0 && len(names) != map[bool]int{true: 1}[round == 2] {
			t.Errorf("round %d: Services to plan again: %v", round, names)
		}
		p.Set(s.Name, s)
		lab.Must(t, lab.Err(k.Sync(p)))
		lab.Same(t, want, counts(), "round %d: endpoints have counts", round)
	}
	if names := append(p.Age(), p.Age()...); len(names) > 0 {
		t.Errorf("endpoints that left still have their counts: %v", names)
	}
}

// A change of the maximum resets the counts: earlier connections do not count. Without a maximum, endpoints accept all connections.
func TestMaximumChanges(t *testing.T) {
	w, k := newWire(t), open(t)
	s := limited(0, "random", 2, numbers(0, 150)...)
	p := newStickyPlanner(s)
	mustSync(t, k, p, Full)
	f := inet.IPv4
	to := destinations(f, 0)[:1]
	w.occupy(f, 300, to)
	s = limited(0, "random", 2, numbers(0, 151)...)
	p.Set(s.Name, s)
	mustSync(t, k, p, Partial)
	for _, most := range []uint16{3, 0, 1} {
		s = limited(0, "random", most, numbers(0, 151)...)
		p.Set(s.Name, s)
		mustSync(t, k, p, Partial)
		if diff := cmp.Diff(planned(k, p), inKernel(t, k, p)); diff != "" {
			t.Fatalf("maximum %d: elements (-planned +in the kernel):\n%s", most, diff)
		}
		w.must(netlink.ConntrackTableFlush(netlink.ConntrackTable))
		if most == 0 {
			if got := w.offer(f, 0, 1000, to[0]); len(got) != 1000 {
				t.Errorf("%d of 1000 connections arrive without a maximum", len(got))
			}
			continue
		}
		// For a moment, packets skip an endpoint that was full with the earlier maximum. Later packets find places there.
		got := perEndpoint(w.occupy(f, 151*int(most), to))
		for e, n := range got {
			if n != int(most) {
				t.Errorf("maximum %d: %s has %d connections", most, e, n)
			}
		}
	}
}

// On a kernel without connlimit, a Service has no maximum, and the planner reports this.
func TestWithoutMaximum(t *testing.T) {
	w := newWire(t)
	o := stickyOptions
	o.Lacks.Connlimit = "no connlimit"
	p := plan.New(o)
	s := limited(0, "random", 1, 0, 1)
	setSticky(p, []*model.Service{s})
	mustSync(t, open(t), p, Full)
	if list := run(t, "nft", "list", "ruleset"); strings.Contains(list, "ct count") {
		t.Error("the tables need connlimit")
	}
	if got := w.offer(inet.IPv4, 0, 64, destinations(inet.IPv4, 0)[0]); len(got) != 64 {
		t.Errorf("%d of 64 connections arrive", len(got))
	}
	if got := p.Service(s.Name).Excess(); len(got) != 2 || got[0].Field != model.MaximumField {
		t.Errorf("left out: %v, want the maximum of both families", got)
	}
}
