package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// AddFlags adds the flags of all [Options.FlagSets].
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, set := range o.FlagSets().FlagSets {
		fs.AddFlagSet(set)
	}
}

// FlagSets returns the flags in groups: kube-proxy's on Linux, with their names, types and defaults, and the program's
// own. Only the defaults of the minimum sync periods differ. The flags that the program accepts and ignores are hidden.
func (o *Options) FlagSets() cliflag.NamedFlagSets {
	sets := cliflag.NamedFlagSets{NormalizeNameFunc: cliflag.WordSepNormalizeFunc}
	for _, group := range []struct {
		name string
		add  func(*pflag.FlagSet)
	}{
		{"general", o.addGeneral},
		{"API server", o.addAPI},
		{"Service", o.addServices},
		{"pod network", o.addPods},
		{"mode of kube-proxy", o.addMode},
		{"sync", addSyncing},
		{"server", o.addServers},
		{"kernel", o.addKernel},
		{IgnoredFlags, o.addIgnored},
		{"logging", func(fs *pflag.FlagSet) { logsapi.AddFlags(&o.Config.Logging, fs) }},
	} {
		group.add(sets.FlagSet(group.name))
	}
	sets.FlagSet(IgnoredFlags).VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	return sets
}

// IgnoredFlags is the group of flags that the program accepts and ignores.
const IgnoredFlags = "ignored"

func (o *Options) addGeneral(fs *pflag.FlagSet) {
	c := o.Config
	fs.StringVar(&o.File, "config", "",
		"Path of a KubeProxyConfiguration file. The file overrides all flags that have a field in it.")
	fs.StringVar(&o.reload, "config-reload", reloadNever,
		"Reaction to a change of the configuration file: \"never\" logs the change, and the next start applies it; "+
			"\"exit\" exits, so that the kubelet restarts the program.")
	const jitter = 10 * time.Minute // spreads the restarts of a large cluster
	fs.DurationVar(&o.reloadJitter, "config-reload-jitter", jitter,
		"Longest delay before an exit by --config-reload=exit. Each node waits for a random part of it.")
	fs.StringVar(&o.WriteTo, "write-config-to", "", "Write the resulting configuration to this file, then exit.")
	fs.BoolVar(&o.Cleanup, "cleanup", false,
		"Remove the rules of this program and of kube-proxy, in any mode, then exit. While kube-nftproxy runs on the "+
			"node, remove nothing and exit with 1, unless --force is set.")
	fs.BoolVar(&o.ForceCleanup, "force", false,
		"With --cleanup: remove the rules even if kube-nftproxy runs on the node. New connections to Services fail "+
			"until it rewrites them.")
	fs.StringVar(&o.ServiceProxyName, "service-proxy-name", "",
		"Serve only Services whose label service.kubernetes.io/service-proxy-name has this value, in tables of their "+
			"own, beside the proxy of all other Services (docs/try.md). The servers of /healthz and /metrics are off "+
			"unless their flags are set, and the sysctls of the node stay unchanged. Commands need the same flag.")
	fs.BoolVar(&o.InitOnly, "init-only", false,
		"Set the conntrack sysctls, which need more privileges than CAP_NET_ADMIN, then exit (for an init container).")
	fs.Var(cliflag.NewMapStringBool(&c.FeatureGates), "feature-gates",
		"Feature gates of kube-proxy, as Name=true,Name=false. Gates that do not apply to this program are accepted "+
			"and ignored.")
	fs.StringVar(&o.hostname, "hostname-override", "", "Name of this Node, if it differs from the host name.")
	fs.Var(&address{to: &c.BindAddress, kind: "ip"}, "bind-address",
		"Primary address of this Node, instead of the address in the Node object. The program does not listen on it.")
	fs.StringVar(&o.Manifests, "manifests", "",
		"Folder of Service, EndpointSlice, Node and ServiceCIDR manifests (YAML or JSON) to serve instead of the "+
			"objects of an API server. The program watches it for changes.")
}

func (o *Options) addAPI(fs *pflag.FlagSet) {
	c := &o.Config.ClientConnection
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "",
		"Path of the kubeconfig file with the address and credentials of the API server. Default: the address and "+
			"credentials of the pod.")
	fs.StringVar(&o.Master, "master", "",
		"Address of the API server, or several, separated by commas; overrides the address in the kubeconfig file. "+
			"After a failure of one address, the program uses the next one.")
	fs.StringVar(&o.StartupTaint, "startup-taint", "",
		"Key of a taint to remove from this Node after the first sync. Requires the permission to patch Nodes: see "+
			"deploy/startup-taint.")
	fs.StringVar(&o.SnapshotDir, "snapshot-dir", "",
		"Folder in which the program keeps a snapshot of the API objects. A restart then receives only the changes "+
			"since the snapshot. If the API server does not answer after a reboot, the program serves the Services of "+
			"the snapshot, up to 24 hours old. Empty for none.")
	fs.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "Content type of requests to the API server.")
	fs.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "Requests per second to the API server.")
	fs.Int32Var(&c.Burst, "kube-api-burst", c.Burst, "Requests that may be sent to the API server at once.")
}

func (o *Options) addServices(fs *pflag.FlagSet) {
	c := o.Config
	fs.StringVar(&o.TerminateConnections, "terminate-connections", string(model.TerminateOff),
		"TCP connections to terminate. \"gone\": connections to endpoints that no EndpointSlice of the Service has "+
			"any more. The client's next segment gets a reset. \"off\": none. The annotation "+
			"kube-nftproxy.io/terminate-connections of a Service overrides the flag.")
	fs.StringToIntVar(&o.Limits, "limits", nil,
		"Limits that differ from the defaults, as name=number. Of one Service: source-ranges, pairs (of endpoints and "+
			"ports). The program skips the excess of a Service, and reports it with an Event. Of all Services on the "+
			"node: node-elements, node-source-ranges, node-port-ranges; namespaces share these (docs/sizing.md).")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil,
		"CIDRs and keywords of the local addresses on which node ports are served: \"primary\" (the Node's primary "+
			"address of each family), \"all\" (all addresses except loopback), \"localhost\" (127.0.0.1 and ::1, TCP "+
			"only). Default: primary in mode nftables, otherwise all.")
	fs.StringVar(&o.RefuseUnusedPorts, "refuse-unused-ports", "cluster",
		"Addresses of Services that refuse connections to ports that no Service has. \"cluster\": cluster IPs. "+
			"\"all\": also load-balancer and external IPs, if the packet would leave by the interface by which it "+
			"arrived. CIDRs: also load-balancer and external IPs in these CIDRs. See docs/vips.md.")
	addExtended(fs, "direct-server-return", extended{&o.DirectReturn, &o.DirectDefault, "all"},
		"Direct server return: a Service gets its packets to load-balancer and external IPs with the client's address, "+
			"and the endpoint's node sends the replies. \"true\" permits it to Services with the annotation "+
			"kube-nftproxy.io/forwarding-mode=dsr. \"all\" makes it the default of all Services that can have it; the "+
			"value nat of the annotation opts a Service out. The network must allow packets from these IPs from each "+
			"node. See docs/dsr.md.")
	fs.StringVar(&o.DirectNodeCIDRs, "direct-server-return-node-cidrs", "",
		"CIDRs of the addresses of all nodes, without addresses of pods, of both IP families. With "+
			"--direct-server-return, it then also applies to node ports at these addresses. The network must allow packets "+
			"from the address of each node from each other node. See docs/dsr.md.")
	fs.BoolVar(&o.HostPorts, "host-ports", false,
		"Serve the host ports of this node's pods (spec.containers[].ports[].hostPort) where node ports are served. The "+
			"program needs permission to list and watch pods. See docs/compatibility.md.")
	fs.StringVar(&o.AnswerPing, "answer-ping", string(model.PingNone),
		"Addresses of Services that answer echo requests: \"none\", \"annotated\" (those of Services with the "+
			"annotation kube-nftproxy.io/answer-ping), \"ready\" (all that have an endpoint for new connections), "+
			"\"always\" (all). See docs/vips.md.")
}

func (o *Options) addPods(fs *pflag.FlagSet) {
	c := o.Config
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", "",
		"CIDRs of the cluster's pods, at most one for each IP family, separated by a comma. Traffic to cluster IPs "+
			"from other sources is masqueraded.")
	fs.Var(&word{(*string)(&c.DetectLocalMode), "LocalMode"}, "detect-local-mode",
		"How to recognise traffic of local pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.")
	fs.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "",
		"Bridge to which pods are attached, with --detect-local-mode=BridgeInterface.")
	fs.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "",
		"Prefix of the names of pod interfaces, with --detect-local-mode=InterfaceNamePrefix.")
	fs.BoolVar(&c.IPTables.MasqueradeAll, "masquerade-all", false, "Masquerade all traffic to cluster IPs.")
}

// addMode adds flags that depend on the mode of the kube-proxy that the program replaces.
func (o *Options) addMode(fs *pflag.FlagSet) {
	c := o.Config
	fs.Var(&word{(*string)(&c.Mode), "ProxyMode"}, "proxy-mode",
		"Mode of kube-proxy to replace: iptables, ipvs or nftables. The program always uses nftables; the mode "+
			"selects the addresses on which it serves node ports by default, and only with nftables, packets to "+
			"unused addresses of a ServiceCIDR are dropped.")
	fs.Int32Var(c.IPTables.MasqueradeBit, "iptables-masquerade-bit", *c.IPTables.MasqueradeBit,
		"Bit of the packet mark that requests masquerading, 0 to 31, in modes other than nftables.")
	fs.StringVar(&c.IPVS.Scheduler, "ipvs-scheduler", "",
		"In mode ipvs, sh makes source-hash and mh makes maglev the algorithm of Services without an annotation for "+
			"it. Others are ignored.")
	fs.StringSliceVar(&c.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", nil,
		"CIDRs of IPVS virtual servers that clean-up keeps: after a start in place of mode ipvs, and with --cleanup.")
}

// addSyncing adds flags that [Options.applyFlags] reads.
func addSyncing(fs *pflag.FlagSet) {
	fs.Duration("sync-period", defaultSyncPeriod,
		"Interval at which the tables are checked, and longest delay before a failed sync is retried.")
	fs.Duration("min-sync-period", defaultMinSyncPeriod,
		"Minimum time between two syncs. The first change after a quiet period is synced immediately.")
	fs.Duration("iptables-sync-period", defaultSyncPeriod,
		"The same as --sync-period, unless the mode is ipvs.")
	fs.Duration("iptables-min-sync-period", defaultMinSyncPeriod,
		"The same as --min-sync-period, unless the mode is ipvs.")
	fs.Duration("ipvs-sync-period", defaultSyncPeriod,
		"The same as --sync-period, if the mode is ipvs.")
	fs.Duration("ipvs-min-sync-period", defaultMinSyncPeriod,
		"The same as --min-sync-period, if the mode is ipvs.")
}

func (o *Options) addServers(fs *pflag.FlagSet) {
	c := o.Config
	fs.Var(&address{to: &c.HealthzBindAddress, kind: "ipport"}, "healthz-bind-address",
		"Address of /healthz, /livez and /readyz; empty for none.")
	fs.Var(&address{to: &c.MetricsBindAddress, kind: "ipport"}, "metrics-bind-address",
		"Address of /metrics; empty for none.")
	fs.IntVar(&o.MetricsServices, "metrics-services", 100,
		"Number of service ports with their own series in the metrics, busiest first; 0 for none. The totals include "+
			"all.")
	addExtended(fs, "count-connections", extended{&o.CountConnections, &o.CountZones, "zones"},
		"\"true\" counts connections to each service port. Each frontend then takes 16 bytes for each possible CPU of "+
			"the machine. \"zones\" also counts them by the zone of the endpoint. Each endpoint then takes that "+
			"memory, too. If \"false\", there are no metrics of connections.")
	fs.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false,
		"Exit if the address of /healthz or of /metrics cannot be bound, instead of retrying.")
	fs.BoolVar(&c.EnableProfiling, "profiling", false, "Serve /debug/pprof and /debug/flags beside /metrics.")
	fs.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "",
		"Previous minor version whose hidden metrics are shown.")
	fs.Int32Var(&o.healthzPort, "healthz-port", defaultHealthzPort,
		"Port of /healthz if --healthz-bind-address has none; 0 for no server.")
	fs.Int32Var(&o.metricsPort, "metrics-port", defaultMetricsPort,
		"Port of /metrics if --metrics-bind-address has none; 0 for no server.")
	fs.StringVar(&o.ControlSocket, "control-socket", o.ControlSocket,
		"Socket on which the program answers commands such as \"kube-nftproxy status\", for root and its own user. "+
			"Empty for none.")
	deprecate(fs, "healthz-port", "use --healthz-bind-address")
	deprecate(fs, "metrics-port", "use --metrics-bind-address")
}

func deprecate(fs *pflag.FlagSet, flag, instead string) {
	text := "This flag is deprecated and will be removed in a future release: " + instead + "."
	if err := fs.MarkDeprecated(flag, text); err != nil {
		panic(err) // impossible: the flag exists
	}
}

func (o *Options) addKernel(fs *pflag.FlagSet) {
	c := &o.Config.Conntrack
	fs.Int32Var(o.Config.OOMScoreAdj, "oom-score-adj", *o.Config.OOMScoreAdj,
		"Value for oom_score_adj of the process, -1000 to 1000.")
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore,
		"Raise the limit of tracked connections to this number per CPU core; 0 leaves the limit unchanged and ignores "+
			"--conntrack-min.")
	fs.Int32Var(c.Min, "conntrack-min", *c.Min,
		"Minimum number of tracked connections, regardless of --conntrack-max-per-core.")
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false,
		"Set nf_conntrack_tcp_be_liberal to 1: packets outside the TCP window are not invalid.")
	fs.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established",
		c.TCPEstablishedTimeout.Duration, "Timeout of established TCP connections; 0 leaves it unchanged.")
	fs.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", c.TCPCloseWaitTimeout.Duration,
		"Timeout of TCP connections in CLOSE_WAIT; 0 leaves it unchanged.")
	fs.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0,
		"Timeout of UDP flows without a reply; 0 leaves it unchanged.")
	fs.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0,
		"Timeout of UDP flows with replies; 0 leaves it unchanged.")
}

// addIgnored adds flags of kube-proxy that the program ignores.
func (o *Options) addIgnored(fs *pflag.FlagSet) {
	const ipvs = "Accepted and ignored: the program does not use IPVS."
	c := o.Config
	fs.DurationVar(&o.Config.ConfigSyncPeriod.Duration, "config-sync-period", o.Config.ConfigSyncPeriod.Duration,
		"Accepted and ignored: the program keeps no second copy of the objects to resync.")
	fs.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", true,
		"Accepted and ignored: --nodeport-addresses decides about loopback.")
	fs.BoolVar(&c.IPVS.StrictARP, "ipvs-strict-arp", false, ipvs)
	fs.DurationVar(&c.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, ipvs)
	fs.DurationVar(&c.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, ipvs)
	fs.DurationVar(&c.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", 0, ipvs)
	// kube-proxy has these two flags up to v1.36.
	fs.String("boot-id-file", "/proc/sys/kernel/random/boot_id", "Accepted and ignored.")
	fs.String("machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "Accepted and ignored.")
}

// word is a flag for one of a few words. Validation checks it.
type word struct {
	to   *string
	kind string
}

func (w *word) String() string { return *w.to }

// Set accepts any word.
func (w *word) Set(s string) error {
	*w.to = s
	return nil
}

// Type returns the name of the value in --help.
func (w *word) Type() string { return w.kind }

// address is a flag for an address ("ip"), or for an address with an optional port ("ipport").
type address struct {
	to   *string
	kind string
}

func (a *address) String() string { return *a.to }

// Type returns the name of the value in --help.
func (a *address) Type() string { return a.kind }

// Set validates a value, with kube-proxy's messages. An empty server address turns the server off; an empty
// --bind-address is ignored.
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
