package host

import (
	"os"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// On a freshly booted machine, this loads the module: hack/kernels.sh runs it there.
func TestConntrackIsLoaded(t *testing.T) {
	lab.EnterNamespace(t)
	lab.Must(t, LoadConntrack())
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max"); err != nil {
		t.Error(err)
	}
}
