package config

import (
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// The modes of kube-proxy on Linux. This program uses nftables in all of them. The mode selects the section of the
// configuration that applies, and the default of nodePortAddresses.
const (
	modeIPTables kubeproxy.ProxyMode = "iptables"
	modeIPVS     kubeproxy.ProxyMode = "ipvs"
	modeNFTables kubeproxy.ProxyMode = "nftables"
)

var modes = []kubeproxy.ProxyMode{modeIPTables, modeIPVS, modeNFTables}

// The values of detectLocalMode (kube-proxy: LocalMode).
const (
	ClusterCIDR         kubeproxy.LocalMode = "ClusterCIDR"
	NodeCIDR            kubeproxy.LocalMode = "NodeCIDR"
	BridgeInterface     kubeproxy.LocalMode = "BridgeInterface"
	InterfaceNamePrefix kubeproxy.LocalMode = "InterfaceNamePrefix"
)

// The keywords of nodePortAddresses: the Node's primary address of each family, loopback, and every address (KEP-6032).
const (
	Primary   = "primary"
	Localhost = "localhost"
	All       = "all"
)

// IsNodePortKeyword reports whether an item of nodePortAddresses is a keyword, not a CIDR.
func IsNodePortKeyword(item string) bool { return item == Primary || item == Localhost || item == All }

// The default periods. The minimum sync period of kube-proxy is 1s, and 0s in mode ipvs.
const (
	defaultSyncPeriod    = 30 * time.Second
	defaultMinSyncPeriod = 100 * time.Millisecond
)

// defaultConfiguration returns the configuration of an empty file.
func defaultConfiguration() *kubeproxy.KubeProxyConfiguration {
	c := &kubeproxy.KubeProxyConfiguration{}
	setDefaults(c)
	return c
}

// setDefaults sets the defaults of unset fields (kube-proxy: SetDefaults_KubeProxyConfiguration).
func setDefaults(c *kubeproxy.KubeProxyConfiguration) {
	orElse(&c.BindAddress, "0.0.0.0")
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if addr, err := model.ParseAddr(c.BindAddress); err != nil || addr.Is6() {
		healthz, metrics = "::", "::1"
	}
	orElse(&c.HealthzBindAddress, healthz)
	orElse(&c.MetricsBindAddress, metrics)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, defaultHealthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, defaultMetricsPort)

	for _, mode := range modes {
		sync, min := periodsOf(c, mode)
		orElse(&sync.Duration, defaultSyncPeriod)
		orElse(&min.Duration, defaultMinSyncPeriod)
	}
	orNew(&c.IPTables.LocalhostNodePorts, true)
	orNew(&c.IPTables.MasqueradeBit, 14)
	orNew(&c.NFTables.MasqueradeBit, 14)
	orNew(&c.OOMScoreAdj, -999)

	orNew(&c.Conntrack.MaxPerCore, 32<<10)
	orNew(&c.Conntrack.Min, 128<<10)
	orNew(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	orNew(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})

	orElse(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	orElse(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	orElse(&c.ClientConnection.QPS, 5)
	orElse(&c.ClientConnection.Burst, 10)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// applyPlatformDefaults sets defaults that depend on flags and file together (kube-proxy: platformApplyDefaults).
func applyPlatformDefaults(c *kubeproxy.KubeProxyConfiguration) {
	orElse(&c.Mode, modeIPTables)
	orElse(&c.DetectLocalMode, ClusterCIDR)
	if c.Mode == modeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{Primary}
	}
}

// periodsOf returns the periods in the section of a mode.
func periodsOf(c *kubeproxy.KubeProxyConfiguration, mode kubeproxy.ProxyMode) (sync, min *metav1.Duration) {
	switch mode {
	case modeIPVS:
		return &c.IPVS.SyncPeriod, &c.IPVS.MinSyncPeriod
	case modeNFTables:
		return &c.NFTables.SyncPeriod, &c.NFTables.MinSyncPeriod
	}
	return &c.IPTables.SyncPeriod, &c.IPTables.MinSyncPeriod
}

// Periods returns the interval at which the tables are checked, and the minimum time between two syncs, from the
// section of the mode.
func Periods(c *kubeproxy.KubeProxyConfiguration) (sync, min time.Duration) {
	s, m := periodsOf(c, c.Mode)
	return s.Duration, m.Duration
}

// Masquerading reports whether all traffic to cluster IPs is masqueraded, and returns the packet mark that requests
// masquerading. Mode nftables has them in its section, and the other modes in the section iptables.
func Masquerading(c *kubeproxy.KubeProxyConfiguration) (all bool, mark uint32) {
	if c.Mode == modeNFTables {
		return c.NFTables.MasqueradeAll, 1 << *c.NFTables.MasqueradeBit
	}
	return c.IPTables.MasqueradeAll, 1 << *c.IPTables.MasqueradeBit
}

// DropsUnused reports whether packets to unused addresses of a ServiceCIDR are dropped. Only mode nftables of
// kube-proxy drops them.
func DropsUnused(c *kubeproxy.KubeProxyConfiguration) bool { return c.Mode == modeNFTables }

// withPort adds a port to an address without one. It returns any other text unchanged, and validation checks it.
func withPort(address string, port int32) string {
	addr, err := model.ParseAddr(address)
	if err != nil {
		return address
	}
	return net.JoinHostPort(addr.String(), strconv.Itoa(int(port)))
}

func orElse[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func orNew[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
