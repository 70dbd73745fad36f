package proxy

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Listener is a part that follows the loop. The loop calls its methods and waits for them, so they must not block.
type Listener interface {
	// Service announces a Service that is about to be planned. s is immutable. It is nil if there is nothing to program, for example
	// because the Service was deleted.
	Service(name types.NamespacedName, s *model.Service)
	// Node announces that this node was read again.
	Node(*Node)
	// Synced announces the outcome of a sync.
	Synced(*Sync)
}

// intake is a part that follows the changes of objects.
type intake interface {
	// Queued announces that there are changes. Taken announces the changes that the loop is about to plan.
	Queued(now time.Time)
	Taken(*track.Dirty)
}

// Server is a part that works only while this instance serves, such as a part that listens on sockets of this node.
type Server interface {
	// Serve starts the work, or stops it because another instance serves. It does not wait. The loop calls Serve(true) after each successful
	// sync and twice a second. A server that could not start then tries again, and departures looks for due terminations.
	Serve(bool)
}

// Node is a reading of this node. It is immutable.
type Node struct {
	// Object is the Node, or nil if there is none.
	Object *corev1.Node
	// Addresses are the addresses that serve node ports. Sockets are the addresses on which servers listen: the same, or the
	// unspecified address if every local address serves node ports.
	Addresses, Sockets [2][]netip.Addr
}

// Sync is the outcome of a sync.
type Sync struct {
	// Start is the time when planning began. Begun and End are the times when the commit began and ended.
	Start, Begun, End time.Time
	// Services are the planned Services, in the order of planning.
	Services []types.NamespacedName
	// Result describes the commit. If Err is not nil, the sync failed.
	Result apply.Result
	Err    error
	// First is true until a sync succeeds. Waiting is true if changed Services wait in the queue.
	First, Waiting bool
	// Compared is the reason of the doubt that made the sync compare the tables with the plan, or "" without a doubt. If the reason is a foreign
	// change, Author is the author of the last foreign change.
	Compared metrics.Reason
	Author   nft.Author
}

// quiet ignores all announcements. A part embeds it, and defines only the methods that it needs.
type quiet struct{}

func (quiet) Service(types.NamespacedName, *model.Service) {}
func (quiet) Node(*Node)                                   {}
func (quiet) Synced(*Sync)                                 {}
func (quiet) Queued(time.Time)                             {}
func (quiet) Taken(*track.Dirty)                           {}

// connect makes the guard and the tally, and adds the parts of the configuration as listeners. earlier are the UDP
// frontends of an earlier process.
//
// The loop calls listeners in the order of the list. Health and metrics precede Config.Synced, so that they are current when it is called. Servers
// follow all listeners. The planner gets a Service after all listeners, so that the observer can compare it with its planned form.
func (p *Proxy) connect(earlier []model.Key) {
	p.guard = guard{trust: p.Kernel, announcements: p.Kernel, doubted: p.Metrics.Doubted, now: p.Now}
	p.tally = newTally(&p.Config, &p.problems)
	p.flows = newFlows(&p.Config, earlier)
	times, checks := newChangeTimes(p.Metrics.Programmed), newHealthChecks(&p.Config)
	p.listeners = []Listener{
		&p.account, newObserver(&p.Config), nodeHealth{Health: p.Health}, p.tally, hook{call: p.Config.Synced}, times, p.flows, checks,
	}
	p.intakes = []intake{nodeHealth{Health: p.Health}, p.tally, times}
	p.servers = []Server{checks}
	if p.Terminations != nil {
		departures := newDepartures(&p.Config)
		p.listeners, p.servers = append(p.listeners, departures), append(p.servers, departures)
	}
	if p.NodePortUsers != nil {
		p.listeners = append(p.listeners, portUsers{to: p.NodePortUsers, families: p.Families})
	}
	if p.Demand != nil {
		p.listeners = append(p.listeners, holders{to: p.Demand, planner: p.Planner})
	}
	if p.Clients != nil {
		p.listeners = append(p.listeners, sticky{to: p.Clients, planner: p.Planner})
	}
	if p.Loopback != nil {
		p.listeners = append(p.listeners, onLoopback{to: p.Loopback})
		p.servers = append(p.servers, p.Loopback)
	}
}

// hook calls a function after each successful sync.
type hook struct {
	quiet
	call func()
}

func (h hook) Synced(s *Sync) {
	if s.Err == nil && h.call != nil {
		h.call()
	}
}

// serve starts or stops all servers.
func (p *Proxy) serve(on bool) {
	for _, s := range p.servers {
		s.Serve(on)
	}
}
