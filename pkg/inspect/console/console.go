package console

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/affinity"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/loopback"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/statuspage"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Loop answers queries about the daemon's loop.
type Loop interface {
	// Facts returns the facts of the last sync, at once. The other methods wait for the end of the current sync, or of
	// the context.
	Facts() proxy.Facts
	Status(context.Context) (*view.Loop, error)
	Syncs(context.Context) ([]view.Sync, error)
	Elements(context.Context) ([2]int, error)
	Conflicts(context.Context, []types.NamespacedName) ([]plan.Conflict, error)
	Behaviours(context.Context, []types.NamespacedName) (map[types.NamespacedName]proxy.Behaviours, error)
	Numbers(context.Context) (*plan.Numbers, error)
	Starts(context.Context) (map[types.NamespacedName]*model.Starts, error)
	// Follow adds a listener until the context ends.
	Follow(context.Context, beside.Listener) error
}

// Source holds the API objects.
type Source interface {
	settings.Source
	// Loaded returns a channel that is closed when Services and EndpointSlices were both read.
	Loaded() <-chan struct{}
	// Nodes returns all Nodes that the source has read.
	Nodes() []*corev1.Node
}

// Parts are the parts of the daemon that a console reads. The functions must be safe for concurrent use.
type Parts struct {
	*settings.Settings
	// Version is the program's version, Started the time of its start.
	Version string
	Started time.Time
	// Families are the served IP families. Tables are the options of the plan for them.
	Families []inet.Family
	Tables   plan.Options
	Source   Source
	Loop     Loop
	// Planner is the planner of the loop. Only functions that the loop calls may use it.
	Planner *plan.Planner
	// API is nil if the objects come from a folder.
	API      *API
	Problems *Problems
	Gatherer prometheus.Gatherer
	// Pending returns the changes that the loop has not taken yet. Account returns the health of the program, and the
	// time of the oldest pending request for a sync. Connections returns the counts of frontends.
	Pending     func() track.Pending
	Account     func() health.Account
	Connections func(frontends []model.Key, patience time.Duration) ([]counters.Counts, error)
	// Broken returns the reasons why a Service's health check port is not served, with their remedies in brackets.
	Broken func(types.NamespacedName) []string
	// Clients returns the states of the maps of remembered clients.
	Clients func() []affinity.State
	// LoopbackAt returns the loopback address of a node port. LoopbackState returns the numbers of listeners and
	// connections.
	LoopbackAt    func(model.Key) (netip.AddrPort, error)
	LoopbackState func() loopback.State
	// Rival looks for a running kube-proxy. NodePorts returns the node ports that collide with another use of the port.
	Rival     func(context.Context) takeover.Rival
	NodePorts func() ([]model.Problem, error)
	// Ports returns the program's HTTP servers. Instances returns the names of the older instances that stand by while
	// this one serves, and of the newer ones that will replace it. unreachable is "" unless another process holds the
	// socket by which instances agree: then it is the reason why this instance cannot communicate with that process.
	Ports     func() []view.Port
	Instances func() (older, newer []string, unreachable string)
	// Rejected returns the current problems of manifests. It is nil if the objects come from an API server.
	Rejected func() []model.Problem
	// Snapshot returns the time of the snapshot whose objects are served without confirmation by the API server, or the
	// zero time, and the reason why a snapshot cannot be read or written. It is nil if the objects come from a folder.
	Snapshot func() (saved time.Time, err error)
	// Turn returns the longest wait for the first list while it lasts, otherwise 0. It is nil if the objects come from
	// a folder.
	Turn func() time.Duration
	// Earlier reports whether the kernel has rules of a previous process.
	Earlier func() (bool, error)
	// Appeared returns an IP family that the host did not have at the start of the program. Lacks returns the features
	// that IP families need and the kernel lacks.
	Appeared func() (inet.Family, bool)
	Lacks    func([]inet.Family) ([]probe.Missing, error)
}

// Console answers queries about the daemon.
type Console struct {
	Parts
	// verifying serializes verifications, because each takes as much memory as all tables.
	verifying sync.Mutex
	// attention serves the status page.
	attention attention
}

// New returns a console that reads the given parts.
func New(p Parts) *Console { return &Console{Parts: p} }

// Handler returns the handler of the control socket's pages.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	add := func(page string, h http.HandlerFunc) { mux.Handle("GET /"+page, h) }
	add(control.PageStatus, control.Answer(func(ctx context.Context, _ url.Values) (*view.Status, error) {
		return c.status(ctx), nil
	}))
	add(control.PageServices, control.Answer(func(ctx context.Context, q url.Values) (*view.Services, error) {
		return c.services(ctx, query{q.Get("namespace"), q.Get("selector"), q["name"]})
	}))
	add(control.PagePod, control.Answer(func(ctx context.Context, q url.Values) ([]string, error) {
		return c.pod(ctx, q.Get("namespace"), q.Get("name"))
	}))
	add(control.PageSettings, control.Answer(c.settings))
	add(control.PageObjects, c.objects)
	add(control.PageStarts, control.Answer(c.starts))
	add(control.PageNames, control.Answer(c.names))
	add(control.PageVerify, control.Answer(func(ctx context.Context, q url.Values) (*view.Verification, error) {
		return c.verify(ctx, q.Has("flows"))
	}))
	add(control.PageWatch, control.Stream(c.watch, func(v *view.Commit, n uint64) { v.Lost = n }))
	add(control.PageBundle, c.bundle)
	return mux
}

// Install adds the status page, which shows the same data as the commands.
func (c *Console) Install(mux *http.ServeMux) {
	statuspage.Install(mux, statuspage.Config{Status: c.status, Syncs: c.syncs, Services: c.search})
}

// askLoop is the timeout of a query to the loop. A sync of a large cluster takes a second.
const askLoop = 3 * time.Second
