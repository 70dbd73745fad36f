package track

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// MostTriggers limits the memory for one Service's triggers. A rolling update of many slices between two calls of
// [Tracker.Take] exceeds it. The oldest triggers are kept, because they have the greatest latency.
const MostTriggers = 100

// Trigger is the time of a change of endpoints in the cluster, from the annotation of an EndpointSlice.
type Trigger struct {
	// At is zero if the time is unknown.
	At time.Time
	// IPv6 is true for IPv6 endpoints.
	IPv6 bool
}

// Dirty is the set of changes between two calls of [Tracker.Take]. The zero value is empty and ready for use.
type Dirty struct {
	// Services are the Services with a changed object or changed EndpointSlices. Nil and empty mean the same.
	Services map[types.NamespacedName]struct{}
	// Node is true if this Node changed.
	Node bool
	// ServiceCIDRs is true if the cluster's service address ranges changed.
	ServiceCIDRs bool
	// Triggers are the times of changes of a Service's endpoints in the cluster (kube-proxy:
	// network_programming_duration_seconds). They are in the order of the events, at most MostTriggers for each
	// Service.
	Triggers map[types.NamespacedName][]Trigger
	// ServiceChanges is the number of Service events, SliceChanges the number of EndpointSlice events.
	ServiceChanges, SliceChanges int
	// Since is the time of the first mark; zero if there is none.
	Since time.Time
}

// Empty reports whether nothing is dirty.
func (d *Dirty) Empty() bool {
	return len(d.Services) == 0 && !d.Node && !d.ServiceCIDRs
}

func (d *Dirty) addTrigger(name types.NamespacedName, t Trigger) {
	if d.Triggers == nil {
		d.Triggers = map[types.NamespacedName][]Trigger{}
	}
	if len(d.Triggers[name]) < MostTriggers {
		d.Triggers[name] = append(d.Triggers[name], t)
	}
}
