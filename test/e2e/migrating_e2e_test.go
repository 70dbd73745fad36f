//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

const quickstarts = "docs/quickstarts.md"

// TestMigratingFiles parses the YAML of docs/migrating.md and docs/quickstarts.md, and makes the program accept the
// flags of a distribution, in a lab.
func TestMigratingFiles(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	for _, name := range []string{migrating, quickstarts} {
		for heading, blocks := range mustReadPage(t, name, "yaml") {
			for _, text := range blocks {
				var content map[string]any
				if err := yaml.UnmarshalStrict([]byte(text), &content); err != nil {
					t.Errorf("%s, below %s: %v\n%s", name, heading, err, text)
				}
			}
		}
	}
	flags := slices.Concat(slices.Collect(maps.Values(mustReadPage(t, quickstarts, "flags")))...)
	for _, text := range flags {
		out, err := l.Node.Command(t.Context(), program, append(strings.Fields(text), "--init-only")...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "System initialized") {
			t.Errorf("%q: %v\n%s", text, err, out)
		}
	}
	if len(flags) == 0 {
		t.Error("the page has no flags")
	}
}

// distribution matches a distribution's row in the table of docs/quickstarts.md, with its values of the chart.
var distribution = regexp.MustCompile("(?m)^\\| \\[(.+?)\\].* \\| `(\\{.*?\\})` \\| `(\\{.*?\\})`")

// TestQuickstartValues gives each distribution's values to the chart, and the chart's configuration to the program.
func TestQuickstartValues(t *testing.T) {
	p := newPackager(t)
	text := mustRead(t, filepath.Join("../..", quickstarts))
	rows := distribution.FindAllStringSubmatch(text, -1)
	if n := strings.Count(text, "\n| ["); n < 8 || len(rows) != n {
		t.Fatalf("%d of %d rows of the page have values", len(rows), n)
	}
	common, _, _ := strings.Cut(mustReadPage(t, quickstarts, "yaml")["Install"][0], "apiServer:")
	for _, row := range rows {
		values := fmt.Sprintf("%sapiServer: %s\nconfig: %s\n", common, row[2], row[3])
		must(t, os.WriteFile(filepath.Join(p.dir, "my-values.yaml"), []byte(values), 0o600))
		for _, helm := range helms {
			objects := p.objectsIn(p.sh(helm +
				" template --skip-tests kube-nftproxy deploy/chart --namespace kube-system --values my-values.yaml"))
			files := objects["ConfigMap kube-nftproxy-HASH"].(map[string]any)["data"].(map[string]any)
			writeManifest(t, filepath.Join(p.dir, "config.conf"), files["config.conf"])
			lab.Check(t, lab.Err(p.try(program+" --config=config.conf --write-config-to=written.conf")), "%s", row[1])
		}
	}
}
