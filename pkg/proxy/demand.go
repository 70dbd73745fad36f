package proxy

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Demand observes the demand for Services without endpoints, beside the loop. Its methods do not block.
type Demand interface {
	// Holds announces that a service port of the named Service holds packets, and has done so since a time. The zero name means that the service port
	// holds no packets any more.
	Holds(h plan.Holder, service types.NamespacedName, since time.Time)
}

// onDemand passes the service ports that hold packets to Demand, after the kernel has them.
type onDemand struct {
	quiet
	to      Demand
	planner *plan.Planner
}

// Synced passes the changes of a successful sync. After a start, packets that the rules of an earlier process have held also count as demand.
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
