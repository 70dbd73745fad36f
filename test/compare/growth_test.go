package main

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

func TestCurvesAreFitted(t *testing.T) {
	x := []float64{1000, 3000, 10000, 30000}
	linear, square, constant := make([]float64, 4), make([]float64, 4), []float64{5, 5, 5, 5}
	for i := range x {
		linear[i], square[i] = 7+0.5*x[i], x[i]*x[i]
	}
	near := func(name string, got, want, tolerance float64) {
		if math.Abs(got-want) > tolerance {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	near("slope of a line", slopeOf(x, linear), 0.5, 1e-9)
	near("exponent of a line", exponentOf(x, linear), 1, 0.01)
	near("exponent of a square", exponentOf(x, square), 2, 1e-9)
	near("exponent of a constant", exponentOf(x, constant), 0, 1e-9)
}

func TestGrowthTables(t *testing.T) {
	const values = "1 adopt-ms 30 change-us 100 commit-ms 3000 elements %ID first-ms 2 heap-MB 140 slow-us"
	var output strings.Builder
	for _, size := range []string{"1000x1+0*1 300", "3000x1+0*1 900", "10000x1+0*1 3000"} {
		name, first, _ := strings.Cut(size, " ")
		for range 3 {
			output.WriteString("BenchmarkGrowth/" + name + "-2 1 " + first + "000 ns/op " + strings.Replace(values, "%ID", first, 1) + "\n")
		}
	}
	for _, rate := range []string{"10", "100", "1000"} {
		output.WriteString("BenchmarkRate/" + rate + "-2 1 5 ns/op " + rate + " cpu-ms 10 syncs 5 lag-ms 7 slow-ms\n")
	}
	points, err := pointsOf(parse(strings.NewReader(output.String())))
	lab.Must(t, err)
	text := growthTables(points)
	for _, want := range []string{"### Services with one endpoint\n", "| 10000 | 3000 | 3000 | 100 |", "| each 1,000 Services more | +0.000 | +300 | +0.000 |", "| exponent | 0.00 | 1.00 |",
		"| 1000 | 1000.0 | 10.0 | 5.0 | 7.0 |", "| each 1,000 changes a second more | +1000 |"} {
		lab.Contains(t, text, "text", want)
	}
	if strings.Contains(text, "five endpoints") {
		t.Errorf("a curve without points:\n%s", text)
	}
	if _, err := pointsOf(parse(strings.NewReader("BenchmarkGrowth/1000x1+0*1-2 1 300 ns/op 1 adopt-ms"))); err == nil {
		t.Error("a point without all quantities is accepted")
	}
}

// TestGrowthPage proves that the page has the figures of the file. With -update, it writes the page.
func TestGrowthPage(t *testing.T) {
	var g growth
	b, err := os.ReadFile("../../" + growthFile)
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil || len(g.Points) < len(curves) {
		t.Fatalf("%d points: %v", len(g.Points), err)
	}
	const file = "../../docs/scale.md"
	if *update {
		lab.Must(t, page.Write(file, "growth", g.text()))
	}
	text, err := os.ReadFile(file)
	lab.Must(t, err)
	got, err := page.Part(string(text), "growth")
	if diff := cmp.Diff(g.text(), got); diff != "" || err != nil {
		t.Errorf("%v (-figures +page):\n%s", err, diff)
	}
}
