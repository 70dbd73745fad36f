package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/control"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/counters"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/instance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nodeport"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/report"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/schedule"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
)

func newCommand() *cobra.Command {
	o := config.NewOptions()
	o.ControlSocket = control.DefaultPath
	show := versionFlag("false")
	cmd := &cobra.Command{
		Use:   "kube-nftproxy",
		Short: "kube-nftproxy serves Kubernetes Services on a node by nftables",
		Long:  "kube-nftproxy watches Services and EndpointSlices, and programs the kernel's nftables so that this node's\npods and processes, and clients from outside, reach the endpoints behind them.",
		Args: func(cmd *cobra.Command, args []string) error {
			if strings.Join(args, "") != "" {
				return fmt.Errorf("%q does not take any arguments, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if text := show.text(); text != "" {
				fmt.Println(text)
				return nil
			}
			return run(cmd.Context(), o, cmd.Flags())
		},
	}
	cmd.Flags().Var(&show, "version", "Print the version and exit; with raw, also print how the program was built. A version, as vX.Y.Z, is accepted and ignored.")
	cmd.Flags().Lookup("version").NoOptDefVal = "true"
	o.AddFlags(cmd.Flags())
	addCommands(cmd)
	return cmd
}

// run does what the options ask for. The stages of its errors are kube-proxy's.
func run(ctx context.Context, o *config.Options, fs *pflag.FlagSet) error {
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
	s, err := newSettings(o, fs)
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
		return cleanup(ctx, logger, o.Config)
	}
	if err := serve(ctx, s); err != nil {
		logger.Error(err, "Error running ProxyServer") // kube-proxy's words
		return err
	}
	return nil
}

// serve prepares the machine, and serves until a signal comes.
func serve(ctx context.Context, s *settings) error {
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
	signal.Ignore(syscall.SIGPIPE) // who reads the log may end
	setMemory()
	logger := klog.FromContext(ctx)
	prepare := sync.OnceFunc(func() { prepareHost(logger, s.Config) })
	s.hostFamilies = host.Families()
	for families := s.hostFamilies; ; {
		d, err := newDaemon(ctx, s, families)
		if err != nil {
			return err
		}
		prepare() // not before it is known that everything else is in order
		err = d.run(ctx)
		if families = remaining(logger, families, err); len(families) == 0 {
			return err
		}
		if err := d.kernel.Close(); err != nil {
			return err
		}
	}
}

// source is where the objects come from.
type source interface {
	proxy.Source
	Run(context.Context) error
}

// daemon holds the parts of the program, in the order of the data that flows through them.
type daemon struct {
	*settings
	tracker *track.Tracker
	source  source
	kernel  *apply.Kernel
	// lease is renewed beside the loop; instance tells whether another process of this program serves.
	lease    *apply.Lease
	instance *instance.Instance
	planner  *plan.Planner
	// counts are the connections to Services.
	counts   *counters.Counters
	health   *health.Health
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	recorder events.EventBroadcaster
	sink     *report.Sink
	reporter *report.Reporter
	families []model.Family
	// lacks has why the families can't be served, or nil, as soon as it is known.
	lacks <-chan error
	// addressed has a value when an address of the machine has changed: an IP family may have come.
	addressed chan struct{}
	flows     *conntrack.Reconciler
	users     *nodeport.Watcher
	checks    *health.Services
	takeover  *takeover.Takeover
	started   time.Time
	settle    sync.Once
	// loop is what keeps the kernel in step; console answers commands about all of this.
	loop    *proxy.Proxy
	console *console
	// api is nil where objects come from a folder.
	api      *apiClient
	problems recent
}

func newDaemon(ctx context.Context, s *settings, families []model.Family) (*daemon, error) {
	d := &daemon{settings: s, started: time.Now(), registry: prometheus.NewRegistry(), families: families, addressed: make(chan struct{}, 1)}
	logger := klog.FromContext(ctx)
	// The messages of the first three lines are kube-proxy's, which some look for.
	logger.Info("Using nftables Proxier", "node", s.nodeName, "families", fmt.Sprint(d.families))
	logger.Info("Version info", "version", version)
	logger.Info("Golang settings", "GOGC", os.Getenv("GOGC"), "GOMAXPROCS", os.Getenv("GOMAXPROCS"), "GOTRACEBACK", os.Getenv("GOTRACEBACK"))
	if err := checkFamilies(logger, s.Config, d.families); err != nil {
		return nil, err
	}
	d.lacks = d.probe(ctx)
	d.tracker = track.New(d.started, time.Now)
	d.metrics = s.registerMetrics(d.registry, d.families)
	s.ApplyGates()
	every, _ := config.Periods(s.Config)
	d.health = health.New(health.Config{
		Timeout: 2 * every, Now: time.Now, Families: d.families, NoNode: s.Manifests != "", Counter: d.metrics,
	})
	d.flows = conntrack.New(conntrack.Config{
		Metrics: d.metrics, Open: func() (conntrack.Table, error) { return conntrack.OpenNetlink() },
	})
	if err := d.openSource(logger); err != nil {
		return nil, err
	}
	d.users = nodeport.New(nodeport.Config{
		NodeName: d.nodeName, Listening: nodeport.Listening, Own: nodeport.OwnSockets, Ephemeral: nodeport.ReadEphemeral,
		Report: d.report, Metrics: d.metrics,
	})
	d.takeover = d.newTakeover()
	var err error
	if d.kernel, err = apply.Open(); err != nil {
		return d, err
	}
	if err := d.kernel.Listen(); err != nil {
		logger.Error(err, "Cannot listen for foreign changes of the ruleset; polling it twice a second")
	}
	if !d.takeover.Rival(ctx) {
		d.kernel.TakeOver(func() bool { return !d.takeover.Rival(ctx) })
	}
	d.console = &console{daemon: d}
	d.planner = plan.New(d.planOptions())
	if err := d.count(logger); err != nil {
		return d, err
	}
	d.instance = instance.New(instance.Name, instance.Own())
	d.instance.Unknown = func(err error) {
		logger.Error(err, "Cannot query a process that may be another instance of this program; this instance serves")
	}
	if err := d.keepLease(logger); err != nil {
		return d, err
	}
	d.loop = d.newLoop()
	return d, nil
}

// openSource prepares to read from a folder, or from the API server.
func (d *daemon) openSource(logger klog.Logger) error {
	cfg := watch.Config{Folder: d.Manifests, NodeName: d.nodeName, Tracker: d.tracker}
	if d.Manifests != "" {
		d.reporter = report.New(logger, nil, report.Count{Problem: d.metrics.Problem, Suppressed: d.metrics.ProblemSuppressed})
		cfg.Report = d.report
		d.source = watch.NewManifests(cfg)
		return nil
	}
	connection, err := d.connection(logger)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	client, err := kubernetes.NewForConfig(connection)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	d.sink = report.NewSink(&events.EventSinkImpl{Interface: client.EventsV1()})
	d.recorder = events.NewBroadcaster(d.sink)
	d.reporter = report.New(logger, d.recorder.NewRecorder(scheme.Scheme, "kube-nftproxy"), report.Count{Problem: d.metrics.Problem, Suppressed: d.metrics.ProblemSuppressed})
	d.api = newAPIClient(connection, client)
	cfg.Report, cfg.Failed = d.report, func(resource string, err error) {
		d.metrics.WatchFailed(resource)
		d.api.failed(resource, err)
	}
	cfg.Client, cfg.Connection = client, connection
	d.source, err = watch.NewInformers(cfg)
	return err
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
	if d.recorder != nil {
		defer d.recorder.Shutdown()
		if err := d.recorder.StartRecordingToSinkWithContext(ctx); err != nil {
			return fmt.Errorf("record events: %w", err)
		}
	}
	d.reporter.Started(d.nodeName)
	server := func(name, address string, handler http.Handler, event string) {
		part(name, func(ctx context.Context) error {
			err := health.Serve(ctx, address, takeover.Named(handler), health.RetryInterval, d.Config.BindAddressHardFail)
			if err != nil {
				const moment = 3 * time.Second
				d.reporter.ServerFailed(d.nodeName, event, err)
				if d.sink != nil {
					d.sink.Await(event, moment)
				}
			}
			return err
		})
	}
	server("healthz", d.Config.HealthzBindAddress, d.health.Handler(), "FailedToStartProxierHealthcheck")
	server("metrics", d.Config.MetricsBindAddress, d.metricsPort(), "FailedToStartMetricServer")
	part("addresses", func(ctx context.Context) error {
		return host.FollowAddresses(ctx, func() {
			d.tracker.Node()
			d.lookForFamilies()
		})
	})
	part("watch", d.source.Run)
	part("conntrack", func(ctx context.Context) error { d.flows.Run(ctx); return nil })
	part("memory", d.watchMemory)
	part("nodeport", func(ctx context.Context) error { d.users.Run(ctx); return nil })
	if d.File != "" {
		part("configuration", d.AwaitChange)
	}
	part("takeover", func(ctx context.Context) error { d.takeover.Run(ctx); return nil })
	part("control", func(ctx context.Context) error { control.Serve(ctx, d.ControlSocket, d.console.handler()); return nil })
	part("lease", func(ctx context.Context) error { d.lease.Run(ctx); return nil })
	part("families", d.awaitFamily)
	part("proxy", func(ctx context.Context) error {
		// The others learn that this one has gone when it doesn't commit anything any more.
		agreeing, leave := context.WithCancel(context.WithoutCancel(ctx))
		var others sync.WaitGroup
		others.Go(func() { d.instance.Run(agreeing) })
		defer others.Wait()
		defer leave()
		return d.proxy(ctx)
	})
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	klog.FromContext(ctx).Info("Stopped; the rules stay in place")
	return nil
}

// report tells an operator of a problem, and remembers it.
func (d *daemon) report(p model.Problem) {
	d.problems.note(p)
	d.reporter.Problem(p)
}

// nodePortAddresses choose where node ports are served.
func (d *daemon) nodePortAddresses() proxy.NodePortAddresses {
	return proxy.NodePortAddresses{Prefixes: d.nodePorts, Local: host.Addresses}
}

// planOptions are what tables are planned with.
func (d *daemon) planOptions() plan.Options {
	nodePorts := d.nodePortAddresses()
	all, mark := config.Masquerading(d.Config)
	options := plan.Options{Families: d.families, MasqueradeMark: mark, MasqueradeAll: all, LocalPods: d.localPods,
		Room: d.room, Uncounted: !d.CountConnections}
	for _, f := range d.families {
		options.AnyNodeAddress[f] = nodePorts.Any(f)
	}
	return options
}

// modelOptions are what Services are built with.
func (d *daemon) modelOptions() model.Options {
	return model.Options{IgnoreExternalIPs: !d.Gates.Enabled(config.AllowServiceExternalIPs), Limits: d.limits}
}

func (d *daemon) newLoop() *proxy.Proxy {
	every, least := config.Periods(d.Config)
	d.checks = health.NewServices(d.health.Healthy, d.report)
	return proxy.New(proxy.Config{
		Source: d.source, Tracker: d.tracker, Kernel: d.kernel, Planner: d.planner,
		Metrics: d.metrics, Health: d.health, Schedule: schedule.New(least, every, every),
		Flows: d.flows, Earlier: func() ([]model.Key, error) { return apply.EarlierUDP(d.families) }, NodePortUsers: d.users, Checks: d.checks, Families: d.families,
		NodeName: d.nodeName, NodeIP: d.nodeIP, NodeCIDR: d.Config.DetectLocalMode == config.NodeCIDR, NodePorts: d.nodePortAddresses(),
		Model: d.modelOptions(), Report: d.report, Synced: d.synced, Observer: d.console, Now: time.Now,
		Turn: d.instance,
	})
}
