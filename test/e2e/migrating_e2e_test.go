//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/test/kubelet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestMigrating follows docs/migrating.md. kube-nftproxy itself stands in for kube-proxy, which the lane twin has.
func TestMigrating(t *testing.T) {
	root := t.TempDir()
	must(t, imageOf(root, program))
	testMigrating(t, kubelet.Image{Root: root, Entrypoint: []string{"/usr/local/bin/kube-proxy"}})
}

// TestMigratingFiles parses the configuration files of docs/migrating.md, and makes the program read those for it, and the flags,
// in a lab.
func TestMigratingFiles(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	files, flags := 0, 0
	accepted := func(args ...string) {
		t.Helper()
		out, err := l.Node.Command(t.Context(), program, append(args, "--init-only")...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "System initialized") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	for heading, blocks := range mustReadPage(t, migrating, "yaml") {
		for _, text := range blocks {
			var content map[string]any
			if err := yaml.UnmarshalStrict([]byte(text), &content); err != nil {
				t.Errorf("below %s: %v\n%s", heading, err, text)
			}
			if content["kind"] != "KubeProxyConfiguration" {
				continue
			}
			file := filepath.Join(t.TempDir(), "config.conf")
			must(t, os.WriteFile(file, []byte(text), 0o600))
			accepted("--config=" + file)
			files++
		}
	}
	for _, blocks := range mustReadPage(t, migrating, "flags") {
		for _, text := range blocks {
			accepted(strings.Fields(text)...)
			flags++
		}
	}
	if files == 0 || flags == 0 {
		t.Errorf("the page has %d configurations and %d commands, want some of both", files, flags)
	}
}
