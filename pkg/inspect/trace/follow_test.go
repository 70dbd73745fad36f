package trace

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// fake is a kernel that holds a plan. In a set of ranges, it finds only the first key of a range. It counts requests.
type fake struct {
	table    *read.Table
	elements map[string]map[nft.Value]*nft.Found
	requests int
}

func newFake(p *plan.Planner) *fake {
	t := p.Tables()[0]
	k := &fake{elements: map[string]map[nft.Value]*nft.Found{}, table: &read.Table{
		Family: t.Family, Name: t.Name, TableInfo: nft.TableInfo{Exists: true},
		Chains: map[string]*read.Chain{}, Sets: map[string]*nft.Set{},
	}}
	for _, c := range t.Chains {
		chain := &read.Chain{ChainInfo: *c.Info()}
		for i := range c.Rules {
			chain.Rules = append(chain.Rules, read.Rule{Comment: c.Rules[i].Comment, Exprs: read.Planned(&c.Rules[i])})
		}
		k.table.Chains[c.Name] = chain
	}
	for _, s := range t.Sets {
		k.table.Sets[s.Name] = s
		k.elements[s.Name] = map[nft.Value]*nft.Found{}
	}
	p.Elements(func(e *nft.Element) {
		f := &nft.Found{Element: *e, Verdict: unix.NFT_GOTO}
		if e.Jump {
			f.Verdict = unix.NFT_JUMP
		}
		k.elements[e.Set.Name][e.Key] = f
	})
	return k
}

func (k *fake) Get(s *nft.Set, keys []nft.Value) ([]*nft.Found, error) {
	k.requests++
	found := make([]*nft.Found, len(keys))
	for i, key := range keys {
		found[i] = k.elements[s.Name][key]
	}
	return found, nil
}

// Type, Out and Masquerade return the routes of a node with the address 192.0.2.1.
func (*fake) Type(addr netip.Addr) (uint32, error) {
	if addr == netip.MustParseAddr("192.0.2.1") {
		return unix.RTN_LOCAL, nil
	}
	return unix.RTN_UNICAST, nil
}

func (*fake) Out(netip.Addr) (string, netip.Addr, error) {
	return "eth0", netip.MustParseAddr("192.0.2.1"), nil
}

func (*fake) Masquerade(netip.Addr) (netip.Addr, error) { return netip.MustParseAddr("192.0.2.1"), nil }

// planned returns a plan for a Service at 10.96.0.10:80 with a number of endpoints.
func planned(endpoints int, affinity time.Duration) *plan.Planner {
	return plannedBy(balance.Method{}, endpoints, affinity)
}

func plannedBy(m balance.Method, endpoints int, affinity time.Duration) *plan.Planner {
	p := plan.New(plan.Options{Families: []inet.Family{inet.IPv4}, MasqueradeMark: 0x4000,
		LocalPods: [2]plan.LocalPods{{Prefix: netip.MustParsePrefix("10.244.0.0/16")}}})
	name := types.NamespacedName{Namespace: "shop", Name: "web"}
	port := &model.ServicePort{
		Name: model.PortName{NamespacedName: name, Port: "http"}, Protocol: inet.TCP, HasEndpoints: endpoints > 0, Affinity: affinity, Method: m,
		Frontends: []model.Frontend{{Key: model.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Protocol: inet.TCP}, Kind: model.ClusterIP}},
	}
	for i := range endpoints {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(1 + i/250), byte(1 + i%250)})
		port.Cluster = append(port.Cluster, netip.AddrPortFrom(addr, 8080))
	}
	p.Set(name, &model.Service{Name: name, Ports: []*model.ServicePort{port}})
	return p
}

func mustFollow(t *testing.T, k *fake, from string) *Trace {
	t.Helper()
	p, err := From(netip.MustParseAddr(from), netip.MustParseAddrPort("10.96.0.10:80"), inet.TCP, k)
	lab.Must(t, err)
	got, err := Follow(Config{Table: k.table, Elements: k, Routes: k}, p)
	lab.Must(t, err)
	return got
}

func TestEndpointsAreEquallyLikely(t *testing.T) {
	for _, n := range []int{1, 3, 2000} {
		k := newFake(planned(n, 0))
		got := mustFollow(t, k, "10.244.0.9")
		seen := map[netip.AddrPort]bool{}
		for _, w := range got.Ways {
			seen[w.To] = true
			if w.Outcome != Translated || w.Masqueraded || math.Abs(w.Probability*float64(n)-1) > 0.001 {
				t.Fatalf("of %d endpoints: %+v", n, w)
			}
		}
		if len(seen) != n || got.Frontend != "shop/web:http" {
			t.Errorf("of %d endpoints %d are reached, the frontend is %q", n, len(seen), got.Frontend)
		}
		const most = 14 // a rule needs one request for the lookups on all paths
		if k.requests > most {
			t.Errorf("%d requests for %d endpoints, want %d at most", k.requests, n, most)
		}
	}
}

// TestHashesLeadToOneEndpoint: with a hash, a client with a known source port reaches one endpoint. With an unknown port and the algorithm maglev,
// it may reach each endpoint, with the probability of the ports that lead there.
func TestHashesLeadToOneEndpoint(t *testing.T) {
	for _, name := range []string{"maglev", "source-hash", "source-hash/24"} {
		method, err := balance.Parse(name)
		lab.Must(t, err)
		k := newFake(plannedBy(method, 10, 0))
		seen := map[netip.AddrPort]bool{}
		for port := range uint16(100) {
			p, err := From(netip.AddrFrom4([4]byte{10, 244, byte(port), 9}), netip.MustParseAddrPort("10.96.0.10:80"), inet.TCP, k)
			lab.Must(t, err)
			p.FromPort = 40000 + port
			got, err := Follow(Config{Table: k.table, Elements: k, Routes: k}, p)
			lab.Must(t, err)
			if len(got.Ways) != 1 || got.Ways[0].Outcome != Translated || got.Ways[0].Probability != 1 {
				t.Fatalf("%s: the ways of port %d are %+v", name, p.FromPort, got.Ways)
			}
			seen[got.Ways[0].To] = true
		}
		if len(seen) != 10 {
			t.Errorf("%s: 100 clients have %d of 10 endpoints", name, len(seen))
		}
		got, sum := mustFollow(t, k, "10.244.0.9"), 0.0
		for _, w := range got.Ways {
			sum += w.Probability
			if method.Key == balance.Flow && math.Abs(w.Probability-0.1) > 0.01 {
				t.Errorf("%s: %s has a share of %v", name, w.To, w.Probability)
			}
		}
		want := 1
		if method.Key == balance.Flow {
			want = 10
		}
		if len(got.Ways) != want || math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: a client with any port has %d ways with a sum of %v", name, len(got.Ways), sum)
		}
	}
}

func TestFollow(t *testing.T) {
	unknown := func(k *fake) { k.table.Chains["services"].Rules[0].Exprs = []read.Expr{{Name: "limit"}} }
	for _, c := range []struct {
		name      string
		endpoints int
		affinity  time.Duration
		from      string
		alter     func(*fake)
		want      []string
	}{
		{name: "from outside", endpoints: 1, from: "198.51.100.1", want: []string{
			"100% translated 10.244.1.1:8080 from 192.0.2.1: a cluster IP with one endpoint"}},
		{name: "none", endpoints: 0, from: "10.244.0.9", want: []string{"100% refused 10.96.0.10:80 from 10.244.0.9: no endpoints"}},
		{name: "affinity", endpoints: 2, affinity: time.Hour, from: "10.244.0.9", want: []string{
			"50% translated 10.244.1.1:8080 from 10.244.0.9: any endpoint; a client stays with its endpoint, and is remembered for 1h0m0s",
			"50% translated 10.244.1.2:8080 from 10.244.0.9: any endpoint; a client stays with its endpoint, and is remembered for 1h0m0s"}},
		{name: "remembered", endpoints: 2, affinity: time.Hour, from: "10.244.0.9", alter: remember, want: []string{
			"100% translated 10.244.1.2:8080 from 10.244.0.9: any endpoint; a client stays with its endpoint, and is remembered for 1h0m0s, " +
				"and this client is remembered"}},
		{name: "an unknown expression", endpoints: 2, from: "10.244.0.9", alter: unknown, want: []string{
			"100% unknown 10.96.0.10:80 from 10.244.0.9: trace cannot evaluate an expression of a rule: limit"}},
		{name: "a rule that returns", endpoints: 2, from: "10.244.0.9", alter: func(k *fake) {
			returns := read.Expr{Name: "immediate", Any: &expr.Verdict{Kind: expr.VerdictReturn}}
			k.table.Chains["services"].Rules[0].Exprs = []read.Expr{returns}
		}, want: []string{"100% refused 10.96.0.10:80 from 10.244.0.9: a cluster IP without such a port"}},
		{name: "dormant", endpoints: 2, from: "10.244.0.9", alter: func(k *fake) { k.table.Dormant = true }, want: []string{
			"100% untouched 10.96.0.10:80 from 10.244.0.9: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newFake(planned(c.endpoints, c.affinity))
			if c.alter != nil {
				c.alter(k)
			}
			var got []string
			for _, w := range mustFollow(t, k, c.from).Ways {
				got = append(got, fmt.Sprintf("%g%% %s %s from %s: %s", w.Probability*100, w.Outcome, w.To, w.Source, w.Why))
			}
			lab.Same(t, c.want, got, "ways")
		})
	}
}

// remember stores the second endpoint for the client 10.244.0.9.
func remember(k *fake) {
	for key, f := range k.elements["backends"] {
		if data := f.Data; data == nft.Endpoint(netip.MustParseAddrPort("10.244.1.2:8080")) {
			id, err := nft.ValueOf(key.Bytes()[4:]) // without the protocol
			if err != nil {
				panic(err)
			}
			client := nft.Value{}.Uint32(id.AsUint32() &^ 0xffff).Addr(netip.MustParseAddr("10.244.0.9"))
			k.elements["affinity"][client] = &nft.Found{Element: nft.Element{Set: k.table.Sets["affinity"], Key: client, Data: id}}
		}
	}
}

func TestALoopIsAnError(t *testing.T) {
	k := newFake(planned(1, 0))
	jump := &expr.Verdict{Kind: expr.VerdictJump, Chain: "services"}
	k.table.Chains["services"].Rules[0].Exprs = []read.Expr{{Any: jump}}
	p, err := From(netip.MustParseAddr("10.244.0.9"), netip.MustParseAddrPort("10.96.0.10:80"), inet.TCP, k)
	lab.Must(t, err)
	if got, err := Follow(Config{Table: k.table, Elements: k, Routes: k}, p); err == nil {
		t.Errorf("no error, but %+v", got)
	}
}

// TestLookupsHaveWords: each set that a rule without a comment looks up has words.
func TestLookupsHaveWords(t *testing.T) {
	table := planned(3, time.Hour).Tables()[0]
	for _, ch := range table.Chains {
		for _, r := range ch.Rules {
			for _, x := range r.Exprs {
				if l, ok := x.(*expr.Lookup); ok && r.Comment == "" && plan.Found(l.SetName) == "" {
					t.Errorf("a rule of chain %s looks up %s: neither has words", ch.Name, l.SetName)
				}
			}
		}
	}
}

// TestReasonsWithoutRules: a host without IPv6 is a cause of a missing table, and a chain of another program may change the mark of a packet.
func TestReasonsWithoutRules(t *testing.T) {
	p := Packet{From: netip.MustParseAddr("10.244.0.11"), To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: inet.TCP}
	other := read.BaseChain{Family: "ip"}
	other.Table, other.Name, other.Type, other.Hook, other.Uses = "z", "c", "filter", unix.NF_INET_PRE_ROUTING, 1
	got, err := Follow(Config{Table: &read.Table{Name: "kube-nftproxy"}, Routes: &fake{}, Chains: []read.BaseChain{other}}, p)
	lab.Must(t, err)
	lab.Contains(t, got.Why, "why", "this host has no IPv4")
	lab.Contains(t, fmt.Sprint(got.Also), "chains", "that may stop or mark it: ip z c")
	p.Own, p.NoRoute = true, true
	for exists, advice := range map[bool]string{true: "Add a route", false: "kube-nftproxy status shows the reason"} {
		got, err = Follow(Config{Table: &read.Table{TableInfo: nft.TableInfo{Exists: exists}}, Routes: &fake{}}, p)
		lab.Must(t, err)
		lab.Contains(t, got.Why, "why", advice)
	}
}
