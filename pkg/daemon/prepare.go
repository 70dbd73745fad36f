package daemon

import (
	"cmp"
	"os"

	"k8s.io/klog/v2"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
)

// prepareProcess applies settings of this process, and those of the host. With a service-proxy name, the other proxy
// has set those of the host.
func prepareProcess(logger klog.Logger, s *settings.Settings) {
	if s.ServiceProxyName == "" {
		prepareHost(logger, s.Config)
	}
	if err := host.SetOOMScore("/", int(*s.Config.OOMScoreAdj)); err != nil {
		logger.V(2).Info("Failed to apply oom-score-adj", "oomScoreAdj", *s.Config.OOMScoreAdj, "err", err)
	}
}

// prepareHost applies settings outside nftables. kube-proxy exits if this fails; this program logs a warning, because
// Services work without them.
func prepareHost(logger klog.Logger, c *kubeproxy.KubeProxyConfiguration) {
	wanted := host.Conntrack{
		MaxPerCore: int(*c.Conntrack.MaxPerCore), Min: int(*c.Conntrack.Min), TCPBeLiberal: c.Conntrack.TCPBeLiberal,
		TCPEstablished: c.Conntrack.TCPEstablishedTimeout.Duration,
		TCPCloseWait:   c.Conntrack.TCPCloseWaitTimeout.Duration,
		UDP:            c.Conntrack.UDPTimeout.Duration, UDPStream: c.Conntrack.UDPStreamTimeout.Duration,
	}
	if err := host.LoadConntrack(); err != nil {
		logger.V(2).Info("Failed to load the conntrack module; it may already be loaded", "err", err)
	}
	set, err := wanted.Set(cmp.Or(os.Getenv(host.SysctlRoot), "/"))
	for _, s := range set {
		logger.Info("Set sysctl", "file", s.File, "value", s.Value)
	}
	if err != nil {
		logger.Info("Conntrack is not configured as requested; give the container a writable /proc/sys, run it once "+
			"with --init-only as root, or set the fields of conntrack in the configuration to 0", "err", err)
	}
}
