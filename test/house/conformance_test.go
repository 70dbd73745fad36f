package house

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed is the number of tests in conformance.md, from Kubernetes v1.37.
const listed = 181

var (
	// row matches a line of a table: a test and its proof.
	row = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|$`)
	// named matches the name of a proof: a step of a scenario, or a test or subtest of a package.
	named      = regexp.MustCompile("`([^`]+)`")
	namedStep  = regexp.MustCompile(`^([a-z0-9-]+\.txtar):([0-9]+)$`)
	namedTest  = regexp.MustCompile(`^((?:pkg|test)/[a-z0-9/]+) (Test\w+)(?:/(.+))?$`)
	withoutOne = regexp.MustCompile(`^(not the proxy|open): .+`)
)

// TestConformanceListNamesExistingTests checks the list of Kubernetes' own tests.
func TestConformanceListNamesExistingTests(t *testing.T) {
	text := mustRead(t, "test/scenario/conformance.md")
	rows := slices.DeleteFunc(row.FindAllStringSubmatch(text, -1), func(r []string) bool { return r[1] == "test" })
	if len(rows) != listed {
		t.Errorf("%d tests are listed, want %d", len(rows), listed)
	}
	for _, r := range rows {
		proofs := 0
		for _, name := range named.FindAllStringSubmatch(r[2], -1) {
			found, err := exists(name[1])
			if err != nil {
				t.Errorf("%s: %v", r[1], err)
			}
			if found {
				proofs++
			}
		}
		if proofs == 0 && !withoutOne.MatchString(r[2]) {
			t.Errorf("%s: %q names no proof, and no reason", r[1], r[2])
		}
	}
}

// exists reports whether a name has the form of a proof, with an error if that proof does not exist.
func exists(name string) (bool, error) {
	if m := namedStep.FindStringSubmatch(name); m != nil {
		text, err := os.ReadFile(filepath.Join(root, "test/scenario/testdata", m[1]))
		if err == nil && !strings.Contains(string(text), "\n-- "+m[2]+".packets --\n") {
			err = fmt.Errorf("%s has no packets in step %s", m[1], m[2])
		}
		return true, err
	}
	m := namedTest.FindStringSubmatch(name)
	if m == nil {
		return false, nil
	}
	files, err := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
	if err != nil {
		return true, err
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return true, err
		}
		if strings.Contains(string(text), "func "+m[2]+"(") && (m[3] == "" || strings.Contains(string(text), `"`+m[3]+`"`)) {
			return true, nil
		}
	}
	return true, fmt.Errorf("%s is no test of %s", strings.TrimPrefix(name, m[1]+" "), m[1])
}

func TestConformanceListRefusesUnknownTests(t *testing.T) {
	for name, want := range map[string]bool{
		"scaling.txtar:1": true, "scaling.txtar:99": false, "no-such-file.txtar:1": false,
		"test/e2e TestConformance/urls": true, "test/e2e TestConformance/nothing": false, "pkg/apply TestNothing": false,
	} {
		found, err := exists(name)
		if !found || (err == nil) != want {
			t.Errorf("exists(%q) = %v, %v", name, found, err)
		}
	}
}
