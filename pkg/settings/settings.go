package settings

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// Settings are the checked options of one process, and values derived from them.
type Settings struct {
	*config.Options
	// Flags are the flags of the command line.
	Flags *pflag.FlagSet
	// NodeName is the name of the Node that the program runs on.
	NodeName string
	// NodeIP, if valid, overrides the Node's address of its family.
	NodeIP netip.Addr
	// LocalPods defines how local pods are recognised, except in mode NodeCIDR, in which the Node has the prefixes.
	LocalPods [2]plan.LocalPods
	nodePorts model.NodePortAddresses
	limits    model.Limits
	room      plan.Room

	unusedPorts  model.UnusedPorts
	nodeNetworks [2][]netip.Prefix
}

// New derives settings from validated options and their flags.
func New(o *config.Options, flags *pflag.FlagSet) (*Settings, error) {
	s := &Settings{Options: o, Flags: flags}
	var err error
	if s.NodeName, err = nodeName(o.Config.HostnameOverride); err != nil {
		return nil, err
	}
	if addr, err := model.ParseAddr(o.Config.BindAddress); err == nil && !addr.IsUnspecified() {
		s.NodeIP = addr
	}
	if s.LocalPods, err = localPods(o); err != nil {
		return nil, err
	}
	if s.limits, s.room, err = limits(o.Limits); err != nil {
		return nil, fmt.Errorf("--limits: %w", err)
	}
	if s.unusedPorts, err = model.ParseUnusedPorts(o.RefuseUnusedPorts); err != nil {
		return nil, fmt.Errorf("--refuse-unused-ports: %w", err)
	}
	if s.nodeNetworks, err = model.ParseNodeNetworks(o.DirectNodeCIDRs); err != nil {
		return nil, fmt.Errorf("--direct-server-return-node-cidrs: %w", err)
	}
	s.nodePorts, err = nodePortAddresses(o.Config.NodePortAddresses)
	return s, err
}

// NodePortAddresses returns the selection of addresses that serve node ports.
func (s *Settings) NodePortAddresses() model.NodePortAddresses { return s.nodePorts }

// LoopbackFamilies returns those of the given IP families whose node ports are served on loopback.
func (s *Settings) LoopbackFamilies(families []inet.Family) (list []inet.Family) {
	for _, f := range families {
		if s.nodePorts.Loopback(f) && !config.LoopbackForbidden(s.Config) {
			list = append(list, f)
		}
	}
	return list
}

// PlanOptions returns the options for tables of the given IP families.
func (s *Settings) PlanOptions(families []inet.Family) plan.Options {
	nodePorts := s.NodePortAddresses()
	all, mark := config.Masquerading(s.Config)
	options := plan.Options{
		Families: families, ServiceProxyName: s.ServiceProxyName, MasqueradeMark: mark, MasqueradeAll: all,
		LocalPods: s.LocalPods, Room: s.room, Uncounted: !s.CountConnections, CountEndpoints: s.CountZones,
		RefuseUnused: s.unusedPorts.Any(), RefuseLoops: s.unusedPorts.All, DirectReturn: s.DirectReturn,
		AnswerPing: model.Ping(s.AnswerPing).Answers(), RouteUnused: !config.DropsUnused(s.Config),
		NodeNetworks: s.nodeNetworks,
	}
	for _, f := range families {
		options.AnyNodeAddress[f] = nodePorts.Any(f)
	}
	return options
}

// ModelOptions returns the options for building Services.
func (s *Settings) ModelOptions() model.Options {
	options := model.Options{
		IgnoreExternalIPs: !s.Gates.Enabled(config.AllowServiceExternalIPs), Method: config.Method(s.Config),
		UnusedPorts: s.unusedPorts, Ping: model.Ping(s.AnswerPing), Direct: s.DirectReturn, DirectDefault: s.DirectDefault,
		Terminate: model.Termination(s.TerminateConnections), Limits: s.limits,
	}
	for f, networks := range s.nodeNetworks {
		options.DirectNodePorts[f] = s.DirectReturn && len(networks) > 0
	}
	return options
}

// ExcludedFromIPVS returns the addresses of virtual servers that mode ipvs ignores. The list has been validated.
func (s *Settings) ExcludedFromIPVS() (list []netip.Prefix) {
	for _, text := range s.Config.IPVS.ExcludeCIDRs {
		if p, err := model.ParsePrefix(text); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// ConfigText returns the effective configuration as YAML. It names files with secrets, but does not contain the
// secrets.
func (s *Settings) ConfigText() ([]byte, error) { return yaml.Marshal(config.Effective(s.Config)) }

// FlagsText returns the flags of the command line, one on each line, without secrets.
func (s *Settings) FlagsText() []byte {
	var b bytes.Buffer
	s.Flags.Visit(func(f *pflag.Flag) { fmt.Fprintf(&b, "--%s=%s\n", f.Name, config.FlagValue(f)) })
	return b.Bytes()
}

// Build returns the output of --version=raw: the program, its version, and how it was built.
func Build(version string) string {
	return fmt.Sprintf("kube-nftproxy %s, %s, %s, %s/%s",
		version, runtime.Version(), runtime.Compiler, runtime.GOOS, runtime.GOARCH)
}

// limits returns the limits of one Service and of the node, with the given numbers instead of the defaults, by name.
func limits(given map[string]int) (model.Limits, plan.Room, error) {
	service, node := model.DefaultLimits(), plan.DefaultRoom()
	fields := map[string]*int{
		"source-ranges": &service.SourceRanges, "pairs": &service.Pairs,
		"node-elements": &node.Elements, "node-source-ranges": &node.SourceRanges, "node-port-ranges": &node.PortRanges,
	}
	for name, n := range given {
		field := fields[name]
		switch {
		case field == nil:
			names := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
			return service, node, fmt.Errorf("limit %q is unknown: use %s", name, names)
		case n < 1:
			return service, node, fmt.Errorf("limit %s is %d: it must be at least 1", name, n)
		}
		*field = n
	}
	return service, node, nil
}

// nodeName returns the name of the Node as kube-proxy derives it: trimmed and in lower case.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find this node's name (give --hostname-override): %w", err)
		}
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", fmt.Errorf("find this node's name: %q is empty; give --hostname-override", override)
	}
	return name, nil
}

func localPods(o *config.Options) (pods [2]plan.LocalPods, err error) {
	c := o.Config
	switch c.DetectLocalMode {
	case config.BridgeInterface:
		p := plan.LocalPods{Interface: c.DetectLocal.BridgeInterface}
		return [2]plan.LocalPods{p, p}, nil
	case config.InterfaceNamePrefix:
		p := plan.LocalPods{Interface: c.DetectLocal.InterfaceNamePrefix, InterfacePrefix: true}
		return [2]plan.LocalPods{p, p}, nil
	case config.ClusterCIDR:
		if c.ClusterCIDR == "" {
			return pods, nil
		}
		for _, s := range strings.Split(c.ClusterCIDR, ",") {
			p, err := model.ParsePrefix(s)
			if err != nil {
				return pods, err
			}
			pods[inet.FamilyOf(p.Addr())].Prefix = p
		}
	}
	return pods, nil
}

// everyAddress has all addresses of both families.
var everyAddress = []netip.Prefix{
	netip.PrefixFrom(inet.Unspecified[inet.IPv4], 0), netip.PrefixFrom(inet.Unspecified[inet.IPv6], 0),
}

// nodePortAddresses reads CIDRs and keywords. An empty list stands for every address (kube-proxy:
// expandNodePortAddressKeywords).
func nodePortAddresses(list []string) (model.NodePortAddresses, error) {
	n := model.NodePortAddresses{Local: host.Addresses}
	if len(list) == 0 {
		n.Prefixes = everyAddress
	}
	for _, s := range list {
		switch s {
		case config.Primary:
			n.Primary = true
		case config.Localhost:
			n.Prefixes = append(n.Prefixes, inet.Loopback[:]...)
		case config.All:
			n.Prefixes = append(n.Prefixes, everyAddress...)
		default:
			p, err := model.ParsePrefix(s)
			if err != nil {
				return n, err
			}
			n.Prefixes = append(n.Prefixes, p)
		}
	}
	return n, nil
}
