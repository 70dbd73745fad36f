package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestParts(t *testing.T) {
	const text = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n"
	if got, err := Part(text, "x"); got != "old\n" || err != nil {
		t.Errorf("Part(x) = %q, %v", got, err)
	}
	if _, err := Part(text, "z"); err == nil || !strings.Contains(err.Error(), "<!-- z -->") {
		t.Errorf("Part(z) = %v, want an error that says what is missing", err)
	}
	file := filepath.Join(t.TempDir(), "page.md")
	lab.Must(t, os.WriteFile(file, []byte(text), 0o600))
	lab.Must(t, Write(file, "y", "new\n"))
	const want = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\nnew\n<!-- /y -->\n"
	if got, err := os.ReadFile(file); string(got) != want || err != nil {
		t.Errorf("written: %q, %v; want %q", got, err, want)
	}
	if err := Write(file, "z", "new\n"); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Write(z) = %v, want an error that names the file", err)
	}
}

func TestCommands(t *testing.T) {
	const text = "# make it\n\n    $ make demo   # two minutes\n    kube-nftproxy status | jq '.a # b'\n\n" +
		"Say `kubectl get\n    pods -A`, not `status`, `nft` or `ip saddr`; or `A=1 make test`, `make`.\n" +
		"```\n  nft list   ruleset\n```\n```console\n$ make x\nmake: done\n# make y\n```\n```yaml\na: b\n```\n" +
		"| `services default/web` | `go_*`, `bin/kube-nftproxy -v 2` |\n" +
		"```sh\nkubectl patch a -p '\n  b: c' # d\nkubectl get a\n```\n"
	want := []Command{
		{3, "make demo"}, {4, "kube-nftproxy status | jq '.a # b'"}, {6, "kubectl get pods -A"}, {7, "A=1 make test"}, {7, "make"},
		{9, "nft list ruleset"}, {12, "make x"}, {14, "make y"}, {19, "services default/web"}, {19, "bin/kube-nftproxy -v 2"},
		{21, "kubectl patch a -p ' b: c' # d"}, {23, "kubectl get a"},
	}
	lab.Same(t, want, Commands(text), "")
}
