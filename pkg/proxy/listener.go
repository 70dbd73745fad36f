package proxy

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// Listener is a part beside the loop that follows it. The loop calls its methods and waits for them, so they must not
// block. [beside.Quiet] has all of them.
type Listener interface {
	// Service announces a Service that is about to be planned. s is immutable. It is nil if there is nothing to
	// program, for example because the Service was deleted.
	Service(name types.NamespacedName, s *model.Service)
	// Node announces that this node was read again.
	Node(*beside.Node)
	// Synced announces the outcome of a sync.
	Synced(*beside.Sync)
	// Serve starts work such as listening on sockets of this node, or stops it because another instance serves. The
	// loop calls Serve(true) after each successful sync and twice a second, so that a listener can retry failed work.
	Serve(bool)
}

// Change makes the loop sync soon. The sync first calls a function that changes the plan. Only methods of listeners and
// questions to the loop may call Change. They must not change the plan themselves, because a foreign change may lead to a
// comparison of the tables before the next sync. The comparison drops changes of sets that are not [plan.Planned], and
// repairs other changes by a full sync.
func (p *Proxy) Change(change func()) {
	p.changes = append(p.changes, change)
	p.Schedule.Requested()
}

// serve starts or stops the work of all listeners.
func (p *Proxy) serve(on bool) {
	for _, l := range p.Listeners {
		l.Serve(on)
	}
}
