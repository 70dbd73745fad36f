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
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/schedule"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
)

// Source holds the API objects. Do not change returned objects: they may be shared.
type Source interface {
	Services() []types.NamespacedName
	Service(types.NamespacedName) *corev1.Service
	// ReadService decodes the same Service as the method Service into an object. It returns false if there is no such Service.
	ReadService(name types.NamespacedName, into *corev1.Service) bool
	Slices(service types.NamespacedName) []*discoveryv1.EndpointSlice
	// Stored returns the same slices as Slices, for decoding on demand.
	Stored(service types.NamespacedName) []model.Slice
	Node() *corev1.Node
	ServiceCIDRs() []*networkingv1.ServiceCIDR
	// Synced returns a channel that is closed when Services and EndpointSlices were both read.
	Synced() <-chan struct{}
}

// Kernel changes the kernel's tables to match the plan.
type Kernel interface {
	Sync(*plan.Planner) (apply.Result, error)
	// Recall makes a planner assign the numbers of the process that left the tables. The first call comes before anything is
	// planned, with no Services, and others before some Services are planned for the first time.
	Recall(*plan.Planner, []*model.Service) error
	// Known reports whether the tables are known to be those of the last Sync.
	Known() bool
	// Leased returns the time of the last renewal of the tables' lease, or the zero time. The lease lasts for [plan.Lease].
	Leased() time.Time
	// Doubt makes the next Sync compare the tables with the plan. Meddled reports whether there were foreign changes of the
	// ruleset.
	Doubt()
	Meddled() (bool, error)
	// EachCount calls a function with each set of a family and its number of elements, and returns the number of chains of
	// classes.
	EachCount(inet.Family, func(*nft.Set, int)) (classChains int)
	// Heard returns a channel that has a value after the kernel has announced a foreign change of the ruleset. Author returns the
	// author of the last foreign change.
	Heard() <-chan struct{}
	// Touched reports whether the kernel has announced a foreign change of the program's tables since the last full sync. It makes
	// no system call.
	Touched() bool
	Author() nft.Author
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
	// Loopback, if not nil, serves node ports on loopback.
	Loopback Loopback
	// Checks answers load balancers that query the number of local endpoints.
	Checks *health.Services
	// Flows deletes stale flows.
	Flows Flows
	// Earlier, if not nil, returns the UDP frontends in the tables of an earlier process.
	Earlier func() ([]model.Key, error)
	// Report receives each problem of an API object.
	Report func(model.Problem)
	// Turn, if not nil, decides whether this instance serves or stands by.
	Turn Turn
	// Synced, if not nil, is called after each successful sync.
	Synced func()
	// Observer, if not nil, receives each commit while Observer.Watched returns true.
	Observer Observer
	Now      func() time.Time
}

// Proxy keeps the kernel's tables as planned. See [Proxy.Run].
type Proxy struct {
	Config
	node model.Node
	// podCIDRs are the prefixes of local pods, if they come from the Node.
	podCIDRs [2]netip.Prefix
	// problems are the reported problems.
	problems problemBook
	// queue holds changed Services that wait to be planned. triggers holds the times of changes that are not planned yet, and
	// unprogrammed the times of changes that are planned but not committed.
	queue        queue
	triggers     map[types.NamespacedName][]track.Trigger
	unprogrammed []track.Trigger
	// againAt is the time of a sync that deletes unused chains, see [apply.Result]; zero if there are none.
	againAt time.Time
	trust   trust
	// timer fires at timerAt.
	timer   *time.Timer
	timerAt time.Time
	started bool
	// otherReported is true after the Event about another instance.
	otherReported bool
	// rejected is true if the last sync failed. A new change may remove the cause.
	rejected bool
	// lastCommit is the end of the last successful sync.
	lastCommit time.Time
	// checks holds the health checks for load balancers, and checkAddrs the addresses on which they listen. checksChanged is true
	// if these were not passed to Checks yet.
	checks        map[types.NamespacedName]health.Check
	checkAddrs    [2][]netip.Addr
	checksChanged bool
	// addressesAt is the time of the next attempt to read the node's addresses; zero if the last one succeeded.
	addressesAt time.Time
	// serviceCIDRs are the prefixes of cluster IPs. They may be read later than the Services.
	serviceCIDRs [2][]netip.Prefix
	flows        flowState
	// readings holds the readings of Services with many slices. room is the loop's scratch memory for objects.
	readings map[types.NamespacedName]*model.Reading
	room     model.Room
	// counted holds, for each set, the number of elements and the size that the metrics show.
	counted map[*nft.Set][2]int
	// nodeAddrs are the addresses that serve node ports.
	nodeAddrs [2][]netip.Addr
	// facts holds the published Facts, which other goroutines read. account holds the data for answers to questions.
	facts     atomic.Pointer[Facts]
	account   account
	questions chan func()
}

// addressesRetry is the time between two attempts to read the addresses of the node.
const addressesRetry = 2 * time.Second

// New returns a proxy. Run starts it.
func New(c Config) *Proxy {
	return &Proxy{
		Config: c, problems: newProblemBook(), queue: newQueue(), triggers: map[types.NamespacedName][]track.Trigger{},
		readings: map[types.NamespacedName]*model.Reading{}, counted: map[*nft.Set][2]int{}, checks: map[types.NamespacedName]health.Check{}, questions: make(chan func()),
	}
}
