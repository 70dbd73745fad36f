package main

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/klog/v2/textlogger"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

func TestCheckFamilies(t *testing.T) {
	ip4, both := []model.Family{model.IPv4}, model.Families[:]
	for _, tc := range []struct {
		args       string
		families   []model.Family
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
