package console

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/statuspage"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

func (c *Console) syncs(ctx context.Context) ([]view.Sync, error) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	return c.Loop.Syncs(ctx)
}

// search answers queries of the status page. It explains only the Services on the page, except for a query for Services with
// problems.
func (c *Console) search(ctx context.Context, q statuspage.Query) (*statuspage.Found, error) {
	all := c.Source.Services()
	names := all[:0:0]
	for _, n := range all {
		if strings.Contains(strings.ToLower(n.String()), q.Find) {
			names = append(names, n)
		}
	}
	if q.Wrong {
		var err error
		if names, err = c.wrongOf(ctx, names); err != nil {
			return nil, err
		}
	}
	found := &statuspage.Found{Total: len(all), Matching: len(names)}
	names = names[min(q.Offset, len(names)):]
	names = names[:min(q.Limit, len(names))]
	v, err := c.explain(ctx, names)
	found.Services, found.NodeAddresses = withUnserved(v.Services, names), v.NodePortAddresses
	return found, err
}

// withUnserved inserts Services that are not served, such as headless ones, without ports, in order.
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
func (c *Console) wrongOf(ctx context.Context, names []types.NamespacedName) (wrong []types.NamespacedName, err error) {
	facts := c.Loop.Facts()
	lost, err := c.lost(ctx, names)
	noter := c.newNoter(&facts)
	for _, n := range names {
		x := model.Explain(c.Source.Service(n), c.Source.Slices(n), facts.Node, c.ModelOptions())
		if x == nil {
			continue
		}
		if _, problems := noter.notes(x); len(problems) > 0 || serviceView(x, &facts, lost).Wrong() {
			wrong = append(wrong, n)
		}
	}
	return wrong, err
}
