package proxy

import (
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/schedule"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Source holds the API objects. What it returns is shared and must not be changed.
type Source interface {
	Services() []types.NamespacedName
	Service(types.NamespacedName) *corev1.Service
	// ReadService makes an object what Service would return, and reports false where that is nil.
	ReadService(name types.NamespacedName, into *corev1.Service) bool
	Slices(service types.NamespacedName) []*discoveryv1.EndpointSlice
	// Stored returns what Slices does, to be read as far as it is needed.
	Stored(service types.NamespacedName) []model.Slice
	Node() *corev1.Node
	ServiceCIDRs() []*networkingv1.ServiceCIDR
	// Synced is closed when Services and EndpointSlices have both been read.
	Synced() <-chan struct{}
}

// Kernel brings the kernel's tables to what a planner wants.
type Kernel interface {
	Sync(*plan.Planner) (apply.Result, error)
	// Resume and Recall make a planner assign the numbers of the process that has left the tables: Resume before anything is planned,
	// Recall before the named Services are planned for the first time.
	Resume(*plan.Planner) error
	Recall(*plan.Planner, []*model.Service) error
	Known() bool
	// Leased returns when the lease of the tables was last renewed, the zero time for never. It lasts for [plan.Lease].
	Leased() time.Time
	// Doubt makes the next Sync compare instead of believe; Meddled tells whether somebody else has committed anything.
	Doubt()
	Meddled() (bool, error)
	// Heard has a value when somebody else has committed something; Author names who did it last.
	Heard() <-chan struct{}
	// Touched tells, for nothing, whether somebody else was heard to have changed our tables since they were last written anew.
	Touched() bool
	Author() nft.Author
}

// Config is all that a proxy needs.
type Config struct {
	Source   Source
	Tracker  *track.Tracker
	Kernel   Kernel
	Planner  *plan.Planner
	Metrics  *metrics.Metrics
	Health   *health.Health
	Schedule schedule.Schedule

	Families []model.Family
	NodeName string
	Model    model.Options
	// NodeIP is taken for the Node's address of its family, whatever the Node says (kube-proxy: --bind-address); invalid for
	// none.
	NodeIP netip.Addr
	// NodeCIDR takes the prefixes of local pods from the Node (kube-proxy: detect-local-mode NodeCIDR), and waits for them.
	NodeCIDR bool
	// NodePorts chooses the addresses on which node ports are served.
	NodePorts NodePortAddresses
	// NodePortUsers, unless nil, looks for other users of the node ports.
	NodePortUsers NodePortUsers
	// Checks answers load balancers that ask for local endpoints.
	Checks *health.Services
	// Flows deletes flows that keep traffic from where it belongs now.
	Flows Flows
	// Earlier, unless nil, reads the UDP frontends that the tables of an earlier process have.
	Earlier func() ([]model.Key, error)
	// Report is told of everything in the API that could not be used.
	Report func(model.Problem)
	// Turn, unless nil, tells whether another instance of this program serves instead of this one.
	Turn Turn
	// Synced, unless nil, is called after each sync that has succeeded.
	Synced func()
	// Observer, unless nil, is told of each commit while it is watched.
	Observer Observer
	Now      func() time.Time
}

// Proxy keeps the kernel at what the cluster wants.
type Proxy struct {
	Config
	node model.Node
	// podCIDRs are where local pods have their addresses from, if the Node says so.
	podCIDRs [2]netip.Prefix
	// problems are those that have been reported.
	problems problemBook
	// queue are the Services that have changed and that there was no time for; triggers are the times of changes of Services that aren't
	// planned yet, unprogrammed those of changes that are, and that the kernel doesn't hold.
	queue        queue
	triggers     map[types.NamespacedName][]track.Trigger
	unprogrammed []track.Trigger
	// retireAt is when chains that nothing leads to are given up; zero if there are none.
	retireAt time.Time
	trust    trust
	// timer fires at timerAt.
	timer   *time.Timer
	timerAt time.Time
	started bool
	// otherReported says that the API was told of another instance.
	otherReported bool
	// rejected says that the last sync failed. A new change may remove the cause.
	rejected bool
	// lastCommit is the end of the last successful sync.
	lastCommit time.Time
	// checks are what load balancers may ask, on checkAddrs; they are handed over when they have changed.
	checks        map[types.NamespacedName]health.Check
	checkAddrs    [2][]netip.Addr
	checksChanged bool
	// addressesAt is when the addresses of the node are to be asked for again, because it failed; zero if it didn't.
	addressesAt time.Time
	// serviceCIDRs are where Services have their addresses from; they may be read later than the Services.
	serviceCIDRs [2][]netip.Prefix
	flows        flowState
	// readings are what has been read of Services with many slices; room is where the loop reads objects.
	readings map[types.NamespacedName]*model.Reading
	room     model.Room
	// counted are the numbers of elements that the metrics show, with the sets' sizes.
	counted map[*nft.Set][2]int
	// nodeAddrs are where node ports are served.
	nodeAddrs [2][]netip.Addr
	// facts is what others may know of what the loop goes by, account what it answers questions from.
	facts     atomic.Pointer[Facts]
	account   account
	questions chan func()
}

// retireAfter is how long a chain outlives the last element that led to it. A new chain makes the kernel walk the map that the chain looks
// up, so a Service whose size alternates must not have one made each time. Kernels before 6.2 refer to the chain for some milliseconds.
const retireAfter = 30 * time.Second

// retireLeftOversAfter is how long a chain stays that a rewrite has left behind.
const retireLeftOversAfter = 2 * time.Second

// addressesRetry is the time between two attempts to read the addresses of the node.
const addressesRetry = 2 * time.Second

// New returns a proxy that has done nothing yet.
func New(c Config) *Proxy {
	return &Proxy{
		Config: c, problems: newProblemBook(), queue: newQueue(), triggers: map[types.NamespacedName][]track.Trigger{},
		readings: map[types.NamespacedName]*model.Reading{}, counted: map[*nft.Set][2]int{}, checks: map[types.NamespacedName]health.Check{}, questions: make(chan func()),
	}
}
