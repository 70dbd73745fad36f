package watch

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// A source stores the zones of endpoints only with the option for zones.
func TestZonesAreStoredOnRequest(t *testing.T) {
	zone, node := "zone-a", "node-1"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "cart-x", Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.10"}, NodeName: &node, Zone: &zone}},
	}
	for _, zones := range []bool{false, true} {
		cfg := Config{Zones: zones}
		item, err := cfg.transformer().transform(slice)
		lab.Must(t, err)
		e := item.(*object).value.(*model.Slice).Endpoints[0]
		if (e.Zone() == zone) != zones || e.Node() != node {
			t.Errorf("zones %t: the stored zone is %q, the node is %q", zones, e.Zone(), e.Node())
		}
	}
}
