package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// flags are the command line as it was given. Names and meanings are kube-proxy's where it has such a flag.
type flags struct {
	kubeconfig, master, hostname string
	apiQPS                       float32
	apiBurst                     int
	apiContentType               string
	configSyncPeriod             time.Duration
	manifests                    string

	clusterCIDR        string
	detectLocalMode    string
	bridgeInterface    string
	interfacePrefix    string
	masqueradeAll      bool
	nodePortAddresses  []string
	minSync, syncEvery time.Duration

	healthzAddress, metricsAddress string
	bindHardFail                   bool

	cleanup, version bool
	logging          *logsapi.LoggingConfiguration
}

// The modes of --detect-local-mode.
const (
	clusterCIDRMode     = "ClusterCIDR"
	nodeCIDRMode        = "NodeCIDR"
	bridgeInterfaceMode = "BridgeInterface"
	interfacePrefixMode = "InterfaceNamePrefix"
)

func (f *flags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "Path of the kubeconfig file with the API server's address and credentials. Without it and --master, those of the pod are used.")
	fs.StringVar(&f.master, "master", "", "Address of the API server; overrides that of the kubeconfig file.")
	fs.StringVar(&f.hostname, "hostname-override", "", "Name of this Node, if it isn't the host's name.")
	fs.Float32Var(&f.apiQPS, "kube-api-qps", 5, "Requests per second to the API server.")
	fs.IntVar(&f.apiBurst, "kube-api-burst", 10, "Requests to the API server that may come at once.")
	fs.StringVar(&f.apiContentType, "kube-api-content-type", "application/vnd.kubernetes.protobuf", "Content type of requests to the API server.")
	fs.DurationVar(&f.configSyncPeriod, "config-sync-period", 15*time.Minute, "How often the objects of the API server are compared with what was handled.")
	fs.StringVar(&f.manifests, "manifests", "", "Folder of Service, EndpointSlice, Node and ServiceCIDR manifests (YAML or JSON) to serve instead of an API server's. Changes are followed.")
	fs.StringVar(&f.clusterCIDR, "cluster-cidr", "", "Prefixes of the cluster's pods, one for each IP family at most, separated by a comma. Traffic to cluster IPs from elsewhere is masqueraded.")
	fs.StringVar(&f.detectLocalMode, "detect-local-mode", clusterCIDRMode, "How traffic of pods is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.")
	fs.StringVar(&f.bridgeInterface, "pod-bridge-interface", "", "The bridge that pods come in by, with --detect-local-mode=BridgeInterface.")
	fs.StringVar(&f.interfacePrefix, "pod-interface-name-prefix", "", "How the names of pods' interfaces begin, with --detect-local-mode=InterfaceNamePrefix.")
	fs.BoolVar(&f.masqueradeAll, "masquerade-all", false, "Masquerade all traffic to cluster IPs.")
	fs.StringSliceVar(&f.nodePortAddresses, "nodeport-addresses", []string{primary}, "Prefixes of the local addresses on which node ports are served, or \"primary\" for the Node's primary address of each family.")
	fs.DurationVar(&f.minSync, "min-sync-period", 100*time.Millisecond, "Least time between two syncs. The first change after a quiet time is not held up.")
	fs.DurationVar(&f.syncEvery, "sync-period", 30*time.Second, "How often the tables are checked, and the longest time before a failed sync is tried again.")
	fs.StringVar(&f.healthzAddress, "healthz-bind-address", "0.0.0.0:10256", "Address of /healthz and /livez; empty for none.")
	fs.StringVar(&f.metricsAddress, "metrics-bind-address", "127.0.0.1:10249", "Address of /metrics; empty for none.")
	fs.BoolVar(&f.bindHardFail, "bind-address-hard-fail", false, "End if one of these addresses can't be bound, instead of trying again.")
	fs.BoolVar(&f.cleanup, "cleanup", false, "Delete our tables, and nothing else, and end.")
	fs.BoolVar(&f.version, "version", false, "Print the version and end.")
	logsapi.AddFlags(f.logging, fs)
}

// primary stands for the Node's primary addresses in --nodeport-addresses.
const primary = "primary"

// config is the command line, checked and turned into what the parts of the program take.
type config struct {
	flags
	nodeName  string
	localPods [2]plan.LocalPods
	nodePorts []netip.Prefix
}

// check turns the flags into a configuration, or says everything that is wrong with them.
func (f *flags) check() (*config, error) {
	c := &config{flags: *f}
	var errs []error
	fail := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	c.nodeName, err = nodeName(f.hostname)
	fail(err)
	c.localPods, err = f.detectLocal()
	fail(err)
	c.nodePorts, err = nodePortPrefixes(f.nodePortAddresses)
	fail(err)
	if f.minSync < 0 || f.syncEvery <= 0 || f.syncEvery < f.minSync {
		fail(fmt.Errorf("--sync-period (%v) must be positive and not less than --min-sync-period (%v)", f.syncEvery, f.minSync))
	}
	for flag, addr := range map[string]string{"--healthz-bind-address": f.healthzAddress, "--metrics-bind-address": f.metricsAddress} {
		if _, err := netip.ParseAddrPort(addr); addr != "" && err != nil {
			fail(fmt.Errorf("%s: %q must be IP:port", flag, addr))
		}
	}
	if f.manifests != "" && (f.kubeconfig != "" || f.master != "") {
		fail(errors.New("--manifests and --kubeconfig or --master can't both be given"))
	}
	return c, errors.Join(errs...)
}

// nodeName is the name by which kube-proxy too knows its Node: trimmed and in lower case.
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
		return "", errors.New("empty hostname-override is invalid")
	}
	return name, nil
}

func (f *flags) detectLocal() (pods [2]plan.LocalPods, err error) {
	switch f.detectLocalMode {
	case clusterCIDRMode:
		if strings.TrimSpace(f.clusterCIDR) == "" {
			return pods, nil
		}
		return localPrefixes(strings.Split(f.clusterCIDR, ","))
	case nodeCIDRMode:
		return pods, nil // known when the Node has been read
	case bridgeInterfaceMode:
		if f.bridgeInterface == "" {
			return pods, errors.New("--detect-local-mode=BridgeInterface needs --pod-bridge-interface")
		}
		p := plan.LocalPods{Interface: f.bridgeInterface}
		return [2]plan.LocalPods{p, p}, interfaceName(f.bridgeInterface)
	case interfacePrefixMode:
		if f.interfacePrefix == "" {
			return pods, errors.New("--detect-local-mode=InterfaceNamePrefix needs --pod-interface-name-prefix")
		}
		p := plan.LocalPods{Interface: f.interfacePrefix, InterfacePrefix: true}
		return [2]plan.LocalPods{p, p}, interfaceName(f.interfacePrefix)
	}
	return pods, fmt.Errorf("--detect-local-mode: %q must be ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", f.detectLocalMode)
}

// interfaceName checks the length of an interface's name, which the kernel limits to 15 bytes.
func interfaceName(name string) error {
	if len(name) > 15 {
		return fmt.Errorf("interface name %q is longer than 15 bytes", name)
	}
	return nil
}

// localPrefixes takes the first prefix of each family.
func localPrefixes(list []string) (pods [2]plan.LocalPods, err error) {
	for _, s := range list {
		p, err := model.ParsePrefix(strings.TrimSpace(s))
		if err != nil {
			return pods, fmt.Errorf("--cluster-cidr: %w", err)
		}
		f := model.FamilyOf(p.Addr())
		if pods[f].Prefix.IsValid() {
			return pods, fmt.Errorf("--cluster-cidr: more than one %s prefix", f)
		}
		pods[f].Prefix = p
	}
	return pods, nil
}

// nodePortPrefixes returns the prefixes, or none for "primary".
func nodePortPrefixes(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		if s == primary {
			if len(list) > 1 {
				return nil, errors.New("--nodeport-addresses: can't use both 'primary' and CIDRs")
			}
			return nil, nil
		}
		p, err := model.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("--nodeport-addresses: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}
