package house

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
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

// requirement matches a module and its version in a go.mod.
var requirement = regexp.MustCompile(`(?m)^(?:require |\t)([\w.-]+\.[\w.-]+/\S+) (v\S+)`)

// TestProgramsOfTestsShareModules: the programs of the lane e2e need the same versions of modules as this project, and as each other. Otherwise,
// Go compiles the libraries of Kubernetes again for each of them. The version v0.0.0 stands for one that a replace sets.
func TestProgramsOfTestsShareModules(t *testing.T) {
	versions, from := map[string]string{}, map[string]string{}
	shared := 0
	for _, name := range []string{"go.mod", "test/kubernetes/go.mod", "test/kubernetes/helm/go.mod"} {
		for _, m := range requirement.FindAllStringSubmatch(mustRead(t, name), -1) {
			module, version := m[1], m[2]
			switch before := versions[module]; {
			case version == "v0.0.0":
			case before == "":
				versions[module], from[module] = version, name
			case before != version:
				t.Errorf("%s: %s %s, but %s in %s", name, module, version, before, from[module])
			default:
				shared++
			}
		}
	}
	if shared < 100 {
		t.Errorf("only %d common requirements", shared)
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
