package takeover

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// Without leftovers, Look and Cleanup neither create a table nor load a module: a table of iptables-legacy delays
// every packet. This test runs before tests that load modules.
func TestNothingIsMadeOrLoaded(t *testing.T) {
	lab.EnterNamespace(t)
	before, modules := generation(t), loaded(t)
	if there := look(t); there.any() {
		t.Errorf("leftovers in a new namespace: %v", there)
	}
	if err := Cleanup(ktesting.NewLogger(t, ktesting.NewConfig()), nil); err != nil {
		t.Error(err)
	}
	for _, p := range protocols {
		if names, err := os.ReadFile(filepath.Join("/proc/thread-self/net", p.names)); err != nil && !os.IsNotExist(err) || len(names) > 0 {
			t.Errorf("tables of %s: %q, %v", p.command, names, err)
		}
	}
	lab.Same(t, before, generation(t), "the ruleset of nftables has changed")
	lab.Same(t, modules, loaded(t), "modules (-before +after)")
}

// loaded returns the loaded kernel modules.
func loaded(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir("/sys/module")
	lab.Must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
