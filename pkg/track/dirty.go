package track

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxTriggers bounds the memory for one Service's triggers. A Service that has more of them than this in one commit
// has a rolling update of many slices; the oldest ones, whose latency is greatest, are kept.
const maxTriggers = 100

// Trigger is when a change of endpoints happened in the cluster, by the annotation of an EndpointSlice.
type Trigger struct {
	// At is zero where it isn't known.
	At time.Time
	// IPv6 says that the endpoints are of that family.
	IPv6 bool
}

// Dirty is what changed between two calls of [Tracker.Take]. Its zero value is empty and ready for use.
type Dirty struct {
	// Services are those whose object or EndpointSlices changed. Nil and empty mean the same.
	Services map[types.NamespacedName]struct{}
	// Node says that the proxy's own Node changed.
	Node bool
	// ServiceCIDRs says that the cluster's service address ranges changed.
	ServiceCIDRs bool
	// Triggers are when changes of a Service's endpoints happened in the cluster, at most 100 for each Service, the oldest first as far as the events came in order (kube-proxy:
	// network_programming_duration_seconds).
	Triggers map[types.NamespacedName][]Trigger
	// ServiceChanges is the number of Service events, SliceChanges that of EndpointSlice events.
	ServiceChanges, SliceChanges int
	// Since is when the first of the changes was marked; zero where there is none.
	Since time.Time
}

// Empty reports whether nothing is dirty.
func (d *Dirty) Empty() bool {
	return len(d.Services) == 0 && !d.Node && !d.ServiceCIDRs
}

func (d *Dirty) addService(name types.NamespacedName) {
	if d.Services == nil {
		d.Services = map[types.NamespacedName]struct{}{}
	}
	d.Services[name] = struct{}{}
}

func (d *Dirty) addTriggers(name types.NamespacedName, triggers ...Trigger) {
	if d.Triggers == nil {
		d.Triggers = map[types.NamespacedName][]Trigger{}
	}
	known := d.Triggers[name]
	room := min(maxTriggers-len(known), len(triggers))
	d.Triggers[name] = append(known, triggers[:room]...)
}
