package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func testOptions() Options {
	return Options{
		Families: inet.Families[:], MasqueradeMark: 0x4000, DirectReturn: true,
		LocalPods: [2]LocalPods{
			{Prefix: netip.MustParsePrefix("10.244.0.0/16")}, {Prefix: netip.MustParsePrefix("fd00:10:244::/56")},
		},
		NodeNetworks: [2][]netip.Prefix{
			{netip.MustParsePrefix("192.0.2.0/24")}, {netip.MustParsePrefix("2001:db8::/64")},
		},
	}
}

// sharedByServices returns the number of shared elements without those of the networks of nodes.
func sharedByServices(p *Planner) int { return len(p.shared) - len(New(p.rules.options).shared) }

// recorder is a sink that holds the wanted elements. It fails the test if a difference contradicts the earlier differences.
type recorder struct {
	t        *testing.T
	elements map[nft.ID]nft.Element
	// puts counts the calls of Put.
	puts int
}

// record makes a planner report to a new recorder.
func record(t *testing.T, p *Planner) *recorder {
	r := &recorder{t: t, elements: map[nft.ID]nft.Element{}}
	p.ReportTo(r)
	return r
}

func (r *recorder) Put(e nft.Element) {
	r.t.Helper()
	if old, ok := r.elements[e.ID()]; ok {
		r.t.Fatalf("put %v: %v is wanted already", e.String(), old.String())
	}
	r.elements[e.ID()] = e
	r.puts++
}

func (r *recorder) Remove(e nft.Element) {
	r.t.Helper()
	if old := r.elements[e.ID()]; old != e {
		r.t.Fatalf("remove %v: %v is wanted", e.String(), old.String())
	}
	delete(r.elements, e.ID())
}

// Discard and ChangeRules do nothing: packets add no elements to a recorder, and it has no rules.
func (*recorder) Discard(nft.Element) {}
func (*recorder) ChangeRules()        {}

// wordOf parses a word of the scratch register, such as 8000:802. It does not use [fmt.Sscanf], which took a third of
// the time of all tests.
func wordOf(text string) (word uint32, ok bool) {
	high, low, _ := strings.Cut(text, ":")
	h, err1 := strconv.ParseUint(high, 16, 16)
	l, err2 := strconv.ParseUint(low, 16, 16)
	return uint32(h<<16 | l), err1 == nil && err2 == nil
}

// canonical returns all wanted elements and chains as text. It replaces the assigned numbers with names, because the numbers depend on history.
func (r *recorder) canonical(p *Planner) string {
	type named struct {
		f    inet.Family
		word uint32
	}
	owners, endpoints := map[named]string{}, map[named]string{}
	for _, s := range p.services {
		for f, src := range s.sources {
			if src != nil && src.number != 0 {
				owners[named{inet.Family(f), src.number}] = fmt.Sprintf("<sources of %s %d>", s.name, f)
			}
		}
		for _, port := range s.ports {
			if port.number == 0 {
				continue
			}
			owners[named{port.Family, port.number}] = fmt.Sprintf("<%s %v>", port.Name, port.Family)
			if port.ids != nil {
				for e := range port.ids.endpoints {
					endpoints[named{port.Family, port.ids.endpointRegister(e)}] = e.String()
				}
			}
		}
	}
	lines := map[string]bool{}
	for _, e := range r.elements {
		words := strings.Fields(e.String())
		for i, w := range words {
			word, ok := wordOf(w)
			if !ok {
				continue
			}
			number := word & portBits
			if isAffine(number) {
				number &= affineBits
			}
			owner, endpoint := owners[named{e.Set.Family, number}], endpoints[named{e.Set.Family, word}]
			switch name := e.Set.Name; {
			case owner == "":
			case endpoint != "" && (strings.HasSuffix(name, "slots") || strings.HasSuffix(name, "backends")):
				words[i] = owner + endpoint
			default:
				words[i] = fmt.Sprintf("%s%x", owner, word&^number)
			}
		}
		lines[strings.Join(words, " ")] = true
	}
	for _, table := range p.Tables() {
		for _, c := range table.Chains {
			lines["chain "+table.Family.Keyword()+" "+c.Name] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(lines)), "\n")
}

// random returns a random Service. Its addresses are from a small set, so that Services often claim the same address.
func random(r *rand.Rand, i int) *model.Service {
	s := &model.Service{
		Name:    types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)},
		Created: time.Unix(int64(i%3), 0),
	}
	local, affinity := r.IntN(2) == 0, time.Duration(r.IntN(3))*time.Hour
	for port := range 1 + r.IntN(2) {
		for _, f := range inet.Families {
			s.Ports = append(s.Ports, randomPort(r, s.Name, f, i, port, local, affinity))
		}
	}
	if flip(r, s, 3); s.ScaleToZero && r.IntN(2) == 0 {
		for _, p := range s.Ports {
			p.Cluster, p.Local, p.Hairpin, p.ClusterWeights, p.LocalWeights, p.HasEndpoints = nil, nil, nil, nil, nil, false
		}
	}
	return s
}

// flip sets the switches of a Service and its ports: one out of a number.
func flip(r *rand.Rand, s *model.Service, outOf int) {
	for _, a := range model.Annotations {
		if a.Switch != nil && a.Alias == "" {
			*a.Switch(&s.Switches) = r.IntN(outOf) == 0
		}
	}
	for _, p := range s.Ports {
		p.Switches = s.Switches
	}
}

func randomPort(r *rand.Rand, name types.NamespacedName, f inet.Family, i, port int, local bool, affinity time.Duration) *model.ServicePort {
	p := &model.ServicePort{
		Name: model.PortName{NamespacedName: name, Port: fmt.Sprint(port)}, Protocol: inet.TCP, Family: f, Affinity: affinity,
	}
	for e := range 12 {
		if r.IntN(3) == 0 {
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(testAddr(f, 244, e), 8080))
		}
		if r.IntN(5) == 0 {
			p.Local = append(p.Local, netip.AddrPortFrom(testAddr(f, 244, e), 8080))
		}
	}
	p.Method = randomMethod(r)
	p.ClusterWeights, p.LocalWeights = randomWeights(r, len(p.Cluster)), randomWeights(r, len(p.Local))
	if p.Method.Key != balance.Chance && affinity == 0 {
		p.Direct = randomPlaces(r, p.Cluster)
	}
	p.Hairpin = p.Local
	p.HasEndpoints = len(p.Cluster)+len(p.Local) > 0
	add := func(kind model.Kind, addr netip.Addr, number int, sources []model.AddrRange) {
		key := model.Key{Addr: addr, Port: uint16(number), Protocol: inet.TCP, Family: f}
		if slices.ContainsFunc(p.Frontends, func(f model.Frontend) bool { return f.Key == key }) {
			return
		}
		p.Frontends = append(p.Frontends, model.Frontend{Key: key, Kind: kind, Local: local, OnAllNodes: kind == model.NodePort})
		if sources != nil {
			p.Frontends[len(p.Frontends)-1].Sources = &model.Sources{Allowed: sources}
		}
	}
	add(model.ClusterIP, testAddr(f, 96, i), 80+port, nil)
	if r.IntN(2) == 0 {
		add(model.ExternalIP, testAddr(f, 97, r.IntN(4)), 80+port, nil)
	}
	if r.IntN(2) == 0 {
		add(model.LoadBalancer, testAddr(f, 98, r.IntN(4)), 80+port, []model.AddrRange{{First: testAddr(f, 1, 0), Last: testAddr(f, 1, 1+i)}})
	}
	if r.IntN(2) == 0 {
		add(model.NodePort, netip.Addr{}, 30000+r.IntN(6)*2+port, nil)
	}
	return p
}

// randomPlaces returns places of endpoints; nil for a service port without direct server return.
func randomPlaces(r *rand.Rand, endpoints []netip.AddrPort) *model.Direct {
	if r.IntN(3) == 0 {
		return nil
	}
	d := &model.Direct{}
	for _, e := range endpoints {
		place := r.IntN(3)
		if place == 0 {
			d.Here = append(d.Here, e)
			continue
		}
		if place == 1 {
			d.Elsewhere = append(d.Elsewhere, e)
		}
		d.Earlier = append(d.Earlier, e)
	}
	d.EarlierWeights = randomWeights(r, len(d.Earlier))
	return d
}

// randomMethod returns the random choice in most cases, because a hash needs many elements.
func randomMethod(r *rand.Rand) (m balance.Method) {
	if r.IntN(30) == 0 { // such a table has many slots
		m, _ = balance.Parse([]string{"maglev", "source-hash", "source-hash/24,56"}[r.IntN(3)])
	}
	return m
}

// randomWeights returns reduced weights, nil in most cases.
func randomWeights(r *rand.Rand, n int) (weights []uint16) {
	if n == 0 || r.IntN(6) > 0 {
		return nil
	}
	for range n {
		weights = append(weights, uint16(1+r.IntN(4)))
	}
	return balance.Reduce(weights)
}

func testAddr(f inet.Family, net, i int) netip.Addr {
	if f == inet.IPv4 {
		return netip.AddrFrom4([4]byte{10, byte(net), byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 5: byte(net), 14: byte(i >> 8), 15: byte(i)})
}

func TestThePlanDoesNotDependOnHistory(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := New(testOptions())
		sink := record(t, p)
		world := map[types.NamespacedName]*model.Service{}
		for step := range 500 {
			s := random(r, r.IntN(12))
			if r.IntN(4) == 0 {
				delete(world, s.Name)
				p.Set(s.Name, nil)
			} else {
				world[s.Name] = s
				p.Set(s.Name, s)
			}
			if r.IntN(10) == 0 {
				p.SetServiceCIDRs(inet.IPv4, []netip.Prefix{netip.PrefixFrom(testAddr(inet.IPv4, 96, 0), 16+r.IntN(4)).Masked()})
			}
			if step%50 == 49 {
				checkFresh(t, p, sink, world)
			}
		}
	}
}

// TestThePlanOfManyEndpointsDoesNotDependOnHistory changes a few of very many endpoints at a time.
func TestThePlanOfManyEndpointsDoesNotDependOnHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	p := New(testOptions())
	sink := record(t, p)
	world := map[types.NamespacedName]*model.Service{}
	var sets [3][]netip.AddrPort
	draw := func(n int) (list []netip.AddrPort) {
		for len(list) < n {
			list = append(list, someEndpoint(r))
		}
		return list
	}
	for i := range sets {
		sets[i] = slices.Compact(sorted(draw(2 * 256)))
	}
	for step := range 240 {
		i := r.IntN(len(sets))
		sets[i] = slices.Clone(sets[i])
		for range r.IntN(4) {
			at := r.IntN(len(sets[i]) - 3)
			sets[i] = slices.Delete(sets[i], at, at+r.IntN(4))
		}
		sets[i] = slices.Compact(sorted(append(sets[i], draw(max(0, 2*256-len(sets[i])+r.IntN(5)))...)))
		s := random(r, i)
		for _, port := range s.Ports {
			if port.Family == inet.IPv4 && r.IntN(20) > 0 {
				port.Cluster, port.Local, port.HasEndpoints = sets[i], [][]netip.AddrPort{nil, sets[i], sets[i][:256+20]}[r.IntN(3)], true
				port.Hairpin, port.ClusterWeights, port.LocalWeights = nil, randomWeights(r, len(port.Cluster)), randomWeights(r, len(port.Local))
			}
		}
		if r.IntN(10) == 0 {
			s = nil
		}
		name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
		if world[name] = s; s == nil {
			delete(world, name)
		}
		p.Set(name, s)
		if step%30 == 29 {
			checkFresh(t, p, sink, world)
		}
	}
}

// checkFresh compares the elements after all increments with the report of a new planner for the same Services.
func checkFresh(t *testing.T, p *Planner, sink *recorder, world map[types.NamespacedName]*model.Service) {
	t.Helper()
	fresh := New(testOptions())
	for name, s := range world {
		fresh.Set(name, s)
	}
	for _, f := range inet.Families {
		fresh.SetServiceCIDRs(f, p.nodes[f].cidrs)
	}
	if diff := cmp.Diff(record(t, fresh).canonical(fresh), sink.canonical(p)); diff != "" {
		t.Fatalf("elements (-from scratch +by increments):\n%s", diff)
	}
	for _, f := range inet.Families {
		used := 0
		for _, s := range p.services {
			if s.sources[f] != nil {
				used++
			}
			for _, port := range s.ports {
				if port.Family == f && port.ids == nil {
					used++
				}
				if port.Family == f && port.ids != nil && len(port.ids.endpoints) != mostIDs-port.ids.ids.free {
					t.Fatalf("%v: %d endpoints have %d ids", port.id(), len(port.ids.endpoints), mostIDs-port.ids.ids.free)
				}
			}
		}
		if others := p.numbers[f].others; used != int(others.end-others.first)-others.free {
			t.Fatalf("%d numbers are assigned, %d are in use", int(others.end-others.first)-others.free, used)
		}
	}
	again := record(t, New(testOptions()))
	again.elements = map[nft.ID]nft.Element{}
	p.Elements(func(e *nft.Element) { again.Put(*e) })
	if !maps.Equal(again.elements, sink.elements) { // cmp.Diff takes much longer
		diff := cmp.Diff(again.elements, sink.elements, cmp.Comparer(func(a, b nft.Element) bool { return a == b }))
		t.Fatalf("elements (-on demand +as reported):\n%s", diff)
	}
}

func TestOlderServiceWinsAndTheOtherTakesOver(t *testing.T) {
	service := func(name string, created int64) *model.Service {
		s := random(rand.New(rand.NewPCG(1, 1)), 0)
		s.Name.Name, s.Created = name, time.Unix(created, 0)
		s.Ports = s.Ports[:1]
		port := *s.Ports[0]
		port.Name.Name = name
		port.Frontends = []model.Frontend{{Kind: model.ExternalIP, Key: model.Key{
			Addr: netip.MustParseAddr("192.0.2.10"), Port: 80, Protocol: inet.TCP}}}
		s.Ports = []*model.ServicePort{&port}
		return s
	}
	p := New(testOptions())
	sink := record(t, p)
	owner := func() string {
		for _, e := range sink.elements {
			if e.Set.Name == "services" {
				return e.Comment
			}
		}
		return ""
	}
	younger, older := service("a-younger", 2), service("b-older", 1)
	p.Set(younger.Name, younger)
	if got, all := p.Conflicts().Of(younger.Name); all != 0 {
		t.Errorf("conflicts of the only Service: %v", got)
	}
	lab.Same(t, "default/a-younger:0", owner(), "alone: owner")
	p.Set(older.Name, older)
	if _, all := p.Conflicts().Of(older.Name); all != 0 {
		t.Errorf("the winner has lost %d", all)
	}
	if got, all := p.Conflicts().Of(younger.Name); all != 1 || got[0].Winner.Name != "b-older" || got[0].Loser.Name != "a-younger" {
		t.Errorf("conflicts: %+v, want b-older to win over a-younger", got)
	}
	if got, _ := p.Conflicts().TakeLosers(); !slices.Contains(got, Loser{NamespacedName: younger.Name, Cost: p.Service(younger.Name).Cost()}) {
		t.Errorf("losers are %v", got)
	}
	if got := owner(); got != "default/b-older:0" || p.Totals().Conflicts != 1 {
		t.Errorf("after the older Service was added: owner is %q, %d conflicts", got, p.Totals().Conflicts)
	}
	p.Set(older.Name, nil)
	if got, _ := p.Conflicts().TakeLosers(); !slices.Contains(got, Loser{NamespacedName: younger.Name, Cost: p.Service(younger.Name).Cost()}) {
		t.Errorf("after the winner was deleted, losers are %v", got)
	}
	if got := owner(); got != "default/a-younger:0" || p.Totals().Conflicts != 0 {
		t.Errorf("after the older Service was deleted: owner is %q, %d conflicts", got, p.Totals().Conflicts)
	}
}

func TestPortsWithoutLocalEndpointsAreCounted(t *testing.T) {
	p := New(testOptions())
	expect := func(when string, internal, external int) {
		t.Helper()
		if n := p.Totals().NoLocal[inet.IPv4]; n != (NoLocal{internal, external}) {
			t.Errorf("%s: %+v, want %d internal, %d external", when, n, internal, external)
		}
	}
	one := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:80")}
	set := func(internal, external bool, local []netip.AddrPort, endpoints bool) {
		s := &model.Service{Name: types.NamespacedName{Name: "s"}}
		s.Ports = []*model.ServicePort{{Protocol: inet.TCP, Cluster: one, Local: local, HasEndpoints: endpoints, Frontends: []model.Frontend{
			{Kind: model.ClusterIP, Local: internal, Key: model.Key{Addr: testAddr(inet.IPv4, 96, 1), Port: 80, Protocol: inet.TCP}},
			{Kind: model.NodePort, Local: external, Key: model.Key{Port: 30000, Protocol: inet.TCP}},
		}}}
		p.Set(s.Name, s)
	}
	set(false, false, nil, true)
	expect("policies Cluster", 0, 0)
	set(true, true, nil, true)
	expect("both Local, none here", 1, 1)
	set(false, true, nil, true)
	expect("external Local, none here", 0, 1)
	set(false, true, one, true)
	expect("one here", 0, 0)
	set(true, true, nil, false)
	expect("none anywhere", 0, 0)
	set(true, false, nil, true)
	p.Set(types.NamespacedName{Name: "s"}, nil)
	expect("deleted", 0, 0)
}

// TestAClusterIPWinsOverAnOlderExternalIP: a tenant cannot send the traffic of another tenant's cluster IP to its own endpoints.
func TestAClusterIPWinsOverAnOlderExternalIP(t *testing.T) {
	p := New(testOptions())
	sink := record(t, p)
	for i, kind := range []model.Kind{model.ExternalIP, model.LoadBalancer, model.ClusterIP} {
		s := random(rand.New(rand.NewPCG(1, 1)), i)
		s.Created = time.Unix(int64(i), 0)
		port := *s.Ports[0]
		port.Frontends = []model.Frontend{{Kind: kind, Key: model.Key{
			Addr: netip.MustParseAddr("10.96.0.60"), Port: 80, Protocol: inet.TCP}}}
		s.Ports = []*model.ServicePort{&port}
		p.Set(s.Name, s)
	}
	for _, e := range sink.elements {
		if e.Set.Name == "services" && e.Comment != "default/svc-2:0" {
			t.Errorf("%v has the cluster IP of default/svc-2", e.String())
		}
	}
	lab.Same(t, 2, p.Totals().Conflicts, "conflicts")
}

func TestReplacingOneEndpointTouchesAHandfulOfElements(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	p := New(testOptions())
	var services []*model.Service
	for i := range 200 {
		s := random(r, i)
		s.Ports = s.Ports[:1]
		port := *s.Ports[0]
		port.Affinity, port.Local, port.Hairpin, port.HasEndpoints = 0, nil, nil, true
		port.Frontends = port.Frontends[:1]
		port.Frontends[0].Local = false
		port.Cluster = endpoints(r, 10)
		port.Method, port.ClusterWeights, port.LocalWeights = balance.Method{}, nil, nil
		slices.SortFunc(port.Cluster, netip.AddrPort.Compare)
		s.Ports = []*model.ServicePort{&port}
		services = append(services, s)
		p.Set(s.Name, s)
	}
	sink := record(t, p)
	before, dispatched := sink.puts, dispatches(sink)
	for _, s := range services {
		changed := *s
		port := *s.Ports[0]
		port.Cluster = slices.Clone(port.Cluster)
		port.Cluster[r.IntN(10)] = someEndpoint(r)
		changed.Ports = []*model.ServicePort{&port}
		p.Set(s.Name, &changed)
	}
	lab.Same(t, dispatched, dispatches(sink), "elements lead to chains")
	if mean := float64(sink.puts-before) / float64(len(services)); mean > 5 {
		t.Errorf("replacing one of ten endpoints wrote %.1f elements on average, want at most 5", mean)
	}
}

// dispatches counts the elements that lead to chains.
func dispatches(r *recorder) (n int) {
	for id := range r.elements {
		if id.Set.Verdict {
			n++
		}
	}
	return n
}
