package proxy

import (
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Cluster has the objects that the plan depends on, besides EndpointSlices. Do not change returned objects: they may be
// shared.
type Cluster interface {
	Services() []types.NamespacedName
	Node() *corev1.Node
	ServiceCIDRs() []*networkingv1.ServiceCIDR
}

// Source holds the API objects.
type Source interface {
	Cluster
	// Get returns a Service and its EndpointSlices.
	Get(name types.NamespacedName) model.Objects
	// Loaded returns a channel that is closed after all Services and all EndpointSlices were read.
	Loaded() <-chan struct{}
}

// Kernel has the kernel's tables, and the announcements of their changes.
type Kernel interface {
	// Recall makes a planner assign the same numbers as the earlier process that left the tables. Call it without
	// Services before the first Service is planned, and then with Services before they are planned for the first time.
	Recall(*plan.Planner, []*model.Service) error
	// Sync makes the tables match the plan.
	Sync(*plan.Planner) (apply.Result, error)
	// Renew restarts the lease of the tables. It then lasts for a time, or for [plan.Lease] if the time is 0.
	Renew(*plan.Planner, time.Duration) error
	// Leased returns the time of the last renewal of the lease by this process, LeasedByAny by any process. Both may be
	// zero.
	Leased() time.Time
	LeasedByAny(*plan.Planner) time.Time
	// Forget deletes remembered clients, and returns the number of deleted ones.
	Forget([]nft.Element) (int, error)

	// Known reports whether the tables are known to be those of the last Sync.
	Known() bool
	// Doubt makes the next Sync compare the tables with the plan.
	Doubt()
	// CheckRuleset looks for foreign changes of the ruleset since the last Sync, and reports whether there were any.
	CheckRuleset() (changed bool, err error)
	// Heard returns a channel that has a value after an announcement of a foreign change.
	Heard() <-chan struct{}
	// Touched describes a foreign change of the program's tables that the kernel has announced and no sync has handled
	// yet; "" if there is none. It makes no system call.
	Touched() string
	// Author returns the author of the last foreign change.
	Author() nft.Author
}

// Config holds the parts and settings of a proxy.
type Config struct {
	Source   Source
	Tracker  *track.Tracker
	Kernel   Kernel
	Planner  *plan.Planner
	Metrics  *metrics.Loop
	Health   *health.Health
	Schedule Schedule

	Families []inet.Family
	NodeName string
	Model    model.Options
	// NodeIP, if valid, overrides the Node's address of its family (kube-proxy: --bind-address).
	NodeIP netip.Addr
	// NodeCIDR reads the prefixes of local pods from the Node, and waits for them (kube-proxy: detect-local-mode
	// NodeCIDR).
	NodeCIDR bool
	// NodePorts chooses the addresses on which node ports are served.
	NodePorts model.NodePortAddresses
	// Listeners are the parts beside the loop. The loop calls them in this order.
	Listeners []beside.Listener
	// Settled, if not nil, is called after each successful sync until it returns true.
	Settled func() bool
	// Report receives each problem of an API object. Withdraw, if not nil, receives each problem that no longer exists.
	Report, Withdraw func(model.Problem)
	// Turn, if not nil, decides whether this instance serves or stands by.
	Turn Turn
	// Now is the clock. It must be that of Kernel, whose results have times.
	Now func() time.Time
}

// Proxy keeps the kernel's tables as planned. See [Proxy.Run].
type Proxy struct {
	Config
	// guard protects the tables against foreign changes.
	guard   guard
	account account
	// facts are the current facts. published holds a copy for other goroutines.
	facts     Facts
	published atomic.Pointer[Facts]
	builder   builder
	// queue holds changed Services that wait to be planned, and problems the reported problems.
	queue    queue
	problems problemBook
	// kinds holds the kinds of the planned Services that have any. changed are the kinds of Services whose changes were
	// not announced yet by a successful sync.
	kinds   map[types.NamespacedName]beside.Kinds
	changed beside.Kinds
	// changes are the changes of the plan that listeners request, see [Proxy.Change].
	changes []func()
	// unsettled is true if the planner has conflicts left to decide about in the next round.
	unsettled bool
	// waitingRest is the rest between two looks at the Services that wait for room.
	waitingRest rest
	// unplanned is the number of Services that the first batch does not contain yet.
	unplanned int
	standby   standby
	// heard has a value after an announcement of a foreign change. granted is true while this process serves. turned
	// has a value when granted may have changed. Without Turn, granted is always true, and turned is nil.
	heard, turned <-chan struct{}
	granted       *atomic.Bool
	lease         lease
	// alarm wakes the loop at the time of the next task.
	alarm *time.Timer
	// started is true after the first successful sync. failed is true if the last sync failed. The next sync then
	// plans new changes before it commits, because one of them may remove the cause.
	started, failed bool
	// lastCommit is the end of the last successful sync. againAt is the time at which a sync must make a set larger
	// or delete unused chains; zero if no sync must.
	lastCommit, againAt time.Time
	// addressesAt is the time of the next attempt to read the node's addresses, or zero if the last attempt succeeded.
	addressesAt time.Time
	// unaddressed is true if the Node has no known address.
	unaddressed bool
	// agedAt is the time of the last call of [plan.Planner.Age].
	agedAt time.Time
	// sockets are the addresses on which servers listen, see [beside.Node].
	sockets [2][]netip.Addr
	// questions passes functions to the loop, which runs them between two steps and while it waits. See ask.
	questions chan func()
}

// addressesRetry is the time between two attempts to read the addresses of the node.
const addressesRetry = 2 * time.Second

// New returns a proxy. Run starts it.
func New(c Config) *Proxy {
	p := &Proxy{
		Config: c, problems: newProblemBook(), queue: newQueue(), questions: make(chan func()),
		kinds: map[types.NamespacedName]beside.Kinds{}, changed: beside.AllKinds, granted: new(atomic.Bool),
	}
	p.granted.Store(true)
	p.builder = builder{
		source: c.Source, options: c.Model, node: &p.facts.Node,
		starts: map[types.NamespacedName]*model.Starts{},
	}
	return p
}

// connect makes the guard, and receives foreign changes and changes of the instance that serves.
func (p *Proxy) connect() {
	p.guard = guard{kernel: p.Kernel, doubted: p.Metrics.Doubted, now: p.Now}
	p.heard = p.Kernel.Heard()
	if p.Turn != nil {
		p.granted, p.turned = p.Turn.Granted(), p.Turn.Changed()
	}
}
