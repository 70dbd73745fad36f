package watch

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestAWatchContinuesOnlyOnNewerData: before it continues a watch, the source checks that the server's data are not older than its
// own.
func TestAWatchContinuesOnlyOnNewerData(t *testing.T) {
	failure := errors.New("no")
	for name, c := range map[string]struct {
		from    metav1.ListOptions
		now     string
		failed  error
		asked   bool
		expired bool
	}{
		"no change":                {from: metav1.ListOptions{ResourceVersion: "900"}, now: "900", asked: true},
		"a change":                 {from: metav1.ListOptions{ResourceVersion: "900"}, now: "1000", asked: true},
		"restored":                 {from: metav1.ListOptions{ResourceVersion: "1000"}, now: "900", asked: true, expired: true},
		"versions of another kind": {from: metav1.ListOptions{ResourceVersion: "1000"}, now: "b", asked: true},
		"no answer":                {from: metav1.ListOptions{ResourceVersion: "1000"}, failed: failure, asked: true},
		"from the beginning":       {from: metav1.ListOptions{}, now: "1"},
		"from any version":         {from: metav1.ListOptions{ResourceVersion: "0"}, now: "1"},
	} {
		asked := false
		r := resource{probe: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			asked = true
			if o.Limit != 1 || o.ResourceVersion != "" {
				t.Errorf("%s: listed with %+v, want one present object", name, o)
			}
			return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: c.now}}, c.failed
		}}
		err := r.checkRestored(t.Context(), c.from)
		if asked != c.asked || apierrors.IsResourceExpired(err) != c.expired || errors.Is(err, failure) != (c.failed != nil) {
			t.Errorf("%s: asked %v, got %v", name, asked, err)
		}
	}
}
