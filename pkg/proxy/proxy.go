package proxy

import (
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/schedule"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Objects reads Services and their EndpointSlices. Several goroutines may call it.
type Objects interface {
	// Get returns a Service and its EndpointSlices.
	Get(name types.NamespacedName) model.Objects
}

// Cluster has the other objects that the plan depends on. Do not change returned objects: they may be shared.
type Cluster interface {
	Services() []types.NamespacedName
	Node() *corev1.Node
	ServiceCIDRs() []*networkingv1.ServiceCIDR
}

// Source holds the API objects.
type Source interface {
	Objects
	Cluster
	// Loaded returns a channel that is closed after all Services and all EndpointSlices were read.
	Loaded() <-chan struct{}
}

// Tables are the kernel's tables.
type Tables interface {
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
}

// recaller makes a planner assign the same numbers as the earlier process that left the tables. Call Recall without Services before
// the first Service is planned, and then with Services before they are planned for the first time.
type recaller interface {
	// Prepare does work that needs no Services, before Recall.
	Prepare(*plan.Planner)
	Recall(*plan.Planner, []*model.Service) error
}

// Kernel has the kernel's tables, their sizes, and the announcements of their changes.
type Kernel interface {
	Tables
	recaller
	trust
	announcements
	Sizes
}

// Config holds the parts and settings of a proxy.
type Config struct {
	Source   Source
	Tracker  *track.Tracker
	Kernel   Kernel
	Planner  *plan.Planner
	Metrics  *metrics.Metrics
	Health   *health.Health
	Schedule schedule.Schedule

	Families []inet.Family
	NodeName string
	Model    model.Options
	// NodeIP, if valid, overrides the Node's address of its family (kube-proxy: --bind-address).
	NodeIP netip.Addr
	// NodeCIDR reads the prefixes of local pods from the Node, and waits for them (kube-proxy: detect-local-mode NodeCIDR).
	NodeCIDR bool
	// NodePorts chooses the addresses on which node ports are served.
	NodePorts NodePortAddresses
	// NodePortUsers, if not nil, searches for other users of the node ports.
	NodePortUsers NodePortUsers
	// Demand, if not nil, follows the demand for Services without endpoints.
	Demand Demand
	// Clients, if not nil, limits the remembered clients of each namespace.
	Clients Clients
	// Loopback, if not nil, serves node ports on loopback.
	Loopback Loopback
	// Checks answers load balancers that query the number of local endpoints.
	Checks *health.Services
	// Flows deletes stale flows.
	Flows Flows
	// Terminations, if not nil, terminates TCP connections to endpoints that have left the slices.
	Terminations Flows
	// Earlier, if not nil, returns the UDP frontends in the tables of an earlier process.
	Earlier func() ([]model.Key, error)
	// Report receives each problem of an API object. Withdraw, if not nil, receives each problem that no longer exists.
	Report, Withdraw func(model.Problem)
	// Turn, if not nil, decides whether this instance serves or stands by.
	Turn Turn
	// Synced, if not nil, is called after each successful sync.
	Synced func()
	// Observer, if not nil, receives each commit while Observer.Watched returns true.
	Observer Observer
	// Now is the clock. It must be that of Kernel, whose results have times.
	Now func() time.Time
}

// Proxy keeps the kernel's tables as planned. See [Proxy.Run].
type Proxy struct {
	Config
	// guard protects the tables against foreign changes.
	guard guard
	// The loop reports its work to listeners, intakes and servers, see connect. tally and account also answer questions.
	listeners []Listener
	intakes   []intake
	servers   []Server
	tally     *tally
	account   account
	flows     *flows
	// facts are the current facts. published holds a copy for other goroutines.
	facts     Facts
	published atomic.Pointer[Facts]
	rebuilder *rebuilder
	// queue holds changed Services that wait to be planned, and problems the reported problems.
	queue    queue
	problems problemBook
	// unsettled is true if the planner has conflicts left to decide about in the next batch.
	unsettled bool
	// waitingRest is the rest between two looks at the Services that wait for room.
	waitingRest rest
	// unplanned is the number of Services that the first batch does not contain yet.
	unplanned int
	standby   standby
	lease     lease
	alarm     alarm
	// started is true after the first successful sync. failed is true if the last sync failed. The next sync then plans new changes
	// before it commits, because one of them may remove the cause.
	started, failed bool
	// lastCommit is the end of the last successful sync. againAt is the time at which a sync must make a set larger or delete unused chains;
	// zero if no sync must.
	lastCommit, againAt time.Time
	// addressesAt is the time of the next attempt to read the node's addresses, or zero if the last attempt succeeded.
	addressesAt time.Time
	// unaddressed is true if the Node has no known address.
	unaddressed bool
	// agedAt is the time of the last call of [plan.Planner.Age], or the time since which the planner keeps counts; zero if it keeps none.
	agedAt time.Time
	// sockets are the addresses on which servers listen, see [Node].
	sockets [2][]netip.Addr
	// questions passes functions to the loop, which runs them between two steps and while it waits. See ask.
	questions chan func()
}

// addressesRetry is the time between two attempts to read the addresses of the node.
const addressesRetry = 2 * time.Second

// New returns a proxy. Run starts it.
func New(c Config) *Proxy {
	p := &Proxy{Config: c, problems: newProblemBook(), queue: newQueue(), questions: make(chan func())}
	p.rebuilder = newRebuilder(&p.Config, &p.facts.Node, p.timeIfStarted)
	return p
}
