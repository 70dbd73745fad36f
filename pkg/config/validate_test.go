package config

import (
	"strings"
	"testing"

	clientfeatures "k8s.io/client-go/features"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestInvalidConfigurations(t *testing.T) {
	const root = "KubeProxyConfiguration."
	for _, tc := range []struct {
		file string
		want []string
	}{
		{"mode: userspace", []string{root + `Mode.ProxyMode: Invalid value: "userspace"`}},
		{"iptables: {masqueradeBit: 32}", []string{root + "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]"}},
		{"mode: nftables\nnftables: {masqueradeBit: -1}", []string{"KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: -1"}},
		{"mode: ipvs\nipvs: {tcpTimeout: -1s, udpTimeout: -1s, excludeCIDRs: [x]}", []string{
			"KubeProxyIPVSConfiguration.TCPTimeout: Invalid value: \"-1s\"", "KubeProxyIPVSConfiguration.UDPTimeout", "ExcludeCidrs[0]: Invalid value: \"x\": must be a valid CIDR"}},
		{"conntrack: {maxPerCore: -1, min: -2, tcpEstablishedTimeout: -3s, udpTimeout: -4s}", []string{
			"KubeProxyConntrackConfiguration.MaxPerCore: Invalid value: -1: must be greater than or equal to 0", ".Min: Invalid value: -2", "TCPEstablishedTimeout", "UDPTimeout"}},
		{"oomScoreAdj: 1001", []string{"OOMScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]"}},
		{"clientConnection: {burst: -1}", []string{root + "ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0"}},
		{"configSyncPeriod: -1s", []string{root + "ConfigSyncPeriod: Invalid value"}},
		{"iptables: {syncPeriod: -1s, minSyncPeriod: -2s}", []string{root + "SyncPeriod: Invalid value", "must be greater than 0", root + "MinSyncPeriod"}},
		{"mode: nftables\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}", []string{root + "SyncPeriod", "must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod"}},
		{"bindAddress: here", []string{root + `BindAddress: Invalid value: "here": not a valid textual representation of an IP address`}},
		{"healthzBindAddress: '10256'", []string{root + `HealthzBindAddress: Invalid value: "10256": must be IP:port`}},
		{"metricsBindAddress: localhost:0", []string{root + `MetricsBindAddress: Invalid value: "localhost": must be a valid IP`, `"0": must be a valid port`}},
		{"nodePortAddresses: [all, primary, all]", []string{`NodePortAddresses[2]: Duplicate value: "all"`}},
		{"nodePortAddresses: [10.0.0.1, Primary]", []string{
			`NodePortAddresses[0]: Invalid value: "10.0.0.1": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'`, `NodePortAddresses[1]: Invalid value: "Primary"`}},
		{"showHiddenMetricsForVersion: '1.2.3'", []string{root + "ShowHiddenMetricsForVersion"}},
		{"detectLocalMode: clustercidr", []string{root + `DetectLocalMode: Unsupported value: "clustercidr"`}},
		{"detectLocalMode: BridgeInterface", []string{"DetectLocalConfiguration.InterfaceName: Invalid value: \"\": must not be empty"}},
		{"detectLocalMode: InterfaceNamePrefix", []string{"DetectLocalConfiguration.InterfacePrefix: Invalid value: \"\": must not be empty"}},
		{"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: a-name-of-16-byte}", []string{"15 bytes"}},
		{"clusterCIDR: 10.0.0.0/8,11.0.0.0/8", []string{"DetectLocalConfiguration.ClusterCIDRs", "dual-stack pair"}},
		{"clusterCIDR: 'a,b,c'", []string{"dual-stack pair"}},
		{"clusterCIDR: 10.0.0.0", []string{"ClusterCIDRs[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR block"}},
		{"logging: {format: xml}", []string{"logging.format: Invalid value: \"xml\": Unsupported log format"}},
		{"logging: {options: {text: {infoBufferSize: \"1\"}}}", []string{"Feature LoggingAlphaOptions is disabled"}},
		{"featureGates: {WatchListClient: perhaps}", []string{"failed to decode"}},
		{"featureGates: {MultiCIDRServiceAllocator: false}", []string{"cannot set feature gate MultiCIDRServiceAllocator to false, feature is locked to true"}},
	} {
		o, err := complete(t, "--config", file(t, tc.file+"\n"))
		if err == nil {
			err = o.Validate()
		}
		for _, want := range tc.want {
			lab.Fails(t, err, want, "%q", tc.file)
		}
	}
}

func TestInvalidFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--bind-address=here":                              `"here" is not a valid IP address`,
		"--healthz-bind-address=x":                         `"x" is not in a valid format (ip or ip:port)`,
		"--metrics-bind-address=1.2.3.4:70000":             `"70000" is not a valid number`,
		"--conntrack-min=x":                                "invalid argument",
		"--no-such-flag":                                   "unknown flag",
		"--manifests=x --kubeconfig=y":                     "cannot be combined",
		"--proxy-mode=nftables --feature-gates=AllAlpha=x": "invalid value",
	} {
		o, err := complete(t, strings.Fields(args)...)
		if err == nil {
			err = o.Validate()
		}
		lab.Fails(t, err, want, "%s", args)
	}
	if _, err := complete(t, "--hostname-override", "  "); err == nil || err.Error() != "empty hostname-override is invalid" {
		t.Errorf("--hostname-override of blanks: %v", err)
	}
}

func TestGates(t *testing.T) {
	gates, unknown, err := newGates(map[string]bool{"AllowServiceExternalIPs": false, "OfTheNextVersion": true, "AGateOfV138": false})
	lab.Same(t, []string{"AGateOfV138", "OfTheNextVersion"}, unknown, "unknown gates")
	if err != nil || gates.Enabled(AllowServiceExternalIPs) || !gates.Enabled(ComponentFlagz) {
		t.Errorf("AllowServiceExternalIPs is %t, ComponentFlagz %t, %v", gates.Enabled(AllowServiceExternalIPs), gates.Enabled(ComponentFlagz), err)
	}
	// All gates of client-go are known and can be set. WatchListClient has no effect.
	o := mustComplete(t, "--feature-gates=AtomicFIFO=false,WatchListClient=false,NativeHistograms=true")
	got := map[string]Gate{}
	for _, g := range o.ActingGates() {
		got[g.Name] = g
	}
	for _, want := range []Gate{{"AtomicFIFO", "BETA", false}, {"NativeHistograms", "BETA", true}, {"AllowServiceExternalIPs", "", true}, {"InOrderInformers", "", true}} {
		if got[want.Name] != want {
			t.Errorf("acting gates have %+v, want %+v", got[want.Name], want)
		}
	}
	if g, acts := got["WatchListClient"]; acts {
		t.Errorf("acting gates have %+v", g)
	}
	if (forClient{o.Gates}).Enabled(clientfeatures.AtomicFIFO) {
		t.Error("client-go has AtomicFIFO enabled, although the flag disables it")
	}
	if gates, _, err := newGates(map[string]bool{"AllBeta": false}); err != nil || gates.Enabled(ComponentFlagz) {
		t.Errorf("AllBeta=false does not disable ComponentFlagz, error %v", err)
	}
}
