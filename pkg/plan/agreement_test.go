package plan

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// slotsOf returns the endpoint of each slot of the only service port in a plan, by the elements.
func slotsOf(t *testing.T, p *Planner) []netip.AddrPort {
	t.Helper()
	l := p.rules.layouts[inet.IPv4]
	ids, slots := map[uint32]netip.AddrPort{}, map[uint32]netip.AddrPort{}
	last := func(e *nft.Element) uint32 { // the last word of a key
		b := e.Key.Bytes()
		return binary.NativeEndian.Uint32(b[len(b)-4:])
	}
	p.Elements(func(e *nft.Element) {
		if e.Set == l.backends[listCluster] {
			ids[last(e)] = e.Data.AsEndpoint(inet.IPv4)
		}
	})
	p.Elements(func(e *nft.Element) {
		switch e.Set {
		case l.endpoints[listCluster]:
			slots[last(e)] = e.Data.AsEndpoint(inet.IPv4)
		case l.slots[listCluster]:
			slots[last(e)] = ids[e.Data.AsUint32()]
		}
	})
	list := make([]netip.AddrPort, len(slots))
	for i := range list {
		list[i] = slots[uint32(i)]
	}
	return list
}

// Five nodes with different histories have the same endpoint in each slot, so that each client has the same endpoint on all nodes. One of the nodes
// restarts.
func TestNodesAgree(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "web"}
	key := model.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: inet.TCP}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		method, err := balance.Parse([]string{"maglev", "source-hash", "source-hash/24,56"}[r.IntN(3)])
		lab.Must(t, err)
		service := func(list []netip.AddrPort, weights []uint16, m balance.Method) *model.Service {
			return &model.Service{Name: name, Ports: []*model.ServicePort{{
				Name: model.PortName{NamespacedName: name}, Protocol: inet.TCP, Cluster: list, ClusterWeights: weights, HasEndpoints: len(list) > 0, Method: m,
				Affinity: time.Duration(seed%2) * time.Hour, Frontends: []model.Frontend{{Key: key, Kind: model.ClusterIP}},
			}}}
		}
		final := endpoints(r, 1+r.IntN(60))
		weights := randomWeights(r, len(final))
		var first []netip.AddrPort
		for node := range 5 {
			p := New(Options{Families: []inet.Family{inet.IPv4}, MasqueradeMark: 0x4000})
			for range node * 20 { // the first node has just started
				list := sorted(append(endpoints(r, r.IntN(20)), final[:r.IntN(len(final)+1)]...))
				p.Set(name, service(list, randomWeights(r, len(list)), []balance.Method{method, randomMethod(r)}[r.IntN(2)]))
				if other := fmt.Sprint("other-", r.IntN(3)); r.IntN(3) == 0 { // other Services have other numbers
					o := benchService(1+r.IntN(3), 3, 0)
					o.Name.Name = other
					p.Set(o.Name, o)
				}
			}
			for i := range 3 {
				p.Set(types.NamespacedName{Namespace: "default", Name: fmt.Sprint("other-", i)}, nil)
			}
			p.Set(name, service(final, weights, method))
			if node == 4 {
				again := Continue(p.rules.options, p.Numbers())
				again.Set(name, service(final, weights, method))
				p = again
			}
			got := slotsOf(t, p)
			if first == nil {
				first = got
			}
			if !slices.Equal(got, first) || len(got) < 251 {
				t.Fatalf("seed %d: node %d has other endpoints in its %d slots than the first node", seed, node, len(got))
			}
		}
		for i, e := range first {
			if !slices.Contains(final, e) {
				t.Fatalf("seed %d: slot %d has no endpoint", seed, i)
			}
		}
	}
}

// On a kernel without jhash, a Service with an algorithm has random endpoints, and the planner reports this.
func TestWithoutHash(t *testing.T) {
	o := testOptions()
	o.Lacks.Hash = "no jhash"
	p := New(o)
	for _, table := range p.Rules().Samples() {
		for _, c := range table.Chains {
			for i := range c.Rules {
				if slices.ContainsFunc(c.Rules[i].Exprs, func(e expr.Any) bool { _, hash := e.(*expr.Hash); return hash }) {
					t.Errorf("chain %s has a hash", c.Name)
				}
			}
		}
	}
	s := benchService(0, 3, 0)
	s.Ports[0].Method = balance.Method{Key: balance.Flow}
	p.Set(s.Name, s)
	if got := slotsOf(t, p); len(got) != 3 || len(p.Service(s.Name).Excess()) != 1 {
		t.Errorf("%d slots for 3 endpoints, left out: %v", len(got), p.Service(s.Name).Excess())
	}
}
