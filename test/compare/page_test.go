package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
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

// TestConnectionsAreComparedRoundByRound: the table compares connections by a Service with direct ones of the same round, and never with those of a run at
// another time.
func TestConnectionsAreComparedRoundByRound(t *testing.T) {
	of := func(program string, service, direct []float64) *Figures {
		return &Figures{Program: program, Size: "1000x10", Values: map[quantity][]float64{
			handshakeService50: service, handshakeDirect50: direct, requestsService: {90, 200, 270}, requestsDirect: {100, 200, 300},
		}}
	}
	r := Report{Figures: []*Figures{
		of(kubeProxyNftables, []float64{14e-6, 24e-6, 34e-6}, []float64{10e-6, 20e-6, 30e-6}),
		of(kubeNftproxy, []float64{12e-6, 44e-6, 21e-6}, []float64{10e-6, 40e-6, 20e-6}),
	}}
	text := r.page()
	for _, line := range []string{
		"| TCP handshake, by a Service: half of them | 24µs (14µs – 34µs) | 21µs (12µs – 44µs) | |",
		"| TCP handshake, by a Service, above a direct one: half of them | 4µs | 2µs | 2.00× |",
		"| HTTP requests by a Service, of those without a Service | 90.0 % | 90.0 % | |",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the page lacks %q:\n%s", line, text)
		}
	}
}
