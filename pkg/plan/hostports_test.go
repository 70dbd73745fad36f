package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
)

var nodeIP = netip.MustParseAddr("192.0.2.1")

// onNode returns a Service with one UDP port and random frontends: node ports and host ports of all addresses of the
// node, and host ports, external IPs and load-balancer IPs of one address.
func onNode(random *rand.Rand, i int) *model.Service {
	s := benchService(i, 2, 0)
	s.Created = time.Unix(int64(random.IntN(5)), 0)
	sp := *s.Ports[0]
	sp.Protocol, sp.Frontends = inet.UDP, nil
	for port := uint16(1); port < 4; port++ {
		for _, kinds := range [...][]model.Kind{
			{model.NodePort, model.HostPort}, {model.HostPort, model.ExternalIP, model.LoadBalancer},
		} {
			k := model.Key{Port: port, Protocol: inet.UDP}
			if len(kinds) > 2 {
				k.Addr = nodeIP
			}
			if random.IntN(2) == 0 {
				sp.Frontends = append(sp.Frontends, model.Frontend{Key: k, Kind: kinds[random.IntN(len(kinds))]})
			}
		}
	}
	s.Ports = []*model.ServicePort{&sp}
	return s
}

// ownersOnNode returns the Services that have the keys of all Services, and the number of conflicts.
func ownersOnNode(services map[types.NamespacedName]*model.Service) (want map[model.Key]types.NamespacedName, lost int) {
	best := map[model.Key]claim{}
	for _, s := range services {
		for i := range s.Ports[0].Frontends {
			f := &s.Ports[0].Frontends[i]
			c := claim{service: &service{name: s.Name, age: s.Age()}, frontend: f}
			b, taken := best[f.Key]
			if taken {
				lost++
			}
			if !taken || c.compare(b) < 0 {
				best[f.Key] = c
			}
		}
	}
	want = map[model.Key]types.NamespacedName{}
	for k, c := range best {
		nodePort, exists := best[model.Key{Port: k.Port, Protocol: k.Protocol}]
		rivals := exists && c.frontend.Kind == model.HostPort && k.Addr.IsValid() &&
			nodePort.service.name != c.service.name
		if rivals {
			lost++
		}
		if !rivals || c.service.compareAge(nodePort.service) < 0 {
			want[k] = c.service.name
		}
	}
	return want, lost
}

// TestHostPortsCompeteWithNodePorts changes Services with node ports, host ports and addresses of the node at random.
// After each change, the oldest claims to a port are programmed, each conflict has a loser, and the elements of the plan
// are the sum of the differences.
func TestHostPortsCompeteWithNodePorts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	p := New(testOptions())
	r := record(t, p)
	services := map[types.NamespacedName]*model.Service{}
	for round := range 1_500 {
		s := onNode(random, random.IntN(8))
		name := s.Name
		if random.IntN(4) == 0 {
			s = nil
		}
		p.Set(name, s)
		if services[name] = s; s == nil {
			delete(services, name)
		}
		p.Conflicts().Settle(1)
		want, lost := ownersOnNode(services)
		got := map[model.Key]types.NamespacedName{}
		p.Flows().Each(func(k model.Key, flows FlowPolicy, _ bool) { got[k] = flows.Port.NamespacedName })
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("round %d: the plan has %v, want %v", round, got, want)
		}
		conflicts := 0
		for name := range services {
			_, n := p.Conflicts().Of(name)
			conflicts += n
		}
		if conflicts != lost || p.Totals().Conflicts != lost {
			t.Fatalf("round %d: %d conflicts, %d in all, want %d", round, conflicts, p.Totals().Conflicts, lost)
		}
		n := 0
		p.Elements(func(e *nft.Element) {
			if n++; r.elements[e.ID()] != *e {
				t.Fatalf("round %d: the differences do not lead to %s", round, e)
			}
		})
		if n != len(r.elements) {
			t.Fatalf("round %d: the differences lead to %d elements, the plan has %d", round, len(r.elements), n)
		}
	}
	for name := range services {
		p.Set(name, nil)
	}
	if cs := p.claims; len(cs.hostIPs)+len(cs.places.beaten)+len(cs.places.fronts)+len(cs.places.inFrontOf) != 0 {
		t.Errorf("after the deletion of all Services, this is left: %v %+v", cs.hostIPs, cs.places)
	}
}
