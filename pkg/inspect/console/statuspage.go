package console

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/statuspage"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

func (c *Console) syncs(ctx context.Context) ([]view.Sync, error) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	return c.Loop.Syncs(ctx)
}

// search answers queries of the status page. Services that need attention precede the other ones. search explains only
// the Services of the requested part.
func (c *Console) search(ctx context.Context, q statuspage.Query) (*statuspage.Found, error) {
	all := c.Source.Services()
	wrong := c.attention.of(func() (map[types.NamespacedName]bool, error) { return c.wrongOf(context.WithoutCancel(ctx), all) })
	var names, others []types.NamespacedName
	for _, n := range all {
		switch {
		case !strings.Contains(strings.ToLower(n.String()), q.Find):
		case wrong[n]:
			names = append(names, n)
		default:
			others = append(others, n)
		}
	}
	found := &statuspage.Found{Total: len(all), WithProblem: len(names), Unread: c.unreadKinds()}
	if wrong == nil {
		found.WithProblem = -1
	}
	if !q.Wrong {
		names = append(names, others...)
	}
	found.Matching = len(names)
	names = names[min(q.Offset, len(names)):]
	names = names[:min(q.Limit, len(names))]
	v, err := c.explain(ctx, names)
	found.Services, found.NodeAddresses = withUnserved(v.Services, names), v.NodePortAddresses
	return found, err
}

// attention caches the Services that need attention. A search for them explains all Services: 10,000 take half a second
// of one processor.
type attention struct {
	mu    sync.Mutex
	wrong map[types.NamespacedName]bool
	// running is closed at the end of the running search; it is nil if none runs. next is the earliest start of the
	// next search.
	running chan struct{}
	next    time.Time
}

// of returns the Services that need attention, or nil before the end of the first search. It starts a search if one is
// due, and waits for it only a moment, so that the page answers quickly. Searches take at most a twentieth of one
// processor.
func (a *attention) of(find func() (map[types.NamespacedName]bool, error)) map[types.NamespacedName]bool {
	const moment = 200 * time.Millisecond
	a.mu.Lock()
	if a.running == nil && !time.Now().Before(a.next) {
		a.running = make(chan struct{})
		go a.search(find)
	}
	running := a.running
	a.mu.Unlock()
	if running != nil {
		select {
		case <-running:
		case <-time.After(moment):
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wrong
}

// search stores the result of find, unless it fails.
func (a *attention) search(find func() (map[types.NamespacedName]bool, error)) {
	const pause = 19
	start := time.Now()
	wrong, err := find()
	end := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.wrong = wrong
	} else {
		klog.V(2).InfoS("Failed to search for Services with a problem", "err", err)
	}
	a.next = end.Add(pause * end.Sub(start))
	close(a.running)
	a.running = nil
}

// withUnserved inserts the Services that are not served, such as headless ones. They have no ports. The result has the
// order of names.
func withUnserved(served []view.Service, names []types.NamespacedName) []view.Service {
	list := make([]view.Service, 0, len(names))
	for _, n := range names {
		s := view.Service{Namespace: n.Namespace, Name: n.Name}
		if len(served) > 0 && served[0].Namespace == n.Namespace && served[0].Name == n.Name {
			s, served = served[0], served[1:]
		}
		list = append(list, s)
	}
	return list
}

// wrongOf returns the Services that need attention.
func (c *Console) wrongOf(ctx context.Context, names []types.NamespacedName) (map[types.NamespacedName]bool, error) {
	wrong := map[types.NamespacedName]bool{}
	err := c.each(ctx, names, nil, func(x *model.Explanation, s *view.Service) {
		if s.Wrong() {
			wrong[x.Name] = true
		}
	})
	return wrong, err
}
