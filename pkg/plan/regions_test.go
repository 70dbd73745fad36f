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
		got := regionsOf(p)
		lab.Same(t, 2, len(got), "%s: regions %q", name, got)
	}
}

// TestRegionsOfServiceCIDRs: an IPv4 /8 has regions everywhere, and a larger ServiceCIDR only where Services have addresses.
func TestRegionsOfServiceCIDRs(t *testing.T) {
	p := New(Options{Families: inet.Families[:1]})
	for cidr, want := range map[string]int{"10.96.0.0/21": 1, "10.96.0.0/12": 256, "10.0.0.0/8": 4096, "10.0.0.0/7": 0} {
		p.SetServiceCIDRs(inet.IPv4, []netip.Prefix{netip.MustParsePrefix(cidr)})
		lab.Same(t, want, len(regionsOf(p)), "regions of %s", cidr)
	}
}

// regionsOf returns the IPv4 regions of a plan.
func regionsOf(p *Planner) (list []string) {
	p.Elements(func(e *nft.Element) {
		if e.Set.Name == RegionsSet && e.Set.Family == inet.IPv4 {
			list = append(list, e.String())
		}
	})
	return list
}
