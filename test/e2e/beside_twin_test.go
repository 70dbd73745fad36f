//go:build twin

package e2e

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestBesideKubeProxy runs an instance with a name beside the original kube-proxy, in each of its modes.
func TestBesideKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{Pods: 2})
	w.serve(w.Pods[0])
	for _, tt := range []struct{ mode, table string }{{"nftables", "kube-proxy"}, {"iptables", ""}, {"ipvs", ""}} { // ipvs leaves a device
		t.Run(tt.mode, func(t *testing.T) {
			if tt.mode == "ipvs" {
				lab.NeedIPVS(t)
			}
			a := asked{world: w, path: bothPrograms(t)[0], table: tt.table, theirs: true, ipvs: tt.mode == "ipvs"}.in(t)
			a.run("--proxy-mode="+tt.mode, "--iptables-sync-period=1s", "--ipvs-sync-period=1s", "--ipvs-min-sync-period=10ms")
			testBeside(t, a)
		})
	}
}
