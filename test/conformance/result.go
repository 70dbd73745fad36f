package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// The states of a test.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
)

// Test is the result of a test.
type Test struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Seconds int    `json:"seconds"`
	// Again says that it passed only when it was run once more, alone.
	Again bool `json:"again,omitempty"`
	// Message is why it has failed, the first time if there are two, or why it was skipped.
	Message string `json:"message,omitempty"`
}

// Excluded is a test that was not run.
type Excluded struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Run is the results of one proxy.
type Run struct {
	Kubernetes   string     `json:"kubernetes"`
	Proxy        string     `json:"proxy"`
	ProxyVersion string     `json:"proxyVersion"`
	Nodes        int        `json:"nodes"`
	Kernel       string     `json:"kernel"`
	Minutes      int        `json:"minutes"`
	Tests        []Test     `json:"tests"`
	Excluded     []Excluded `json:"excluded"`
}

// names returns the names of tests with a state.
func (r *Run) names(status string) (names []string) {
	for _, t := range r.Tests {
		if t.Status == status {
			names = append(names, t.Name)
		}
	}
	return names
}

// again returns the names of tests that passed only when run once more.
func (r *Run) again() (names []string) {
	for _, t := range r.Tests {
		if t.Again {
			names = append(names, t.Name)
		}
	}
	return names
}

// retry takes over the results of tests that have run once more. A test that passes keeps the message of its failure.
func (r *Run) retry(tests []Test) {
	for _, again := range tests {
		for i := range r.Tests {
			if t := &r.Tests[i]; t.Name == again.Name && t.Status == failed && again.Status == passed {
				t.Status, t.Seconds, t.Again = passed, again.Seconds, true
			}
		}
	}
}

// summary is for a terminal.
func (r *Run) summary() string {
	var b strings.Builder
	for _, status := range []string{failed, skipped} {
		for _, t := range r.Tests {
			if t.Status == status {
				fmt.Fprintf(&b, "%s: %s: %s\n", status, t.Name, t.Message)
			}
		}
	}
	for _, name := range r.again() {
		fmt.Fprintf(&b, "passed when run once more: %s\n", name)
	}
	fmt.Fprintf(&b, "%s %s, %d nodes: %s\n", r.Kubernetes, r.ProxyVersion, r.Nodes, r.counts())
	return b.String()
}

func (r *Run) counts() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped, in %d minutes", len(r.names(passed)), len(r.names(failed)), len(r.names(skipped)), r.Minutes)
}

// failure is an error if a test has failed.
func (r *Run) failure() error {
	if n := len(r.names(failed)); n > 0 {
		return fmt.Errorf("%s: %d tests failed", r.Proxy, n)
	}
	return nil
}

// folder returns the folder for a run below that of all runs.
func (r *Run) folder(results string) string {
	return filepath.Join(results, fmt.Sprintf("%s-%s-%d-nodes", r.Kubernetes, r.Proxy, r.Nodes))
}

// save writes the results into results.json of the run's folder.
func (r *Run) save(results string) error {
	folder := r.folder(results)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return page.WriteJSON(filepath.Join(folder, "results.json"), r)
}

// published are the results of all runs in a checkout.
var published = page.Results[Run]{File: "docs/conformance.json", Page: "docs/conformance.md", Part: "results", Tables: tables}

// publish writes a run's results into a checkout, in place of those of the same release, proxy and number of nodes. A part of a run
// replaces only the results of its tests.
func publish(root string, run Run, part bool) error {
	return published.Publish(root, func(runs []Run) []Run {
		if part {
			run = merge(runs, run)
		}
		return replace(runs, run)
	})
}

// same reports whether two runs are of the same release, proxy and number of nodes.
func same(a, b Run) bool {
	return a.Kubernetes == b.Kubernetes && a.Proxy == b.Proxy && a.Nodes == b.Nodes
}

// merge returns the run of which a part was run once more, with the results of that part.
func merge(runs []Run, part Run) Run {
	i := slices.IndexFunc(runs, func(r Run) bool { return same(r, part) && r.ProxyVersion == part.ProxyVersion })
	if i < 0 {
		return part
	}
	whole := runs[i]
	whole.Tests = slices.Clone(whole.Tests)
	for _, t := range part.Tests {
		if at := slices.IndexFunc(whole.Tests, func(old Test) bool { return old.Name == t.Name }); at >= 0 {
			whole.Tests[at] = t
		} else {
			whole.Tests = append(whole.Tests, t)
		}
	}
	return whole
}

// replace returns the runs in their order on the page: newest release first, fewest nodes first, kube-nftproxy last.
func replace(runs []Run, run Run) []Run {
	runs = append(slices.DeleteFunc(runs, func(r Run) bool { return same(r, run) }), run)
	slices.SortFunc(runs, func(a, b Run) int {
		if c := strings.Compare(b.Kubernetes, a.Kubernetes); c != 0 {
			return c
		}
		if a.Nodes != b.Nodes {
			return a.Nodes - b.Nodes
		}
		return strings.Compare(b.Proxy, a.Proxy)
	})
	return runs
}

// tables returns the page's part: one table for all runs, and all failures and skipped tests with their reasons.
func tables(runs []Run) string {
	var b strings.Builder
	b.WriteString("| Kubernetes | proxy | nodes | passed | failed | skipped | minutes | kernel |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range runs {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %s |\n", r.Kubernetes, r.ProxyVersion, r.Nodes,
			len(r.names(passed)), len(r.names(failed)), len(r.names(skipped)), r.Minutes, r.Kernel)
	}
	for _, r := range runs {
		var lines []string
		for _, t := range r.Tests {
			switch {
			case t.Status == failed:
				lines = append(lines, fmt.Sprintf("- failed: %s: %s\n", escape(t.Name), escape(t.Message)))
			case t.Again:
				lines = append(lines, fmt.Sprintf("- passed when run once more, alone: %s: %s\n", escape(t.Name), escape(t.Message)))
			case t.Status == skipped:
				lines = append(lines, fmt.Sprintf("- skipped by itself: %s: %s\n", escape(t.Name), escape(t.Message)))
			}
		}
		if len(lines) > 0 {
			slices.Sort(lines)
			fmt.Fprintf(&b, "\n%s with Kubernetes %s on %d nodes:\n\n%s", r.ProxyVersion, r.Kubernetes, r.Nodes, strings.Join(lines, ""))
		}
	}
	reasons := map[string][]string{}
	for _, r := range runs {
		for _, x := range r.Excluded {
			// Releases order a test's labels differently. The newest release is first.
			if !slices.ContainsFunc(reasons[x.Reason], func(name string) bool { return sameWords(name, x.Name) }) {
				reasons[x.Reason] = append(reasons[x.Reason], x.Name)
			}
		}
	}
	if len(reasons) > 0 {
		b.WriteString("\nNot run:\n\n| test | reason |\n|---|---|\n")
		for _, u := range unusable {
			slices.Sort(reasons[u.reason])
			for _, name := range reasons[u.reason] {
				fmt.Fprintf(&b, "| %s | %s |\n", escape(name), u.reason)
			}
		}
	}
	return b.String()
}

// sameWords reports whether two names consist of the same words, in any order.
func sameWords(a, b string) bool {
	return slices.Equal(slices.Sorted(strings.FieldsSeq(a)), slices.Sorted(strings.FieldsSeq(b)))
}

// escape makes text that Markdown shows as it is, in a table and elsewhere.
func escape(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "[", `\[`, "*", `\*`, "_", `\_`).Replace(text)
}
