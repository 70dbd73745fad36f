package scenario

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/manifests"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// pipeline runs the proxy's loop in a namespace of the lab on a folder of manifests.
type pipeline struct {
	folder   string
	manifest *manifests.Source
	tracker  *track.Tracker
	kernel   *recorder
	flows    *conntrack.Reconciler
	// terminated has the passes that terminated connections.
	terminated terminated
	// spread has the passes that spread connections.
	spread terminated
	clock  *clock
	loop   *proxy.Proxy
	stop   context.CancelFunc
	ended  chan error

	mu       sync.Mutex
	problems []string
}

// clock is the time of day plus an offset that tests increase. If stopped is set, it is this time plus the offset.
type clock struct {
	mu      sync.Mutex
	offset  time.Duration
	stopped time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped.IsZero() {
		return c.stopped.Add(c.offset)
	}
	return time.Now().Add(c.offset)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

// recorder passes syncs to the kernel, and counts them so that tests can wait for them.
type recorder struct {
	*apply.Kernel
	mu      sync.Mutex
	syncs   int
	errs    []error
	changed chan struct{}
	// numbers are the planner's numbers at the last sync.
	numbers *plan.Numbers
	// fault, unless empty, affects the next sync.
	fault string
}

func (r *recorder) Sync(p *plan.Planner) (apply.Result, error) {
	result, err := r.sync(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.syncs++
	r.numbers = p.Numbers()
	if err != nil {
		r.errs = append(r.errs, err)
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return result, err
}

// state returns the number of syncs so far, a channel that is closed by the next one, and the errors.
func (r *recorder) state() (int, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.syncs, r.changed, errors.Join(r.errs...)
}

// assigned returns the planner's numbers at the last sync.
func (r *recorder) assigned() *plan.Numbers {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.numbers
}

// startPipeline starts the loop. The folder is not read before [pipeline.load].
func startPipeline(h *lab.Host, s settings, folder string) (*pipeline, error) {
	p := &pipeline{folder: folder, clock: &clock{stopped: s.stopped}, ended: make(chan error, 1)}
	p.tracker = track.New(p.clock.now(), p.clock.now)
	p.manifest = manifests.New(watch.Config{Folder: folder, NodeName: s.node, HostPorts: true, Tracker: p.tracker, Report: p.report})
	err := h.Do(func() error {
		kernel, err := apply.Open()
		p.kernel = &recorder{Kernel: kernel, changed: make(chan struct{})}
		if err != nil {
			return err
		}
		kernel.Now = p.clock.now
		return kernel.Listen()
	})
	if err != nil {
		return nil, err
	}
	numbers := metrics.New(prometheus.NewRegistry(), metrics.Config{})
	p.flows = conntrack.New(conntrack.Config{Metrics: numbers, Interval: time.Millisecond, Open: func() (table conntrack.Table, err error) {
		err = h.Do(func() error {
			table, err = conntrack.OpenNetlink()
			return err
		})
		return table, err
	}})
	p.terminated = make(terminated, mostPasses)
	toTerminate := func() (table conntrack.Table, err error) {
		err = h.Do(func() error {
			table, err = conntrack.OpenToTerminate("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
			return err
		})
		return table, err
	}
	terminations := conntrack.New(conntrack.Config{Metrics: p.terminated, Interval: time.Millisecond, Open: toTerminate})
	planner := plan.New(s.plan)
	p.spread = make(terminated, mostPasses)
	spreads := conntrack.NewSpreads(conntrack.SpreadsConfig{
		Planner: planner, Now: p.clock.now, Open: toTerminate, Metrics: p.spread,
	})
	p.loop = proxy.New(proxy.Config{
		Source: s.source(p.manifest), Tracker: p.tracker, Kernel: p.kernel, Planner: planner,
		Metrics: metrics.NewLoop(numbers, planner, p.kernel.EachCount),
		Listeners: []beside.Listener{
			conntrack.NewFlows(conntrack.FlowsConfig{
				To: p.flows, Planned: planner.Flows(), Change: func(c func()) { p.loop.Change(c) },
			}).Listener(),
			conntrack.NewDepartures(conntrack.DeparturesConfig{
				To: terminations, Planner: planner, Now: p.clock.now, Report: p.report,
			}).Listener(),
			spreads.Listener(),
		},
		Health:   health.New(health.Config{Timeout: time.Hour, Now: p.clock.now, NoNode: true}),
		Schedule: proxy.NewSchedule(0, time.Hour, time.Hour),
		Families: s.plan.Families, NodeName: s.node, Model: s.model, NodePorts: nodePorts(h, s),
		Report: p.report, Now: p.clock.now,
	})
	// The zero Logger discards everything.
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	p.stop = cancel
	go func() {
		var others sync.WaitGroup
		others.Go(func() { p.flows.Run(ctx) })
		others.Go(func() { terminations.Run(ctx) })
		others.Go(func() { spreads.Run(ctx) })
		err := p.loop.Run(ctx)
		others.Wait()
		p.ended <- err
	}()
	return p, nil
}

// pipelineForTest starts the loop with a command line on the node of a lab, until the test ends.
func pipelineForTest(t *testing.T, l *lab.Lab, flags ...string) *pipeline {
	t.Helper()
	s, err := parseSettings(flags)
	lab.Must(t, err)
	p, err := startPipeline(l.Node, s, t.TempDir())
	lab.Must(t, err)
	t.Cleanup(func() { lab.Check(t, errors.Join(p.close(), cleanUp(l.Node)), "clean up") })
	return p
}

// nodePorts selects from the addresses of the host instead of those of the process's own namespace.
func nodePorts(h *lab.Host, s settings) model.NodePortAddresses {
	return model.NodePortAddresses{Prefixes: s.nodePorts, Local: func() (addrs []netip.Addr, err error) {
		err = h.Do(func() error {
			addrs, err = host.Addresses()
			return err
		})
		return addrs, err
	}}
}

func (p *pipeline) close() error {
	p.stop()
	return errors.Join(<-p.ended, p.kernel.Close())
}

func (p *pipeline) report(problem model.Problem) {
	name := strings.TrimPrefix(problem.Name.String(), "/")
	name = strings.TrimPrefix(name, p.folder+"/")
	line := strings.TrimSpace(problem.Kind + " " + name + " " + problem.Field)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problems = append(p.problems, line+": "+strings.ReplaceAll(problem.Reason, p.folder+"/", "")+"\n")
}

// reported returns the problems since the last call, sorted.
func (p *pipeline) reported() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.problems
	p.problems = nil
	slices.Sort(list)
	return strings.Join(list, "")
}

// load reads the folder and waits until the kernel has its content.
func (p *pipeline) load() error {
	if err := p.manifest.Load(); err != nil {
		return err
	}
	return p.settle()
}

// settle waits until all changes that the tracker has at the call are committed. The first sync that ends may have started before the
// call, so settle waits for a second one. The loop may plan the changes in several rounds, so settle waits until no Service waits.
func (p *pipeline) settle() error {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for rounds := 0; ; rounds++ {
		before, changed, _ := p.kernel.state()
		if rounds >= 2 {
			status, err := p.loop.Status(ctx)
			if err != nil || status.Pending == 0 {
				_, _, failed := p.kernel.state()
				return errors.Join(err, failed)
			}
		} else {
			p.tracker.MarkServiceCIDRs()
		}
		for now := before; now == before; now, changed, _ = p.kernel.state() {
			select {
			case <-changed:
			case <-ctx.Done():
				_, _, err := p.kernel.state()
				return errors.Join(fmt.Errorf("no sync within %s", patience), err)
			}
		}
	}
}

// shares returns the starting endpoints in the form of [oracle.Starts.Weigh].
func (p *pipeline) shares() (list []string, err error) {
	starts, err := p.loop.Starts(context.Background())
	for name, s := range starts {
		for _, e := range s.Shares() {
			list = append(list, fmt.Sprintf("%s:%s/%s %s %d", name, e.Port, e.Protocol, e.Endpoint, e.Share))
		}
	}
	slices.Sort(list)
	return list, err
}

// retire waits until stale flows are deleted, and advances the clock until every unused chain is deleted.
func (p *pipeline) retire() error {
	if err := p.settleFlows(); err != nil {
		return err
	}
	for range 3 {
		p.clock.advance(time.Minute)
		if err := p.settle(); err != nil {
			return err
		}
	}
	return nil
}

// fresh is the plan that a new planner makes from a folder's objects, with given numbers.
type fresh struct {
	planner  *plan.Planner
	services []*model.Service
	node     model.Node
	nodeIPs  [2][]netip.Addr
	cidrs    [2][]netip.Prefix
}

// planFolder plans the objects of a folder, with earlier numbers unless they are nil, and with starting endpoints.
func planFolder(h *lab.Host, s settings, folder string, numbers *plan.Numbers, starts map[types.NamespacedName]*model.Starts) (*fresh, error) {
	loaded := manifests.New(watch.Config{Folder: folder, NodeName: nodeName, HostPorts: true, Tracker: track.New(time.Now(), time.Now)})
	if err := loaded.Load(); err != nil {
		return nil, err
	}
	source := s.source(loaded)
	planner := plan.New(s.plan)
	if numbers != nil {
		planner = plan.Continue(s.plan, numbers)
	}
	f := &fresh{planner: planner, node: model.NodeOf(nodeName, source.Node())}
	f.cidrs, _ = model.ServiceCIDRs(source.ServiceCIDRs())
	for _, family := range s.plan.Families {
		addrs, err := nodePorts(h, s).Addresses(family, f.node)
		if err != nil {
			return nil, err
		}
		f.nodeIPs[family] = addrs
		f.planner.SetNodeAddresses(family, addrs)
		f.planner.SetServiceCIDRs(family, f.cidrs[family])
	}
	built := map[types.NamespacedName]*model.Service{}
	for _, name := range source.Services() {
		options := s.model
		options.Starts = starts[name]
		built[name] = model.Build(loaded.Get(name), f.node, options)
		if built[name] != nil {
			f.services = append(f.services, built[name])
		}
	}
	age := func(types.NamespacedName) model.Age { return model.Age{} } // in the order of names, as in expected results
	f.planner.Begin(source.Services(), age, func(names []types.NamespacedName) {
		for _, name := range names {
			f.planner.Set(name, built[name])
		}
	})
	return f, nil
}

// elements lists the planned elements.
func elements(p *plan.Planner) (list []string) {
	p.Elements(func(e *nft.Element) { list = append(list, e.String()) })
	slices.Sort(list)
	return list
}

func chains(p *plan.Planner) (list []string) {
	for _, t := range p.Tables() {
		for _, c := range t.Chains {
			list = append(list, fmt.Sprintf("chain %s %s", t.Family.Keyword(), c.Name))
		}
	}
	slices.Sort(list)
	return list
}

// variable returns the plan without its constant part.
func (f *fresh) variable(s settings) []string {
	empty := plan.New(s.plan)
	always := append(elements(empty), chains(empty)...)
	all := append(elements(f.planner), chains(f.planner)...)
	return slices.DeleteFunc(all, func(line string) bool { return slices.Contains(always, line) })
}

// slot matches an element of a table: the table, the number of the slot, and the endpoint.
var slot = regexp.MustCompile(`^(.*endpoints|.*slots)( \{ .*)\b([0-9]+) : (.*) \}$`)

// folded replaces the slots of each large table by one line: the number of slots of each endpoint, and a checksum of their order.
func folded(lines []string) (out []string) {
	const large = 64
	tables := map[string][]string{}
	for _, line := range lines {
		if m := slot.FindStringSubmatch(line); m != nil {
			tables[m[1]+m[2]] = append(tables[m[1]+m[2]], line)
		}
	}
	for _, line := range lines {
		m := slot.FindStringSubmatch(line)
		if m == nil || len(tables[m[1]+m[2]]) <= large {
			out = append(out, line)
			continue
		}
		table := tables[m[1]+m[2]]
		if table[0] != line {
			continue
		}
		times, text := map[string]int{}, ""
		for _, line := range table {
			times[slot.FindStringSubmatch(line)[4]]++
		}
		for _, endpoint := range slices.Sorted(maps.Keys(times)) {
			text += fmt.Sprintf("%d of %s, ", times[endpoint], endpoint)
		}
		out = append(out, fmt.Sprintf("%s%s... } %schecksum %08x", m[1], m[2], text, crc32.ChecksumIEEE([]byte(strings.Join(table, "\n")))))
	}
	return out
}

// program writes the plan to the tables of a namespace.
func (f *fresh) program(h *lab.Host) error {
	return h.Do(func() error {
		kernel, err := apply.Open()
		if err != nil {
			return err
		}
		_, err = kernel.Sync(f.planner)
		return errors.Join(err, kernel.Close())
	})
}

// adopted fails unless a new process with the plan adopts the tables of a namespace.
func (f *fresh) adopted(h *lab.Host) error {
	return h.Do(func() error {
		kernel, err := apply.Open()
		if err != nil {
			return err
		}
		if err := kernel.Recall(f.planner, nil); err != nil {
			return errors.Join(err, kernel.Close())
		}
		result, err := kernel.Sync(f.planner)
		if err == nil && result.Kind != apply.Adopted {
			err = fmt.Errorf("a restart is %s: %s", result.Kind, result.Why)
		}
		return errors.Join(err, kernel.Close())
	})
}

// inKernel reads the elements and chains of a namespace, except elements that rules add and the state element.
func inKernel(h *lab.Host, p *plan.Planner) (elements, chains []string, err error) {
	err = h.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // read only
		for _, t := range p.Tables() {
			list, err := conn.Chains(t.Family, t.Name)
			if err != nil {
				return err
			}
			for _, c := range list {
				chains = append(chains, fmt.Sprintf("chain %s %s", t.Family.Keyword(), c.Name))
			}
			for _, s := range t.Sets {
				if !plan.Planned(s) {
					continue
				}
				list, err := conn.Elements(s)
				if err != nil {
					return err
				}
				for i := range list {
					elements = append(elements, list[i].String())
				}
			}
		}
		return nil
	})
	slices.Sort(elements)
	slices.Sort(chains)
	// While the kernel moves a set to a larger hash table, a dump may have an element twice.
	return slices.Compact(elements), chains, err
}

// cleanUp removes the program's tables and all conntrack entries from a namespace.
func cleanUp(h *lab.Host) error {
	return h.Do(func() error {
		_, err := apply.Cleanup("")
		return errors.Join(err, flushConntrack())
	})
}
