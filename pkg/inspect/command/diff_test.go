package command

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft/read"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/probe"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestDiffShowsTheEffectOfAConfiguration: with another configuration file, diff prints the rules and elements that a roll-out of the file would change
// on this node. The cases are the fields that affect most Services.
func TestDiffShowsTheEffectOfAConfiguration(t *testing.T) {
	l := newTracedLab(t)
	const present = "mode: iptables\nclusterCIDR: 10.244.0.0/16,fd00:10:244::/56\n"
	for _, c := range []struct {
		name, config string
		want         []string
	}{
		{"the present one", present, nil},
		{"clusterCIDR", strings.Replace(present, "10.244.0.0/16", "10.99.0.0/16", 1), []string{
			"- ip chain endpoints-of-2: ip saddr & 255.255.0.0 != 10.244.0.0 meta priority & 0:700 == 0:100 " +
				`meta mark set meta mark | 0x00004000 comment "not from a local pod"`,
		}},
		{"nodePortAddresses", present + "nodePortAddresses: [203.0.113.0/24]\n", []string{
			"+ ip chain node-port: ip daddr @node-addresses meta priority set meta l4proto . th dport map @nodeports " +
				"meta priority & 8000:7ff vmap @dispatch",
		}},
		{"mode", strings.Replace(present, "iptables", "nftables", 1), []string{
			"+ ip set node-addresses: 192.0.2.1",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.conf")
			text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + c.config
			lab.Must(t, os.WriteFile(file, []byte(text), 0o600))
			out, err := l.run(diffCommand(), "-f", l.file, "--hostname-override=node-1", "--config="+file)
			lab.Same(t, c.want != nil, errors.Is(err, errWrong), "error %v", err)
			for _, line := range c.want {
				if !strings.Contains(out, line+"\n") {
					t.Errorf("output lacks %q:\n%s", line, out)
				}
			}
		})
	}
}

// TestDiffNamesServices: the output of diff begins with the Services whose elements differ, with their endpoints and
// frontends.
func TestDiffNamesServices(t *testing.T) {
	l := newTracedLab(t)
	manifests := tracedManifests
	for _, change := range [][2]string{
		{"loadBalancerSourceRanges: [198.51.100.0/24]", "loadBalancerSourceRanges: [198.51.100.0/25]"},
		{"endpoints: [{addresses: [10.244.0.10], nodeName: node-1}]",
			"endpoints: [{addresses: [10.244.1.99], nodeName: node-2}]"},
		{"{name: empty, namespace: shop}", "{name: fresh, namespace: shop}"},
		{"internalTrafficPolicy: Local, ports: [{port: 80}]", "internalTrafficPolicy: Local, ports: [{port: 81}]"},
	} {
		if strings.Count(manifests, change[0]) != 1 {
			t.Fatal(change)
		}
		manifests = strings.Replace(manifests, change[0], change[1], 1)
	}
	l.write(t, manifests)
	out, err := l.run(diffCommand(), append([]string{"-f", l.file}, tracedFlags...)...)
	if !errors.Is(err, errWrong) {
		t.Error(err)
	}
	words, _, _ := strings.Cut(out, "\n\n")
	lab.Same(t, `5 Services differ
  shop/empty gone frontends -10.96.0.12:80/tcp
  shop/fresh new frontends +10.96.0.12:80/tcp
  shop/near changed frontends +10.96.0.13:81/tcp -10.96.0.13:80/tcp
  shop/sticky changed +10.244.1.99:8080 -10.244.0.10:8080
  shop/web changed`, words, "%s", out)
}

// limitedKernel is a kernel without tables that lacks features.
type limitedKernel []probe.Missing

func (k limitedKernel) Lacks(plan.Options) ([]probe.Missing, error) { return k, nil }

func (limitedKernel) Recall(*plan.Planner, []*model.Service) error { return nil }

// rejected is the index of the only message that a kernel rejects.
type rejected int

func (r rejected) Check(*nft.Batch) ([]nft.Refused, error) {
	return []nft.Refused{{Message: int(r), Err: unix.ENOENT}}, nil
}

// TestDiffPlansWithTheFeaturesOfTheKernel: on a kernel that lacks features, the plan of diff is the one of the daemon.
func TestDiffPlansWithTheFeaturesOfTheKernel(t *testing.T) {
	file := filepath.Join(t.TempDir(), "all.yaml")
	lab.Must(t, os.WriteFile(file, []byte(tracedManifests), 0o600))
	tables := plan.New(plan.Options{Families: inet.Families[:]}).Rules().Samples()
	var all []probe.Missing
	const most = 120 // messages of a probe
	for message := range most {
		missing, err := probe.Run(rejected(message), tables)
		lab.Must(t, err)
		all = append(all, missing...)
	}
	for _, c := range []struct {
		lacks               []string
		hash, maximum, ipv6 bool
		onlyIPv4, fails     bool
	}{
		{lacks: []string{"nft_hash", "nft_connlimit"}, ipv6: slices.Contains(host.Families(), inet.IPv6)},
		{lacks: []string{"nft_fib_ipv6"}, hash: true, maximum: true, onlyIPv4: slices.Contains(host.Families(), inet.IPv6)},
		{lacks: []string{"dnat"}, fails: true},
	} {
		t.Run(strings.Join(c.lacks, " "), func(t *testing.T) {
			o, cmd := config.NewOptions(), &cobra.Command{}
			var warnings strings.Builder
			cmd.SetErr(&warnings)
			o.AddFlags(cmd.Flags())
			lab.Must(t, cmd.ParseFlags(tracedFlags))
			kernel := slices.DeleteFunc(slices.Clone(all), func(m probe.Missing) bool {
				return !slices.ContainsFunc(c.lacks, func(word string) bool { return strings.Contains(m.String(), word) })
			})
			p, err := planManifests(o, cmd, file, nil, limitedKernel(kernel))
			if c.fails {
				lab.Fails(t, err, "the kernel lacks dnat", "error")
				return
			}
			lab.Must(t, err)
			var text strings.Builder
			maximum, ipv6 := false, false
			for _, table := range p.Rules().Samples() {
				text.WriteString(read.Declare(table, nil))
				ipv6 = ipv6 || table.Family == inet.IPv6
				maximum = maximum || slices.ContainsFunc(table.Sets, func(s *nft.Set) bool { return s.MaxConnections > 0 })
			}
			if warned := strings.Contains(warnings.String(), "only Services of [IPv4] are served"); warned != c.onlyIPv4 {
				t.Errorf("warnings: %q", warnings.String())
			}
			if hash := strings.Contains(text.String(), " jhash "); hash != c.hash || maximum != c.maximum || ipv6 != c.ipv6 {
				t.Errorf("the plan has jhash %v, connlimit %v, IPv6 %v", hash, maximum, ipv6)
			}
		})
	}
}
