package console

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// commits is a listener that passes the commits of the loop, with the changes of their Services, to a command that
// watches.
type commits struct {
	feed    *control.Feed[view.Commit]
	planner *plan.Planner
	// changes holds the first changes since the last commit. unlisted is the number of further changes.
	changes  []view.Change
	unlisted int
}

// mostChanges is the largest number of Services whose changes a command receives for one batch.
const mostChanges = 64

// watch passes the commits of the loop to a feed until the context ends.
func (c *Console) watch(ctx context.Context, to *control.Feed[view.Commit]) error {
	l := &commits{feed: to, planner: c.Planner}
	return c.Loop.Follow(ctx, beside.Listener{Service: l.service, Synced: l.synced})
}

// service records the change of a Service that is about to be planned.
func (c *commits) service(name types.NamespacedName, s *model.Service) {
	if len(c.changes) == mostChanges {
		c.unlisted++
		return
	}
	old := c.planner.Service(name)
	was, planned := old.Present(), old.Exists()
	change := view.Change{Service: name.String(), What: "changed"}
	var is plan.Present
	if s != nil {
		is = plan.PresentOf(s)
	}
	switch {
	case s == nil && !planned:
		return
	case s == nil:
		change.What = "gone"
	case !planned:
		change.What = "new"
	}
	change.Added, change.Removed = differing(was.Endpoints, is.Endpoints, netip.AddrPort.String)
	change.FrontendsAdded, change.FrontendsRemoved = differing(was.Frontends, is.Frontends, frontendText)
	c.changes = append(c.changes, change)
}

// differing returns the items that only one of two lists has.
func differing[T comparable](was, is []T, text func(T) string) (added, removed []string) {
	had := make(map[T]bool, len(was))
	for _, e := range was {
		had[e] = true
	}
	for _, e := range is {
		if !had[e] {
			added = append(added, text(e))
		}
		delete(had, e)
	}
	for e := range had {
		removed = append(removed, text(e))
	}
	slices.Sort(removed)
	return added, removed
}

// frontendText returns, for example, 10.96.0.10:80/tcp, or for a node port :30080/tcp (IPv4).
func frontendText(k model.Key) string {
	if !k.Addr.IsValid() {
		return fmt.Sprintf(":%d/%s (%s)", k.Port, k.Protocol, k.Family)
	}
	return fmt.Sprintf("%s/%s", k.Address(), k.Protocol)
}

// synced passes the outcome of a sync to the command. For a failed sync, it passes the error, and keeps the changes
// until a sync succeeds.
func (c *commits) synced(s *beside.Sync) {
	r := &s.Result
	commit := view.Commit{
		Time: s.End, Kind: string(r.Kind), Why: r.Why, Elements: r.Elements, PlanMicros: s.Begun.Sub(s.Start).Microseconds(),
		CommitMicros: r.Commit.Microseconds(),
	}
	if s.Err != nil {
		commit.Failed = s.Err.Error()
		c.feed.Publish(commit)
		return
	}
	commit.Services, commit.More = c.changes, c.unlisted
	c.changes, c.unlisted = nil, 0
	if len(commit.Services) > 0 || r.Kind == apply.Partial || r.Kind == apply.Full {
		c.feed.Publish(commit)
	}
}
