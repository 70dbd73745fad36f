package daemon

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/loopback"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/beside/takeover"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/instance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
)

// cleanup removes the program's tables and all objects that kube-proxy left, in any mode. It keeps the objects of a
// running kube-proxy: if an administrator returns the node to kube-proxy, its rules handle new connections already.
// With a service-proxy name, it removes only the tables of that name. It fails with kube-proxy's error. While an
// instance with this name runs on the node, it removes nothing without --force.
func cleanup(ctx context.Context, logger klog.Logger, s *settings.Settings) error {
	if err := refuseCleanup(instance.NameOf(s.ServiceProxyName), s.ForceCleanup); err != nil {
		return err
	}
	deleted, err := apply.Cleanup(s.ServiceProxyName)
	more, failed := loopback.Cleanup(plan.Table(s.ServiceProxyName))
	deleted, err = append(deleted, more...), errors.Join(err, failed)
	for _, table := range deleted {
		logger.Info("Removed the rules of kube-nftproxy", "table", table)
	}
	if s.ServiceProxyName == "" {
		err = errors.Join(err, cleanupKubeProxy(ctx, logger, s))
	}
	if err != nil {
		logger.Error(err, "Failed to remove all rules")
		return errors.New("encountered an error while tearing down rules")
	}
	return nil
}

// refuseCleanup returns an error if a process of this program serves the node: --cleanup would delete its tables.
func refuseCleanup(name string, force bool) error {
	holder, err := instance.Find(name)
	switch {
	case force || holder == "" && err == nil:
		return nil
	case err != nil:
		holder = fmt.Sprintf("an unknown process: %v", err)
	}
	return fmt.Errorf("removed nothing: kube-nftproxy runs on this node (%s) and needs the rules. Without them, new "+
		"connections to Services fail until it rewrites them. Stop it on this node first. To remove the rules anyway, "+
		"add --force", holder)
}

// cleanupKubeProxy removes kube-proxy's objects, unless a kube-proxy may be running.
func cleanupKubeProxy(ctx context.Context, logger klog.Logger, s *settings.Settings) error {
	rival := takeover.New(takeover.Config{Metrics: s.Config.MetricsBindAddress, Health: s.Config.HealthzBindAddress})
	if rival.Rival(ctx).Possible() {
		logger.Info("A kube-proxy runs on this node, or its absence cannot be confirmed; keeping its rules")
		return nil
	}
	return takeover.Cleanup(logger, s.ExcludedFromIPVS())
}

// newTakeover prepares the removal of kube-proxy's objects. A running kube-proxy answers at the configured ports.
func (d *daemon) newTakeover() *takeover.Takeover {
	return takeover.New(takeover.Config{
		NodeName: d.NodeName, Metrics: d.Config.MetricsBindAddress, Health: d.Config.HealthzBindAddress,
		Excluded: d.ExcludedFromIPVS(), Report: d.report,
		Count: func(k takeover.Kind, n int) { d.metrics.Leftovers(string(k), n) },
		Found: func() { d.kernel.KeepKubeProxy() },
	})
}
