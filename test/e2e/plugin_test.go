//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	proxy "github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// TestPlugin runs commands through the original kubectl and the plugin in the pod of a node.
func TestPlugin(t *testing.T) {
	s := newSite(t, lab.Config{Pods: 1}, nil)
	s.sh(fmt.Sprintf(configured, s.api.Server()))
	s.sh("kubectl -n kube-system rollout status daemonset/kube-nftproxy --timeout=60s")
	s.createPod("cart")
	plugin, err := proxy.BuildCommand(t.Context(), t.TempDir(), "cmd/kubectl-nftproxy")
	must(t, err)
	path := "PATH=" + filepath.Dir(plugin) + ":$PATH "
	version := strings.TrimSpace(s.sh(path + "kubectl -n kube-system exec daemonset/kube-nftproxy -c kube-nftproxy -- /usr/local/bin/kube-nftproxy --version"))
	if !strings.HasPrefix(version, "kube-nftproxy ") {
		t.Fatalf("kubectl exec answers %q", version)
	}
	for args, want := range map[string]string{
		"node-1 version --client":            "program file  " + strings.TrimPrefix(version, "kube-nftproxy "),
		"--of default/cart version --client": "program file  ",
		"--all version --client":             "node-1: program file  ",
	} {
		if got := strings.TrimSpace(s.sh(path + "kubectl nftproxy " + args)); !strings.HasPrefix(got, want) {
			t.Errorf("kubectl nftproxy %s says %q, want %q", args, got, want)
		}
	}
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"node-1 --cleanup":             {2, "--cleanup is not a command"},
		"node-1 status --no-such-flag": {2, "unknown flag: --no-such-flag"},
		"--all status --no-such-flag":  {2, "node-1: Error: unknown flag: --no-such-flag"},
		"--context other status":       {2, `context "other" does not exist`},
		"node-2 status":                {2, "no pod of kube-nftproxy runs on node node-2"},
		"node-1":                       {2, "no command"},
		"--of cart status":             {2, "--of takes NAMESPACE/POD"},
		"--of default/none status":     {2, `pods "none" not found`},
	} {
		out, err := s.try(path + "kubectl nftproxy " + args)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != want.code || !strings.Contains(out, want.says) {
			t.Errorf("kubectl nftproxy %s: %v, %q; want exit code %d and %q", args, err, out, want.code, want.says)
		}
	}
}
