package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// checkFamilies compares a configuration with the IP families that this host has, in kube-proxy's words (app/server.go:
// checkBadConfig, checkBadIPConfig). What makes the program useless is an error, the rest is said in the log.
func checkFamilies(logger klog.Logger, c *kubeproxy.KubeProxyConfiguration, families []model.Family) error {
	const incomplete = "Kube-proxy configuration may be incomplete or incorrect"
	cluster := familiesOf(strings.Split(c.ClusterCIDR, ","))
	if nodePorts := familiesOf(c.NodePortAddresses); len(families) == 2 && len(cluster) == 2 && len(nodePorts) == 1 {
		logger.Info(incomplete, "err", fmt.Sprintf("cluster appears to be dual-stack but nodePortAddresses contains only %s addresses; "+
			"NodePort connections will be accepted on all local %s IPs", nodePorts[0], otherThan(nodePorts[0])))
	}
	if len(families) != 1 {
		return nil
	}
	var errs []error
	for _, server := range []struct{ field, address string }{
		{"healthzBindAddress", c.HealthzBindAddress}, {"metricsBindAddress", c.MetricsBindAddress},
	} {
		at, err := netip.ParseAddrPort(server.address)
		if err == nil && !at.Addr().IsUnspecified() && model.FamilyOf(at.Addr()) != families[0] {
			errs = append(errs, fmt.Errorf("cluster is %s-only but %s is %s", families[0], server.field, otherThan(families[0])))
		}
	}
	if len(cluster) > 0 && !slices.Contains(cluster, families[0]) {
		errs = append(errs, fmt.Errorf("cluster is %s-only but clusterCIDRs contains only %s addresses", families[0], cluster[0]))
		if c.DetectLocalMode == config.ClusterCIDR {
			return fmt.Errorf("kube-proxy configuration is incorrect: %w", errors.Join(errs...))
		}
	}
	if len(errs) > 0 {
		logger.Info(incomplete, "err", errors.Join(errs...))
	}
	return nil
}

// familiesOf returns the families of prefixes, each once; what isn't a prefix, such as "primary", has none.
func familiesOf(prefixes []string) (found []model.Family) {
	for _, s := range prefixes {
		if p, err := model.ParsePrefix(s); err == nil && !slices.Contains(found, model.FamilyOf(p.Addr())) {
			found = append(found, model.FamilyOf(p.Addr()))
		}
	}
	return found
}

func otherThan(f model.Family) model.Family {
	if f == model.IPv4 {
		return model.IPv6
	}
	return model.IPv4
}
