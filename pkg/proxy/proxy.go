package proxy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
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
	Node() *corev1.Node
	ServiceCIDRs() []*networkingv1.ServiceCIDR
	// Synced is closed when Services and EndpointSlices have both been read.
	Synced() <-chan struct{}
}

// Kernel brings the kernel's tables to what a planner wants.
type Kernel interface {
	Sync(*plan.Planner) (apply.Result, error)
	Known() bool
	// Doubt makes the next Sync compare instead of believe; Meddled tells whether somebody else has committed anything.
	Doubt()
	Meddled() (bool, error)
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
	// NodePorts chooses the addresses on which node ports are served.
	NodePorts NodePortAddresses
	// Checks answers load balancers that ask for local endpoints.
	Checks *health.Services
	// Report is told of everything in the API that could not be used.
	Report func(model.Problem)
	Now    func() time.Time
}

// Proxy keeps the kernel at what the cluster wants.
type Proxy struct {
	Config
	node model.Node
	// problems are those of each Service that have been reported; conflicts those between Services.
	problems  map[types.NamespacedName][]model.Problem
	conflicts map[model.Problem]struct{}
	// unprogrammed are the times of changes that the kernel doesn't hold yet.
	unprogrammed []time.Time
	// retireAt is when chains that nothing leads to are given up; zero if there are none.
	retireAt time.Time
	started  bool
	// checks are what load balancers may ask, on checkAddrs; they are handed over when they have changed.
	checks        map[types.NamespacedName]health.Check
	checkAddrs    [2][]netip.Addr
	checksChanged bool
	// counted are the numbers of elements that the metrics show.
	counted map[*nft.Set]int
}

// retireAfter is how long a chain outlives the last element that led to it. A service that is scaled to and fro finds it
// again, and kernels before 6.2 hold on to it for some milliseconds.
const retireAfter = 2 * time.Second

// lookEvery is the time between two looks at whether somebody else has changed the ruleset. A look takes some microseconds.
const lookEvery = 500 * time.Millisecond

// New returns a proxy that has done nothing yet.
func New(c Config) *Proxy {
	return &Proxy{
		Config: c, problems: map[types.NamespacedName][]model.Problem{}, conflicts: map[model.Problem]struct{}{},
		counted: map[*nft.Set]int{}, checks: map[types.NamespacedName]health.Check{},
	}
}

// Run keeps the kernel in step until the context ends. It touches nothing before the source has been read, and leaves the
// tables as they are when it returns.
func (p *Proxy) Run(ctx context.Context) error {
	now := p.Now()
	p.Health.Updated(now)
	p.Metrics.Queued(now)
	select {
	case <-p.Source.Synced():
	case <-ctx.Done():
		return nil
	}
	defer p.Checks.Close()
	p.Tracker.Node()
	p.Tracker.ServiceCIDRs()
	for ctx.Err() == nil {
		p.step(ctx)
	}
	return nil
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
	if !p.retireAt.IsZero() && p.retireAt.Before(at) {
		at = p.retireAt
	}
	if look := now.Add(lookEvery); p.Kernel.Known() && look.Before(at) {
		at = look
	}
	timer := time.NewTimer(at.Sub(now))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-p.Tracker.Ready():
		p.Schedule.Requested()
		now := p.Now()
		p.Health.Queued(now)
		p.Metrics.Queued(now)
	case <-timer.C:
		p.look(ctx)
	}
}

// look asks for a sync if somebody else has changed the kernel's ruleset: it may have been our tables.
func (p *Proxy) look(ctx context.Context) {
	if !p.Kernel.Known() {
		return
	}
	meddled, err := p.Kernel.Meddled()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell whether the ruleset has changed")
	}
	if meddled {
		p.Kernel.Doubt()
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
	if dirty.Empty() && p.Kernel.Known() && !p.Planner.Changed() {
		// Nothing has happened for a long time: see whether the tables are still ours.
		p.Kernel.Doubt()
	}
	p.absorb(ctx, dirty)
	absorbed := p.Now()
	result, err := p.Kernel.Sync(p.Planner)
	end := p.Now()
	outcome := metrics.SyncResult{Full: result.Kind == apply.Full || result.Kind == apply.Adopted, Duration: end.Sub(start), End: end}
	if err != nil {
		p.Metrics.SyncFailed(outcome)
		retry := p.Schedule.Failed(end)
		logger.Error(err, "Sync failed", "retryingTime", retry.Sub(end))
		return
	}
	p.Schedule.Succeeded(end)
	p.succeeded(result, outcome)
	level := 2
	if result.Kind == apply.Full || !p.started {
		level = 0
	}
	p.started = true
	logger.V(level).Info("Synced", "kind", result.Kind, "why", result.Why, "services", len(dirty.Services),
		"elements", result.Elements, "bytes", result.Bytes, "planning", absorbed.Sub(start), "commit", result.Commit,
		"elapsed", end.Sub(start))
}

// succeeded tells everybody who depends on a successful sync.
func (p *Proxy) succeeded(r apply.Result, outcome metrics.SyncResult) {
	p.Health.Updated(outcome.End)
	p.Metrics.Synced(outcome)
	for _, t := range p.unprogrammed {
		p.Metrics.Programmed(outcome.End.Sub(t))
	}
	p.unprogrammed = nil
	p.syncChecks()
	switch r.Kind {
	case apply.Adopted:
		if !p.started {
			p.Metrics.Adopted()
		}
	case apply.Full, apply.Partial:
		p.Metrics.Sent(metrics.Batch{Full: r.Kind == apply.Full, Bytes: r.Bytes, Elements: r.Elements, Kernel: r.Commit})
	}
	if r.Kind != apply.Nothing {
		p.countElements()
	}
	if p.retireAt.IsZero() && p.Planner.Unused() {
		p.retireAt = outcome.End.Add(retireAfter)
	}
}

func (p *Proxy) countElements() {
	for _, f := range p.Families {
		p.Planner.EachCount(f, func(s *nft.Set, n int) {
			if counted, known := p.counted[s]; !known || counted != n {
				p.counted[s] = n
				p.Metrics.Elements(f, s.Name, n)
			}
		})
		p.Metrics.ClassChains(f, p.Planner.ClassChains(f))
	}
	p.Metrics.Conflicts(p.Planner.Conflicts())
}

// absorb turns what is dirty into what is planned.
func (p *Proxy) absorb(ctx context.Context, dirty track.Dirty) {
	names := dirty.Services
	if dirty.Node {
		names = p.absorbNode(ctx, names)
	}
	if dirty.ServiceCIDRs {
		p.absorbServiceCIDRs()
	}
	for _, name := range sortedNames(names) {
		p.absorbService(name)
	}
	for _, times := range dirty.Triggers {
		p.unprogrammed = append(p.unprogrammed, times...)
	}
	p.countProblems()
}

func sortedNames(set map[types.NamespacedName]struct{}) []types.NamespacedName {
	names := make([]types.NamespacedName, 0, len(set))
	for n := range set {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return names
}

// absorbNode takes up this node's object. A change of what Services depend on makes all of them dirty.
func (p *Proxy) absorbNode(ctx context.Context, dirty map[types.NamespacedName]struct{}) map[types.NamespacedName]struct{} {
	object := p.Source.Node()
	p.Health.Node(object)
	node := model.NodeOf(p.NodeName, object)
	for _, f := range p.Families {
		addrs, err := p.NodePorts.Addresses(f, node)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to get node ip address matching nodeport cidrs, services with nodeport may not work as intended",
				"ipFamily", f)
			continue
		}
		p.Planner.SetNodeAddresses(f, addrs)
		if p.NodePorts.Any(f) {
			addrs = []netip.Addr{unspecified[f]}
		}
		p.checkAddrs[f], p.checksChanged = addrs, true
	}
	if node == p.node {
		return dirty
	}
	p.node = node
	all := make(map[types.NamespacedName]struct{}, len(dirty))
	for n := range dirty {
		all[n] = struct{}{}
	}
	for _, n := range p.Source.Services() {
		all[n] = struct{}{}
	}
	return all
}

// unspecified stands for all addresses of a family.
var unspecified = [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}

func (p *Proxy) absorbServiceCIDRs() {
	cidrs, problems := model.ServiceCIDRs(p.Source.ServiceCIDRs())
	p.reportNew(types.NamespacedName{}, problems)
	for _, f := range p.Families {
		p.Planner.SetServiceCIDRs(f, cidrs[f])
	}
}

func (p *Proxy) absorbService(name types.NamespacedName) {
	s := model.Build(p.Source.Service(name), p.Source.Slices(name), p.node, p.Model)
	var problems []model.Problem
	if s != nil {
		problems = s.Problems
	}
	p.reportNew(name, problems)
	p.absorbCheck(name, s)
	for _, c := range p.Planner.Set(name, s) {
		p.reportConflict(c)
	}
}

// absorbCheck takes up what load balancers may ask about a Service.
func (p *Proxy) absorbCheck(name types.NamespacedName, s *model.Service) {
	old, had := p.checks[name]
	if s == nil || s.HealthCheckNodePort == 0 {
		delete(p.checks, name)
		p.checksChanged = p.checksChanged || had
		return
	}
	now := health.Check{Port: s.HealthCheckNodePort, Local: s.LocalReady}
	if !had || now != old {
		p.checks[name], p.checksChanged = now, true
	}
}

// syncChecks hands over what has changed; ports that could not be listened on are tried again at every sync.
func (p *Proxy) syncChecks() {
	if p.checksChanged {
		p.checksChanged = p.Checks.Sync(p.checks, slices.Concat(p.checkAddrs[:]...)) > 0
	}
}

// reportNew reports those of a Service's problems that it didn't have before.
func (p *Proxy) reportNew(name types.NamespacedName, problems []model.Problem) {
	known := p.problems[name]
	for _, problem := range problems {
		if !slices.Contains(known, problem) {
			p.Report(problem)
		}
	}
	if len(problems) == 0 {
		delete(p.problems, name)
		return
	}
	p.problems[name] = problems
}

func (p *Proxy) reportConflict(c plan.Conflict) {
	at := netip.AddrPortFrom(c.Key.Addr, c.Key.Port).String()
	if !c.Key.Addr.IsValid() {
		at = fmt.Sprint(c.Key.Port)
	}
	problem := model.Problem{
		Kind: "Service", Name: c.Loser.NamespacedName, Field: c.Kind.String(),
		Reason: fmt.Sprintf("%s/%s is also claimed by %s, which is older and gets it", at, c.Key.Protocol, c.Winner),
	}
	if _, known := p.conflicts[problem]; known {
		return
	}
	p.conflicts[problem] = struct{}{}
	p.Report(problem)
}

// countProblems counts the objects that have problems; conflicts that are over may be reported again.
func (p *Proxy) countProblems() {
	objects := map[string]map[types.NamespacedName]struct{}{"Service": {}, "EndpointSlice": {}, "ServiceCIDR": {}}
	for _, list := range p.problems {
		for _, problem := range list {
			if objects[problem.Kind] != nil {
				objects[problem.Kind][problem.Name] = struct{}{}
			}
		}
	}
	for kind, names := range objects {
		p.Metrics.Rejected(kind, len(names))
	}
	if len(p.conflicts) > 0 && p.Planner.Conflicts() == 0 {
		clear(p.conflicts)
	}
}
