package watch

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// marker turns changes of objects into marks. Its methods take the states before and after the change; nil means that
// the object does not exist. They mark nothing if the difference does not matter to the proxy.
type marker struct {
	nodeName string
	tracker  *track.Tracker
	report   func(model.Problem)
	// besideProxy is true if the source has only Services with a service-proxy name. The other proxy reports
	// EndpointSlices without a Service.
	besideProxy bool
	redirects   *redirects
}

// redirects has the Services with a local redirect, by the Service that they name. The watches of Services and of
// EndpointSlices use it.
type redirects struct {
	sync.RWMutex
	from map[types.NamespacedName]map[types.NamespacedName]bool
}

// note records the local redirect of a Service, which may be nil.
func (r *redirects) note(before, after *object) {
	r.Lock()
	defer r.Unlock()
	if name, to, ok := redirectOf(before); ok {
		if delete(r.from[to], name); len(r.from[to]) == 0 {
			delete(r.from, to)
		}
	}
	if name, to, ok := redirectOf(after); ok {
		if r.from == nil {
			r.from = map[types.NamespacedName]map[types.NamespacedName]bool{}
		}
		if r.from[to] == nil {
			r.from[to] = map[types.NamespacedName]bool{}
		}
		r.from[to][name] = true
	}
}

// redirectOf returns the name of a Service, and of the Service that its local redirect names.
func redirectOf(o *object) (name, to types.NamespacedName, ok bool) {
	if svc, exists := valueOf[corev1.Service](o); exists {
		to = types.NamespacedName{Namespace: o.Namespace, Name: svc.Annotations[model.RedirectAnnotation]}
		return o.NamespacedName, to, to.Name != ""
	}
	return name, to, false
}

// service records a local redirect before it marks the Service. So the next build sees each slice that was changed
// before the record, and each later change of a slice marks the Service.
func (m marker) service(before, after *object) {
	if same(before, after) {
		return
	}
	m.redirects.note(before, after)
	m.tracker.MarkService(existing(before, after).NamespacedName)
}

// slice marks both Services if a slice moves from one Service to another. (kube-proxy keeps the endpoints in both
// Services.) It also marks the Services with a local redirect to them.
func (m marker) slice(before, after *object) {
	if same(before, after) {
		return
	}
	if after != nil && after.value != nil && after.service == "" && !m.besideProxy {
		m.report(model.Problem{
			Kind:   "EndpointSlice",
			Name:   after.NamespacedName,
			Field:  "metadata.labels[" + discoveryv1.LabelServiceName + "]",
			Reason: "is missing: set it to the name of the Service of these endpoints",
		})
	}
	mark := func(owner types.NamespacedName, trigger track.Trigger) {
		m.tracker.MarkSlice(owner, trigger)
		m.redirects.RLock()
		defer m.redirects.RUnlock()
		for name := range m.redirects.from[owner] {
			m.tracker.MarkSlice(name, track.Trigger{})
		}
	}
	previous, hadOwner := before.ownerName()
	owner, owned := after.ownerName()
	if hadOwner && previous != owner {
		mark(previous, track.Trigger{})
	}
	if !owned {
		return
	}
	var trigger track.Trigger
	// An equal trigger is measured already.
	if at := after.triggerMicros; at != 0 && (before == nil || before.triggerMicros != at) {
		trigger = track.Trigger{At: time.UnixMicro(at).UTC(), IPv6: after.ipv6}
	}
	mark(owner, trigger)
}

func (m marker) node(before, after *object) {
	if same(before, after) || existing(before, after).Name != m.nodeName {
		return
	}
	m.tracker.MarkNode()
}

func (m marker) serviceCIDR(before, after *object) {
	if same(before, after) {
		return
	}
	m.tracker.MarkServiceCIDRs()
}

func (m marker) pod(before, after *object) {
	if same(before, after) {
		return
	}
	m.tracker.MarkService(model.PodName(existing(before, after).NamespacedName))
}

func existing(before, after *object) *object {
	if after != nil {
		return after
	}
	return before
}
