package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestCheckFamilies(t *testing.T) {
	ip4, both := []inet.Family{inet.IPv4}, inet.Families[:]
	for _, tc := range []struct {
		args       string
		families   []inet.Family
		said, fail string
	}{
		{"--cluster-cidr=10.0.0.0/8", ip4, "", ""},
		{"--cluster-cidr=10.0.0.0/8,fd00::/56", ip4, "", ""},
		{"--cluster-cidr=fd00::/56", both, "", ""},
		{"--cluster-cidr=fd00::/56", ip4, "", "kube-proxy configuration is incorrect: cluster is IPv4-only but clusterCIDRs contains only IPv6 addresses"},
		{"--cluster-cidr=fd00::/56 --detect-local-mode=NodeCIDR", ip4, "clusterCIDRs contains only IPv6 addresses", ""},
		{"--cluster-cidr=10.0.0.0/8,fd00::/56 --nodeport-addresses=10.0.0.0/8", both, "nodePortAddresses contains only IPv4 addresses", ""},
		{"--cluster-cidr=10.0.0.0/8,fd00::/56 --nodeport-addresses=10.0.0.0/8,::/0", both, "", ""},
		{"--cluster-cidr=10.0.0.0/8,fd00::/56 --nodeport-addresses=primary", both, "", ""},
		{"--metrics-bind-address=[::1]:10249", ip4, "cluster is IPv4-only but metricsBindAddress is IPv6", ""},
		{"--metrics-bind-address=[::]:10249", ip4, "", ""},
		{"--bind-address=192.0.2.1", ip4, "", ""},
		{"--bind-address=::", ip4, "", ""},
		{"--bind-address=2001:db8::1", both, "", ""},
		{"--bind-address=2001:db8::1", ip4, "", `no support for primary IP family "IPv6"`},
	} {
		var log bytes.Buffer
		err := checkFamilies(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), parse(t, tc.args).Config, tc.families)
		if got := log.String(); !strings.Contains(got, tc.said) || (got == "") != (tc.said == "") {
			t.Errorf("%s on %v: log %q, want %q", tc.args, tc.families, got, tc.said)
		}
		if (err == nil) != (tc.fail == "") || err != nil && err.Error() != tc.fail {
			t.Errorf("%s on %v: %v, want %q", tc.args, tc.families, err, tc.fail)
		}
	}
}

// If one family can be served, the program continues with it and reports once what the other lacks. Otherwise it exits.
func TestServedFamiliesWithMissingFeatures(t *testing.T) {
	ip4, ip6 := probe.Missing{Family: inet.IPv4, Err: unix.ENOENT}, probe.Missing{Family: inet.IPv6, Err: unix.EOPNOTSUPP}
	for _, tc := range []struct {
		lacks []probe.Missing
		left  []inet.Family
		said  string
	}{
		{lacks: nil, left: inet.Families[:]},
		{lacks: []probe.Missing{ip6}, left: []inet.Family{inet.IPv4}, said: "operation not supported"},
		{lacks: []probe.Missing{ip4, ip4}, left: []inet.Family{inet.IPv6}, said: "no such file or directory"},
		{lacks: []probe.Missing{ip4, ip6}},
	} {
		var log bytes.Buffer
		served, err := without(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), plan.Options{Families: inet.Families[:]}, tc.lacks)
		if (err != nil) != (tc.left == nil) || !slices.Equal(served.Families, tc.left) {
			t.Errorf("lacking %v: %v, and %v are left, want %v", tc.lacks, err, served.Families, tc.left)
		}
		lines := strings.Count(log.String(), "\n")
		if (tc.said == "") != (lines == 0) || lines > 1 || !strings.Contains(log.String(), tc.said) {
			t.Errorf("lacking %v: log %q, want one line with %q", tc.lacks, log.String(), tc.said)
		}
	}
}

func TestModulesDisabled(t *testing.T) {
	for text, want := range map[string]bool{"1\n": true, "0\n": false, "": false} {
		file := filepath.Join(t.TempDir(), "modules_disabled")
		lab.Must(t, os.WriteFile(file, []byte(text), 0o600))
		lab.Same(t, want, modulesDisabled(file), "modulesDisabled of %q", text)
	}
	if modulesDisabled("/no/such/file") {
		t.Error("without the file, modules are disabled")
	}
}
