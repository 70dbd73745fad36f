package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// healthy returns a report with each ratio at twice its bound.
func healthy() (r *Report, theirs, ours *Figures) {
	theirs = &Figures{Program: kubeProxyNftables, Size: checkSize.String(), Values: map[quantity][]float64{}}
	ours = &Figures{Program: kubeNftproxy, Size: checkSize.String(), Values: map[quantity][]float64{bareBatch: {1}}}
	for _, b := range bounds {
		if q := quantity(b.name); b.name != bareShareName {
			ours.Values[q] = []float64{1}
			theirs.Values[q] = []float64{2 * b.least}
		}
	}
	// At another size, values are not checked, even if all are bad.
	other := &Figures{Program: kubeProxyNftables, Size: "10x1", Values: map[quantity][]float64{}}
	return &Report{Figures: []*Figures{other, theirs, ours}}, theirs, ours
}

func TestCheckPasses(t *testing.T) {
	r, _, _ := healthy()
	var out bytes.Buffer
	if err := r.check(&out, ""); err != nil {
		t.Errorf("check: %v\n%s", err, out.String())
	}
	if lines := strings.Count(out.String(), "pass "); lines != len(bounds) {
		t.Errorf("%d lines say pass, want %d:\n%s", lines, len(bounds), out.String())
	}
}

// TestCheckFails breaks each bound by itself: by a value below it, and by a missing value.
func TestCheckFails(t *testing.T) {
	for _, b := range bounds {
		t.Run(b.name, func(t *testing.T) {
			r, theirs, ours := healthy()
			values, q := theirs.Values, quantity(b.name)
			if b.name == bareShareName {
				values, q = ours.Values, bareBatch
			}
			values[q] = []float64{0.99 * b.least}
			mustFail(t, r, b, b.why)
			delete(values, q)
			mustFail(t, r, b, "was not measured")
		})
	}
}

// mustFail expects one failed bound, with its reason.
func mustFail(t *testing.T, r *Report, b bound, why string) {
	t.Helper()
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "outcomes")
	if err := r.check(&out, file); err == nil || !strings.Contains(err.Error(), "1 of ") {
		t.Errorf("check: %v, want an error that counts 1", err)
	}
	lines := slices.DeleteFunc(strings.Split(out.String(), "\n"), func(s string) bool { return !strings.HasPrefix(s, "fail") })
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "fail "+b.name+": ") || !strings.Contains(lines[0], why) {
		t.Errorf("lines that fail: %q, want one of %q with %q", lines, b.name, why)
	}
	lab.Same(t, []string{strings.ReplaceAll(b.name, " ", "_")}, failedIn(t, file), "outcomes that failed")
}

// failedIn returns the failed bounds in a file of outcomes.
func failedIn(t *testing.T, file string) (failed []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	lab.Must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lab.Same(t, len(bounds), len(lines), "outcomes")
	for _, line := range lines {
		var e struct{ Action, Package, Test string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Package == "" {
			t.Fatalf("outcome %q: %v", line, err)
		}
		if e.Action == "fail" {
			failed = append(failed, e.Test)
		}
	}
	return failed
}

// TestCheckOfSingleChanges expects that most of a program's short syncs may have waited for a processor.
func TestCheckOfSingleChanges(t *testing.T) {
	r, _, ours := healthy()
	for _, q := range []quantity{replaceEndpoint, addEndpoint, flipPolicy, addService, deleteService, followEndpoint} {
		ours.Values[q] = []float64{100, 1, 100}
	}
	if err := r.check(&bytes.Buffer{}, ""); err != nil {
		t.Error(err)
	}
}

// TestCheckOfNothing checks a report without measurements.
func TestCheckOfNothing(t *testing.T) {
	if err := (&Report{}).check(&bytes.Buffer{}, ""); err == nil {
		t.Error("check of an empty report = nil, want an error")
	}
}
