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

// TestPagesHaveTheFigures compares the figures of pages with docs/benchmarks.json and docs/benchmarks-packets.json.
func TestPagesHaveTheFigures(t *testing.T) {
	const root = "../.."
	var r, packets Report
	lab.Must(t, page.ReadJSON(filepath.Join(root, reportFile), &r))
	lab.Must(t, page.ReadJSON(filepath.Join(root, rulesetsFile), &packets))
	for _, s := range append(r.parts(), packets.packetParts()...) {
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

// TestConnectionsAreComparedRoundByRound: the table compares connections by a Service with direct ones of the same round. It has no ratio of runs at different
// times, and the ratio of packets takes the speed of the machine into account.
func TestConnectionsAreComparedRoundByRound(t *testing.T) {
	of := func(program string, service, direct []float64) *Figures {
		return &Figures{Program: program, Size: "1000x10", Values: map[quantity][]float64{
			newBare: {direct[0]}, "new connection, no Service: above no rules": {direct[2]},
			handshakeService50: service, handshakeDirect50: direct, requestsService: {90, 200, 270}, requestsDirect: {100, 200, 300},
		}}
	}
	r := Report{Figures: []*Figures{
		of(kubeProxyNftables, []float64{15e-6, 24e-6, 33e-6}, []float64{10e-6, 20e-6, 30e-6}),
		of(kubeNftproxy, []float64{22e-6, 88e-6, 42e-6}, []float64{20e-6, 80e-6, 40e-6}),
	}}
	text := r.page()
	for _, line := range []string{
		"| TCP handshake, by a Service: half of them | 24µs (15µs – 33µs) | 42µs (22µs – 88µs) | |",
		"| TCP handshake, by a Service, as a share of a direct one: half of them | 120.0 % | 110.0 % | |",
		"| HTTP requests by a Service, as a share of direct ones | 90.0 % | 90.0 % | |",
		"| new connection, no Service: above no rules | 30µs ± 0s | 40µs ± 0s | 1.50× |",
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the page lacks %q:\n%s", line, text)
		}
	}
}

func TestTwoDigits(t *testing.T) {
	for v, want := range map[float64]string{
		404.6: "400", 405.1: "410", 51.93: "52", 9.96: "10", 7: "7.0", 2.801: "2.8", 0.42571: "0.43", 0.0609: "0.061",
	} {
		lab.Same(t, want, twoDigits(v), "%v: twoDigits(v)", v)
	}
}
