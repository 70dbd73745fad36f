package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
			"- ip chain endpoints-of-2: meta priority & 0:700 == 0:100 ip saddr & 255.255.0.0 != 10.244.0.0 " +
				`meta mark set meta mark | 0x00004000 comment "not from a local pod"`,
		}},
		{"nodePortAddresses", present + "nodePortAddresses: [203.0.113.0/24]\n", []string{
			"+ ip chain services: meta priority & 8000:0 == none ip daddr @node-addresses " +
				"meta priority set meta l4proto . th dport map @nodeports",
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
			if errors.Is(err, errWrong) != (c.want != nil) {
				t.Errorf("error %v", err)
			}
			for _, line := range c.want {
				if !strings.Contains(out, line+"\n") {
					t.Errorf("output lacks %q:\n%s", line, out)
				}
			}
		})
	}
}
