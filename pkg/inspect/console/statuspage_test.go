package console

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestUnservedServicesAreShown: Services that are not served appear in the list, without ports.
func TestUnservedServicesAreShown(t *testing.T) {
	names := []types.NamespacedName{{Namespace: "a", Name: "x"}, {Namespace: "b", Name: "x"}, {Namespace: "c", Name: "x"}}
	served := view.Service{Namespace: "b", Name: "x", Ports: []view.ServicePort{{Name: "p"}}}
	want := []view.Service{{Namespace: "a", Name: "x"}, served, {Namespace: "c", Name: "x"}}
	lab.Same(t, want, withUnserved([]view.Service{served}, names), "")
}

// TestTheSearchForProblemsTakesATwentieth: a query does not wait for a search that takes a second, and no search starts within the next 19 seconds.
// After a failed search, the last result stays.
func TestTheSearchForProblemsTakesATwentieth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a attention
		var searches atomic.Int32
		var failure error
		search := func() (map[types.NamespacedName]bool, error) {
			searches.Add(1)
			time.Sleep(time.Second)
			return map[types.NamespacedName]bool{{Name: "web"}: true}, failure
		}
		ask := func(known bool, wait time.Duration, want int32) {
			t.Helper()
			start := time.Now()
			if wrong := a.of(search); wrong[types.NamespacedName{Name: "web"}] != known || time.Since(start) != wait || searches.Load() != want {
				t.Errorf("%v after %v and %d searches, want %v, %v, %d", wrong, time.Since(start), searches.Load(), known, wait, want)
			}
		}
		const moment = 200 * time.Millisecond
		ask(false, moment, 1)
		ask(false, moment, 1)
		time.Sleep(500 * time.Millisecond)
		ask(true, 100*time.Millisecond, 1)
		time.Sleep(19*time.Second - 1)
		ask(true, 0, 1)
		failure = errors.New("no luck")
		time.Sleep(time.Nanosecond)
		ask(true, moment, 2)
		time.Sleep(800 * time.Millisecond)
		ask(true, 0, 2)
	})
}
