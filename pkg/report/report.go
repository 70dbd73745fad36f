// Package report tells an operator what in the API could not be used: in the log, and where there is an API server, as an
// Event on the object that should be mended.
//
// In: [model.Problem] values from any goroutine.
// Out: one log line and one Event for each.
// Never: a decision, or a wait for the API server.
package report

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Reporter reports problems.
type Reporter struct {
	logger klog.Logger
	// recorder is nil where there is no API server.
	recorder events.EventRecorder
}

// New returns a reporter that writes Events too unless recorder is nil.
func New(logger klog.Logger, recorder events.EventRecorder) *Reporter {
	return &Reporter{logger, recorder}
}

// apiVersions are those of the kinds that Events can be about.
var apiVersions = map[string]string{
	"Service": "v1", "Node": "v1", "EndpointSlice": "discovery.k8s.io/v1", "ServiceCIDR": "networking.k8s.io/v1",
}

// Problem reports one problem. The caller sees to it that each is reported once.
func (r *Reporter) Problem(p model.Problem) {
	r.logger.Info("An object can't be served as it says", "kind", p.Kind, "object", p.Name, "field", p.Field, "reason", p.Reason)
	version, known := apiVersions[p.Kind]
	if r.recorder == nil || !known {
		return
	}
	object := &corev1.ObjectReference{APIVersion: version, Kind: p.Kind, Namespace: p.Name.Namespace, Name: p.Name.Name}
	reason, action := cmp.Or(p.Event, "NotProgrammed"), cmp.Or(p.Action, "Sync")
	r.recorder.Eventf(object, nil, corev1.EventTypeWarning, reason, action, "%s: %s", p.Field, p.Reason)
}
