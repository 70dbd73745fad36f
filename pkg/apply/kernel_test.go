package apply

import (
	"fmt"
	"maps"
	"net/netip"
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

func options() plan.Options {
	return plan.Options{
		Families: inet.Families[:], MasqueradeMark: 0x4000,
		LocalPods: [2]plan.LocalPods{
			{Prefix: netip.MustParsePrefix("10.244.0.0/16")}, {Prefix: netip.MustParsePrefix("fd00:10:244::/56")},
		},
	}
}

func pod(f inet.Family, i int) netip.AddrPort {
	if f == inet.IPv4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
	}
	a := netip.MustParseAddr("fd00:10:244::").As16()
	a[14], a[15] = byte(i>>8), byte(i)
	return netip.AddrPortFrom(netip.AddrFrom16(a), 8080)
}

func vip(f inet.Family, i int) netip.Addr {
	if f == inet.IPv4 {
		return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	}
	a := netip.MustParseAddr("fd00:10:96::").As16()
	a[14], a[15] = byte(i>>8), byte(i)
	return netip.AddrFrom16(a)
}

// everything returns a Service that uses all kinds of frontends.
func everything(i, endpoints int, affinity time.Duration, local bool) *model.Service {
	s := &model.Service{Name: types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}}
	for _, f := range inet.Families {
		p := &model.ServicePort{
			Name: model.PortName{NamespacedName: s.Name, Port: "http"}, Protocol: inet.TCP, Family: f,
			Affinity: affinity, HasEndpoints: endpoints > 0,
		}
		for e := range endpoints {
			p.Cluster = append(p.Cluster, pod(f, i*10+e))
			if e%2 == 0 {
				p.Local = append(p.Local, pod(f, i*10+e))
			}
		}
		p.Hairpin = p.Local
		key := model.Key{Addr: vip(f, i), Port: 80, Protocol: inet.TCP, Family: f}
		p.Frontends = append(p.Frontends, model.Frontend{Key: key, Kind: model.ClusterIP, Local: local})
		key.Addr = vip(f, 1000+i)
		p.Frontends = append(p.Frontends, model.Frontend{Key: key, Kind: model.LoadBalancer, Local: local,
			Sources: &model.Sources{Allowed: []model.AddrRange{model.RangeOf(netip.PrefixFrom(vip(f, 0), 20+int(f)*80))}}})
		key.Addr = vip(f, 2000+i)
		p.Frontends = append(p.Frontends, model.Frontend{Key: key, Kind: model.ExternalIP, Local: local})
		key.Addr, key.Port = netip.Addr{}, uint16(30000+i)
		p.Frontends = append(p.Frontends, model.Frontend{Key: key, Kind: model.NodePort, Local: local})
		s.Ports = append(s.Ports, p)
	}
	return s
}

func cluster(p *plan.Planner) {
	for _, s := range services() {
		p.Set(s.Name, s)
	}
	for _, f := range inet.Families {
		p.SetNodeAddresses(f, []netip.Addr{vip(f, 9999)})
		p.SetServiceCIDRs(f, []netip.Prefix{netip.PrefixFrom(vip(f, 0), 16+int(f)*96).Masked()})
	}
}

func services() (list []*model.Service) {
	for i := range 8 {
		var affinity time.Duration
		if i%2 == 1 {
			affinity = 3 * time.Hour
		}
		list = append(list, everything(i, i%4*2, affinity, i >= 4))
	}
	return list
}

// resume returns a planner that continues the work of another process with some Services.
func resume(t testing.TB, k *Kernel, o plan.Options, services []*model.Service) *plan.Planner {
	t.Helper()
	p := plan.New(o)
	lab.Must(t, k.Recall(p, services))
	return p
}

func open(t testing.TB) *Kernel {
	t.Helper()
	k, err := Open()
	lab.Must(t, err)
	t.Cleanup(func() { k.Close() })
	return k
}

func mustSync(t testing.TB, k *Kernel, p *plan.Planner, want Kind) Result {
	t.Helper()
	r, err := k.Sync(p)
	lab.Must(t, err)
	if r.Kind != want {
		t.Fatalf("sync was %s (%s), want %s", r.Kind, r.Why, want)
	}
	return r
}

var run = lab.Run

// inKernel returns all elements in the kernel, of the sets that are compared.
func inKernel(t testing.TB, k *Kernel, p *plan.Planner) []string {
	t.Helper()
	var out []string
	for _, table := range p.Tables() {
		for _, s := range table.Sets {
			if !plan.Planned(s) {
				continue
			}
			list, err := k.conn.Elements(s)
			lab.Must(t, err)
			for i := range list {
				out = append(out, list[i].String())
			}
		}
	}
	slices.Sort(out)
	return out
}

// planned returns all elements of the ledger, wanted and retained.
func planned(k *Kernel, p *plan.Planner) []string {
	var out []string
	list := func(e *nft.Element) { out = append(out, e.String()) }
	p.Elements(list)
	k.ledger.eachRetained(list)
	slices.Sort(out)
	return out
}

func TestSyncFillsTheTables(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	cluster(p)
	mustSync(t, k, p, Full)
	lab.Same(t, planned(k, p), inKernel(t, k, p), "elements (-planned +in the kernel)")
	mustSync(t, k, p, Nothing)
}

func TestRestartAdoptsUnchangedTables(t *testing.T) {
	lab.EnterNamespace(t)
	k, p := open(t), plan.New(options())
	cluster(p)
	mustSync(t, k, p, Full)
	other := open(t)
	again := resume(t, other, options(), services())
	cluster(again)
	mustSync(t, other, again, Adopted)
	again.Set(types.NamespacedName{Namespace: "default", Name: "svc-3"}, nil)
	mustSync(t, other, again, Partial)
	lab.Same(t, planned(other, again), inKernel(t, other, again), "elements after a change (-planned +in the kernel)")
	mustSync(t, k, p, Nothing)
}

// TestRestartAdoptsUnusedChains: a process exits while it retains a chain. The next process adopts the tables.
func TestRestartAdoptsUnusedChains(t *testing.T) {
	for retired := range 3 {
		k, p := synced(t)
		s := everything(300, 7, 0, true)
		p.Set(s.Name, s)
		mustSync(t, k, p, Partial)
		p.Set(s.Name, nil)
		mustSync(t, k, p, Partial)
		for range retired {
			retireNow(k)
			mustSync(t, k, p, Partial)
		}
		other := open(t)
		again := resume(t, other, options(), services())
		cluster(again)
		mustSync(t, other, again, Adopted)
		lab.Same(t, retired < 2, retains(other), "retired %d times: something is retained", retired)
		for retains(other) {
			retireNow(other)
			mustSync(t, other, again, Partial)
		}
		checkKernel(t, other, again)
		if got := run(t, "nft", "list chains"); strings.Contains(got, "local-endpoints-of-4") {
			t.Errorf("chains that nothing needs are left:\n%s", got)
		}
		mustSync(t, other, again, Nothing)
	}
}

// TestRestartAdoptsUnusedRangeElements: the endpoints of a port range left and came back a moment before a process
// exits. It retains the element for packets without an endpoint, which leads to a chain that every table has. The next
// process adopts the tables.
func TestRestartAdoptsUnusedRangeElements(t *testing.T) {
	k, p := synced(t)
	s := everything(300, 2, 0, false)
	ranged := *s.Ports[0]
	ranged.Name.Port, ranged.Cluster, ranged.Local, ranged.Hairpin = model.RangesPort, nil, nil, nil
	for _, e := range s.Ports[0].Cluster {
		ranged.Cluster = append(ranged.Cluster, netip.AddrPortFrom(e.Addr(), 0))
	}
	ranged.Frontends = []model.Frontend{{Key: model.Key{Addr: vip(inet.IPv4, 300), Port: 5000, Last: 6000, Protocol: inet.TCP}}}
	without := ranged
	without.HasEndpoints, without.Cluster = false, nil
	s.Ports = append(s.Ports, &ranged)
	asleep := *s
	asleep.Ports = append(slices.Clone(s.Ports[:2]), &without)
	for _, s := range []*model.Service{s, &asleep, s} {
		p.Set(s.Name, s)
		mustSync(t, k, p, Partial)
	}
	if !retains(k) {
		t.Error("nothing is retained")
	}
	other := open(t)
	list := append(services(), s)
	again := resume(t, other, options(), list)
	cluster(again)
	again.Set(s.Name, s)
	mustSync(t, other, again, Adopted)
	if !retains(other) {
		t.Error("nothing is retained after a restart")
	}
	for retains(other) {
		retireNow(other)
		mustSync(t, other, again, Partial)
	}
	checkKernel(t, other, again)
}

// TestRestartAdoptsInAnyOrderOfServices: an older Service wins the address of a younger one. The plan is the same if a start plans the younger one first.
func TestRestartAdoptsInAnyOrderOfServices(t *testing.T) {
	lab.EnterNamespace(t)
	older, younger := everything(1, 3, 0, false), everything(1, 5, 0, false)
	older.Name.Name, older.Created = "older", time.Unix(1, 0)
	younger.Name.Name, younger.Created = "younger", time.Unix(2, 0)
	for _, port := range younger.Ports { // its own cluster IP
		port.Name.Name = "younger"
		port.Frontends[0].Addr = vip(port.Family, 5000)
		port.Frontends[1].Sources = nil
	}
	for i, order := range [][]*model.Service{{older, younger}, {younger, older}} {
		k := open(t)
		p := resume(t, k, options(), order)
		for _, s := range order {
			p.Set(s.Name, s)
		}
		mustSync(t, k, p, []Kind{Full, Adopted}[i])
		if retains(k) {
			t.Errorf("order %d: something is retained", i)
		}
	}
}

// TestRestartAdoptsSourceRangesWithoutFrontends: an older Service has the load-balancer IP of four others. No frontend
// shows the numbers of their source ranges, some of which are equal.
func TestRestartAdoptsSourceRangesWithoutFrontends(t *testing.T) {
	lab.EnterNamespace(t)
	byName, names := map[types.NamespacedName]*model.Service{}, []types.NamespacedName{}
	for i := range 5 {
		s := everything(1, 3, 0, false)
		s.Name.Name, s.Created = fmt.Sprint("svc-", i), time.Unix(int64(i), 0)
		allowSources(s, 1+i/2)
		for _, port := range s.Ports { // each has its own cluster IP
			port.Name.Name = s.Name.Name
			port.Frontends[0].Addr = vip(port.Family, 5000+i)
		}
		byName[s.Name], names = s, append(names, s.Name)
	}
	for i, want := range []Kind{Full, Adopted, Adopted} {
		k, p := open(t), plan.New(options())
		slices.Reverse(names)
		lab.Must(t, k.Recall(p, slices.Collect(maps.Values(byName))))
		age := func(name types.NamespacedName) model.Age { return byName[name].Age() }
		p.Begin(names, age, func(names []types.NamespacedName) {
			for _, name := range names {
				p.Set(name, byName[name])
			}
		})
		if r, err := k.Sync(p); err != nil || r.Kind != want {
			t.Errorf("start %d: %s sync (%s), %v, want %s", i, r.Kind, r.Why, err, want)
		}
		checkKernel(t, k, p)
	}
}

// allowSources restricts the second frontend of each service port to n ranges.
func allowSources(s *model.Service, n int) {
	for _, port := range s.Ports {
		ranges := []model.AddrRange{}
		for i := range n {
			ranges = append(ranges, model.AddrRange{First: vip(port.Family, 4*i), Last: vip(port.Family, 4*i+1)})
		}
		port.Frontends[1].Sources = &model.Sources{Allowed: ranges}
	}
}

// TestManySourceRangesAreDeleted: a batch that deletes many source ranges replaces their set. The new set has the ranges of the other Services.
func TestManySourceRangesAreDeleted(t *testing.T) {
	k, p := synced(t)
	s := everything(500, 3, 0, false)
	with := func(n int) {
		allowSources(s, n)
		p.Set(s.Name, s)
		mustSync(t, k, p, Partial)
		checkKernel(t, k, p)
		k.Doubt()
		mustSync(t, k, p, Adopted)
	}
	for _, n := range []int{900, 3, 400, 398, 393, 0} {
		changed := *s
		changed.Ports = nil
		for _, port := range s.Ports {
			clone := *port
			clone.Frontends = slices.Clone(port.Frontends)
			changed.Ports = append(changed.Ports, &clone)
		}
		s = &changed
		with(n)
	}
	p.Set(s.Name, nil)
	mustSync(t, k, p, Partial)
	checkKernel(t, k, p)
	run(t, "nft", "flush ruleset")
	k.Doubt()
	mustSync(t, k, p, Full)
	checkKernel(t, k, p)
}
