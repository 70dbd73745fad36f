package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

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
	Known() bool
	// Renew renews the lease of the tables, which lasts for [plan.Lease].
	Renew(*plan.Planner) error
	// Doubt makes the next Sync compare instead of believe; Meddled tells whether somebody else has committed anything.
	Doubt()
	Meddled() (bool, error)
	// Heard has a value when somebody else has committed something; Author names who did it last.
	Heard() <-chan struct{}
	Author() string
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
	// Report is told of everything in the API that could not be used.
	Report func(model.Problem)
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
	// problems are those of each Service that have been reported; conflicts those between Services.
	problems        map[types.NamespacedName][]model.Problem
	problemsChanged bool
	conflicts       map[model.Problem]struct{}
	// unprogrammed are the times of changes that the kernel doesn't hold yet.
	unprogrammed []track.Trigger
	// retireAt is when chains that nothing leads to are given up; zero if there are none.
	retireAt time.Time
	// lookAt is when it is time for a look at what others have done to the kernel's ruleset; heeded is when one was last taken
	// because of what was heard of them.
	lookAt, heeded time.Time
	// timer fires at timerAt.
	timer   *time.Timer
	timerAt time.Time
	// renewAt is when the lease of the tables is to be renewed; zero before the first sync.
	renewAt time.Time
	started bool
	// synced is the end of the last successful sync.
	synced time.Time
	// checks are what load balancers may ask, on checkAddrs; they are handed over when they have changed.
	checks        map[types.NamespacedName]health.Check
	checkAddrs    [2][]netip.Addr
	checksChanged bool
	// addressesAt is when the addresses of the node are to be asked for again, because it failed; zero if it didn't.
	addressesAt time.Time
	// serviceCIDRs are where Services have their addresses from; they may be read later than the Services. orphansDue says
	// that flows of Services that went unseen are to be looked for as soon as they are there.
	serviceCIDRs [2][]netip.Prefix
	orphansDue   bool
	// readings are what has been read of Services with many slices.
	readings map[types.NamespacedName]*model.Reading
	// counted are the numbers of elements that the metrics show, with the sets' sizes.
	counted map[*nft.Set][2]int
	// doubt is why the next sync compares the tables with what is wanted; "" where it needn't, or where it is the first one.
	doubt metrics.Reason
	// nodeAddrs are where node ports are served.
	nodeAddrs [2][]netip.Addr
	// facts is what others may know of what the loop goes by, account what it answers questions from.
	facts     atomic.Pointer[Facts]
	account   account
	questions chan func()
}

// retireAfter is how long a chain outlives the last element that led to it. A service that is scaled to and fro finds it
// again, and kernels before 6.2 hold on to it for some milliseconds.
const retireAfter = 2 * time.Second

// renewEvery leaves room for two failures before the lease runs out.
const renewEvery = plan.Lease / 3

// addressesAgain is the time between two attempts to learn the addresses of the node.
const addressesAgain = 2 * time.Second

// lookEvery is the time between two looks at whether somebody else has changed the ruleset. A look takes some microseconds.
const lookEvery = 500 * time.Millisecond

// New returns a proxy that has done nothing yet.
func New(c Config) *Proxy {
	return &Proxy{
		Config: c, problems: map[types.NamespacedName][]model.Problem{}, conflicts: map[model.Problem]struct{}{},
		readings: map[types.NamespacedName]*model.Reading{}, counted: map[*nft.Set][2]int{}, checks: map[types.NamespacedName]health.Check{}, questions: make(chan func()),
	}
}

// Run keeps the kernel in step until the context ends. It touches nothing before the source has been read, and leaves the
// tables as they are when it returns.
func (p *Proxy) Run(ctx context.Context) error {
	now := p.Now()
	p.timer = time.NewTimer(0)
	defer p.timer.Stop()
	p.Health.Updated(now)
	p.Metrics.Queued(now)
	if !p.awaitSource(ctx) {
		return nil
	}
	if err := p.awaitPodCIDRs(ctx); err != nil {
		return err
	}
	defer p.Checks.Close()
	p.Tracker.Node()
	p.Tracker.ServiceCIDRs()
	for ctx.Err() == nil {
		p.step(ctx)
	}
	return nil
}

// awaitSource waits until the source has been read. It reports false if the context ended before.
func (p *Proxy) awaitSource(ctx context.Context) bool {
	const patience = 10 * time.Second
	late := time.NewTicker(patience)
	defer late.Stop()
	p.account.waits = "to read all Services and EndpointSlices"
	for waited := patience; ; {
		select {
		case <-p.Source.Synced():
			p.account.waits = "for the first sync"
			return true
		case <-ctx.Done():
			return false
		case question := <-p.questions:
			question()
		case <-late.C:
			klog.FromContext(ctx).Info("Waiting to read all Services and EndpointSlices; nothing is programmed before", "waited", waited)
			waited += patience
		}
	}
}

// awaitPodCIDRs waits until the Node says where its pods have their addresses from, if that is needed.
func (p *Proxy) awaitPodCIDRs(ctx context.Context) error {
	if !p.NodeCIDR {
		return nil
	}
	// kube-proxy waits as long (waitForPodCIDR).
	const patience = 5 * time.Minute
	late := time.NewTimer(patience)
	defer late.Stop()
	for said := false; ctx.Err() == nil && !p.hasPodCIDRs(); said = true {
		if !said {
			klog.FromContext(ctx).Info("Waiting for spec.podCIDRs of the Node; nothing is programmed before", "node", p.NodeName)
			p.account.waits = "for spec.podCIDRs of the Node"
		}
		select {
		case question := <-p.questions:
			question()
		case <-p.Tracker.Ready():
		case <-ctx.Done():
		case <-late.C:
			return fmt.Errorf("timeout waiting for PodCIDR allocation on node %q: no CIDR is in its spec.podCIDRs after %v; "+
				"use another --detect-local-mode if the network doesn't need any", p.NodeName, patience)
		}
	}
	return nil
}

// hasPodCIDRs reports whether a prefix of some family can be read from the Node.
func (p *Proxy) hasPodCIDRs() bool {
	node := p.Source.Node()
	if node == nil {
		return false
	}
	cidrs, _ := model.PodCIDRs(node)
	return cidrs != [2]netip.Prefix{}
}

// step runs a sync if one is due, and otherwise waits for a reason.
func (p *Proxy) step(ctx context.Context) {
	now := p.Now()
	if !p.retireAt.IsZero() && !now.Before(p.retireAt) && p.Kernel.Known() {
		p.retireAt = time.Time{}
		p.Planner.Retire()
		p.sync(ctx)
		return
	}
	at, due := p.Schedule.Next(now)
	if due {
		p.sync(ctx)
		return
	}
	if p.Kernel.Known() {
		if !now.Before(p.lookAt) {
			p.look(ctx, now)
			return
		}
		at = earlier(at, p.lookAt)
		if !p.retireAt.IsZero() {
			at = earlier(at, p.retireAt)
		}
	}
	p.wakeAt(at, now)
	select {
	case <-ctx.Done():
	case question := <-p.questions:
		question()
	case <-p.Tracker.Ready():
		p.Schedule.Requested()
		now := p.Now()
		p.Health.Queued(now)
		p.Metrics.Queued(now)
	case <-p.Kernel.Heard():
		// At once, but no more often for somebody who changes the ruleset all the time.
		if now := p.Now(); now.Sub(p.heeded) >= lookEvery {
			p.lookAt, p.heeded = now, now
		}
	case <-p.timer.C:
		p.timerAt = time.Time{}
	}
}

// wakeAt sets the timer. A new one for each change would wake a thread of Go's only to have it wait less long.
func (p *Proxy) wakeAt(at, now time.Time) {
	if at != p.timerAt {
		p.timer.Reset(at.Sub(now))
		p.timerAt = at
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// look asks for a sync if somebody else has changed the kernel's ruleset: it may have been our tables. It also looks
// whether a health check node port that was taken is free by now.
func (p *Proxy) look(ctx context.Context, now time.Time) {
	p.lookAt = now.Add(lookEvery)
	if !p.addressesAt.IsZero() && !now.Before(p.addressesAt) {
		p.addressesAt = time.Time{}
		p.Tracker.Node()
	}
	p.syncChecks()
	p.renew(ctx, now)
	meddled, err := p.Kernel.Meddled()
	if err != nil {
		// A sync that fails as well is counted, tried again, and told to whoever asks for the health.
		klog.FromContext(ctx).Error(err, "Cannot tell whether the ruleset has changed")
		p.Kernel.Doubt()
		p.doubted(metrics.FailedSync)
		p.Schedule.Requested()
	}
	if meddled {
		p.Kernel.Doubt()
		p.doubted(metrics.ForeignChange)
		p.Schedule.Requested()
	}
}

// renew renews the lease of the tables when it is time to.
func (p *Proxy) renew(ctx context.Context, now time.Time) {
	if p.renewAt.IsZero() || now.Before(p.renewAt) {
		return
	}
	p.renewAt = now.Add(renewEvery)
	if err := p.Kernel.Renew(p.Planner); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot renew the lease")
		p.Schedule.Requested()
	}
}

// sync takes up what has changed and sends it.
func (p *Proxy) sync(ctx context.Context) {
	logger := klog.FromContext(ctx)
	start := p.Now()
	p.Health.Queued(start)
	dirty := p.Tracker.Take()
	p.Metrics.Changes(dirty.ServiceChanges, dirty.SliceChanges)
	if dirty.Empty() && p.Kernel.Known() && !p.Planner.Changed() && start.Sub(p.synced) > lookEvery {
		// Nothing has happened for a long time: see whether the tables are still ours.
		p.Kernel.Doubt()
		p.doubted(metrics.Period)
	}
	p.absorb(ctx, dirty)
	absorbed := p.Now()
	result, err := p.Kernel.Sync(p.Planner)
	end := p.Now()
	outcome := metrics.SyncResult{Full: result.Kind == apply.Full || result.Kind == apply.Adopted, Duration: end.Sub(start), End: end}
	if err != nil {
		p.Metrics.SyncFailed(outcome)
		p.doubted(metrics.FailedSync)
		p.account.noteFailed(end, err)
		p.tell(end, absorbed.Sub(start), result, err)
		retry := p.Schedule.Failed(end)
		logger.Error(err, "Sync failed", "retryingTime", retry.Sub(end))
		return
	}
	p.Schedule.Succeeded(end)
	p.synced = end
	foreign := p.doubt == metrics.ForeignChange
	p.account.noteSynced(start, absorbed, end, result)
	p.tell(end, absorbed.Sub(start), result, nil)
	p.succeeded(result, outcome)
	level := 2
	if result.Kind == apply.Full || !p.started {
		level = 0
	}
	p.started = true
	if result.Why != "" {
		logger = logger.WithValues("why", result.Why)
		if foreign {
			logger = logger.WithValues("lastChangedBy", p.Kernel.Author())
		}
	}
	logger.V(level).Info("Synced", "kind", result.Kind, "services", len(dirty.Services),
		"elements", result.Elements, "bytes", result.Bytes, "planning", absorbed.Sub(start), "commit", result.Commit,
		"elapsed", end.Sub(start))
}

// doubted notes why the next sync compares; the first reason counts until one succeeds.
func (p *Proxy) doubted(why metrics.Reason) {
	p.Metrics.Doubted()
	if p.doubt == "" {
		p.doubt = why
	}
}

// succeeded tells everybody who depends on a successful sync.
func (p *Proxy) succeeded(r apply.Result, outcome metrics.SyncResult) {
	p.Health.Updated(outcome.End)
	p.Metrics.Synced(outcome)
	if p.Synced != nil {
		p.Synced()
	}
	if p.doubt != "" {
		p.Metrics.Checked(p.doubt, r.Kind == apply.Full)
		if r.Kind == apply.Full {
			p.account.noteRepair(outcome.End, p.doubt, r.Why, p.authorOf(p.doubt))
		}
		p.doubt = ""
	}
	for _, t := range p.unprogrammed {
		family := model.IPv4
		if t.IPv6 {
			family = model.IPv6
		}
		p.Metrics.Programmed(family, outcome.End.Sub(t.At))
	}
	p.unprogrammed = nil
	p.syncFlows(r.Kind)
	p.syncChecks()
	switch r.Kind {
	case apply.Adopted:
		if !p.started {
			p.Metrics.Adopted()
			p.renewAt = outcome.End // how much is left of an earlier process's lease isn't known
		}
	case apply.Full, apply.Partial:
		if r.Kind == apply.Full {
			p.renewAt = outcome.End.Add(renewEvery)
		}
		p.Metrics.Sent(metrics.Batch{Full: r.Kind == apply.Full, Bytes: r.Bytes, Elements: r.Elements, Kernel: r.Commit})
	}
	if r.Kind != apply.Nothing {
		p.countElements()
	}
	if p.retireAt.IsZero() && p.Planner.Unused() {
		p.retireAt = outcome.End.Add(retireAfter)
	}
}

// authorOf names the program that a reason to compare is about, if there is one.
func (p *Proxy) authorOf(why metrics.Reason) string {
	if why != metrics.ForeignChange {
		return ""
	}
	return p.Kernel.Author()
}

func (p *Proxy) countElements() {
	for _, f := range p.Families {
		p.Planner.EachCount(f, func(s *nft.Set, n int) {
			now := [2]int{n, int(s.Size)}
			if counted, known := p.counted[s]; !known || counted != now {
				p.counted[s] = now
				p.Metrics.Elements(f, s.Name, n, now[1])
			}
		})
		p.Metrics.ClassChains(f, p.Planner.ClassChains(f))
		internal, external := p.Planner.NoLocalEndpoints(f)
		p.Metrics.NoLocalEndpoints(f, internal, external)
	}
	p.Metrics.Conflicts(p.Planner.Conflicts())
}
