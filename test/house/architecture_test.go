package house

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

const architecture = "docs/architecture.md"

// mostSteps is the number of steps from an event to a commit that a reader can follow in one sitting.
const mostSteps = 15

var (
	walkStep = regexp.MustCompile(`(?m)^\d+\. `)
	function = regexp.MustCompile("`(pkg/[\\w/]+\\.go)`: `([\\w.]+)`")
)

// TestWalkNamesFunctions: each function in the list of steps from an event to its commit exists in the named file, and each step names one.
func TestWalkNamesFunctions(t *testing.T) {
	walk, err := page.Part(mustRead(t, architecture), "walk")
	lab.Must(t, err)
	defined := map[string]bool{}
	for _, s := range sources(t) {
		for _, decl := range s.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				name := f.Name.Name
				if f.Recv != nil {
					name = receiver(f) + "." + name
				}
				defined[s.name+" "+name] = true
			}
		}
	}
	steps := walkStep.Split(walk, -1)[1:]
	if len(steps) == 0 || len(steps) > mostSteps {
		t.Errorf("%d steps, want 1 to %d", len(steps), mostSteps)
	}
	for i, step := range steps {
		named := function.FindAllStringSubmatch(step, -1)
		if len(named) == 0 {
			t.Errorf("step %d names no function", i+1)
		}
		for _, m := range named {
			if !defined[m[1]+" "+m[2]] {
				t.Errorf("step %d: %s has no function %s", i+1, m[1], m[2])
			}
		}
	}
}

// TestArchitectureListsPackages: each package has one row in the tables.
func TestArchitectureListsPackages(t *testing.T) {
	rows := map[string]int{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(pkg/[\\w/]+)` \\|").FindAllStringSubmatch(mustRead(t, architecture), -1) {
		rows[m[1]]++
	}
	for _, s := range sources(t) {
		if dir := path.Dir(s.name); s.program() && strings.HasPrefix(dir, "pkg/") && rows[dir] != 1 {
			t.Errorf("%s has %d rows, want one", dir, rows[dir])
			rows[dir] = 1
		}
	}
}
