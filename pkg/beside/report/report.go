// Package report reports problems of API objects to an operator: in the log, and with an API server as an Event on
// the object that needs a fix. It also writes the Events of the program's start.
//
// In: [model.Problem] values from any goroutine, and the result of the start.
// Out: one log line and one Event for each problem; Events about the Node.
// Never: decides, or waits for the API server (except [Recorder.Await]).
package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// Reporter reports problems.
type Reporter struct {
	logger klog.Logger
	// recorder is nil without an API server.
	recorder EventRecorder
	count    Count
	budget   budget
	wanted   demandBudget
}

// EventRecorder queues Events. client-go's recorders implement it, too.
type EventRecorder interface {
	Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any)
}

// Count has functions that count problems by the kind of their object: Problem for all, Suppressed for unreported ones.
type Count struct{ Problem, Suppressed func(kind string) }

// New returns a reporter. It writes Events unless recorder is nil.
func New(logger klog.Logger, recorder EventRecorder, count Count) *Reporter {
	return &Reporter{
		logger: logger, recorder: recorder, count: count, budget: newBudget(),
		wanted: demandBudget{granted: allowance{limit: demandPerNode}},
	}
}

// apiVersions are the API versions of kinds that Events can be about.
var apiVersions = map[string]string{
	"Service": "v1", "Node": "v1", "EndpointSlice": "discovery.k8s.io/v1", "ServiceCIDR": "networking.k8s.io/v1",
	"Pod": "v1",
}

// limitNames has the names of the limits in the log.
var limitNames = [...]string{room.OfNamespace: "the share of the namespace", room.OfNode: "the limit of the node"}

// Problem reports one problem, within the limits. The caller must report each problem only once. If a limit does not
// permit the report, and [Reporter.Withdraw] is not called, a later window reports the problem.
func (r *Reporter) Problem(p model.Problem) {
	r.count.Problem(p.Kind)
	r.renew()
	lacks, first := r.budget.take(p)
	if lacks == room.None {
		r.write(p)
		return
	}
	r.count.Suppressed(p.Kind)
	if first {
		r.logger.Info("Too many problems; further ones are counted, and reported later", "limit", limitNames[lacks],
			"owner", objectOf(p).owner(), "kind", p.Kind, "object", klog.KRef(p.Name.Namespace, p.Name.Name),
			"window", window)
	}
	r.await()
}

// Withdraw says that a problem no longer exists. If it was not reported because of a limit, it will not be reported.
func (r *Reporter) Withdraw(p model.Problem) { r.budget.withdraw(p) }

// renew begins a new window if the last one has ended: it logs the numbers of suppressed problems, and reports the
// remembered ones.
func (r *Reporter) renew() {
	before, list := r.budget.renew(time.Now())
	if len(before.ofNamespaces)+before.ofNode > 0 {
		r.logger.Info("Problems were not reported", "becauseOfTheLimitOfTheNode", before.ofNode,
			"becauseOfTheShareOfANamespace", before.worst(), "window", window, "reportedNow", len(list))
	}
	for _, p := range list {
		r.write(p)
	}
	r.await()
}

// await starts a timer for the end of the window if there are suppressed problems.
func (r *Reporter) await() {
	if after, start := r.budget.due(time.Now()); start {
		time.AfterFunc(after, r.renew)
	}
}

// worst lists the namespaces with the most suppressed problems.
func (s suppressed) worst() string {
	const most = 5
	list := slices.SortedFunc(maps.Keys(s.ofNamespaces), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.ofNamespaces[b], s.ofNamespaces[a]), cmp.Compare(a, b))
	})
	var texts []string
	for _, owner := range list[:min(len(list), most)] {
		texts = append(texts, fmt.Sprintf("%s: %d", owner, s.ofNamespaces[owner]))
	}
	if more := len(list) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
}

// write writes the log line and the Event of a problem.
func (r *Reporter) write(p model.Problem) {
	reason := short(p.Text())
	r.logger.Info("Part of an object cannot be used", "kind", p.Kind, "object",
		klog.KRef(p.Name.Namespace, p.Name.Name), "field", p.Field, "reason", reason)
	where := ""
	if p.Event != "" && p.Kind != "Node" {
		where = " (on one node or more)" // the Event is the same for all nodes
	}
	if p.EventReason != "" {
		p.Reason = p.EventReason
		reason = short(p.Text())
	}
	r.event(p.Kind, p.Name, corev1.EventTypeWarning, cmp.Or(p.Event, defaultReason), cmp.Or(p.Action, "Sync"),
		fmt.Sprintf("%s%s: %s", p.Field, where, reason))
}

// event writes an Event about an object, if its kind can have Events.
func (r *Reporter) event(kind string, name types.NamespacedName, severity, reason, action, note string) {
	version, known := apiVersions[kind]
	if r.recorder == nil || !known {
		return
	}
	object := &corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: name.Namespace, Name: name.Name}
	r.recorder.Eventf(object, nil, severity, reason, action, "%s", note)
}

// demandReason is the reason of Events about demand for a Service without endpoints.
const demandReason = "Demand"

// Wanted reports demand for a Service without endpoints. A scaler may wait for the Event, so it has no delay.
// Namespaces share the number of these Events.
func (r *Reporter) Wanted(service types.NamespacedName) {
	if !r.wanted.take(service.Namespace, time.Now()) {
		r.count.Suppressed("Service")
		return
	}
	r.logger.Info("A client connects to a Service without endpoints; its packets are held", "service", service)
	r.event("Service", service, corev1.EventTypeNormal, demandReason, "Hold",
		"a client connects (on one node or more), and the Service has no endpoint")
}

// defaultReason is the reason of Events about problems that do not depend on the node.
const defaultReason = "NotProgrammed"

// startAction is the action of Events about the program as a whole (kube-proxy: app/server.go).
const startAction = "StartKubeProxy"

// Started writes the Event of a start to the Node.
func (r *Reporter) Started(node string) { r.node(node, corev1.EventTypeNormal, "Starting", "") }

// ServerFailed writes the Event of an HTTP server that cannot start, if the program exits because of it. The reason is
// kube-proxy's for this server.
func (r *Reporter) ServerFailed(node, reason string, err error) {
	r.node(node, corev1.EventTypeWarning, reason, err.Error())
}

func (r *Reporter) node(name, kind, reason, note string) {
	r.event("Node", types.NamespacedName{Name: name}, kind, reason, startAction, note)
}
