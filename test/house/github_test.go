package house

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestGitHubFiles reads the forms and workflows for GitHub. All their steps run .ci/run, apt-get, git or an existing target of make.
// Actions have the hash of a commit.
func TestGitHubFiles(t *testing.T) {
	pinned := regexp.MustCompile(`^[a-z-]+/[a-z/-]+@[0-9a-f]{40}$`)
	makefile, ci, forms := mustRead(t, "Makefile"), 0, 0
	for _, name := range files(t) {
		if ext := path.Ext(name); !strings.HasPrefix(name, ".github/") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		var file struct {
			Name, Description string
			Body              []struct {
				Type       string         `json:"type"`
				Attributes map[string]any `json:"attributes"`
			}
			Jobs map[string]struct {
				Steps []struct{ Run, Uses string }
			}
		}
		lab.Check(t, yaml.Unmarshal([]byte(mustRead(t, name)), &file), "%s", name)
		if len(file.Body) > 0 {
			forms++
			if file.Name == "" || file.Description == "" {
				t.Errorf("%s: no name or no description", name)
			}
		}
		for job, j := range file.Jobs {
			for _, step := range j.Steps {
				target := regexp.MustCompile(`^make ([a-z-]+)`).FindStringSubmatch(step.Run)
				switch {
				case step.Run == ".ci/run":
					ci++
				case step.Uses != "" && !pinned.MatchString(step.Uses):
					t.Errorf("%s, job %s: %q has no commit: a tag can be moved", name, job, step.Uses)
				case step.Uses != "", strings.HasPrefix(step.Run, "apt-get "), strings.HasPrefix(step.Run, "git "):
				case target == nil || !strings.Contains(makefile, "\n"+target[1]+": "):
					t.Errorf("%s, job %s: %q is no target of make", name, job, step.Run)
				}
			}
		}
	}
	if ci != 1 || forms != 2 {
		t.Errorf("%d jobs run .ci/run, want 1; %d forms, want 2", ci, forms)
	}
}
