//go:build twin

package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// kubeProxy is the path of kube-proxy, which hack/kubernetes.sh builds.
const kubeProxy = "../../bin/kubernetes/kube-proxy"

// written returns the configuration that kube-proxy writes for a command line, or the output with its error.
func written(t *testing.T, args []string) (text, refusal string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	out, err := exec.Command(kubeProxy, append(args, "--write-config-to", path)...).CombinedOutput()
	if err != nil {
		return "", string(out)
	}
	data, err := os.ReadFile(path)
	lab.Must(t, err)
	return string(data), ""
}

// everyFlag has every kind of flag, with values that differ from the defaults.
const everyFlag = "--bind-address=10.9.8.7 --bind-address-hard-fail --cluster-cidr=10.1.0.0/16 --config-sync-period=3m --conntrack-max-per-core=1 " +
	"--conntrack-min=2 --conntrack-tcp-be-liberal --conntrack-tcp-timeout-close-wait=3s --conntrack-tcp-timeout-established=4s " +
	"--conntrack-udp-timeout=5s --conntrack-udp-timeout-stream=6s --detect-local-mode=NodeCIDR --feature-gates=AllowServiceExternalIPs=false " +
	"--healthz-bind-address=10.0.0.1:1 --hostname-override=Flag --iptables-localhost-nodeports=false --iptables-masquerade-bit=1 " +
	"--iptables-min-sync-period=2s --iptables-sync-period=3s --ipvs-exclude-cidrs=10.2.0.0/16 --ipvs-min-sync-period=1s --ipvs-scheduler=rr " +
	"--ipvs-strict-arp --ipvs-sync-period=4s --ipvs-tcp-timeout=1s --ipvs-tcpfin-timeout=1s --ipvs-udp-timeout=1s --kube-api-burst=1 " +
	"--kube-api-content-type=application/json --kube-api-qps=2 --kubeconfig=/k --log-flush-frequency=7s --logging-format=json --masquerade-all " +
	"--master=http://m --metrics-bind-address=10.0.0.2:2 --nodeport-addresses=10.3.0.0/16 --oom-score-adj=3 --pod-bridge-interface=b " +
	"--pod-interface-name-prefix=p --profiling --v=5"

// ourPeriod matches the intended difference: the default of the minimum sync period is 1s in kube-proxy (0s in mode ipvs), and 100ms in
// kube-nftproxy.
var ourPeriod = regexp.MustCompile(`minSyncPeriod: (0s|1s|100ms)`)

// TestConfigurationsAreThoseOfKubeProxy compares the configurations of both programs for the same flags and files.
func TestConfigurationsAreThoseOfKubeProxy(t *testing.T) {
	for _, tc := range []struct{ args, file string }{
		{}, {args: "--proxy-mode=nftables"}, {args: "--proxy-mode=ipvs --ipvs-min-sync-period=1s"},
		{args: "--proxy-mode=nftables --masquerade-all --iptables-sync-period=10s --iptables-min-sync-period=5s --cluster-cidr=10.0.0.0/8,fd00::/8"},
		{args: "--masquerade-all --iptables-masquerade-bit=3 --iptables-localhost-nodeports=false"},
		{args: "--nodeport-addresses=10.0.0.0/8,fd00::/8 --hostname-override=A --detect-local-mode=NodeCIDR --profiling -v 3"},
		{args: "--nodeport-addresses=primary --conntrack-max-per-core=0 --conntrack-udp-timeout=5s --oom-score-adj=5 --kube-api-qps=7"},
		{args: "--bind-address=fd00::1 --metrics-bind-address=[::]:1 --healthz-bind-address=10.0.0.1:3 --bind-address-hard-fail"},
		{args: "--detect-local-mode=BridgeInterface --pod-bridge-interface=br0 --feature-gates=AllowServiceExternalIPs=false,AllAlpha=false"},
		{args: "--ipvs-scheduler=rr --ipvs-exclude-cidrs=10.0.0.0/8 --ipvs-strict-arp --ipvs-tcp-timeout=1s --config-sync-period=1m"},
		{file: "mode: nftables\n"}, {file: "bindAddress: '::'\nmode: nftables\nnftables: {masqueradeAll: true, minSyncPeriod: 5s}\n"},
		{file: "iptables: {masqueradeAll: true, syncPeriod: 1m, minSyncPeriod: 3s}\nnodePortAddresses: [10.0.0.0/8]\n"},
		{file: "mode: ipvs\nipvs: {syncPeriod: 1m, minSyncPeriod: 3s, scheduler: rr}\nhealthzBindAddress: 1.2.3.4\n"},
		{file: "mode: nftables\nfoo: bar\nclustercidr: 10.0.0.0/8\nportRange: 1-2\nwinkernel: {enableDSR: true}\n", args: "-v 4 --vmodule=a=2"},
		{file: "logging: {format: json, verbosity: 3, vmodule: []}\nclusterCIDR: 010.0.0.0/8\noomScoreAdj: 0\n"},
		{file: "mode: nftables\n", args: everyFlag}, {args: everyFlag}, {args: everyFlag + " --proxy-mode=nftables"},
		{args: "--healthz-port=1 --metrics-port=2 --healthz-bind-address=10.0.0.1:3"}, {args: "--cleanup --init-only --bind_address=10.0.0.1"},
		{file: "mode: nftables\nmode: ipvs\nclusterCIDR: 10.0.0.0/8\nCLUSTERCIDR: x\n"}, {file: "oomScoreAdj: null\nconntrack: null\nfeatureGates: null\n"},
		{file: "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 1s, udpStreamTimeout: 2s, tcpBeLiberal: true}\n"},
		{file: "logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}}\nconfigSyncPeriod: 0s\nnftables: {syncPeriod: 0s, minSyncPeriod: 0s}\n"},
		{args: "--proxy-mode=nftables --nodeport-addresses=primary,10.0.0.0/8,localhost"}, {file: "nodePortAddresses: [all, localhost]\n"},
		// Both reject these.
		{args: "--nodeport-addresses=all,primary,all"}, {args: "--nodeport-addresses=10.0.0.0/8,nowhere"},
		{args: "--proxy-mode=userspace"}, {args: "--oom-score-adj=2000"}, {args: "--cluster-cidr=10.0.0.0"},
		{args: "--cluster-cidr=10.0.0.0/8,11.0.0.0/8"}, {args: "--healthz-bind-address=1.2.3.4"},
		{args: "--detect-local-mode=x"}, {args: "--feature-gates=MultiCIDRServiceAllocator=false"},
		{args: "--iptables-sync-period=1s --iptables-min-sync-period=2s"}, {args: "--logging-format=xml"}, {args: "--show-hidden-metrics-for-version=1.2"},
		{file: "conntrack: {min: -1, tcpEstablishedTimeout: -1s}\n"}, {file: "mode: [x]\n"}, {file: "clientConnection: {burst: -1}\n"},
		{file: "bindAddress: x\n"}, {file: "detectLocalMode: BridgeInterface\n"}, {file: "iptables: {masqueradeBit: 40}\n"},
	} {
		args := strings.Fields(tc.args)
		if tc.file != "" {
			args = append(args, "--config", file(t, tc.file))
		}
		theirs, refusal := written(t, args)
		o, err := complete(t, append(args, "--write-config-to", "x")...)
		if err == nil {
			err = o.Validate()
		}
		if err != nil || refusal != "" {
			compareRefusals(t, args, refusal, err)
			continue
		}
		ours, err := encode(o.Config)
		lab.Must(t, err)
		lab.Same(t, ourPeriod.ReplaceAllString(theirs, ""), ourPeriod.ReplaceAllString(string(ours), ""), "%q %q (-kube-proxy +ours)", tc.args, tc.file)
	}
}

// kube-proxy rejects these command lines. The program accepts them, and notes feature gates and modes without effect (rows in
// docs/differences.md).
func TestSettingsThatKubeProxyRejectsAreNoted(t *testing.T) {
	for args, want := range map[string]struct{ refusal, subject string }{
		"--feature-gates=NoSuchGate=true":                       {"unrecognized feature gate: NoSuchGate", "featureGates.NoSuchGate"},
		"--boot-id-file=/b":                                     {"unknown flag: --boot-id-file", ""},
		"--machine-id-file=/m":                                  {"unknown flag: --machine-id-file", ""},
		"--feature-gates=WorkloadWithJob=true":                  {"depends on features that are disabled", "featureGates.WorkloadWithJob"},
		"--proxy-mode=ipvs --feature-gates=KubeProxyIPVS=false": {"KubeProxyConfiguration.Mode.ProxyMode: Invalid value", "mode"},
	} {
		if _, refusal := written(t, strings.Fields(args)); !strings.Contains(refusal, want.refusal) {
			t.Errorf("%s: kube-proxy says %q, want %q", args, refusal, want.refusal)
		}
		subject := func(n Note) bool { return n.Subject == want.subject }
		if notes := mustComplete(t, strings.Fields(args)...).Notes; want.subject != "" && !slices.ContainsFunc(notes, subject) {
			t.Errorf("%s: notes %v, want one about %s", args, notes, want.subject)
		}
	}
}

// compareRefusals checks that both programs report errors for the same paths and reasons.
func compareRefusals(t *testing.T, args []string, theirs string, ours error) {
	t.Helper()
	if theirs == "" || ours == nil {
		t.Errorf("%q: kube-proxy says %q, kube-nftproxy says %v", args, theirs, ours)
		return
	}
	theirs = strings.ReplaceAll(theirs, `\`, "")
	for _, one := range strings.Split(strings.Trim(ours.Error(), "[]"), ", KubeProxy") {
		path, _, _ := strings.Cut(one, ": ")
		if !strings.Contains(theirs, strings.TrimPrefix(path, "KubeProxyConfiguration.")) {
			t.Errorf("%q: kube-proxy says %q, kube-nftproxy says %q", args, theirs, one)
		}
	}
}

// TestFlagsAreThoseOfKubeProxy compares names, types and defaults of all flags.
func TestFlagsAreThoseOfKubeProxy(t *testing.T) {
	help, err := exec.Command(kubeProxy, "--help").Output()
	lab.Must(t, err)
	o := NewOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.AddFlags(fs)
	flag := regexp.MustCompile(`^ +(?:-\w, )?--([a-z-]+)(?: (\S+))?  `)
	usage := regexp.MustCompile(`\(default "?([^")]*)"?\)$`)
	lines := strings.Split(string(help), "\n")
	found := 0
	for _, line := range lines {
		m := flag.FindStringSubmatch(line)
		if m == nil || m[1] == "help" || m[1] == "version" { // the command defines these two
			continue
		}
		found++
		f := fs.Lookup(m[1])
		if f == nil {
			t.Errorf("--%s is missing", m[1])
			continue
		}
		kind, _ := pflag.UnquoteUsage(f)
		if kind != m[2] {
			t.Errorf("--%s is of type %q, kube-proxy's of %q", m[1], kind, m[2])
		}
		d := usage.FindStringSubmatch(line)
		if d != nil && d[1] != f.DefValue && !slices.Contains([]string{"iptables-min-sync-period", "ipvs-min-sync-period"}, m[1]) {
			t.Errorf("--%s defaults to %q, kube-proxy's to %q", m[1], f.DefValue, d[1])
		}
	}
	shown := string(help)
	ours := []string{
		"answer-ping", "config-reload", "config-reload-jitter", "control-socket", "count-connections",
		"direct-server-return", "direct-server-return-node-cidrs", "force", "host-ports", "limits", "manifests", "metrics-services", "min-sync-period",
		"refuse-unused-ports", "service-proxy-name", "snapshot-dir", "startup-taint", "sync-period",
		"terminate-connections",
	}
	fs.VisitAll(func(f *pflag.Flag) {
		// A flag of kube-proxy without an effect here is hidden.
		if there := strings.Contains(shown, "--"+f.Name+" "); there == slices.Contains(ours, f.Name) && !f.Hidden {
			t.Errorf("--%s: kube-proxy shows it: %t", f.Name, there)
		}
		if f.Shorthand != "" && !strings.Contains(shown, "-"+f.Shorthand+", --"+f.Name) {
			t.Errorf("--%s has the short form -%s", f.Name, f.Shorthand)
		}
	})
	if found < 50 {
		t.Errorf("kube-proxy's --help shows %d flags:\n%s", found, help)
	}
}

// TestOtherFormsOfAFileAreReadAsByKubeProxy compares files in other formats.
func TestOtherFormsOfAFileAreReadAsByKubeProxy(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, text := range []string{
		`{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables"}`,
		"# comment\n---\n" + head + "mode: ipvs\n", head + "---\n" + head + "mode: ipvs\n", "mode: nftables\n", "", "x", "{}", "[]",
		"kind: KubeProxyConfiguration\n", "apiVersion: v1\nkind: ConfigMap\n", "\t", head + "mode: \"nft\n",
	} {
		path := filepath.Join(t.TempDir(), "file")
		lab.Must(t, os.WriteFile(path, []byte(text), 0o600))
		args := []string{"--config", path}
		theirs, refusal := written(t, args)
		o, err := complete(t, args...)
		if (err != nil) != (refusal != "") {
			t.Errorf("%q: kube-proxy says %q, kube-nftproxy says %v", text, refusal, err)
			continue
		}
		if err != nil {
			plain := strings.NewReplacer(`\`, "", "\t", "") // the log escapes one line, and indents several
			if !strings.Contains(plain.Replace(refusal), plain.Replace(err.Error())) {
				t.Errorf("%q: kube-proxy says %q, kube-nftproxy says %q", text, refusal, err)
			}
			continue
		}
		ours, err := encode(o.Config)
		lab.Must(t, err)
		lab.Same(t, ourPeriod.ReplaceAllString(theirs, ""), ourPeriod.ReplaceAllString(string(ours), ""), "%q (-kube-proxy +ours)", text)
	}
}
