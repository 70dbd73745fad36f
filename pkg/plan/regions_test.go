package plan

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestRegionsOfTheNode: the regions of node addresses are in the plan, whether the addresses are set before or after the Services, or change.
func TestRegionsOfTheNode(t *testing.T) {
	here, there := []netip.Addr{netip.MustParseAddr("192.0.2.1")}, []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	plain := benchService(1, 2, 0)
	steps := map[string]func(*Planner){
		"node first": func(p *Planner) { p.SetNodeAddresses(inet.IPv4, here); p.Set(plain.Name, plain) },
		"node last":  func(p *Planner) { p.Set(plain.Name, plain); p.SetNodeAddresses(inet.IPv4, here) },
		"another node": func(p *Planner) {
			p.SetNodeAddresses(inet.IPv4, there)
			p.Set(plain.Name, plain)
			p.SetNodeAddresses(inet.IPv4, here)
		},
		"a deleted Service": func(p *Planner) {
			p.SetNodeAddresses(inet.IPv4, here)
			p.Set(plain.Name, plain)
			p.Set(types.NamespacedName{Namespace: "x", Name: "y"}, nil)
		},
	}
	for name, do := range steps {
		p := New(testOptions())
		do(p)
		var got []string
		p.Elements(func(e *nft.Element) {
			if e.Set.Name == RegionsSet && e.Set.Family == inet.IPv4 {
				got = append(got, e.String())
			}
		})
		lab.Same(t, 2, len(got), "%s: regions %q", name, got)
	}
}
