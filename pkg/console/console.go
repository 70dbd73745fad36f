package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/statuspage"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// Loop is what a console asks the daemon's loop.
type Loop interface {
	// Facts are those of the last sync. Any other question waits for the end of the sync that is under way, or for the end of the context.
	Facts() proxy.Facts
	Status(context.Context) (*view.Loop, error)
	Syncs(context.Context) ([]view.Sync, error)
	Elements(context.Context) ([2]int, error)
	Conflicts(context.Context, []types.NamespacedName) ([]plan.Conflict, error)
	Numbers(context.Context) (*plan.Numbers, error)
}

// Parts are those of the daemon that a console reads. Any goroutine may call the functions.
type Parts struct {
	*settings.Settings
	// Version is the program's, Started the time of its start.
	Version string
	Started time.Time
	// Families are the IP families that are served, Tables the options with which their tables are planned.
	Families []model.Family
	Tables   plan.Options
	Source   proxy.Source
	Loop     Loop
	// API is nil where objects come from a folder.
	API      *API
	Commits  *Commits
	Problems *Problems
	Gatherer prometheus.Gatherer
	// Pending tells which changes the loop has not taken, Account for how long, Connections how often frontends were used.
	Pending     func() track.Pending
	Account     func() health.Account
	Connections func(frontends []model.Key, patience time.Duration) ([]counters.Counts, error)
	// Broken says why the health check port of a Service isn't served.
	Broken func(types.NamespacedName) []string
	// Rival tells whether a kube-proxy runs, NodePorts lists the collisions of node ports.
	Rival     func(context.Context) bool
	NodePorts func() ([]model.Problem, error)
	// Appeared returns an IP family that the host has had only since after the start. Lacks asks the kernel for features that IP families need.
	Appeared func() (model.Family, bool)
	Lacks    func([]model.Family) ([]probe.Missing, error)
}

// Console answers questions.
type Console struct {
	Parts
	// verifying lets one verification run at a time: it takes as much memory as all tables.
	verifying sync.Mutex
}

// New returns a console that reads the given parts.
func New(p Parts) *Console { return &Console{Parts: p} }

// Handler answers at the pages of the control socket.
func (c *Console) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/"+control.PageStatus, control.Answer(func(r *http.Request) (*view.Status, error) { return c.status(r.Context()), nil }))
	mux.Handle("/"+control.PageServices, control.Answer(func(r *http.Request) (*view.Services, error) {
		return c.services(r.Context(), control.Param(r, "namespace"), control.Param(r, "name"))
	}))
	mux.Handle("/"+control.PageNames, control.Answer(func(*http.Request) ([]string, error) { return c.names(), nil }))
	mux.Handle("/"+control.PageVerify, control.Answer(func(r *http.Request) (*view.Verification, error) { return c.verify(r.Context()) }))
	mux.Handle("/"+control.PageWatch, control.Stream(&c.Commits.Feed, func(v *view.Commit, n uint64) { v.Lost = n }))
	mux.HandleFunc("/"+control.PageBundle, c.bundle)
	return mux
}

// Install adds the status page, which shows what the commands do.
func (c *Console) Install(mux *http.ServeMux) {
	statuspage.Install(mux, statuspage.Config{Status: c.status, Syncs: c.syncs, Services: c.search})
}

// Commits hands the commits of the loop to the commands that watch.
type Commits struct{ control.Feed[view.Commit] }

// Committed implements [proxy.Observer].
func (c *Commits) Committed(v view.Commit) { c.Publish(v) }

var _ proxy.Observer = &Commits{}

// askLoop is how long the loop may take to answer: a sync of a large cluster takes a second.
const askLoop = 3 * time.Second
