package config

import (
	"net"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// validate returns all errors in a configuration, with kube-proxy's messages and paths (kube-proxy:
// apis/config/validation). gates are its parsed feature gates.
func validate(c *kubeproxy.KubeProxyConfiguration, gates featuregate.FeatureGate) field.ErrorList {
	v := &validator{root: field.NewPath("KubeProxyConfiguration")}
	v.sections(c)
	v.conntrack(&c.Conntrack)
	if n := *c.OOMScoreAdj; n < -1000 || n > 1000 {
		v.invalid("KubeProxyLinuxConfiguration.OOMScoreAdj", n, "must be within the range [-1000, 1000]")
	}
	if n := c.ClientConnection.Burst; n < 0 {
		v.invalid("ClientConnection.Burst", n, "must be greater than or equal to 0")
	}
	v.periods(c)
	v.addresses(c)
	for _, err := range metrics.ValidateShowHiddenMetricsVersion(c.ShowHiddenMetricsForVersion) {
		v.invalid("ShowHiddenMetricsForVersion", c.ShowHiddenMetricsForVersion, err.Error())
	}
	v.detectLocal(c)
	return append(v.errs, logsapi.Validate(&c.Logging, gates, v.root.Child("logging"))...)
}

type validator struct {
	root *field.Path
	errs field.ErrorList
}

// invalid adds an error. path is relative to the root; dots separate its parts.
func (v *validator) invalid(path string, value any, why string) {
	v.errs = append(v.errs, field.Invalid(v.at(path), value, why))
}

func (v *validator) at(path string) *field.Path {
	p := v.root
	for _, name := range strings.Split(path, ".") {
		p = p.Child(name)
	}
	return p
}

// sections validates the sections of the modes.
func (v *validator) sections(c *kubeproxy.KubeProxyConfiguration) {
	switch c.Mode {
	case modeIPTables, "":
	case modeIPVS:
		v.ipvs(&c.IPVS)
	case modeNFTables:
		v.masqueradeBit("KubeProxyNFTablesConfiguration", *c.NFTables.MasqueradeBit)
	default:
		v.invalid("Mode.ProxyMode", string(c.Mode),
			"must be iptables, ipvs, nftables or blank (blank means iptables; nftables is used in any case)")
	}
	v.masqueradeBit("KubeProxyIPTablesConfiguration", *c.IPTables.MasqueradeBit)
}

func (v *validator) masqueradeBit(section string, bit int32) {
	if bit < 0 || bit > 31 {
		v.invalid(section+".MasqueradeBit", bit, "must be within the range [0, 31]")
	}
}

func (v *validator) ipvs(c *kubeproxy.KubeProxyIPVSConfiguration) {
	const section = "KubeProxyIPVSConfiguration."
	v.notNegative(section+"TCPTimeout", c.TCPTimeout)
	v.notNegative(section+"TCPFinTimeout", c.TCPFinTimeout)
	v.notNegative(section+"UDPTimeout", c.UDPTimeout)
	for i, s := range c.ExcludeCIDRs {
		v.prefix(v.at(section+"ExcludeCidrs").Index(i), s, "must be a valid CIDR")
	}
}

func (v *validator) conntrack(c *kubeproxy.KubeProxyConntrackConfiguration) {
	const section = "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration."
	v.notNegative(section+"MaxPerCore", *c.MaxPerCore)
	v.notNegative(section+"Min", *c.Min)
	v.notNegative(section+"TCPEstablishedTimeout", *c.TCPEstablishedTimeout)
	v.notNegative(section+"TCPCloseWaitTimeout", *c.TCPCloseWaitTimeout)
	v.notNegative(section+"UDPTimeout", c.UDPTimeout)
	v.notNegative(section+"UDPStreamTimeout", c.UDPStreamTimeout)
}

// notNegative validates an int32 or a duration.
func (v *validator) notNegative(path string, value any) {
	negative := false
	switch n := value.(type) {
	case int32:
		negative = n < 0
	case metav1.Duration:
		negative = n.Duration < 0
	}
	if negative {
		v.invalid(path, value, "must be greater than or equal to 0")
	}
}

func (v *validator) periods(c *kubeproxy.KubeProxyConfiguration) {
	if c.ConfigSyncPeriod.Duration <= 0 {
		v.invalid("ConfigSyncPeriod", c.ConfigSyncPeriod, "must be greater than 0")
	}
	sync, min := periodsOf(c, c.Mode)
	if sync.Duration <= 0 {
		v.invalid("SyncPeriod", *sync, "must be greater than 0")
	}
	if min.Duration < 0 {
		v.invalid("MinSyncPeriod", *min, "must be greater than or equal to 0")
	}
	if min.Duration > sync.Duration {
		v.invalid("SyncPeriod", *sync,
			"must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod ("+min.Duration.String()+")")
	}
}

func (v *validator) addresses(c *kubeproxy.KubeProxyConfiguration) {
	if _, err := model.ParseAddr(c.BindAddress); err != nil {
		v.invalid("BindAddress", c.BindAddress, "not a valid textual representation of an IP address")
	}
	v.server("HealthzBindAddress", c.HealthzBindAddress)
	v.server("MetricsBindAddress", c.MetricsBindAddress)
	for i, s := range c.NodePortAddresses {
		at := v.at("NodePortAddresses").Index(i)
		if !IsNodePortKeyword(s) {
			v.prefix(at, s, "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'")
		} else if slices.Contains(c.NodePortAddresses[:i], s) {
			v.errs = append(v.errs, field.Duplicate(at, s))
		}
	}
}

// prefix validates a CIDR; why is the message.
func (v *validator) prefix(at *field.Path, s, why string) {
	if _, err := model.ParsePrefix(s); err != nil {
		v.errs = append(v.errs, field.Invalid(at, s, why))
	}
}

// server validates the address of a server. An empty address is valid.
func (v *validator) server(path, address string) {
	if address == "" {
		return
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		v.invalid(path, address, "must be IP:port")
		return
	}
	if _, err := model.ParseAddr(host); err != nil {
		v.invalid(path, host, "must be a valid IP")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		v.invalid(path, port, "must be a valid port")
	}
}

func (v *validator) detectLocal(c *kubeproxy.KubeProxyConfiguration) {
	const section = "DetectLocalConfiguration."
	switch c.DetectLocalMode {
	case ClusterCIDR:
		v.clusterCIDR(section+"ClusterCIDRs", c.ClusterCIDR)
	case BridgeInterface:
		v.deviceName(section+"InterfaceName", c.DetectLocal.BridgeInterface)
	case InterfaceNamePrefix:
		v.deviceName(section+"InterfacePrefix", c.DetectLocal.InterfaceNamePrefix)
	case NodeCIDR, "":
	default:
		v.errs = append(v.errs, field.NotSupported(v.at("DetectLocalMode"), string(c.DetectLocalMode),
			[]string{"", string(BridgeInterface), string(ClusterCIDR), string(InterfaceNamePrefix), string(NodeCIDR)}))
	}
}

// deviceName validates the name, or the beginning of the name, of a network device. The kernel's limit is 15 bytes.
func (v *validator) deviceName(path, name string) {
	switch {
	case name == "":
		v.invalid(path, name, "must not be empty")
	case len(name) > 15:
		v.invalid(path, name, "must not be longer than 15 bytes, as no device has a longer name")
	}
}

func (v *validator) clusterCIDR(path, text string) {
	if text == "" {
		return
	}
	cidrs := strings.Split(text, ",")
	const pair = "must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]"
	if len(cidrs) > 2 {
		v.invalid(path, cidrs, pair)
		return
	}
	var families []inet.Family
	for i, s := range cidrs {
		p, err := model.ParsePrefix(s)
		if err != nil {
			v.errs = append(v.errs, field.Invalid(v.at(path).Index(i), s,
				"must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"))
			continue
		}
		families = append(families, inet.FamilyOf(p.Addr()))
	}
	if len(families) == 2 && families[0] == families[1] {
		v.invalid(path, cidrs, pair)
	}
}
