package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// AddFlags adds the flags: all of kube-proxy's on Linux with their names, types and defaults, and a few of ours.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	o.addGeneral(fs)
	o.addAPI(fs)
	o.addProxying(fs)
	o.addSyncing(fs)
	o.addServers(fs)
	o.addKernel(fs)
	o.addIgnored(fs)
	logsapi.AddFlags(&o.Config.Logging, fs)
}

func (o *Options) addGeneral(fs *pflag.FlagSet) {
	c := o.Config
	fs.StringVar(&o.File, "config", "", "Path of a KubeProxyConfiguration file. Where it is given, it replaces the flags that have a field in it.")
	fs.StringVar(&o.WriteTo, "write-config-to", "", "Write the configuration that flags or file lead to, to this file, and end.")
	fs.BoolVar(&o.Cleanup, "cleanup", false, "Remove the rules of this program and of kube-proxy, whatever its mode, and end.")
	fs.BoolVar(&o.InitOnly, "init-only", false, "Do what needs more privileges than CAP_NET_ADMIN, and end.")
	fs.Var(cliflag.NewMapStringBool(&c.FeatureGates), "feature-gates", "Feature gates of kube-proxy, as Name=true,Name=false. Those that are about something that isn't done here are accepted.")
	fs.StringVar(&o.hostname, "hostname-override", "", "Name of this Node, if it isn't the host's name.")
	fs.Var(&address{to: &c.BindAddress, kind: "ip"}, "bind-address", "Address to take for the Node's primary one; nothing is bound to it.")
	fs.StringVar(&o.Manifests, "manifests", "", "Folder of Service, EndpointSlice, Node and ServiceCIDR manifests (YAML or JSON) to serve instead of an API server's. Changes are followed.")
}

func (o *Options) addAPI(fs *pflag.FlagSet) {
	c := &o.Config.ClientConnection
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "Path of the kubeconfig file with the API server's address and credentials. Without it and --master, those of the pod are used.")
	fs.StringVar(&o.Master, "master", "", "Address of the API server; overrides that of the kubeconfig file.")
	fs.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "Content type of requests to the API server.")
	fs.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "Requests per second to the API server.")
	fs.Int32Var(&c.Burst, "kube-api-burst", c.Burst, "Requests to the API server that may come at once.")
	fs.DurationVar(&o.Config.ConfigSyncPeriod.Duration, "config-sync-period", o.Config.ConfigSyncPeriod.Duration, "Accepted and without effect: what the API server sends is handled once, and there is nothing to compare it with.")
}

func (o *Options) addProxying(fs *pflag.FlagSet) {
	c := o.Config
	fs.Var(&word{(*string)(&c.Mode), "ProxyMode"}, "proxy-mode", "Which of kube-proxy's modes to stand in for: iptables, ipvs or nftables. nftables does the work in any case; the mode says on which addresses node ports are served by default.")
	fs.Var(&word{(*string)(&c.DetectLocalMode), "LocalMode"}, "detect-local-mode", "How traffic of pods is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.")
	fs.StringVar(&o.clusterCIDR, "cluster-cidr", "", "Prefixes of the cluster's pods, one for each IP family at most, separated by a comma. Traffic to cluster IPs from elsewhere is masqueraded.")
	fs.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "The bridge that pods come in by, with --detect-local-mode=BridgeInterface.")
	fs.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "How the names of pods' interfaces begin, with --detect-local-mode=InterfaceNamePrefix.")
	fs.BoolVar(&o.LockTables, "lock-tables", false, "Keep other programs from changing the tables while this one runs, and a flush of the ruleset from deleting them (Linux 6.9; the nft command of version 1.0.6 crashes when it lists such tables, 1.1.3 doesn't). Without it they are repaired.")
	fs.BoolVar(&c.IPTables.MasqueradeAll, "masquerade-all", false, "Masquerade all traffic to cluster IPs.")
	fs.Int32Var(c.IPTables.MasqueradeBit, "iptables-masquerade-bit", *c.IPTables.MasqueradeBit, "Bit of the packet mark that asks for masquerading, for other modes than nftables, 0 to 31.")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "Prefixes of the local addresses on which node ports are served, or \"primary\" for the Node's primary address of each family. Default: primary in mode nftables, otherwise all but loopback.")
}

func (o *Options) addSyncing(fs *pflag.FlagSet) {
	const every, least = "How often the tables are checked, and the longest time before a failed sync is tried again", "Least time between two syncs. The first change after a quiet time is not held up"
	fs.DurationVar(&o.periods.sync, "sync-period", o.periods.sync, every+".")
	fs.DurationVar(&o.periods.min, "min-sync-period", o.periods.min, least+".")
	fs.DurationVar(&o.iptables.sync, "iptables-sync-period", o.iptables.sync, "The same as --sync-period, unless the mode is ipvs.")
	fs.DurationVar(&o.iptables.min, "iptables-min-sync-period", o.iptables.min, "The same as --min-sync-period, unless the mode is ipvs.")
	fs.DurationVar(&o.ipvs.sync, "ipvs-sync-period", o.ipvs.sync, "The same as --sync-period, if the mode is ipvs.")
	fs.DurationVar(&o.ipvs.min, "ipvs-min-sync-period", o.ipvs.min, "The same as --min-sync-period, if the mode is ipvs.")
}

func (o *Options) addServers(fs *pflag.FlagSet) {
	c := o.Config
	fs.Var(&address{to: &c.HealthzBindAddress, kind: "ipport"}, "healthz-bind-address", "Address of /healthz and /livez; empty for none.")
	fs.Var(&address{to: &c.MetricsBindAddress, kind: "ipport"}, "metrics-bind-address", "Address of /metrics; empty for none.")
	fs.IntVar(&o.MetricsServices, "metrics-services", o.MetricsServices, "How many ports of Services, the busiest, have series of their own among the metrics; 0 for none. All are in the totals.")
	fs.StringToIntVar(&o.Limits, "limits", o.Limits, "Limits that are not the default ones, as name=number. Of one Service: ports, addresses, frontends, source-ranges, slices, slice-ports, pairs (of endpoints and ports), endpoints (of a port), problems. Of all Services of the node: node-elements, node-source-ranges; one namespace may take a quarter of these. A Service above a limit loses the excess, with an Event.")
	fs.BoolVar(&o.CountConnections, "count-connections", o.CountConnections, "Count connections to each port of a Service. It costs 16 bytes for every frontend and possible CPU. Without it, the metrics about connections are missing.")
	fs.BoolVar(&o.CountEndpoints, "count-endpoints", false, "Count connections to each endpoint, not only to each port of a Service. It costs memory and time for every endpoint.")
	fs.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false, "End if one of these addresses can't be bound, instead of trying again.")
	fs.BoolVar(&c.EnableProfiling, "profiling", false, "Serve /debug/pprof and /debug/flags beside /metrics.")
	fs.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "The previous minor version, to show metrics that are hidden since then.")
	fs.Int32Var(&o.healthzPort, "healthz-port", o.healthzPort, "Port of /healthz where its address has none; 0 for no server.")
	fs.Int32Var(&o.metricsPort, "metrics-port", o.metricsPort, "Port of /metrics where its address has none; 0 for no server.")
	fs.StringVar(&o.ControlSocket, "control-socket", o.ControlSocket, "Socket at which commands such as \"kube-nftproxy status\" reach this program; only root and its own user may. Empty for none.")
	deprecate(fs, "healthz-port", "use --healthz-bind-address")
	deprecate(fs, "metrics-port", "use --metrics-bind-address")
}

func deprecate(fs *pflag.FlagSet, flag, instead string) {
	if err := fs.MarkDeprecated(flag, "This flag is deprecated and will be removed in a future release: "+instead+"."); err != nil {
		panic(err) // there is no such flag
	}
}

func (o *Options) addKernel(fs *pflag.FlagSet) {
	c := &o.Config.Conntrack
	fs.Int32Var(o.Config.OOMScoreAdj, "oom-score-adj", *o.Config.OOMScoreAdj, "What to set the process's oom_score_adj to, -1000 to 1000.")
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore, "Connections that are tracked per CPU core; 0 leaves the limit as it is, and --conntrack-min aside.")
	fs.Int32Var(c.Min, "conntrack-min", *c.Min, "Connections that are tracked at least, whatever --conntrack-max-per-core says.")
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "Set nf_conntrack_tcp_be_liberal to 1: packets outside of the TCP window aren't invalid.")
	fs.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", c.TCPEstablishedTimeout.Duration, "Timeout of established TCP connections; 0 leaves it as it is.")
	fs.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", c.TCPCloseWaitTimeout.Duration, "Timeout of TCP connections in CLOSE_WAIT; 0 leaves it as it is.")
	fs.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "Timeout of UDP flows without a reply; 0 leaves it as it is.")
	fs.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "Timeout of UDP flows with replies; 0 leaves it as it is.")
}

// addIgnored adds flags of kube-proxy's that have no meaning here.
func (o *Options) addIgnored(fs *pflag.FlagSet) {
	const ipvs = "There is no IPVS; accepted and ignored."
	c := o.Config
	fs.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", true, "Node ports are never served on loopback; accepted and ignored.")
	fs.StringVar(&c.IPVS.Scheduler, "ipvs-scheduler", "", ipvs)
	fs.StringSliceVar(&c.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "CIDRs of IPVS virtual servers that clean-up leaves alone: after a start in place of mode ipvs, and with --cleanup.")
	fs.BoolVar(&c.IPVS.StrictARP, "ipvs-strict-arp", false, ipvs)
	fs.DurationVar(&c.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, ipvs)
	fs.DurationVar(&c.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, ipvs)
	fs.DurationVar(&c.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", 0, ipvs)
	fs.StringVar(&o.ignored.bootID, "boot-id-file", o.ignored.bootID, "Accepted and ignored.")
	fs.StringVar(&o.ignored.machineID, "machine-id-file", o.ignored.machineID, "Accepted and ignored.")
}

// word is a flag for one of a few words, which validation checks.
type word struct {
	to   *string
	kind string
}

func (w *word) String() string { return *w.to }

// Set takes any word.
func (w *word) Set(s string) error {
	*w.to = s
	return nil
}

// Type names the value in --help.
func (w *word) Type() string { return w.kind }

// address is a flag for an address ("ip"), or for one with or without a port ("ipport").
type address struct {
	to   *string
	kind string
}

func (a *address) String() string { return *a.to }

// Type names the value in --help.
func (a *address) Type() string { return a.kind }

// Set checks in kube-proxy's words. An empty address of a server means none; an empty --bind-address changes nothing.
func (a *address) Set(s string) error {
	switch {
	case s == "" && a.kind == "ip":
		return nil
	case s == "":
		*a.to = ""
		return nil
	}
	if _, err := model.ParseAddr(s); err == nil {
		*a.to = s
		return nil
	}
	if a.kind == "ip" {
		return fmt.Errorf("%q is not a valid IP address", s)
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not in a valid format (ip or ip:port): %w", s, err)
	}
	if _, err := model.ParseAddr(host); err != nil {
		return fmt.Errorf("%q is not a valid IP address", host)
	}
	if n, err := strconv.ParseUint(strings.TrimSpace(port), 10, 16); err != nil || n > 65535 {
		return fmt.Errorf("%q is not a valid number", port)
	}
	*a.to = s
	return nil
}
