//go:build twin

package e2e

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestBesideKubeProxy runs an instance with a name beside the original kube-proxy, in both modes that use netfilter.
func TestBesideKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 2})
	w.serve(w.Pods[0])
	for mode, table := range map[string]string{"nftables": "kube-proxy", "iptables": ""} {
		t.Run(mode, func(t *testing.T) {
			a := asked{world: w, path: bothPrograms(t)[0], table: table, theirs: true}.in(t)
			a.run("--proxy-mode="+mode, "--iptables-sync-period=1s")
			testBeside(t, a)
		})
	}
}
