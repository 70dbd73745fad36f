package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/config"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/settings"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestSysctlsBelongToTheOtherProxy: with a service-proxy name, the program leaves the sysctls as the proxy of all
// other Services has set them.
func TestSysctlsBelongToTheOtherProxy(t *testing.T) {
	for name, want := range map[string]string{"": "86400", "try": "1"} {
		root := t.TempDir()
		t.Setenv(host.SysctlRoot, root)
		file := filepath.Join(root, "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")
		lab.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		lab.Must(t, os.WriteFile(file, []byte("1"), 0o600))
		o := config.NewOptions()
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.AddFlags(fs)
		lab.Must(t, fs.Parse([]string{"--service-proxy-name", name, "--oom-score-adj", "0"}))
		lab.Must(t, o.Complete(fs))
		prepareProcess(klog.Background(), &settings.Settings{Options: o})
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("with the name %q: %v, %q, want %q", name, err, got, want)
		}
	}
}
