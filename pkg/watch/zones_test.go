package watch

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// A source stores the zones of endpoints only with the option for zones.
func TestZonesAreStoredOnRequest(t *testing.T) {
	zone, node := "zone-a", "node-1"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-x", Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.10"}, NodeName: &node, Zone: &zone}},
	}
	var sizes [2]int
	for i, zones := range []bool{false, true} {
		cfg := Config{Zones: zones}
		item, err := cfg.transformer().transform(slice)
		lab.Must(t, err)
		var out discoveryv1.EndpointSlice
		lab.Must(t, item.(*object).decode(&out))
		if got := out.Endpoints[0].Zone; (got != nil && *got == zone) != zones {
			t.Errorf("zones %t: the stored zone is %v", zones, got)
		}
		sizes[i] = len(item.(*object).data)
	}
	if more := sizes[1] - sizes[0]; more != len(zone)+2 {
		t.Errorf("a zone takes %d bytes, want %d", more, len(zone)+2)
	}
}
