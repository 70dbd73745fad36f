package console

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Unserved Services appear among the others, without ports.
func TestUnservedServicesAreShown(t *testing.T) {
	names := []types.NamespacedName{{Namespace: "a", Name: "x"}, {Namespace: "b", Name: "x"}, {Namespace: "c", Name: "x"}}
	served := view.Service{Namespace: "b", Name: "x", Ports: []view.ServicePort{{Name: "p"}}}
	want := []view.Service{{Namespace: "a", Name: "x"}, served, {Namespace: "c", Name: "x"}}
	if diff := cmp.Diff(want, withUnserved([]view.Service{served}, names)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
