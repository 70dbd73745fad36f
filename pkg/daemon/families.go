package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"k8s.io/klog/v2"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
)

// supported returns the options for the tables that the kernel supports, and logs missing features. If it supports no
// table, supported returns an error.
func supported(logger klog.Logger, o plan.Options) (plan.Options, error) {
	lacks, err := askKernel(o)
	if err != nil {
		logger.Error(err, "Cannot check the kernel for missing features; if it lacks one, every sync fails")
	}
	return without(logger, o, lacks)
}

func askKernel(o plan.Options) ([]probe.Missing, error) {
	kernel, err := apply.Open()
	if err != nil {
		return nil, nil //nolint:nilerr // the start opens another connection and fails with this error
	}
	lacks, err := kernel.Lacks(o)
	return lacks, errors.Join(err, kernel.Close())
}

// without returns the options for tables that use none of the missing features, and logs the consequences. If no
// family can be served, it returns an error.
func without(logger klog.Logger, o plan.Options, lacks []probe.Missing) (plan.Options, error) {
	served, err := apply.Without(o, lacks)
	if err != nil {
		if modulesDisabled("/proc/sys/kernel/modules_disabled") {
			const why = "the sysctl kernel.modules_disabled prevents loading modules until the node reboots"
			err = fmt.Errorf("%w; %s", err, why)
		}
		if len(served.Families) == 0 {
			return served, err
		}
		for _, f := range o.Families {
			if !slices.Contains(served.Families, f) {
				logger.Error(err, "Services of an IP family are not served", "family", f)
			}
		}
	}
	for _, setting := range probe.Settings {
		if missing := probe.For(setting, lacks); len(missing) > 0 {
			what, fix := probe.Advice(missing)
			logger.Info("The"+strings.TrimPrefix(what, "the")+": "+setting.Without, "fix", fix)
		}
	}
	return served, nil
}

// modulesDisabled reads a file that contains 1 if the kernel does not load modules any more.
func modulesDisabled(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// checkFamilies compares a configuration with the IP families of this host, with kube-proxy's messages (app/server.go:
// checkBadConfig, checkBadIPConfig). A mismatch that makes the program useless is an error. Others are logged.
func checkFamilies(logger klog.Logger, c *kubeproxy.KubeProxyConfiguration, families []inet.Family) error {
	const incomplete = "Kube-proxy configuration may be incomplete or incorrect"
	cluster := familiesOf(strings.Split(c.ClusterCIDR, ","))
	if nodePorts := familiesOf(c.NodePortAddresses); len(families) == 2 && len(cluster) == 2 && len(nodePorts) == 1 &&
		!slices.ContainsFunc(c.NodePortAddresses, config.IsNodePortKeyword) {
		logger.Info(incomplete, "err", fmt.Sprintf("cluster appears to be dual-stack but nodePortAddresses contains "+
			"only %s addresses; NodePort connections will be accepted on all local %s IPs", nodePorts[0],
			otherThan(nodePorts[0])))
	}
	if len(families) != 1 {
		return nil
	}
	if bind, err := model.ParseAddr(c.BindAddress); err == nil && !bind.IsUnspecified() &&
		inet.FamilyOf(bind) != families[0] {
		return fmt.Errorf("no support for primary IP family %q", otherThan(families[0]))
	}
	var errs []error
	for _, server := range []struct{ field, address string }{
		{"healthzBindAddress", c.HealthzBindAddress}, {"metricsBindAddress", c.MetricsBindAddress},
	} {
		at, err := netip.ParseAddrPort(server.address)
		if err == nil && !at.Addr().IsUnspecified() && inet.FamilyOf(at.Addr()) != families[0] {
			errs = append(errs, fmt.Errorf("cluster is %s-only but %s is %s", families[0], server.field,
				otherThan(families[0])))
		}
	}
	if len(cluster) > 0 && !slices.Contains(cluster, families[0]) {
		errs = append(errs, fmt.Errorf("cluster is %s-only but clusterCIDRs contains only %s addresses", families[0],
			cluster[0]))
		if c.DetectLocalMode == config.ClusterCIDR {
			return fmt.Errorf("kube-proxy configuration is incorrect: %w", errors.Join(errs...))
		}
	}
	if len(errs) > 0 {
		logger.Info(incomplete, "err", errors.Join(errs...))
	}
	return nil
}

// familiesOf returns the families of prefixes, without duplicates. Other items, such as "primary", have none.
func familiesOf(prefixes []string) (found []inet.Family) {
	for _, s := range prefixes {
		if p, err := model.ParsePrefix(s); err == nil && !slices.Contains(found, inet.FamilyOf(p.Addr())) {
			found = append(found, inet.FamilyOf(p.Addr()))
		}
	}
	return found
}

func otherThan(f inet.Family) inet.Family {
	if f == inet.IPv4 {
		return inet.IPv6
	}
	return inet.IPv4
}
