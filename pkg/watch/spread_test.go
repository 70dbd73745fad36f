package watch

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// TestRetriesAndRelistsAreSpread: the API server refuses the requests of many nodes at one moment, or makes all of them list all objects
// again at one moment. The next requests of the nodes are spread over at least half of the shortest pause.
func TestRetriesAndRelistsAreSpread(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	for name, answer := range map[string]struct{ list, watch error }{
		"the server fails":           {list: apierrors.NewServiceUnavailable("down")},
		"the server is overloaded":   {list: apierrors.NewGenericServerResponse(http.StatusTooManyRequests, "get", schema.GroupResource{}, "", "", 1, true)},
		"the server has old objects": {watch: expired},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const nodes = 50
				ctx, cancel := context.WithCancel(t.Context())
				var mu sync.Mutex
				var running sync.WaitGroup
				second := map[time.Duration]int{} // second lists, by the tenth of the shortest pause
				start := time.Now()
				for range nodes {
					lists := 0
					source := plainLists{&cache.ListWatch{
						ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
							mu.Lock()
							defer mu.Unlock()
							if lists++; lists == 2 {
								second[time.Since(start)/(pauses().Duration/10)]++
							}
							return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, answer.list
						},
						WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
							return nil, answer.watch
						},
					}}
					between := pauses()
					reflector := cache.NewReflectorWithOptions(source, &corev1.Service{}, cache.NewStore(cache.MetaNamespaceKeyFunc),
						cache.ReflectorOptions{Backoff: &between})
					running.Go(func() {
						ignore := func(context.Context, *cache.Reflector, error) {}
						follower{reflector, new(bool), ignore, "services", newObjects(nil, nil)}.run(ctx)
					})
				}
				time.Sleep(4 * pauses().Cap)
				cancel()
				running.Wait()
				total, most := 0, 0
				for _, n := range second {
					total, most = total+n, max(most, n)
				}
				if total != nodes || most > nodes/2 || len(second) < 5 {
					t.Errorf("of %d nodes, %d repeat their list, %d of these in the same tenth of the pause, in %d tenths", nodes, total, most, len(second))
				}
			})
		})
	}
}
