package proxy

import (
	"context"
	"errors"
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
	// Renew renews the lease of the tables, which lasts for [plan.Lease], where nobody does beside the loop, see [Config.Renews]. Leased
	// returns when anybody last did, the zero time for never.
	Renew(*plan.Planner) error
	Leased() time.Time
	// Release gives up what keeps another process from writing the tables, until the next Sync.
	Release()
	// Doubt makes the next Sync compare instead of believe; Meddled tells whether somebody else has committed anything.
	Doubt()
	Meddled() (bool, error)
	// Heard has a value when somebody else has committed something; Author names who did it last.
	Heard() <-chan struct{}
	// Touched tells, for nothing, whether somebody else was heard to have changed our tables since they were last written anew.
	Touched() bool
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
	// Earlier, unless nil, reads the UDP frontends that the tables of an earlier process have.
	Earlier func() ([]model.Key, error)
	// Report is told of everything in the API that could not be used.
	Report func(model.Problem)
	// Renews says that the loop renews the lease, as of tables that are locked to its connection.
	Renews bool
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
	// lookAt is when it is time for a look at what others have done to the kernel's ruleset; heeded is when they were last found to
	// have done something.
	lookAt, heeded time.Time
	// timer fires at timerAt.
	timer   *time.Timer
	timerAt time.Time
	// renewAt is when the lease of the tables is to be renewed; zero before the first sync.
	renewAt time.Time
	started bool
	// otherReported says that the API was told of another instance.
	otherReported bool
	// refused says that the last sync failed: what is new may put right what was wrong with it.
	refused bool
	// synced is the end of the last successful sync.
	synced time.Time
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
	// doubt is why the next sync compares the tables with what is wanted; "" where it needn't, or where it is the first one.
	doubt metrics.Reason
	// nodeAddrs are where node ports are served.
	nodeAddrs [2][]netip.Addr
	// facts is what others may know of what the loop goes by, account what it answers questions from.
	facts     atomic.Pointer[Facts]
	account   account
	questions chan func()
}

// retireAfter is how long a chain outlives the last element that led to it. A new chain makes the kernel walk the map that the chain looks
// up, so a Service whose size alternates must not have one made each time. Kernels before 6.2 refer to the chain for some milliseconds.
const retireAfter = 10 * time.Minute

// renewEvery leaves room for two failures before the lease runs out.
const renewEvery = plan.Lease / 3

// addressesAgain is the time between two attempts to learn the addresses of the node.
const addressesAgain = 2 * time.Second

// lookEvery is the time between two looks at whether somebody else has changed the ruleset. A look takes some microseconds.
const lookEvery = 500 * time.Millisecond

// New returns a proxy that has done nothing yet.
func New(c Config) *Proxy {
	return &Proxy{
		Config: c, problems: newProblemBook(), queue: newQueue(), triggers: map[types.NamespacedName][]track.Trigger{},
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
	p.readEarlier(ctx)
	if !p.awaitSource(ctx) {
		return nil
	}
	if err := p.awaitPodCIDRs(ctx); err != nil {
		return err
	}
	p.awaitAddresses(ctx)
	defer p.Checks.Close()
	p.Tracker.Node()
	p.Tracker.ServiceCIDRs()
	if p.Turn != nil {
		p.Turn.Ready()
	}
	for ctx.Err() == nil {
		if p.maySend() {
			p.step(ctx)
		} else {
			p.standBy(ctx)
		}
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

// awaitAddresses waits until the addresses of this node can be read, but not for ever: with none, an earlier process's rules would
// lose all their node ports.
func (p *Proxy) awaitAddresses(ctx context.Context) {
	const patience, pause = 10 * time.Second, 100 * time.Millisecond
	begun, said := p.Now(), false
	for ctx.Err() == nil {
		node := model.NodeOf(p.NodeName, p.Source.Node())
		if p.NodeIP.IsValid() {
			node.IPs[model.FamilyOf(p.NodeIP)] = p.NodeIP
		}
		var failed error
		for _, f := range p.Families {
			_, err := p.NodePorts.Addresses(f, node)
			failed = errors.Join(failed, err)
		}
		if failed == nil || p.Now().Sub(begun) > patience {
			return
		}
		if !said {
			klog.FromContext(ctx).Error(failed, "Waiting to read the addresses of this node", "patience", patience)
			said, p.account.waits = true, "to read the addresses of this node"
		}
		select {
		case <-ctx.Done():
		case question := <-p.questions:
			question()
		case <-time.After(pause):
		}
	}
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
	p.answer()
	now := p.Now()
	if !p.retireAt.IsZero() && !now.Before(p.retireAt) && p.Kernel.Known() {
		p.retireAt = time.Time{}
		p.Planner.Retire()
		p.sync(ctx)
		return
	}
	p.listen(now)
	if p.Kernel.Known() && !now.Before(p.lookAt) {
		p.look(ctx, now)
		return
	}
	at, due := p.Schedule.Next(now)
	if due {
		p.sync(ctx)
		return
	}
	if p.Kernel.Known() {
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
		p.lookSoon(p.Now())
	case <-p.turn():
	case <-p.timer.C:
		p.timerAt = time.Time{}
	}
}

// answer answers questions that wait: the loop may have something to do all the time.
func (p *Proxy) answer() {
	const most = 8
	for range most {
		select {
		case question := <-p.questions:
			question()
		default:
			return
		}
	}
}

// listen takes up what was heard of others, before anything that is due: it may be that all is broken.
func (p *Proxy) listen(now time.Time) {
	select {
	case <-p.Kernel.Heard():
		p.lookSoon(now)
	default:
	}
}

// lookSoon has a look taken at what others do: at once, but no more often than twice a second at who changes the ruleset all the time.
func (p *Proxy) lookSoon(now time.Time) {
	at := now
	if next := p.heeded.Add(lookEvery); next.After(now) {
		at = next
	}
	p.lookAt = earlier(p.lookAt, at)
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
		p.foreign(now)
		p.Schedule.Urgent()
	}
}

// foreign has the next sync compare, because somebody else has changed the ruleset.
func (p *Proxy) foreign(now time.Time) {
	p.heeded, p.lookAt = now, now.Add(lookEvery)
	p.Kernel.Doubt()
	p.doubted(metrics.ForeignChange)
}

// broken reports whether somebody is known to have changed our tables, which is to be repaired before anything else. Who
// does so all the time is given way to twice a second.
func (p *Proxy) broken() bool {
	if !p.Kernel.Known() || !p.Kernel.Touched() {
		return false
	}
	now := p.Now()
	if now.Sub(p.heeded) < lookEvery {
		return false
	}
	p.foreign(now)
	return true
}

// renew renews the lease of the tables when it is time to.
func (p *Proxy) renew(ctx context.Context, now time.Time) {
	if !p.Renews || p.renewAt.IsZero() || now.Before(p.renewAt) {
		return
	}
	p.renewAt = now.Add(renewEvery)
	if err := p.Kernel.Renew(p.Planner); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot renew the lease")
		p.Schedule.Requested()
	}
}

// sync takes up what has changed and sends it. Where the tables may be broken, what has been taken up before goes first: in a storm
// it takes far longer to plan what is new than to write all anew. New changes go before those that there was no time for.
func (p *Proxy) sync(ctx context.Context) {
	start := p.Now()
	p.Health.Queued(start)
	if p.started && !p.refused && (p.broken() || !p.Kernel.Known()) {
		if !p.send(ctx, start, nil) || p.idle() {
			return
		}
		start = p.Now()
	}
	waited := p.queue.waiting() > 0
	if p.started || !waited {
		if !p.syncFresh(ctx, start, waited) {
			return
		}
	}
	if waited {
		start = p.Now()
		if planned := p.planWaiting(); p.sendable() {
			p.send(ctx, start, planned)
		}
	}
	if p.queue.waiting() > 0 || p.problems.more {
		p.Schedule.Urgent()
	}
}

// syncFresh takes up and sends what has just changed, and nothing if others have waited and nothing has. It reports whether the loop may
// go on.
func (p *Proxy) syncFresh(ctx context.Context, start time.Time, waited bool) bool {
	dirty := p.Tracker.Take()
	p.Metrics.Changes(dirty.ServiceChanges, dirty.SliceChanges)
	if waited && dirty.Empty() {
		return true
	}
	if dirty.Empty() && p.Kernel.Known() && !p.Planner.Changed() && start.Sub(p.synced) > lookEvery {
		// Nothing has happened for a long time: see whether the tables are still ours.
		p.Kernel.Doubt()
		p.doubted(metrics.Period)
	}
	planned := p.absorb(ctx, dirty)
	return !p.sendable() || p.send(ctx, start, planned)
}

// sendable reports whether what is planned may be sent. At the start nothing is before all is planned: half of the tables would be less
// than what an earlier process has left.
func (p *Proxy) sendable() bool { return p.started || p.queue.waiting() == 0 }

// idle reports whether nothing is known that the kernel doesn't hold.
func (p *Proxy) idle() bool {
	return !p.Planner.Changed() && p.Tracker.Pending().Since.IsZero() && p.queue.waiting() == 0
}

// send brings the kernel to what is planned, of which some Services were since a time. It reports false where that has failed.
func (p *Proxy) send(ctx context.Context, start time.Time, planned []types.NamespacedName) bool {
	p.account.noteNames(planned)
	p.countProblems()
	p.broken()
	if !p.maySend() {
		return false
	}
	if p.Planner.Recalling() {
		p.Planner.Resumed()
	}
	for attempt := 1; ; attempt++ {
		absorbed := p.Now()
		result, err := p.Kernel.Sync(p.Planner)
		s := sending{start, absorbed, p.Now(), len(planned)}
		if err == nil {
			p.sent(ctx, s, result)
			return true
		}
		again := p.interfered(err) && attempt < attempts
		p.failed(s, result, err)
		var pause time.Duration
		if !again {
			pause = p.Schedule.Failed(s.end).Sub(s.end)
		}
		klog.FromContext(ctx).Error(err, "Sync failed", "retryingTime", pause, "elapsed", s.end.Sub(s.start))
		if !again {
			return false
		}
		start = p.Now()
	}
}

// attempts is how often a sync is tried at once where others took away what it was about.
const attempts = 3

// interfered reports whether a sync has failed because somebody else has changed the ruleset meanwhile. Then there needn't be
// anything wrong with what was sent.
func (p *Proxy) interfered(failure error) bool {
	if errors.Is(failure, nft.ErrUnknown) {
		return false // it may have been this one
	}
	if meddled, err := p.Kernel.Meddled(); err != nil || !meddled {
		return false
	}
	p.foreign(p.Now())
	return true
}

// sending says how long a sync has taken, and with how many Services.
type sending struct {
	start, absorbed, end time.Time
	services             int
}

// outcome tells the metrics of it.
func (s *sending) outcome(r apply.Result) metrics.SyncResult {
	return metrics.SyncResult{Full: r.Kind == apply.Full || r.Kind == apply.Adopted, Duration: s.end.Sub(s.start), End: s.end}
}

// failed tells everybody of a sync that has failed.
func (p *Proxy) failed(s sending, r apply.Result, err error) {
	p.refused = true
	p.Metrics.SyncFailed(s.outcome(r))
	p.doubted(metrics.FailedSync)
	p.account.noteFailed(s.end, err)
	p.tell(s.end, s.absorbed.Sub(s.start), r, err)
}

// sent tells everybody of a sync that has succeeded.
func (p *Proxy) sent(ctx context.Context, s sending, result apply.Result) {
	p.Schedule.Succeeded(s.end)
	p.synced, p.refused = s.end, false
	foreign := p.doubt == metrics.ForeignChange
	p.account.noteSynced(s.start, s.absorbed, s.end, result)
	p.tell(s.end, s.absorbed.Sub(s.start), result, nil)
	p.succeeded(result, s.outcome(result))
	level := 2
	if result.Kind == apply.Full || !p.started {
		level = 0
	}
	p.started = true
	if result.Commit > 0 {
		// What others have committed right after this batch, they may have done before anybody heard of it.
		p.lookSoon(s.end)
	}
	logger := klog.FromContext(ctx)
	if result.Why != "" {
		logger = logger.WithValues("why", result.Why)
		if foreign {
			logger = logger.WithValues("lastChangedBy", p.Kernel.Author())
		}
	}
	logger.V(level).Info("Synced", "kind", result.Kind, "services", s.services,
		"elements", result.Elements, "bytes", result.Bytes, "planning", s.absorbed.Sub(s.start), "commit", result.Commit,
		"elapsed", s.end.Sub(s.start))
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
