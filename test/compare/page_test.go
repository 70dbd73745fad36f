package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

var update = flag.Bool("update", false, "rewrite the figures of pages from docs/benchmarks.json")

// TestPagesHaveTheFigures compares the figures of pages with docs/benchmarks.json.
func TestPagesHaveTheFigures(t *testing.T) {
	const root = "../.."
	var r Report
	lab.Must(t, readJSON(filepath.Join(root, reportFile), &r))
	for _, s := range r.parts() {
		file := filepath.Join(root, s.page)
		if *update {
			lab.Must(t, page.Write(file, s.name, s.text))
		}
		text, err := os.ReadFile(file)
		lab.Must(t, err)
		got, err := page.Part(string(text), s.name)
		if diff := cmp.Diff(s.text, got); diff != "" || err != nil {
			t.Errorf("%s: %v; run make update (-want +got):\n%s", s.page, err, diff)
		}
	}
}
