package proxy

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Observer receives each commit. Its methods must not block.
type Observer interface {
	// Watched reports whether there is a receiver. Without a receiver, the loop does not call Committed.
	Watched() bool
	Committed(view.Commit)
}

// observer reports each commit to an Observer, with the changes of its Services.
type observer struct {
	quiet
	to      Observer
	planner *plan.Planner
	// changes holds the first changes since the last commit. unlisted is the number of further changes.
	changes  []view.Change
	unlisted int
}

// mostChanges is the largest number of Services whose changes an observer receives for one batch.
const mostChanges = 64

func newObserver(c *Config) *observer { return &observer{to: c.Observer, planner: c.Planner} }

// watched reports whether there is a receiver.
func (o *observer) watched() bool { return o.to != nil && o.to.Watched() }

// Service records the change of a Service that is about to be planned.
func (o *observer) Service(name types.NamespacedName, s *model.Service) {
	if !o.watched() {
		return
	}
	if len(o.changes) == mostChanges {
		o.unlisted++
		return
	}
	was, planned := o.planner.Present(name)
	c := view.Change{Service: name.String(), What: "changed"}
	var is plan.Present
	if s != nil {
		is = plan.PresentOf(s)
	}
	switch {
	case s == nil && !planned:
		return
	case s == nil:
		c.What = "gone"
	case !planned:
		c.What = "new"
	}
	c.Added, c.Removed = differing(was.Endpoints, is.Endpoints, netip.AddrPort.String)
	c.FrontendsAdded, c.FrontendsRemoved = differing(was.Frontends, is.Frontends, keyText)
	o.changes = append(o.changes, c)
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

// keyText returns, for example, 10.96.0.10:80/tcp, or for a node port :30080/tcp (IPv4).
func keyText(k model.Key) string {
	if !k.Addr.IsValid() {
		return fmt.Sprintf(":%d/%s (%s)", k.Port, k.Protocol, k.Family)
	}
	return fmt.Sprintf("%s/%s", k.Address(), k.Protocol)
}

// Synced passes the outcome of a sync to the observer. For a failed sync, it passes the error, and keeps the changes until a sync
// succeeds.
func (o *observer) Synced(s *Sync) {
	if !o.watched() {
		o.changes, o.unlisted = nil, 0
		return
	}
	r := &s.Result
	c := view.Commit{
		Time: s.End, Kind: string(r.Kind), Why: r.Why, Elements: r.Elements, PlanMicros: s.Begun.Sub(s.Start).Microseconds(),
		CommitMicros: r.Commit.Microseconds(),
	}
	if s.Err != nil {
		c.Failed = s.Err.Error()
		o.to.Committed(c)
		return
	}
	c.Services, c.More = o.changes, o.unlisted
	o.changes, o.unlisted = nil, 0
	if len(c.Services) > 0 || r.Kind == apply.Partial || r.Kind == apply.Full {
		o.to.Committed(c)
	}
}
