package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestNodesOfVIPs: the measured nodes have the numbers of load-balancer IPs and port ranges that their names state.
func TestNodesOfVIPs(t *testing.T) {
	for _, family := range inet.Families {
		w := vipWorld(family)
		w.lab = lab.ForTest(t, lab.Config{})
		for _, n := range vipNodes {
			t.Run(family.String()+", "+n.name, func(t *testing.T) {
				p := plan.New(plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000})
				services := map[types.NamespacedName]*corev1.Service{}
				for _, o := range n.objects(w) {
					switch o := o.(type) {
					case *corev1.Service:
						services[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = o
					case *discoveryv1.EndpointSlice:
						name := types.NamespacedName{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}
						p.Set(name, built(services[name], o))
					}
				}
				got := map[string]int{}
				p.Elements(func(e *nft.Element) { got[e.Set.Name]++ })
				want := map[string]int{plan.ServicesSet: vipServices, "endpoints": vipServices * vipEndpoints}
				if n.vips {
					want[plan.ServicesSet] *= 2
				}
				if n.ranges {
					want[plan.RangesSet], want["range-addresses"] = 1000, 1000
				}
				for set, count := range want {
					if got[set] != count {
						t.Errorf("%s has %d elements, want %d", set, got[set], count)
					}
				}
			})
		}
	}
}
