package proxy

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Demand observes the demand for Services without endpoints, beside the loop. Its methods do not block.
type Demand interface {
	// Holds announces that a service port of the named Service has held packets since the given time. The zero name means that the service port
	// holds no packets any more.
	Holds(h plan.Holder, service types.NamespacedName, since time.Time)
}

// holders passes the service ports that hold packets to Demand, after each successful sync.
type holders struct {
	quiet
	to      Demand
	planner *plan.Planner
}

// Synced passes the changes of a successful sync. After a start, packets that the rules of an earlier process have held also count as demand.
func (h holders) Synced(s *Sync) {
	if s.Err != nil {
		return
	}
	since := s.Begun
	if s.First {
		since = time.Time{}
	}
	h.planner.TakeHolders(func(holder plan.Holder, service types.NamespacedName) { h.to.Holds(holder, service, since) })
}
