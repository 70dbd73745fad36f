//go:build twin

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
)

// bothPrograms returns the paths of the original kube-proxy, which is built if necessary, and of kube-nftproxy.
func bothPrograms(t *testing.T) []string {
	t.Helper()
	bin, err := cluster.Build(t.Context(), os.Stderr, "kube-proxy")
	must(t, err)
	return []string{filepath.Join(bin, "kube-proxy"), program}
}
