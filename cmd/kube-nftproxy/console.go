package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/doctor"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
)

// console answers the commands. It reads what the parts of the daemon let others read, and asks the loop between two syncs.
type console struct {
	*daemon
	commits control.Feed[view.Commit]
	// verifying lets one verification run at a time: it takes as much memory as all tables.
	verifying sync.Mutex
}

// The pages at which commands ask.
const (
	pageStatus   = "status"
	pageServices = "services"
	pageNames    = "names"
	pageVerify   = "verify"
	pageWatch    = "watch"
	pageBundle   = "bundle"
)

func (c *console) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/"+pageStatus, control.Answer(func(r *http.Request) (*view.Status, error) { return c.status(r.Context()), nil }))
	mux.Handle("/"+pageServices, control.Answer(func(r *http.Request) (*view.Services, error) {
		return c.services(r.Context(), control.Param(r, "namespace"), control.Param(r, "name"))
	}))
	mux.Handle("/"+pageNames, control.Answer(func(*http.Request) ([]string, error) { return c.names(), nil }))
	mux.Handle("/"+pageVerify, control.Answer(func(r *http.Request) (*view.Verification, error) { return c.verify(r.Context()) }))
	mux.Handle("/"+pageWatch, control.Stream(&c.commits, func(v *view.Commit, n uint64) { v.Lost = n }))
	mux.HandleFunc("/"+pageBundle, c.bundle)
	return mux
}

// Watched and Committed implement [proxy.Observer].
func (c *console) Watched() bool { return c.commits.Watched() }

// Committed hands a commit to whoever watches.
func (c *console) Committed(v view.Commit) { c.commits.Publish(v) }

// askLoop is how long the loop may take to answer: a sync of a large cluster takes a second.
const askLoop = 3 * time.Second

func (c *console) status(ctx context.Context) *view.Status {
	now := time.Now()
	s := &view.Status{
		Node: c.nodeName, Version: version, Kernel: kernelRelease(), Time: now, Started: c.started, Mode: string(c.Config.Mode),
		LocalMode: string(c.Config.DetectLocalMode), API: c.apiState(ctx), Findings: []view.Finding{},
	}
	s.Features = kernelFeatures(s.Kernel)
	for _, f := range c.families {
		s.Families = append(s.Families, f.String())
	}
	if s.Mode == "" {
		s.Mode = "iptables (the default)"
	}
	local := c.countObjects(s)
	c.askStatus(ctx, s)
	c.judge(s)
	s.Findings = append(s.Findings, doctor.Look(ctx, doctor.Config{
		Others: c.causes(s, local), Sysctls: "/proc/sys", Families: c.families, Drops: doctor.Drops, Rival: c.takeover.Rival, NodePorts: c.users.Find,
		Leftovers: func() (takeover.Leftovers, error) { return takeover.Look(excludedFromIPVS(c.Config)) },
	})...)
	return s
}

// unserved tells of IP families that the host has and that aren't served, because the kernel lacks something.
func (c *console) unserved() []view.Finding {
	if family, appeared := c.appeared(); appeared {
		return []view.Finding{{
			Severity: view.Wrong, What: fmt.Sprintf("this host got %s after the program started", family),
			Impact: fmt.Sprintf("no %s Service is served", family), Fix: "wait 30 seconds: the program exits, and serves the family after the kubelet has restarted it",
		}}
	}
	o := c.planOptions()
	if o.Families = host.Families(); len(o.Families) <= len(c.families) {
		return nil
	}
	lacks, err := askKernel(o)
	if err != nil || len(lacks) == 0 {
		return nil
	}
	what, fix := probe.Advice(lacks)
	return []view.Finding{{Severity: view.Wrong, What: what, Impact: "only Services of " + fmt.Sprint(c.families) + " are served", Fix: fix}}
}

// countObjects counts what there is in the API, and returns the addresses of endpoints on this node: each object is read once.
func (c *console) countObjects(s *view.Status) (local []netip.Addr) {
	facts := c.loop.Facts()
	for _, name := range c.source.Services() {
		s.Counts.Services++
		slices := c.source.Slices(name)
		for _, slice := range slices {
			s.Counts.Endpoints += len(slice.Endpoints)
		}
		local = append(local, model.LocalAddresses(slices, c.nodeName)...)
		if built := model.Build(c.source.Service(name), slices, facts.Node, c.modelOptions()); built != nil && len(built.Problems)+len(c.checks.Broken(name)) > 0 {
			s.Counts.Problems++
		}
	}
	if p := c.tracker.Pending(); !p.Latest.IsZero() {
		s.API.LastEvent = &p.Latest
	}
	return local
}

// askStatus fills in what only the loop knows.
func (c *console) askStatus(ctx context.Context, s *view.Status) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	var err error
	if s.Loop, err = c.loop.Status(ctx); err != nil {
		s.Why = append(s.Why, fmt.Sprintf("the loop hasn't answered for %v: it is in the middle of a long sync, or stuck", askLoop))
		return
	}
	p := c.tracker.Pending()
	if s.Loop.Pending += p.Services; !p.Since.IsZero() {
		s.Loop.OldestChange = &p.Since
	}
	s.Counts.Elements = map[string]int{}
	if n, err := c.loop.Elements(ctx); err == nil {
		for _, f := range c.families {
			s.Counts.Elements[f.String()] = n[f]
		}
	}
	if list, err := c.loop.Conflicts(ctx, c.source.Services()); err == nil {
		claims := map[model.Key]bool{}
		for _, conflict := range list {
			claims[conflict.Key] = true
		}
		s.Counts.Conflicts = len(claims)
	}
}

// judge says whether all is well, and why not.
func (c *console) judge(s *view.Status) {
	a := c.health.Account()
	s.Healthy, s.Eligible = a.Healthy && len(s.Why) == 0, a.Eligible
	if !a.Owed.IsZero() && s.Loop != nil && (s.Loop.OldestChange == nil || a.Owed.Before(*s.Loop.OldestChange)) {
		s.Loop.OldestChange = &a.Owed
	}
	if !a.Healthy {
		s.Why = append(s.Why, fmt.Sprintf("changes have not been programmed for %v", time.Since(a.Owed).Round(time.Second)))
	}
	if s.Loop != nil && s.Loop.Waits != "" {
		s.Why = append(s.Why, "nothing is programmed yet: waiting "+s.Loop.Waits)
	}
	if s.Loop != nil && s.Loop.Other != "" {
		s.Why = append(s.Why, fmt.Sprintf("another instance (%s) serves this node; this instance waits until it exits", s.Loop.Other))
	}
	if s.Loop != nil && s.Loop.Failure != nil {
		s.Why = append(s.Why, "syncs fail: "+s.Loop.Failure.Error)
	}
	switch {
	case a.Eligible, s.Loop != nil && s.Loop.Waits != "": // or the Node hasn't been looked at
	case c.source.Node() == nil:
		s.Why = append(s.Why, fmt.Sprintf("there is no Node %q: is --hostname-override right?", c.nodeName))
	default:
		s.Why = append(s.Why, "the Node is being deleted, so /healthz tells load balancers to stay away")
	}
	if !s.API.Answers {
		s.Why = append(s.Why, "the API server doesn't answer: the rules stay as they are, and changes go unseen")
	}
}

// apiClient asks the API server whether it is there.
type apiClient struct {
	host     string
	client   kubernetes.Interface
	mu       sync.Mutex
	failures map[string]view.WatchFailure
}

func newAPIClient(c *rest.Config, client kubernetes.Interface) *apiClient {
	return &apiClient{host: c.Host, client: client, failures: map[string]view.WatchFailure{}}
}

// failed notes a failure to list or watch.
func (a *apiClient) failed(resource string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := view.WatchFailure{Resource: resource, Times: a.failures[resource].Times + 1, Last: time.Now()}
	whyFailed(&f, err)
	a.failures[resource] = f
}

func (c *console) apiState(ctx context.Context) view.API {
	if c.api == nil {
		return view.API{Source: "manifests in " + c.Manifests, Answers: true}
	}
	s := view.API{Source: config.WithoutSecrets(c.api.host)}
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := time.Now()
	err := c.api.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	// An API server that refuses to say how it is, is there.
	if s.Answers = err == nil || answered(err); s.Answers {
		s.AnswerMicros = max(1, time.Since(start).Microseconds())
	} else {
		s.Error = config.Redact(err.Error())
	}
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	for _, f := range c.api.failures {
		s.Failures = append(s.Failures, f)
	}
	slices.SortFunc(s.Failures, func(a, b view.WatchFailure) int { return strings.Compare(a.Resource, b.Resource) })
	return s
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelFeatures are those that newer kernels have and that make a difference here.
func kernelFeatures(release string) []view.Feature {
	var major, minor int
	_, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	since := func(m, n int) bool { return err == nil && (major > m || major == m && minor >= n) }
	return []view.Feature{
		{Name: "chains freed at once (6.2)", Has: since(6, 2)},
		{Name: "sets that grow (6.5)", Has: since(6, 5)},
		{Name: "numbers of elements told (6.16)", Has: since(6, 16)},
	}
}

// names are those of all Services, for the shell to complete.
func (c *console) names() []string {
	list := []string{}
	for _, n := range c.source.Services() {
		list = append(list, n.String())
	}
	return list
}

// errInFlight says that a verification saw a change under way.
var errInFlight = errors.New("changes kept coming")

// verify compares the kernel with tables that are planned anew from the API's objects, beside the loop. What differs once and not
// at the second look was a change under way, or has been repaired.
func (c *console) verify(ctx context.Context) (*view.Verification, error) {
	c.verifying.Lock()
	defer c.verifying.Unlock()
	defer debug.FreeOSMemory() // on a large cluster it has taken much, and nobody needs that again soon
	const (
		looks, most = 4, 100
		between     = 1200 * time.Millisecond // chains that nothing leads to any more go after two seconds
	)
	var v *view.Verification
	err := errInFlight
	for i := range looks {
		if i > 0 {
			select {
			case <-time.After(between):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		var last *view.Verification
		var p *plan.Planner
		if p, err = c.planAnew(ctx); err != nil {
			return nil, err
		}
		if last, err = apply.Differences(p, most); last != nil && err == nil {
			if last.Passing = v.First(); last.Total == 0 {
				return last, nil
			}
			v = last
		} else if !errors.Is(err, apply.ErrMoving) && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
	if v != nil {
		return v, nil
	}
	return nil, fmt.Errorf("compare the kernel with what is wanted: %w: %w", errInFlight, err)
}

// planAnew plans all Services as they are now, as if the program had just started.
func (c *console) planAnew(ctx context.Context) (*plan.Planner, error) {
	facts := c.loop.Facts()
	p := plan.New(c.planOptions())
	numbers, err := c.loop.Numbers(ctx)
	if err != nil {
		return nil, err
	}
	p.TakeNumbers(numbers)
	for _, f := range c.families {
		p.SetNodeAddresses(f, facts.NodeAddresses[f])
		p.SetServiceCIDRs(f, facts.ServiceCIDRs[f])
		if facts.PodCIDRs != ([2]netip.Prefix{}) {
			p.SetLocalPods(f, plan.LocalPods{Prefix: facts.PodCIDRs[f]})
		}
	}
	names := c.source.Services()
	p.Expect(len(names))
	for _, name := range names {
		p.Set(name, model.Build(c.source.Service(name), c.source.Slices(name), facts.Node, c.modelOptions()))
	}
	p.Resumed()
	return p, nil
}

// services tells of one Service, of those of a namespace, or of all.
func (c *console) services(ctx context.Context, namespace, name string) (*view.Services, error) {
	names := c.find(namespace, name)
	out, err := c.explain(ctx, names)
	if name != "" && len(out.Services) == 0 {
		return nil, c.notServed(ctx, namespace, name)
	}
	if name != "" && len(out.Services) == 1 {
		c.addSelector(ctx, &out.Services[0])
		addFirewall(&out.Services[0])
	}
	return out, err
}

// explain tells of the named Services.
func (c *console) explain(ctx context.Context, names []types.NamespacedName) (*view.Services, error) {
	facts := c.loop.Facts()
	out := &view.Services{Node: c.nodeName, NodePortAddresses: []string{}, Services: []view.Service{}}
	for _, list := range facts.NodeAddresses {
		for _, a := range list {
			out.NodePortAddresses = append(out.NodePortAddresses, a.String())
		}
	}
	out.Unread = c.unreadKinds()
	lost, err := c.lost(ctx, names)
	noter := c.newNoter(&facts)
	var keys []model.Key
	for _, n := range names {
		if x := model.Explain(c.source.Service(n), c.source.Slices(n), facts.Node, c.modelOptions()); x != nil {
			s := serviceView(x, &facts, lost)
			notes, wrong := noter.notes(x)
			s.Notes, s.Problems = notes, append(s.Problems, wrong...)
			out.Services = append(out.Services, *s)
			for _, p := range x.Ports {
				for i := range p.Frontends {
					keys = append(keys, p.Frontends[i].Key)
				}
			}
		}
	}
	c.countConnections(out, keys)
	return out, err
}

// lost are the frontends of the named Services that others have. A loop that is busy has none to tell.
func (c *console) lost(ctx context.Context, names []types.NamespacedName) (map[claim]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askLoop)
	defer cancel()
	conflicts, err := c.loop.Conflicts(ctx, names)
	lost := map[claim]string{}
	for _, f := range conflicts {
		lost[claim{f.Loser, f.Key}] = f.Winner.String()
	}
	return lost, ctxErrorOnly(err)
}

// countConnections fills in how many connections there were so far, of the frontends in the order in which they are shown. Where the
// kernel's counters can't be read in time, the numbers are those of the last reading.
func (c *console) countConnections(v *view.Services, keys []model.Key) {
	const patience = time.Second
	counts, err := c.counts.Connections(keys, patience)
	if err != nil {
		klog.V(2).InfoS("Numbers of connections may be old", "err", err)
	}
	for i := range v.Services {
		for j := range v.Services[i].Ports {
			fronts := v.Services[i].Ports[j].Frontends
			for k := range fronts {
				n := counts[0]
				counts = counts[1:]
				refused := uint64(0)
				for _, r := range n.Refused {
					refused += r
				}
				fronts[k].Connections, fronts[k].Refused = &n.Connections, &refused
			}
		}
	}
}

// ctxErrorOnly drops an error that says no more than that the loop is busy.
func ctxErrorOnly(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// find returns the names of Services in a namespace; one of a name alone is looked for in all of them.
func (c *console) find(namespace, name string) (found []types.NamespacedName) {
	for _, n := range c.source.Services() {
		if (namespace == "" || n.Namespace == namespace) && (name == "" || n.Name == name) {
			found = append(found, n)
		}
	}
	return found
}

// claim is a frontend that a service port wants.
type claim struct {
	port model.PortName
	key  model.Key
}

var _ proxy.Observer = &console{}
