package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

var update = flag.Bool("update", false, "rewrite the figures of pages from docs/benchmarks.json")

// TestPagesHaveTheFigures compares the figures of pages with docs/benchmarks.json.
func TestPagesHaveTheFigures(t *testing.T) {
	const root = "../.."
	var r Report
	if err := readJSON(filepath.Join(root, reportFile), &r); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.parts() {
		file := filepath.Join(root, s.page)
		if *update {
			if err := page.Write(file, s.name, s.text); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := page.Part(string(text), s.name)
		if diff := cmp.Diff(s.text, got); diff != "" || err != nil {
			t.Errorf("%s: %v; run make update (-want +got):\n%s", s.page, err, diff)
		}
	}
}
