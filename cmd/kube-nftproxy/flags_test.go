package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

func parse(t *testing.T, args ...string) (*config, error) {
	t.Helper()
	f := &flags{logging: logsapi.NewLoggingConfiguration()}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.add(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return f.check()
}

func TestFlagsBecomeConfiguration(t *testing.T) {
	c, err := parse(t, "--hostname-override", "  Node-1 ", "--cluster-cidr", "10.244.0.0/16,fd00::/56", "--nodeport-addresses", "192.0.2.0/24,2001:db8::/64")
	if err != nil {
		t.Fatal(err)
	}
	if c.nodeName != "node-1" {
		t.Errorf("node name is %q, want it trimmed and in lower case", c.nodeName)
	}
	want := [2]plan.LocalPods{{Prefix: netip.MustParsePrefix("10.244.0.0/16")}, {Prefix: netip.MustParsePrefix("fd00::/56")}}
	if c.localPods != want {
		t.Errorf("local pods are %v, want %v", c.localPods, want)
	}
	if len(c.nodePorts) != 2 || model.FamilyOf(c.nodePorts[1].Addr()) != model.IPv6 {
		t.Errorf("node port prefixes are %v", c.nodePorts)
	}
	c, err = parse(t, "--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth")
	if err != nil || !c.localPods[model.IPv4].InterfacePrefix || c.localPods[model.IPv6].Interface != "veth" {
		t.Errorf("local pods by interface: %+v, %v", c.localPods, err)
	}
	if c.nodePorts != nil {
		t.Errorf("node port prefixes by default are %v, want none: primary", c.nodePorts)
	}
}

func TestWrongFlagsAreAllNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--hostname-override", " "}, []string{"empty hostname-override is invalid"}},
		{[]string{"--cluster-cidr", "10.244.0.0"}, []string{"--cluster-cidr", "10.244.0.0"}},
		{[]string{"--cluster-cidr", "10.0.0.0/8,11.0.0.0/8"}, []string{"more than one IPv4 prefix"}},
		{[]string{"--detect-local-mode", "clustercidr"}, []string{"must be ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"}},
		{[]string{"--detect-local-mode", "BridgeInterface"}, []string{"needs --pod-bridge-interface"}},
		{[]string{"--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", strings.Repeat("x", 16)}, []string{"longer than 15"}},
		{[]string{"--detect-local-mode", "InterfaceNamePrefix"}, []string{"needs --pod-interface-name-prefix"}},
		{[]string{"--nodeport-addresses", "primary,10.0.0.0/8"}, []string{"can't use both 'primary' and CIDRs"}},
		{[]string{"--sync-period", "1s", "--min-sync-period", "2s"}, []string{"--sync-period (1s)", "--min-sync-period (2s)"}},
		{[]string{"--healthz-bind-address", "nonsense"}, []string{"--healthz-bind-address", "must be IP:port"}},
		{[]string{"--manifests", "x", "--kubeconfig", "y"}, []string{"can't both be given"}},
		{[]string{"--nodeport-addresses", "x", "--cluster-cidr", "y"}, []string{"--nodeport-addresses", "--cluster-cidr"}},
	} {
		_, err := parse(t, c.args...)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: error %v, want it to say %q", c.args, err, want)
			}
		}
	}
}
