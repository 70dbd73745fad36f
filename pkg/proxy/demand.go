package proxy

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Demand follows the demand for Services without endpoints, beside the loop. Its methods do not block.
type Demand interface {
	// Holds announces that a service port holds packets for a Service since a time, or does not hold packets if the name is the zero name.
	Holds(h plan.Holder, service types.NamespacedName, since time.Time)
}

// onDemand passes the service ports that hold packets to Demand, after the kernel has them.
type onDemand struct {
	quiet
	to      Demand
	planner *plan.Planner
}

// Synced passes the changes of a successful sync. After a start, the packets that the rules of an earlier process have held count.
func (d onDemand) Synced(s *Sync) {
	if s.Err != nil {
		return
	}
	since := s.Begun
	if s.First {
		since = time.Time{}
	}
	d.planner.TakeHolders(func(h plan.Holder, service types.NamespacedName) { d.to.Holds(h, service, since) })
}
