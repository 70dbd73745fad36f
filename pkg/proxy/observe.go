package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

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

// observed reports whether commits are watched.
func (p *Proxy) observed() bool { return p.Observer != nil && p.Observer.Watched() }

// observe records the change of a Service that is about to be planned.
func (p *Proxy) observe(name types.NamespacedName, s *model.Service) {
	a := &p.account
	if len(a.changes) == mostChanges {
		a.unlisted++
		return
	}
	was, planned := p.Planner.Present(name)
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
	a.changes = append(a.changes, c)
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
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// notifyObserver passes the result of a sync to the observer. For a failed sync, it passes the error, and keeps the changes until
// a sync succeeds.
func (p *Proxy) notifyObserver(end time.Time, planning time.Duration, r apply.Result, failure error) {
	a := &p.account
	if !p.observed() {
		a.changes, a.unlisted = nil, 0
		return
	}
	c := view.Commit{
		Time: end, Kind: string(r.Kind), Why: r.Why, Elements: r.Elements, PlanMicros: planning.Microseconds(),
		CommitMicros: r.Commit.Microseconds(),
	}
	if failure != nil {
		c.Failed = failure.Error()
		p.Observer.Committed(c)
		return
	}
	c.Services, c.More = a.changes, a.unlisted
	a.changes, a.unlisted = nil, 0
	if cmp.Or(len(c.Services), c.More) > 0 || r.Kind == apply.Partial || r.Kind == apply.Full {
		p.Observer.Committed(c)
	}
}
