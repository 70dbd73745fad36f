package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestInherit: options take over the configuration of a running program, except for given flags.
func TestInherit(t *testing.T) {
	parse := func(args string, running *Running) *Options {
		t.Helper()
		o := NewOptions()
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.AddFlags(fs)
		err := fs.Parse(strings.Fields(args))
		if err == nil && running != nil {
			err = o.Inherit(fs, running)
		}
		if err == nil {
			err = o.Complete(fs)
		}
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		return o
	}
	const list = "--nodeport-addresses=192.0.2.0/24,primary"
	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		flags := "--hostname-override=node-1 --refuse-unused-ports=all --answer-ping=ready --count-connections=false " +
			"--direct-server-return=all --direct-server-return-node-cidrs=10.0.0.0/24 --limits=pairs=3 " +
			"--cluster-cidr=10.244.0.0/16 --masquerade-all " +
			"--iptables-masquerade-bit=3 --feature-gates=A=true --proxy-mode=" + mode + " " + list + " "
		program := parse(flags, nil)
		text, err := yaml.Marshal(Effective(program.Config))
		lab.Must(t, err)
		if sync, _ := Periods(Effective(program.Config)); sync != defaultSyncPeriod || strings.Count(string(text), defaultSyncPeriod.String()) != 1 {
			t.Errorf("mode %s: the effective configuration has not only the period of this mode:\n%s", mode, text)
		}
		running := &Running{Node: "node-1", Config: string(text), TableFlags: program.TableFlags}
		for _, change := range []string{
			"", "--cluster-cidr=10.0.0.0/8", "--nodeport-addresses=all", "--masquerade-all=false", "--iptables-masquerade-bit=4", "--detect-local-mode=NodeCIDR",
			"--bind-address=192.0.2.1", "--hostname-override=node-2", "--count-connections", "--count-connections=zones",
			"--direct-server-return", "--limits=pairs=4", "--feature-gates=B=true",
			"--refuse-unused-ports=cluster", "--answer-ping=none", "--direct-server-return-node-cidrs=192.0.2.0/24",
		} {
			before := flags
			if strings.HasPrefix(change, "--nodeport") {
				before = strings.Replace(flags, list, "", 1) // a second list would be added to the first
			}
			want, got := parse(before+change, nil), parse(change, running)
			lab.Same(t, Effective(want.Config), Effective(got.Config), "mode %s, %q", mode, change)
			lab.Same(t, want.TableFlags, got.TableFlags, "mode %s, %q: flags for the tables", mode, change)
		}
	}
}
