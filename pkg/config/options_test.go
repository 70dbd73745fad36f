package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// complete parses and completes a command line.
func complete(t *testing.T, args ...string) (*Options, error) {
	t.Helper()
	o := NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	return o, o.Complete(fs)
}

// mustComplete fails the test if a command line is invalid.
func mustComplete(t *testing.T, args ...string) *Options {
	t.Helper()
	o, err := complete(t, args...)
	if err == nil {
		err = o.Validate()
	}
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return o
}

// file writes a configuration file with a header.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + text
	lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestKubeadmFileHasTheDefaults(t *testing.T) {
	got := mustComplete(t, "--config", "testdata/kubeadm.yaml", "--hostname-override", "Node-1").Config
	want := mustComplete(t, "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "--hostname-override", " node-1",
		"--kubeconfig", "/var/lib/kube-proxy/kubeconfig.conf").Config
	got.TypeMeta = want.TypeMeta
	lab.Same(t, want, got, "configuration (-by flags +of kubeadm)")
}

func TestTheFileOverridesFlags(t *testing.T) {
	path := file(t, "nftables: {syncPeriod: 20s}\nmode: nftables\nlogging: {verbosity: 1, vmodule: [{filePattern: file, verbosity: 2}]}\n"+
		"hostnameOverride: of-the-file\n")
	o := mustComplete(t, "--config", path, "--sync-period", "7s", "--masquerade-all", "-v", "4", "--vmodule", "flag=3",
		"--hostname-override", "of-the-flag", "--cluster-cidr", "10.0.0.0/8")
	c := o.Config
	sync, min := Periods(c)
	all, mark := Masquerading(c)
	type result struct {
		sync, min time.Duration
		all       bool
		mark      uint32
		cidr      string
		verbosity uint32
		vmodule   string
		name      string
	}
	got := result{sync, min, all, mark, c.ClusterCIDR, uint32(c.Logging.Verbosity), vmodule(c), c.HostnameOverride}
	want := result{20 * time.Second, defaultMinSyncPeriod, false, 1 << 14, "", 4, "flag file", "of-the-flag"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func vmodule(c *kubeproxy.KubeProxyConfiguration) string {
	var names []string
	for _, item := range c.Logging.VModule {
		names = append(names, item.FilePattern)
	}
	return strings.Join(names, " ")
}

func TestTheModeSelectsTheSection(t *testing.T) {
	const text = "iptables: {syncPeriod: 11s, minSyncPeriod: 1s, masqueradeAll: true, masqueradeBit: 1}\n" +
		"ipvs: {syncPeriod: 12s, minSyncPeriod: 2s}\n" +
		"nftables: {syncPeriod: 13s, minSyncPeriod: 3s, masqueradeAll: false, masqueradeBit: 3}\n"
	type result struct {
		sync, min time.Duration
		all       bool
		mark      uint32
		nodePorts string
	}
	for mode, want := range map[string]result{
		"":         {11 * time.Second, time.Second, true, 1 << 1, ""},
		"iptables": {11 * time.Second, time.Second, true, 1 << 1, ""},
		"ipvs":     {12 * time.Second, 2 * time.Second, true, 1 << 1, ""},
		"nftables": {13 * time.Second, 3 * time.Second, false, 1 << 3, "primary"},
	} {
		c := mustComplete(t, "--config", file(t, text+"mode: \""+mode+"\"\n")).Config
		got := result{nodePorts: strings.Join(c.NodePortAddresses, ",")}
		got.sync, got.min = Periods(c)
		got.all, got.mark = Masquerading(c)
		if got != want {
			t.Errorf("mode %q: %+v, want %+v", mode, got, want)
		}
	}
}

func TestPeriodsByFlags(t *testing.T) {
	for _, tc := range []struct {
		args      string
		sync, min time.Duration
	}{
		{"", 30 * time.Second, 100 * time.Millisecond},
		{"--iptables-sync-period=20s --iptables-min-sync-period=2s", 20 * time.Second, 2 * time.Second},
		{"--proxy-mode=nftables --iptables-sync-period=20s --iptables-min-sync-period=0s", 20 * time.Second, 0},
		{"--proxy-mode=ipvs --iptables-sync-period=20s --ipvs-sync-period=10s", 10 * time.Second, 100 * time.Millisecond},
		{"--proxy-mode=nftables --ipvs-sync-period=10s", 30 * time.Second, 100 * time.Millisecond},
		{"--iptables-sync-period=20s --sync-period=5s --min-sync-period=1ms", 5 * time.Second, time.Millisecond},
	} {
		sync, min := Periods(mustComplete(t, strings.Fields(tc.args)...).Config)
		if sync != tc.sync || min != tc.min {
			t.Errorf("%s: %v and %v, want %v and %v", tc.args, sync, min, tc.sync, tc.min)
		}
	}
}

func TestAddressesOfServers(t *testing.T) {
	for _, tc := range []struct{ args, healthz, metrics string }{
		{"", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"--healthz-bind-address=192.0.2.1 --metrics-bind-address=::", "192.0.2.1:10256", "[::]:10249"},
		{"--healthz_bind_address=192.0.2.1 --healthz-port=1", "192.0.2.1:1", "127.0.0.1:10249"},
		{"--healthz-bind-address=[::]:2 --healthz-port=1", "[::]:2", "127.0.0.1:10249"},
		{"--healthz-port=0 --metrics-port=0", "", ""},
		{"--healthz-bind-address= --metrics-bind-address=", "", ""},
	} {
		c := mustComplete(t, strings.Fields(tc.args)...).Config
		if c.HealthzBindAddress != tc.healthz || c.MetricsBindAddress != tc.metrics {
			t.Errorf("%q: %q and %q, want %q and %q", tc.args, c.HealthzBindAddress, c.MetricsBindAddress, tc.healthz, tc.metrics)
		}
	}
	for text, want := range map[string]string{
		"bindAddress: '::'\n":                "[::]:10256 [::1]:10249",
		"healthzBindAddress: 192.0.2.1\n":    "192.0.2.1:10256 127.0.0.1:10249",
		"metricsBindAddress: 0.0.0.0:9999\n": "0.0.0.0:10256 0.0.0.0:9999",
	} {
		c := mustComplete(t, "--config", file(t, text)).Config
		if got := c.HealthzBindAddress + " " + c.MetricsBindAddress; got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"mode: [nftables]\n":  "failed to decode: ",
		"mode: {\n":           "failed to decode: ",
		"conntrack: {min: x}": "failed to decode: ",
	} {
		if _, err := complete(t, "--config", file(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"mode: nftables\n": "Object 'Kind' is missing",
		"kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1\n": `no kind "KubeProxyConfiguration" is registered for version "kubeproxy.config.k8s.io/v1"`,
	} {
		if _, _, err := decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := complete(t, "--config", "/nonexistent"); !os.IsNotExist(err) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestUnknownFieldsAreNoted(t *testing.T) {
	o := mustComplete(t, "--config", file(t, "mode: nftables\nmod: x\nclusterCIDR: 10.1.0.0/16\nclustercidr: 10.2.0.0/16\n"))
	lab.Same(t, "10.1.0.0/16", o.Config.ClusterCIDR, "clusterCIDR")
	want := []Note{{"clustercidr", "unknown field, ignored: kube-proxy v1.37 has no such field", true}, {"mod", "unknown field, ignored: kube-proxy v1.37 has no such field", true}}
	if diff := cmp.Diff(want, o.Notes, cmpopts.SortSlices(func(a, b Note) bool { return a.Subject < b.Subject })); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// TestAConfigurationOfANewerVersionIsUsed reads fields and gates that no version has yet.
func TestAConfigurationOfANewerVersionIsUsed(t *testing.T) {
	o := mustComplete(t, "--config", "testdata/newer.yaml")
	if c := o.Config; c.ClusterCIDR != "10.244.0.0/16" || c.NFTables.SyncPeriod.Duration != 20*time.Second || o.Gates.Enabled(ComponentFlagz) {
		t.Errorf("clusterCIDR %q, period %v, ComponentFlagz %t", c.ClusterCIDR, c.NFTables.SyncPeriod, o.Gates.Enabled(ComponentFlagz))
	}
	var got []string
	for _, n := range o.Notes {
		if n.Finding {
			got = append(got, n.Subject)
		}
	}
	slices.Sort(got)
	want := []string{"featureGates.KubeProxyOfTheFuture", "logging.options.text.colour", "nftables.algorithm", "serviceProxyName"}
	lab.Same(t, want, got, "subjects of findings")
	data, err := os.ReadFile("testdata/newer.yaml")
	lab.Must(t, err)
	if err := checkContent(data); err != nil {
		t.Errorf("checkContent() = %v", err)
	}
}

func TestNotes(t *testing.T) {
	for _, tc := range []struct {
		args, file string
		want       []string
	}{
		{args: "--proxy-mode=nftables"},
		{args: "", want: []string{"mode", "nodePortAddresses"}},
		{args: "--proxy-mode=iptables --nodeport-addresses=primary", want: []string{"mode"}},
		{args: "--proxy-mode=ipvs --ipvs-scheduler=rr", want: []string{"mode", "nodePortAddresses", "ipvs"}},
		{args: "--proxy-mode=nftables --feature-gates=AllowServiceExternalIPs=false,NativeHistograms=true,WinDSR=true,AllAlpha=false,AllBeta=true",
			want: []string{"featureGates.WinDSR"}},
		{args: "--proxy-mode=nftables --nodeport-addresses=all,10.0.0.0/8,primary"},
		{args: "--proxy-mode=nftables --nodeport-addresses=primary,localhost --feature-gates=NoSuchGate=true",
			want: []string{"featureGates.NoSuchGate"}},
		{args: "--proxy-mode=nftables --nodeport-addresses=127.0.0.0/8 --feature-gates=KubeProxyNFTablesLocalhostNodePorts=true"},
		{args: "--proxy-mode=nftables --nodeport-addresses=127.0.0.0/8 --feature-gates=KubeProxyNFTablesLocalhostNodePorts=false",
			want: []string{"nodePortAddresses"}},
		{file: "mode: nftables\nportRange: 1-2\nwinkernel: {enableDSR: true}\n", want: []string{"portRange", "winkernel"}},
	} {
		args := strings.Fields(tc.args)
		if tc.file != "" {
			args = append(args, "--config", file(t, tc.file))
		}
		var got []string
		for _, n := range mustComplete(t, args...).Notes {
			got = append(got, n.Subject)
		}
		lab.Same(t, tc.want, got, "notes about %q %q", tc.args, tc.file)
	}
}

func TestAWrittenConfigurationReadsBack(t *testing.T) {
	for _, args := range []string{
		"--proxy-mode=nftables", "", "--proxy-mode=ipvs --ipvs-sync-period=3s --write-config-to=x",
		"--proxy-mode=nftables --masquerade-all --min-sync-period=3s --cluster-cidr=10.0.0.0/8 --conntrack-min=5 -v 3",
	} {
		c := mustComplete(t, strings.Fields(args)...).Config
		data, err := encode(c)
		lab.Must(t, err)
		path := filepath.Join(t.TempDir(), "config")
		lab.Must(t, os.WriteFile(path, data, 0o600))
		again, err := encode(mustComplete(t, "--config", path).Config)
		lab.Must(t, err)
		lab.Same(t, string(data), string(again), "%q (-written +read and written)", args)
	}
}

func TestFlagsOfCounters(t *testing.T) {
	if o := mustComplete(t); o.MetricsServices != 100 {
		t.Errorf("by default %d Services have series", o.MetricsServices)
	}
	// The flag has no field in a file, so it applies beside a file.
	o := mustComplete(t, "--config", "testdata/kubeadm.yaml", "--metrics-services", "0")
	lab.Same(t, 0, o.MetricsServices, "o.MetricsServices")
	if o, err := complete(t, "--metrics-services", "-1"); err != nil || o.Validate() == nil {
		t.Errorf("-1 is accepted (%v)", err)
	}
}

func TestTerminateConnections(t *testing.T) {
	for value, ok := range map[string]bool{"off": true, "gone": true, "at-once": false, "": false, "true": false} {
		if o, err := complete(t, "--terminate-connections="+value); err != nil || (o.Validate() == nil) != ok {
			t.Errorf("%q: %v, valid %v", value, err, !ok)
		}
	}
}

// With a service-proxy name, the servers have no default address and no address from the file: both belong to the other proxy.
func TestServiceProxyName(t *testing.T) {
	servers := file(t, "healthzBindAddress: 0.0.0.0:10256\nmetricsBindAddress: 127.0.0.1:10249\n")
	name := []string{"--service-proxy-name", "try"}
	for _, tc := range []struct {
		args             []string
		healthz, metrics string
		notes            []string
	}{
		{args: name},
		{args: []string{"--config", servers}, healthz: "0.0.0.0:10256", metrics: "127.0.0.1:10249"},
		{args: append(name, "--config", servers), notes: []string{"healthzBindAddress", "metricsBindAddress"}},
		{args: append(name, "--healthz-bind-address", "127.0.0.1:10356", "--metrics-bind-address", "127.0.0.1"), healthz: "127.0.0.1:10356", metrics: "127.0.0.1:10249"},
		{args: append(name, "--metrics-port", "10349", "--metrics-bind-address", "127.0.0.1"), metrics: "127.0.0.1:10349"},
		{args: append(name, "--metrics-port", "10349")},
		{args: append(name, "--metrics-port", "0", "--healthz-bind-address", "")},
		{args: append(name, "--config", servers, "--metrics-bind-address", "127.0.0.1:10349"), metrics: "127.0.0.1:10349", notes: []string{"healthzBindAddress"}},
	} {
		o := mustComplete(t, tc.args...)
		var notes []string
		for _, n := range o.Notes {
			if strings.Contains(n.Text, "service-proxy-name") {
				notes = append(notes, n.Subject)
			}
		}
		if c := o.Config; c.HealthzBindAddress != tc.healthz || c.MetricsBindAddress != tc.metrics || !slices.Equal(notes, tc.notes) {
			t.Errorf("%q: healthz %q, metrics %q, notes %q", tc.args, c.HealthzBindAddress, c.MetricsBindAddress, notes)
		}
	}
}

func TestServiceProxyNameIsChecked(t *testing.T) {
	for name, want := range map[string]string{
		"try": "", "a": "", "0": "", "traces": "", strings.Repeat("a", 63): "",
		strings.Repeat("a", 64): "no more than 63", "Try": "lower case", "a.b": "dots", "a/b": "alphanumeric", "-a": "start", " ": "alphanumeric",
		"loopback": "other tables", "a-loopback": "other tables", "trace-1": "other tables", "probe": "other tables",
	} {
		o, err := complete(t, "--service-proxy-name", name)
		if err == nil {
			err = o.Validate()
		}
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	o, err := complete(t, "--service-proxy-name", "try", "--init-only")
	if err == nil {
		err = o.Validate()
	}
	lab.Fails(t, err, "--init-only", "--init-only with a name")
}
