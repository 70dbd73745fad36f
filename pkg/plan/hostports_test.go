package plan

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
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

// TestHostPortsCompeteWithNodePorts changes Services with node ports, host ports and addresses of the node at random: the
// oldest claim to a port is programmed.
func TestHostPortsCompeteWithNodePorts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	changeClaims(t, random, func() *model.Service { return onNode(random, random.IntN(8)) }, ownersOnNode)
}
