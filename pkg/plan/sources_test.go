package plan

import (
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// guarded returns a Service with frontends of each kind, and n ranges in each list; 0 for an open list.
func guarded(name string, balancer, external, nodePort, denied int) *model.Service {
	list := func(n, at int) (out []model.AddrRange) {
		for i := range n {
			a := testAddr(inet.IPv4, at, 2*i)
			out = append(out, model.AddrRange{First: a, Last: a})
		}
		return out
	}
	s := &model.Service{Name: types.NamespacedName{Namespace: "default", Name: name}}
	p := &model.ServicePort{Name: model.PortName{NamespacedName: s.Name}, Protocol: inet.TCP}
	for i, kind := range []model.Kind{model.ClusterIP, model.LoadBalancer, model.ExternalIP, model.NodePort} {
		f := model.Frontend{Kind: kind, Key: model.Key{Port: 80 + uint16(len(name)), Protocol: inet.TCP}}
		if kind != model.NodePort {
			f.Addr = testAddr(inet.IPv4, 90+i, len(name))
		}
		if kind != model.ClusterIP {
			sources := &model.Sources{Allowed: list([]int{0, balancer, external, nodePort}[i], i), Denied: list(denied, 9)}
			if sources.Allowed != nil || sources.Denied != nil {
				f.Sources = sources
			}
		}
		p.Frontends = append(p.Frontends, f)
	}
	s.Ports = []*model.ServicePort{p}
	return s
}

// TestEachListOfSourcesHasItsElements: the first chain of a packet depends on the lists, all lists have one number, and only chains in use exist. A
// frontend that only denies sources allows all others.
func TestEachListOfSourcesHasItsElements(t *testing.T) {
	for _, tc := range []struct {
		name                                 string
		balancer, external, nodePort, denied int
		want                                 map[string]int
		chains                               map[string]bool
	}{
		{"open", 0, 0, 0, 0, map[string]int{}, map[string]bool{}},
		{"load balancer", 2, 0, 0, 0, map[string]int{"allowed-sources": 2, "services-restricted": 1}, map[string]bool{}},
		{"node port", 0, 0, 3, 0, map[string]int{"allowed-sources-node-ports": 3, "nodeports-restricted": 1}, map[string]bool{"firewall-node-ports": true}},
		{"external", 0, 1, 0, 0, map[string]int{"allowed-sources-external-ips": 1, "services-restricted": 1}, map[string]bool{"firewall-external-ips": true}},
		{"denied", 0, 0, 0, 2, map[string]int{"allowed-sources": 1, "allowed-sources-external-ips": 1, "allowed-sources-node-ports": 1, "denied-sources": 2,
			"services-restricted": 2, "nodeports-restricted": 1}, map[string]bool{"firewall-denied": true, "firewall-external-ips": true, "firewall-node-ports": true}},
	} {
		o := testOptions()
		o.Families = []inet.Family{inet.IPv4}
		p := New(o)
		s := guarded("a", tc.balancer, tc.external, tc.nodePort, tc.denied)
		p.Set(s.Name, s)
		got, chains := map[string]int{}, map[string]bool{}
		p.Elements(func(e *nft.Element) {
			for _, name := range []string{"allowed-sources", "allowed-sources-external-ips", "allowed-sources-node-ports", "denied-sources", "services-restricted", "nodeports-restricted"} {
				if e.Set.Name == name {
					got[name]++
				}
			}
		})
		for _, c := range p.Tables()[0].Chains {
			if class, ok := classOf(inet.IPv4, c.Name); ok && class.kind.restricts() {
				chains[c.Name] = true
			}
		}
		if !maps.Equal(got, tc.want) || !maps.Equal(chains, tc.chains) {
			t.Errorf("%s: %v and chains %v, want %v and %v", tc.name, got, chains, tc.want, tc.chains)
		}
		p.Set(s.Name, nil)
		if n := p.rooms[ofSourceRanges].Total(); n != 0 || sharedByServices(p)+len(p.leads) != 0 {
			t.Errorf("%s: without the Service, %d ranges and %d shared elements are left", tc.name, n, sharedByServices(p))
		}
	}
}

// TestListsOfSourcesShareTheRoom: the lists of a Service add up. Without room, all of its lists are empty, so that no source is allowed.
func TestListsOfSourcesShareTheRoom(t *testing.T) {
	o := testOptions()
	o.Families = []inet.Family{inet.IPv4}
	p := New(o)
	p.rooms[ofSourceRanges].Room = roomOfOne(10)
	within, above := guarded("a", 2, 2, 2, 2), guarded("ab", 1, 1, 1, 1)
	p.Set(within.Name, within)
	p.Set(above.Name, above)
	if left := p.Service(above.Name).Excess(); p.rooms[ofSourceRanges].Total() != 8 || len(p.Service(within.Name).Excess()) != 0 || len(left) != 1 || left[0].Field != model.BalancerSourcesField {
		t.Errorf("%d ranges are taken, parts are left out: %v and %v", p.rooms[ofSourceRanges].Total(), p.Service(within.Name).Excess(), left)
	}
	firewalls := 0
	p.Elements(func(e *nft.Element) {
		if e.Comment == "default/ab" && kindOf(e.Data.AsUint32()).restricts() {
			firewalls++
		}
	})
	lab.Same(t, 3, firewalls, "frontends of the Service without room look up the source")
	p.Set(within.Name, nil)
	p.Set(above.Name, above)
	if left := p.Service(above.Name).Excess(); p.rooms[ofSourceRanges].Total() != 4 || len(left) != 0 {
		t.Errorf("%d ranges are taken, parts are left out: %v", p.rooms[ofSourceRanges].Total(), left)
	}
}
