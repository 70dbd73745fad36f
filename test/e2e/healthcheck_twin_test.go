//go:build twin

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
)

// TestHealthCheckNodePortOfKubeProxy asks the real kube-proxy what TestHealthCheckNodePort asks our program, and expects the
// same bytes.
func TestHealthCheckNodePortOfKubeProxy(t *testing.T) {
	bin, err := cluster.Build(t.Context(), os.Stderr, "kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	testHealthChecks(t, asked{
		path: filepath.Join(bin, "kube-proxy"), table: "kube-proxy", syncPeriod: "--iptables-sync-period", theirs: true,
		flags: []string{
			"--proxy-mode=nftables", "--iptables-min-sync-period=10ms",
			// These would set what belongs to the whole machine.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		},
	})
}
