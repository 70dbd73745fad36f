package apply

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

const stickyNodePort = 30053

// sticky returns a Service of UDP port 53 with session affinity, with a cluster IP, an external IP and a node port, in both families. The
// arguments are its number, the timeout and the numbers of its endpoints.
func sticky(i int, timeout time.Duration, endpoints ...int) *model.Service {
	s := &model.Service{Name: types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("sticky-%d", i)}}
	for _, f := range inet.Families {
		p := &model.ServicePort{
			Name: model.PortName{NamespacedName: s.Name, Port: "dns"}, Protocol: inet.UDP, Family: f,
			Affinity: timeout, HasEndpoints: len(endpoints) > 0,
		}
		for _, e := range endpoints {
			p.Cluster = append(p.Cluster, pod(f, e))
		}
		for k, kind := range []model.Kind{model.ClusterIP, model.ExternalIP, model.NodePort} {
			key := model.Key{Addr: vip(f, 1000*k+i), Port: 53, Protocol: inet.UDP, Family: f}
			if kind == model.NodePort {
				key.Addr, key.Port = netip.Addr{}, uint16(stickyNodePort+i)
			}
			p.Frontends = append(p.Frontends, model.Frontend{Key: key, Kind: kind})
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// destinations returns the destinations of a sticky Service: cluster IP, external IP, node port.
func destinations(f inet.Family, i int) []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(vip(f, i), 53), netip.AddrPortFrom(vip(f, 1000+i), 53),
		netip.AddrPortFrom([...]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}[f], uint16(stickyNodePort+i)),
	}
}

// numbers returns the numbers from first to last-1.
func numbers(first, last int) (out []int) {
	for i := first; i < last; i++ {
		out = append(out, i)
	}
	return out
}

// newStickyPlanner returns a planner with Services. Its rules masquerade only packets to external addresses and node ports. The tests do not check
// the source address of these packets.
func newStickyPlanner(services ...*model.Service) *plan.Planner {
	return setSticky(plan.New(stickyOptions), services)
}

// resumeSticky returns a planner with Services that continues the work of another process.
func resumeSticky(t testing.TB, k *Kernel, services ...*model.Service) *plan.Planner {
	t.Helper()
	return setSticky(resume(t, k, stickyOptions, services), services)
}

var stickyOptions = plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000}

func setSticky(p *plan.Planner, services []*model.Service) *plan.Planner {
	for _, f := range inet.Families {
		p.SetNodeAddresses(f, []netip.Addr{destinations(f, 0)[2].Addr()})
	}
	for _, s := range services {
		p.Set(s.Name, s)
	}
	return p
}

// crowd has the clients of a test, and the last endpoint of each.
type crowd struct {
	*wire
	family inet.Family
	size   int
	were   []netip.AddrPort
}

// stay sends a packet of each client, and fails unless each packet reaches its client's last endpoint.
func (c *crowd) stay(when string, to netip.AddrPort) {
	c.Helper()
	is := c.ask(c.family, c.size, to)
	if n := moved(c.were, is); n != 0 {
		c.Errorf("%s: %d of %d clients of %s have moved", when, n, c.size, to)
	}
	c.were = is
}

// TestManyClientsStay: clients of each address of a service port keep their endpoints through changes of the Service. IPv4 has 65,536 clients, as many
// as kube-proxy can remember for one endpoint.
func TestManyClientsStay(t *testing.T) {
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			w := newWire(t)
			const endpoints = 10
			p := newStickyPlanner(sticky(0, 3*time.Hour, numbers(0, endpoints)...))
			k := open(t)
			mustSync(t, k, p, Full)
			to := destinations(f, 0)
			c := &crowd{wire: w, family: f, size: [...]int{1 << 16, 1 << 12}[f]}
			if testing.Short() {
				c.size = 1 << 12
			}
			c.were = w.ask(f, c.size, to[0])
			c.evenly(endpoints)
			for _, way := range to[1:] {
				c.stay("with another destination", way)
			}
			set := func(endpoints ...int) {
				s := sticky(0, 3*time.Hour, endpoints...)
				p.Set(s.Name, s)
			}

			set(numbers(0, endpoints+5)...)
			mustSync(t, k, p, Partial)
			c.stay("scaled up", to[0])

			c.lose(pod(f, 3), func() {
				set(slices.Concat(numbers(0, 3), numbers(4, endpoints+5))...)
				mustSync(t, k, p, Partial)
			}, to[1])
			c.stay("after an endpoint was removed", to[0])
			set(numbers(0, endpoints+5)...)
			mustSync(t, k, p, Partial)
			c.stay("after it returned", to[2])

			run(t, "nft", "flush chain ip kube-nftproxy services; flush chain ip6 kube-nftproxy services")
			k.Doubt()
			mustSync(t, k, p, Full)
			c.stay("after a repair", to[0])

			retireNow(k)
			mustSync(t, k, p, Partial)
			k = open(t)
			mustSync(t, k, resumeSticky(t, k, sticky(0, 3*time.Hour, numbers(0, endpoints+5)...)), Adopted)
			c.stay("after a restart", to[0])
			k = open(t)
			restarted := resumeSticky(t, k, sticky(0, 3*time.Hour, numbers(0, endpoints+4)...), sticky(1, time.Hour, 1))
			c.lose(pod(f, endpoints+4), func() { mustSync(t, k, restarted, Full) }, to[0])
			c.stay("after a restart with changes", to[0])
		})
	}
}

// evenly fails unless the clients have reached the given number of endpoints. For more than 32,768 clients, it also fails unless each endpoint has its
// share of clients, with a tolerance of a fifth: 16 standard deviations for 65,536 clients and ten endpoints.
func (c *crowd) evenly(endpoints int) {
	c.Helper()
	counts := map[netip.AddrPort]int{}
	for _, at := range c.were {
		counts[at]++
	}
	share := c.size / endpoints
	for at, n := range counts {
		if len(counts) != endpoints || c.size > 1<<15 && (n < share*4/5 || n > share*6/5) {
			c.Errorf("%d clients at %s, of %d endpoints; want %d of %d", n, at, len(counts), share, endpoints)
		}
	}
}

// lose makes a change that removes an endpoint. It fails unless exactly the clients of this endpoint reach another one.
func (c *crowd) lose(gone netip.AddrPort, change func(), to netip.AddrPort) {
	c.Helper()
	change()
	is := c.ask(c.family, c.size, to)
	lost := 0
	for i, was := range c.were {
		switch {
		case was == gone:
			lost++
			if is[i] == gone {
				c.Fatalf("client %d is at %s, which was removed", i, gone)
			}
		case was != is[i]:
			c.Fatalf("client %d moved from %s to %s although only %s was removed", i, was, is[i], gone)
		}
	}
	c.Logf("%d of %d clients lost %s", lost, c.size, gone)
	c.were = is
}

// affinityMap returns a family's map of remembered clients.
func affinityMap(p *plan.Planner, f inet.Family) *nft.Set {
	for _, t := range p.Tables() {
		for _, s := range t.Sets {
			if s.Dynamic && t.Family == f {
				return s
			}
		}
	}
	return nil
}

// remembered counts a family's clients in the kernel that have not expired.
func remembered(t testing.TB, f inet.Family) int {
	t.Helper()
	listing := run(t, "nft", "list", "map", [...]string{"ip", "ip6"}[f], plan.TableName, "affinity")
	return strings.Count(listing, "expires")
}

// TestFullMapServesAllClients: if the map of clients is full, its clients keep their endpoints. All other clients are served, and not remembered
// until the map has room.
func TestFullMapServesAllClients(t *testing.T) {
	w := newWire(t)
	const room, others, endpoints, f = 1000, 2000, 10, inet.IPv4
	p := newStickyPlanner(sticky(0, 2*time.Second, numbers(0, endpoints)...), sticky(1, time.Hour, numbers(0, endpoints)...))
	affinityMap(p, f).Size = room
	mustSync(t, open(t), p, Full)
	short, long := destinations(f, 0)[0], destinations(f, 1)[0]
	c := &crowd{wire: w, family: f, size: room + others, were: w.ask(f, room+others, short)}
	c.evenly(endpoints)
	if n := remembered(t, f); n != room {
		t.Fatalf("%d clients are remembered, want %d, the size of the map", n, room)
	}
	is := w.ask(f, room+others, short)
	if n := moved(c.were[:room], is[:room]); n != 0 {
		t.Errorf("%d of the %d clients that were remembered have moved", n, room)
	}
	// Each of the other clients draws again, and nine of ten reach another endpoint.
	if n := moved(c.were[room:], is[room:]); n < others*8/10 || n > others {
		t.Errorf("%d of %d clients that were not remembered have moved", n, others)
	}
	// After clients have expired, new clients are remembered.
	eventually(t, func() bool { return remembered(t, f) == 0 })
	c.size = room
	eventually(t, func() bool {
		c.were = w.ask(f, c.size, long)
		return remembered(t, f) == room
	})
	c.stay("after others have expired", long)
}

// eventually waits until done returns true. It fails after 20 seconds.
func eventually(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not done after 20 seconds")
		}
	}
}

// TestClientsAreForgottenInTime: a connection restarts the timeout of a remembered client. A client without a connection is forgotten after the timeout.
func TestClientsAreForgottenInTime(t *testing.T) {
	for _, f := range inet.Families {
		t.Run(f.String(), func(t *testing.T) {
			w := newWire(t)
			const timeout = 2 * time.Second
			p := newStickyPlanner(sticky(0, timeout, numbers(0, 10)...))
			mustSync(t, open(t), p, Full)
			to := destinations(f, 0)
			const faithful, all = 100, 200
			start := time.Now()
			c := &crowd{wire: w, family: f, size: faithful}
			first := w.ask(f, all, to[0])
			c.were = first[:faithful]
			// The faithful clients connect repeatedly, to all destinations, until the other clients have expired.
			for i := 0; remembered(t, f) > faithful; i++ {
				if late := time.Since(start); late > timeout+10*time.Second {
					t.Fatalf("all are remembered after %v", late)
				}
				c.stay("at another connection", to[i%len(to)])
			}
			if early := time.Since(start); early < timeout-100*time.Millisecond {
				t.Errorf("clients are forgotten after %v, want %v", early, timeout)
			}
			c.stay("after the others have expired", to[1])
			is := w.ask(f, all, to[0])
			if n := moved(first[:faithful], is[:faithful]); n != 0 {
				t.Errorf("%d of %d clients that connected in time have moved", n, faithful)
			}
			if n := moved(first[faithful:], is[faithful:]); n < (all-faithful)/2 {
				t.Errorf("only %d of %d clients that connected too late have moved, want nine of ten", n, all-faithful)
			}
		})
	}
}

// expiries returns the remaining time of each remembered client.
func expiries(t testing.TB, f inet.Family) (out []time.Duration) {
	t.Helper()
	listing := run(t, "nft", "list", "map", [...]string{"ip", "ip6"}[f], plan.TableName, "affinity")
	for _, match := range regexp.MustCompile(`expires ((\d+[a-z]+)+)`).FindAllStringSubmatch(listing, -1) {
		d, err := time.ParseDuration(strings.Replace(match[1], "d", "h", 1))
		lab.Must(t, err)
		out = append(out, d)
	}
	return out
}

// TestNewTimeoutCountsFromTheNextConnection: after a change of the timeout, a client is remembered from its next connection on.
func TestNewTimeoutCountsFromTheNextConnection(t *testing.T) {
	w := newWire(t)
	const f, n = inet.IPv4, 50
	p, k := newStickyPlanner(sticky(0, 2*time.Hour, numbers(0, 10)...)), open(t)
	mustSync(t, k, p, Full)
	to := destinations(f, 0)[0]
	c := &crowd{wire: w, family: f, size: n, were: w.ask(f, n, to)}
	within := func(when string, least, most time.Duration) {
		t.Helper()
		all := expiries(t, f)
		if len(all) != n || slices.Min(all) < least || slices.Max(all) > most {
			t.Errorf("%s: %d clients expire within %v to %v, want %d within %v to %v", when, len(all), slices.Min(all), slices.Max(all),
				n, least, most)
		}
	}
	set := func(timeout time.Duration) {
		t.Helper()
		s := sticky(0, timeout, numbers(0, 10)...)
		p.Set(s.Name, s)
		mustSync(t, k, p, Partial)
	}
	within("at first", 119*time.Minute, 2*time.Hour)
	set(time.Minute)
	run(t, "nft", "flush map ip kube-nftproxy affinity") // the clients with the earlier timeout
	c.were = w.ask(f, n, to)
	within("with a new timeout", 50*time.Second, time.Minute)
	c.stay("with a new timeout", to)
	within("after another connection", 50*time.Second, time.Minute)
}
