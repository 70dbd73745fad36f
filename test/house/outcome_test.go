package house

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/outcome"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestPagesHaveTheOutcomes compares the tables of outcomes in pages with the rows of pkg/outcome. TestPage
// (pkg/beside/metrics) compares docs/metrics.md.
func TestPagesHaveTheOutcomes(t *testing.T) {
	var counters, actions strings.Builder
	counters.WriteString("| Elements | Label `reason` | Connections are |\n|---|---|---|\n")
	actions.WriteString("| Reason | Action |\n|---|---|\n")
	for _, row := range outcome.Rows {
		label := "`" + row.Label + "`"
		if row.Label == "" {
			label = "none"
		}
		if row.Counted != "" {
			fmt.Fprintf(&counters, "| %s | %s | %s |\n", row.Counted, label, answer(row))
		}
		if row.Action != "" {
			fmt.Fprintf(&actions, "| %s | %s |\n", label, row.Action)
		}
	}
	checkPart(t, "docs/maps.md", "outcomes", counters.String())
	checkPart(t, "docs/runbooks.md", "outcomes", actions.String())
}

// TestAlertIgnoresOutcomes: the expression of the alert KubeNftproxyConnectionsRefused ignores the outcomes for which
// its section in docs/runbooks.md has no action.
func TestAlertIgnoresOutcomes(t *testing.T) {
	var ignored []string
	for _, row := range outcome.Rows {
		if row.Label != "" && row.Action == "" {
			ignored = append(ignored, row.Label)
		}
	}
	const rules = "deploy/monitoring/rules.yaml"
	counter := regexp.MustCompile(`kubenftproxy_refused_total{reason!~"[^"]*"}`)
	text := mustRead(t, rules)
	want := counter.ReplaceAllLiteralString(text,
		fmt.Sprintf("kubenftproxy_refused_total{reason!~%q}", strings.Join(ignored, "|")))
	if *update {
		lab.Must(t, os.WriteFile(filepath.Join(root, rules), []byte(want), 0o644))
		text = mustRead(t, rules)
	}
	lab.Same(t, want, text, "%s has other outcomes; run make update", rules)
	if !counter.MatchString(text) {
		t.Errorf("%s has no alert that ignores outcomes", rules)
	}
}

// TestOutcomesAreNamedOnce: only pkg/outcome spells the reason and the label of an outcome, so no other part of the
// program has a list of them. The set held has the name of a label.
func TestOutcomesAreNamedOnce(t *testing.T) {
	for _, name := range files(t) {
		program := strings.HasPrefix(name, "pkg/") && slices.Contains([]string{".go", ".js"}, path.Ext(name))
		if !program || strings.HasPrefix(name, "pkg/outcome/") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text := mustRead(t, name)
		for _, row := range outcome.Rows {
			for _, word := range []string{row.Reason, row.Label} {
				if word != "" && word != plan.HeldSet && strings.Contains(text, `"`+word+`"`) {
					t.Errorf("%s spells %q", name, word)
				}
			}
		}
	}
}

// answer describes the effect of an outcome on the client.
func answer(row outcome.Row) string {
	switch {
	case row.Refuses && row.Drops:
		return "refused or dropped"
	case row.Refuses:
		return "refused"
	case row.Drops:
		return "dropped"
	}
	return "forwarded"
}
