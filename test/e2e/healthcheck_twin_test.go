//go:build twin

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
)

// TestHealthCheckNodePortOfKubeProxy sends the requests of TestHealthCheckNodePort to the original kube-proxy, and expects the
// same bytes.
func TestHealthCheckNodePortOfKubeProxy(t *testing.T) {
	bin, err := cluster.Build(t.Context(), os.Stderr, "kube-proxy")
	must(t, err)
	testHealthChecks(t, asked{
		path: filepath.Join(bin, "kube-proxy"), table: "kube-proxy", theirs: true,
	})
}
