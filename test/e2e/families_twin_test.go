//go:build twin

package e2e

import (
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestFamiliesThatTheHostHasNotAsKubeProxy starts both programs on a node without IPv6, with IPv6-only pods: both exit, for the
// same reason.
func TestFamiliesThatTheHostHasNotAsKubeProxy(t *testing.T) {
	w := newWorld(t, lab.Config{})
	must(t, w.Node.Sysctl("ipv6/conf/all/disable_ipv6", "1"))
	for _, path := range bothPrograms(t) {
		p := asked{world: w, path: path}.run("--cluster-cidr=fd00:10:244::/56")
		const why = "kube-proxy configuration is incorrect: cluster is IPv4-only but clusterCIDRs contains only IPv6 addresses"
		if err := exits(t, p); err == nil || err.Error() != "exit status 1" || !strings.Contains(p.LogTail(3), why) ||
			!strings.Contains(p.LogTail(3), `"Error running ProxyServer"`) {
			t.Errorf("%s ends with %v, want status 1 and %q:\n%s", p, err, why, p.LogTail(3))
		}
	}
}
