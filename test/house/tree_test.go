package house

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// private are strings about the machine on which files were written. They are joined here so that this file does not contain
// them.
var private = []string{
	"/" + "work/", "/" + "root/", "/" + "home/", "/" + "Users/", "/" + "farm/", "." + "library/",
	"proxy." + "golang.org", "goproxy" + ".", "deb." + "debian.org",
}

func TestTreeNamesNoMachine(t *testing.T) {
	for _, name := range files(t) {
		content, err := os.ReadFile(filepath.Join(root, name))
		lab.Must(t, err)
		picture := strings.HasPrefix(name, "docs/plots/") && bytes.HasPrefix(content, []byte("\x89PNG"))
		if bytes.IndexByte(content, 0) >= 0 && !picture {
			t.Errorf("%s: binary file that is no picture", name)
			continue
		}
		for i, line := range strings.Split(string(content), "\n") {
			for _, s := range private {
				if strings.Contains(line, s) {
					t.Errorf("%s:%d: contains %q", name, i+1, s)
				}
			}
		}
	}
}

func TestNoReplaceInGoMod(t *testing.T) {
	for _, line := range strings.Split(mustRead(t, "go.mod"), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod: %s", line)
		}
	}
}

func TestScriptsStopAtErrors(t *testing.T) {
	for _, name := range files(t) {
		if filepath.Ext(name) != ".sh" && name != ".ci/run" {
			continue
		}
		script := mustRead(t, name)
		if !strings.HasPrefix(script, "#!/usr/bin/env bash\n# ") {
			t.Errorf("%s: doesn't begin with #!/usr/bin/env bash and a comment", name)
		}
		if !strings.Contains(script, "\nset -euo pipefail\n") && !strings.Contains(script, "\nset -uo pipefail\n") {
			t.Errorf("%s: doesn't set -euo pipefail, or -uo where it looks at each status", name)
		}
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s: not executable (%v)", name, err)
		}
	}
}
