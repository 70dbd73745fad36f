package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/affinity"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/demand"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/descriptors"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/loopback"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/nodeport"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/report"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/console"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/instance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/kubeapi"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/view"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch/manifests"
)

// Run does the work that the options select. It returns when this is done, when the context ends, or after a signal.
// It completes and validates the options, which come from the flags. Its errors occur in the same order as
// kube-proxy's.
func Run(ctx context.Context, version string, o *config.Options, fs *pflag.FlagSet) error {
	if err := o.Complete(fs); err != nil {
		return fmt.Errorf("failed complete: %w", err)
	}
	if err := logsapi.ValidateAndApplyAsField(&o.Config.Logging, o.Gates, field.NewPath("logging")); err != nil {
		return fmt.Errorf("initialize logging: %w", err)
	}
	printFlags(klog.FromContext(ctx), fs)
	if err := o.Validate(); err != nil {
		return fmt.Errorf("failed validate: %w", err)
	}
	s, err := settings.New(o, fs)
	if err != nil {
		return fmt.Errorf("failed validate: %w", err)
	}
	logger := klog.FromContext(ctx)
	for _, n := range o.Notes {
		logger.Info("Configuration: "+n.Text, "subject", n.Subject)
	}
	switch {
	case o.WriteTo != "":
		if err := config.Write(o.WriteTo, o.Config); err != nil {
			return err
		}
		logger.Info("Wrote configuration", "file", o.WriteTo)
		return nil
	case o.Cleanup:
		return cleanup(ctx, logger, s)
	}
	if err := serve(ctx, version, s); err != nil {
		logger.Error(err, "Error running ProxyServer") // kube-proxy's words
		return err
	}
	return nil
}

// serve prepares the machine, and serves until a signal.
func serve(ctx context.Context, version string, s *settings.Settings) error {
	if err := host.CheckKernel(); err != nil {
		return err
	}
	if s.InitOnly {
		prepareHost(klog.FromContext(ctx), s.Config)
		klog.FromContext(ctx).Info("System initialized and --init-only specified")
		return nil
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // the reader of the log may exit
	logger := klog.FromContext(ctx)
	setMemory(logger)
	hostFamilies := host.Families()
	tables, err := supported(logger, s.PlanOptions(hostFamilies))
	if err != nil {
		return err
	}
	d, err := newDaemon(ctx, version, s, hostFamilies, tables)
	if err != nil {
		return err
	}
	prepareProcess(logger, s) // not before everything else is ready
	return d.run(ctx)
}

// source provides the objects.
type source interface {
	proxy.Source
	console.Source
	Run(context.Context) error
	// Confirmed returns a channel that is closed when the objects are not only those of a snapshot.
	Confirmed() <-chan struct{}
}

// daemon holds the parts of the program, in the order of the data flow.
type daemon struct {
	*settings.Settings
	version string
	// hostFamilies are the host's IP families at the start, including those for which the kernel lacks features.
	hostFamilies []inet.Family
	tracker      *track.Tracker
	source       source
	kernel       *apply.Kernel
	// instance decides which process of the program serves.
	instance *instance.Instance
	planner  *plan.Planner
	// counts are the counters of connections to Services.
	counts   *counters.Counters
	health   *health.Health
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	recorder *report.Recorder
	reporter *report.Reporter
	// tables are the options for the tables, families their IP families.
	tables   plan.Options
	families []inet.Family
	// addressed has a value after an address of the machine has changed: there may be a new IP family.
	addressed chan struct{}
	flows     *conntrack.Reconciler
	// terminations terminates connections to endpoints that left. Its passes are apart from those of flows, because
	// they take longer.
	terminations *conntrack.Reconciler
	// spreads terminates connections after a Service has got more endpoints.
	spreads *conntrack.Spreads
	// searches requests searches for stale flows after commits.
	searches *conntrack.Flows
	users    *nodeport.Watcher
	loopback *loopback.Server
	demand   *demand.Watcher
	clients  *affinity.Watcher
	checks   *health.Checks
	// files is the budget of file descriptors that namespaces share.
	files    *descriptors.Budget
	takeover *takeover.Takeover
	started  time.Time
	// firstSync is closed after the first sync of confirmed objects.
	firstSync chan struct{}
	// loop keeps the kernel's tables as planned. console answers commands.
	loop    *proxy.Proxy
	console *console.Console
	// api and client are nil if the objects come from a folder.
	api      *console.API
	client   *kubeapi.Client
	problems console.Problems
	// ports are the states of the HTTP servers. rejected returns the present problems of manifests; nil with an API
	// server.
	ports    ports
	rejected func() []model.Problem
	// snapshot returns the time of the snapshot that is served without confirmation, and the reason why a snapshot
	// cannot be read or written. turn returns the longest wait for the first list while it lasts. Both are nil without
	// an API server.
	snapshot func() (saved time.Time, err error)
	turn     func() time.Duration
	// adopts is true if an earlier process served just before the start.
	adopts bool
}

// terminationsPerSecond is the largest number of connections that are terminated per second. Their clients connect
// again.
const terminationsPerSecond = 10_000

func openToTerminate() (conntrack.Table, error) {
	return conntrack.OpenToTerminate("/proc/sys/net/netfilter/nf_conntrack_tcp_loose")
}

// lastPass is the longest time for which the end of the process waits for the deletion of stale flows.
const lastPass = 2 * time.Second

func newDaemon(
	ctx context.Context, version string, s *settings.Settings, hostFamilies []inet.Family, tables plan.Options,
) (*daemon, error) {
	d := &daemon{
		Settings: s, version: version, hostFamilies: hostFamilies, started: time.Now(),
		registry: prometheus.NewRegistry(),
		tables:   tables, families: tables.Families, addressed: make(chan struct{}, 1), firstSync: make(chan struct{}),
		files: descriptors.New(),
	}
	logger := klog.FromContext(ctx)
	// These three messages are kube-proxy's; some tools search for them.
	logger.Info("Using nftables Proxier", "node", s.NodeName, "families", fmt.Sprint(d.families))
	logger.Info("Version info", "version", version)
	logger.Info("Golang settings", "GOGC", os.Getenv("GOGC"), "GOMAXPROCS", os.Getenv("GOMAXPROCS"), "GOTRACEBACK",
		os.Getenv("GOTRACEBACK"))
	if err := checkFamilies(logger, s.Config, d.families); err != nil {
		return nil, err
	}
	d.tracker = track.New(d.started, time.Now)
	d.metrics = d.registerMetrics()
	s.ApplyGates()
	every, _ := config.Periods(s.Config)
	d.health = health.New(health.Config{
		Timeout: 2 * every, Now: time.Now, Families: d.families, NoNode: s.Manifests != "",
		Answered: d.metrics.HealthAnswered,
		// The console exists before the port is open.
		Reasons: func(ctx context.Context) []string { return d.console.Unready(ctx) },
	})
	d.flows = conntrack.New(conntrack.Config{
		Metrics: d.metrics, Open: func() (conntrack.Table, error) { return conntrack.OpenNetlink() }, Last: lastPass,
	})
	d.terminations = conntrack.New(conntrack.Config{
		Metrics: metrics.NewTerminations(d.registry, d.metrics), PerSecond: terminationsPerSecond,
		Open: openToTerminate,
	})
	if err := d.openSource(logger); err != nil {
		return nil, err
	}
	d.users = nodeport.New(nodeport.Config{
		NodeName: d.NodeName, Families: d.families, Listening: nodeport.Listening, Own: nodeport.OwnSockets,
		Ephemeral: nodeport.ReadEphemeral,
		Report:    d.report, Withdraw: d.reporter.Withdraw, Metrics: d.metrics,
	})
	d.openLoopback()
	d.takeover = d.newTakeover()
	var err error
	if d.kernel, err = apply.Open(); err != nil {
		return d, err
	}
	d.kernel.Table = plan.Table(d.ServiceProxyName)
	if err := d.kernel.Listen(); err != nil {
		logger.Error(err, "Cannot listen for foreign changes of the ruleset; polling it twice a second")
	}
	if d.ServiceProxyName == "" && !d.takeover.Rival(ctx).Possible() {
		d.kernel.TakeOver(func() bool { return d.confirmed() && !d.takeover.Rival(ctx).Possible() })
	}
	d.planner = plan.New(d.tables)
	d.adopts = d.kernel.IsLeased(d.planner) // before the loop renews the lease
	if err := d.count(logger); err != nil {
		return d, err
	}
	if err := d.openDemand(); err != nil {
		return d, err
	}
	if err := d.openClients(); err != nil {
		return d, err
	}
	d.instance = instance.New(instance.NameOf(d.ServiceProxyName), instance.Own())
	d.instance.Unknown = func(err error) {
		logger.Error(err, "Cannot agree with a process that may be another instance of this program; this instance "+
			"serves")
	}
	d.loop = d.newLoop()
	d.console = d.newConsole()
	return d, nil
}

// openLoopback makes the server of node ports on loopback, and registers its metrics.
func (d *daemon) openLoopback() {
	families := d.LoopbackFamilies(d.families)
	d.loopback = loopback.New(loopback.Config{
		NodeName: d.NodeName, Families: families, Report: d.report, Withdraw: d.reporter.Withdraw,
		Metrics: d.metrics, Files: d.files,
		Refusals: loopback.NewRefusals(families, plan.Table(d.ServiceProxyName)),
	})
	metrics.RegisterLoopback(d.registry, families, d.loopback.Refused)
}

// openDemand makes the watcher of the demand for Services without endpoints, and registers its metric.
func (d *daemon) openDemand() error {
	conn, err := nft.Open()
	if err != nil {
		return fmt.Errorf("open connection for demand: %w", err)
	}
	d.demand = demand.New(demand.Config{
		Reader: conn, Sets: plan.SetsNamed(d.planner.Tables(), plan.HeldSet),
		Changed: func() map[plan.Number]types.NamespacedName { return d.planner.TakeOwners(plan.Holding) },
		Wanted:  d.reporter.Wanted, Now: time.Now,
	})
	metrics.RegisterDemand(d.registry, d.demand.Each)
	return nil
}

// openClients makes the watcher of remembered clients, and registers its metrics.
func (d *daemon) openClients() error {
	c := affinity.Config{
		Changed: func() map[plan.Number]types.NamespacedName { return d.planner.TakeOwners(plan.Remembering) },
		Forget:  func(ctx context.Context, list []nft.Element) (int, error) { return d.loop.Forget(ctx, list) },
		Crowd: func(ctx context.Context, f inet.Family, ports []plan.Number) error {
			return d.loop.Crowd(ctx, f, ports)
		},
		Report: d.reporter.Problem,
	}
	for _, set := range plan.SetsNamed(d.planner.Tables(), plan.AffinitySet) {
		conn, err := nft.Open()
		if err != nil {
			return fmt.Errorf("open connection for remembered clients: %w", err)
		}
		c.Maps = append(c.Maps, affinity.Map{Set: set, Reader: conn})
	}
	d.clients = affinity.New(c)
	metrics.RegisterClients(d.registry, d.clients.States)
	return nil
}

// openSource opens a folder or a connection to the API server.
func (d *daemon) openSource(logger klog.Logger) error {
	cfg := watch.Config{Folder: d.Manifests, NodeName: d.NodeName, ServiceProxyName: d.ServiceProxyName,
		Tracker: d.tracker, Zones: d.CountZones, HostPorts: d.HostPorts, Limits: d.ModelOptions().Limits}
	if d.Manifests != "" {
		d.reporter = report.New(logger, nil,
			report.Count{Problem: d.metrics.Problem, Suppressed: d.metrics.ProblemSuppressed})
		cfg.Report = d.report
		folder := manifests.New(cfg)
		d.source, d.rejected = folder, folder.Rejected
		return nil
	}
	connection, server, err := d.connection(logger)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	client, err := kubeapi.New(connection)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	d.recorder = report.NewRecorder(report.API(client.Events), "kube-nftproxy", d.metrics.ProblemSuppressed)
	d.reporter = report.New(logger, d.recorder,
		report.Count{Problem: d.metrics.Problem, Suppressed: d.metrics.ProblemSuppressed})
	d.api, d.client = console.NewAPI(withProxy(server, connection), client,
		func(ctx context.Context) (string, error) { return watch.User(ctx, client) }), client
	d.api.TokenFile = connection.BearerTokenFile
	cfg.Report, cfg.Failed = d.report, func(resource string, err error) {
		d.metrics.WatchFailed(resource)
		d.api.Failed(resource, err)
	}
	cfg.Succeeded = d.api.Succeeded
	cfg.Client, cfg.Adopts = client, func() bool { return d.adopts }
	if err := d.useSnapshots(&cfg, connection); err != nil {
		return err
	}
	informers, err := watch.NewInformers(cfg)
	if err != nil {
		return err
	}
	d.source, d.snapshot, d.turn = informers, informers.Snapshot, informers.Turn
	return nil
}

// run runs all parts until the context ends or one of them fails, and then waits for the others.
func (d *daemon) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	part := func(name string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(klog.NewContext(ctx, klog.FromContext(ctx).WithName(name))); err != nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	background := func(name string, f func(context.Context)) { // a part that cannot fail
		part(name, func(ctx context.Context) error { f(ctx); return nil })
	}
	if d.recorder != nil {
		background("events", d.recorder.Run)
	}
	d.reporter.Started(d.NodeName)
	server := func(name, address string, handler http.Handler, event string) {
		part(name, func(ctx context.Context) error {
			err := health.Serve(ctx, address, takeover.Named(handler), health.RetryInterval,
				d.Config.BindAddressHardFail,
				func(err error) { d.ports.set(name, err) })
			if err != nil {
				const moment = 3 * time.Second
				d.reporter.ServerFailed(d.NodeName, event, err)
				if d.recorder != nil {
					d.recorder.Await(event, moment)
				}
			}
			return err
		})
	}
	server("healthz", d.Config.HealthzBindAddress, d.health.Handler(), "FailedToStartProxierHealthcheck")
	server("metrics", d.Config.MetricsBindAddress, d.metricsPort(), "FailedToStartMetricServer")
	part("addresses", func(ctx context.Context) error {
		return host.FollowAddresses(ctx, func() {
			d.tracker.MarkHost()
			d.lookForFamilies()
		})
	})
	part("watch", d.source.Run)
	loopEnded := make(chan struct{})
	// The last pass of conntrack includes the last sync.
	background("conntrack", func(ctx context.Context) { d.flows.Run(until(ctx, loopEnded)) })
	background("terminations", d.terminations.Run)
	background("spreads", d.spreads.Run)
	background("nodeport", d.users.Run)
	loopbackEnded := make(chan struct{})
	background("loopback", func(ctx context.Context) {
		defer close(loopbackEnded)
		d.loopback.Run(ctx)
	})
	background("demand", func(ctx context.Context) {
		select {
		case <-d.source.Confirmed(): // an Event about a Service of a snapshot may be wrong
			d.demand.Run(ctx)
		case <-ctx.Done():
		}
	})
	background("affinity", d.clients.Run)
	if d.File != "" {
		part("configuration", func(ctx context.Context) error { return d.AwaitChange(ctx, d.metrics.ConfigOutdated) })
	}
	if d.StartupTaint != "" {
		part("taint", (&watch.StartupTaint{Client: d.client, Key: d.StartupTaint, Node: d.source.Node,
			Synced: d.firstSync}).Run)
	}
	if d.ServiceProxyName == "" {
		background("takeover", d.takeover.Run)
	}
	background("control", func(ctx context.Context) { control.Serve(ctx, d.ControlSocket, d.console.Handler()) })
	part("families", d.awaitFamily)
	part("proxy", func(ctx context.Context) error {
		// This process leaves the other instances only after it has stopped committing. Before this, it also deletes
		// the table of node ports on loopback, because the next instance writes a table with the same name.
		agreeing, leave := context.WithCancel(context.WithoutCancel(ctx))
		var others sync.WaitGroup
		others.Go(func() { d.instance.Run(agreeing) })
		d.searches.Earlier = conntrack.ReadEarlier(ctx, func() ([]model.Key, error) {
			return apply.EarlierUDP(d.families, d.ServiceProxyName)
		})
		err := d.loop.Run(ctx)
		d.checks.Close()
		close(loopEnded)
		if err != nil {
			cancel(fmt.Errorf("proxy: %w", err)) // so that the part loopback exits
		}
		<-loopbackEnded
		leave()
		others.Wait()
		return err
	})
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	klog.FromContext(ctx).Info("Stopped; the rules stay in place")
	return nil
}

// until returns a context that ends when a channel is closed, and not before.
func until(ctx context.Context, closed <-chan struct{}) context.Context {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-closed
		end()
	}()
	return ctx
}

// report reports a problem and keeps it for the console.
func (d *daemon) report(p model.Problem) {
	d.problems.Note(p)
	d.reporter.Problem(p)
}

func (d *daemon) newLoop() *proxy.Proxy {
	every, least := config.Periods(d.Config)
	return proxy.New(proxy.Config{
		Source: d.source, Tracker: d.tracker, Kernel: d.kernel, Planner: d.planner,
		Metrics: metrics.NewLoop(d.metrics, d.planner, d.kernel.EachCount), Health: d.health,
		Schedule: proxy.NewSchedule(least, every, every), Families: d.families,
		NodeName: d.NodeName, NodeIP: d.NodeIP, NodeCIDR: d.Config.DetectLocalMode == config.NodeCIDR,
		NodePorts: d.NodePortAddresses(), Model: d.ModelOptions(), Listeners: d.listeners(),
		Settled: d.settled, Report: d.report, Withdraw: d.reporter.Withdraw, Now: time.Now, Turn: d.instance,
	})
}

// listeners returns the parts that follow the loop, in the order in which it calls them.
func (d *daemon) listeners() []beside.Listener {
	d.searches = conntrack.NewFlows(conntrack.FlowsConfig{
		To: d.flows, Planned: d.planner.Flows(), Change: func(c func()) { d.loop.Change(c) },
	})
	d.checks = health.NewChecks(health.NewServices(health.ServicesConfig{
		Healthy: d.health.Healthy, Failed: d.report, Withdraw: d.reporter.Withdraw, Files: d.files,
	}), d.families, d.metrics.HealthCheckPortsFailed)
	departures := conntrack.NewDepartures(conntrack.DeparturesConfig{
		To: d.terminations, Planner: d.planner, Now: time.Now, Report: d.report,
	})
	d.spreads = conntrack.NewSpreads(conntrack.SpreadsConfig{
		Planner: d.planner, Now: time.Now, Open: openToTerminate,
		Metrics: metrics.NewSpreads(d.registry, d.metrics),
	})
	return []beside.Listener{
		d.searches.Listener(), d.checks.Listener(), departures.Listener(), d.spreads.Listener(),
		d.users.Listener(), d.demand.Listener(), d.clients.Listener(), d.loopback.Listener(),
	}
}

// newConsole returns a console with the parts that it reads.
func (d *daemon) newConsole() *console.Console {
	return console.New(console.Parts{
		Settings: d.Settings, Version: d.version, Started: d.started, Families: d.families, Tables: d.tables,
		Source: d.source, Loop: d.loop, API: d.api, Planner: d.planner, Problems: &d.problems, Gatherer: d.gatherer(),
		Pending: d.tracker.Pending, Account: d.health.Account, Connections: d.counts.Connections,
		Broken:     d.checks.Broken,
		Clients:    d.clients.States,
		LoopbackAt: d.loopback.At, LoopbackState: d.loopback.State,
		Rival: d.takeover.Rival, NodePorts: d.users.Find, Appeared: d.appeared, Rejected: d.rejected,
		Snapshot: d.snapshot, Turn: d.turn,
		Ports: func() []view.Port { return d.ports.list(d.Config.HealthzBindAddress, d.Config.MetricsBindAddress) },
		Instances: func() (older, newer []string, unreachable string) {
			older, newer = d.instance.Guests()
			return older, newer, d.instance.Unreachable()
		},
		Earlier: func() (bool, error) { return apply.Earlier(d.families, d.ServiceProxyName) },
		Lacks: func(families []inet.Family) ([]probe.Missing, error) {
			return askKernel(d.PlanOptions(families))
		},
	})
}
