package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/conntrack"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/health"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/metrics"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/proxy"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/report"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/schedule"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/track"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/watch"
)

// version is set when the program is built.
var version = "dev"

// masqueradeMark is kube-proxy's default bit, so that what excepts marked packets from its own work goes on doing so.
const masqueradeMark = 1 << 14

func newCommand() *cobra.Command {
	f := &flags{logging: logsapi.NewLoggingConfiguration()}
	cmd := &cobra.Command{
		Use:          "kube-nftproxy",
		Short:        "kube-nftproxy serves Kubernetes Services on a node by nftables",
		Long:         "kube-nftproxy watches Services and EndpointSlices, and programs the kernel's nftables so that this node's\npods and processes, and clients from outside, reach the endpoints behind them.",
		SilenceUsage: true,
		Args:         cobra.NoArgs,
		RunE:         func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	f.add(cmd.Flags())
	return cmd
}

func run(ctx context.Context, f *flags) error {
	if f.version {
		fmt.Println("kube-nftproxy", version)
		return nil
	}
	if err := logsapi.ValidateAndApply(f.logging, nil); err != nil {
		return fmt.Errorf("initialize logging: %w", err)
	}
	c, err := f.check()
	if err != nil {
		return fmt.Errorf("check flags: %w", err)
	}
	if c.cleanup {
		return apply.Cleanup()
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	d, err := newDaemon(ctx, c)
	if err != nil {
		return err
	}
	return d.run(ctx)
}

// source is where the objects come from.
type source interface {
	proxy.Source
	Run(context.Context) error
}

// daemon holds the parts of the program, in the order of the data that flows through them.
type daemon struct {
	*config
	tracker  *track.Tracker
	source   source
	kernel   *apply.Kernel
	health   *health.Health
	metrics  *metrics.Metrics
	registry *prometheus.Registry
	recorder events.EventBroadcaster
	reporter *report.Reporter
	families []model.Family
	flows    *conntrack.Reconciler
	started  time.Time
}

func newDaemon(ctx context.Context, c *config) (*daemon, error) {
	d := &daemon{config: c, started: time.Now(), registry: prometheus.NewRegistry()}
	logger := klog.FromContext(ctx)
	if err := host.CheckKernel(); err != nil {
		return nil, err
	}
	d.families = host.Families()
	logger.Info("Starting", "version", version, "node", c.nodeName, "families", fmt.Sprint(d.families))
	d.tracker = track.New(d.started, time.Now)
	d.metrics = metrics.New(d.registry, d.families...)
	metrics.RegisterProcess(d.registry)
	d.health = health.New(health.Config{
		Timeout: 2 * c.syncEvery, Now: time.Now, Families: d.families, NoNode: c.manifests != "", Counter: d.metrics,
	})
	d.flows = conntrack.New(conntrack.Config{
		Metrics: d.metrics, Open: func() (conntrack.Table, error) { return conntrack.OpenNetlink() },
	})
	if err := d.openSource(logger); err != nil {
		return nil, err
	}
	var err error
	d.kernel, err = apply.Open()
	return d, err
}

// openSource prepares to read from a folder, or from the API server.
func (d *daemon) openSource(logger klog.Logger) error {
	cfg := watch.Config{Folder: d.manifests, NodeName: d.nodeName, Tracker: d.tracker, Resync: d.configSyncPeriod}
	if d.manifests != "" {
		d.reporter = report.New(logger, nil)
		cfg.Report = d.reporter.Problem
		d.source = watch.NewManifests(cfg)
		return nil
	}
	client, err := d.client(logger)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	d.recorder = events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	d.reporter = report.New(logger, d.recorder.NewRecorder(scheme.Scheme, "kube-nftproxy"))
	cfg.Report, cfg.Client = d.reporter.Problem, client
	d.source, err = watch.NewInformers(cfg)
	return err
}

func (d *daemon) client(logger klog.Logger) (kubernetes.Interface, error) {
	if d.kubeconfig == "" && d.master == "" {
		logger.Info("Neither kubeconfig file nor master URL was specified, falling back to in-cluster config")
	}
	cfg, err := clientcmd.BuildConfigFromFlags(d.master, d.kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst, cfg.ContentType = d.apiQPS, d.apiBurst, d.apiContentType
	cfg.AcceptContentTypes = d.apiContentType + ",application/json"
	rest.AddUserAgent(cfg, "kube-nftproxy/"+version)
	return kubernetes.NewForConfig(cfg)
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
	part("healthz", func(ctx context.Context) error {
		return health.Serve(ctx, d.healthzAddress, d.health.Handler(), health.RetryInterval, d.bindHardFail)
	})
	part("metrics", func(ctx context.Context) error {
		return health.Serve(ctx, d.metricsAddress, health.MetricsHandler(d.registry, d.started), health.RetryInterval, d.bindHardFail)
	})
	part("addresses", func(ctx context.Context) error { return host.FollowAddresses(ctx, d.tracker.Node) })
	part("watch", d.source.Run)
	part("conntrack", func(ctx context.Context) error { d.flows.Run(ctx); return nil })
	part("proxy", d.proxy)
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	klog.FromContext(ctx).Info("Stopped; the rules stay in place")
	return nil
}

func (d *daemon) proxy(ctx context.Context) error {
	nodePorts := proxy.NodePortAddresses{Prefixes: d.nodePorts, Local: host.Addresses}
	options := plan.Options{
		Families: d.families, MasqueradeMark: masqueradeMark, MasqueradeAll: d.masqueradeAll, LocalPods: d.localPods,
	}
	for _, f := range d.families {
		options.AnyNodeAddress[f] = nodePorts.Any(f)
	}
	return proxy.New(proxy.Config{
		Source: d.source, Tracker: d.tracker, Kernel: d.kernel, Planner: plan.New(options),
		Metrics: d.metrics, Health: d.health, Schedule: schedule.New(d.minSync, d.syncEvery, d.syncEvery),
		Flows: d.flows, Checks: health.NewServices(d.health.Healthy, d.reporter.Problem), Families: d.families,
		NodeName: d.nodeName, NodeCIDR: d.detectLocalMode == nodeCIDRMode, NodePorts: nodePorts,
		Report: d.reporter.Problem, Now: time.Now,
	}).Run(ctx)
}
