package house

import (
	"regexp"
	"slices"
	"testing"
)

// TestFindingsPageHasAllReasons compares docs/findings.md with the reasons that the program declares, and requires that the program uses each.
func TestFindingsPageHasAllReasons(t *testing.T) {
	var declared, described []string
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ +Reason = "(\w+)"$`).FindAllStringSubmatch(mustRead(t, "pkg/view/finding.go"), -1) {
		declared = append(declared, m[1])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (wrong|warning|note)").FindAllStringSubmatch(mustRead(t, "docs/findings.md"), -1) {
		described = append(described, m[1])
	}
	slices.Sort(declared)
	slices.Sort(described)
	if len(declared) < 45 || !slices.Equal(declared, described) {
		t.Errorf("docs/findings.md describes %q, the program declares %q", described, declared)
	}
	used := map[string]bool{}
	reason := regexp.MustCompile(`\bview\.(\w+)|\b(?:NewFinding|Add)\(\w+, (\w+)`)
	for _, s := range sources(t) {
		if s.test() || s.name == "pkg/view/finding.go" {
			continue
		}
		for _, m := range reason.FindAllStringSubmatch(mustRead(t, s.name), -1) {
			used[m[1]], used[m[2]] = true, true
		}
	}
	for _, r := range declared {
		if !used[r] {
			t.Errorf("no part of the program uses the reason %s", r)
		}
	}
}
