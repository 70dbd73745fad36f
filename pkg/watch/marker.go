package watch

import (
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

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
}

func (m marker) service(before, after *object) {
	if same(before, after) {
		return
	}
	m.tracker.MarkService(existing(before, after).NamespacedName)
}

// slice marks both Services if a slice moves from one Service to another. (kube-proxy keeps the endpoints in both
// Services.)
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
	previous, hadOwner := before.ownerName()
	owner, owned := after.ownerName()
	if hadOwner && previous != owner {
		m.tracker.MarkSlice(previous, track.Trigger{})
	}
	if !owned {
		return
	}
	var trigger track.Trigger
	// An equal trigger is measured already.
	if at := after.triggerMicros; at != 0 && (before == nil || before.triggerMicros != at) {
		trigger = track.Trigger{At: time.UnixMicro(at).UTC(), IPv6: after.ipv6}
	}
	m.tracker.MarkSlice(owner, trigger)
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

func existing(before, after *object) *object {
	if after != nil {
		return after
	}
	return before
}
