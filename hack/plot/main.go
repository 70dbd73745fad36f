// Command plot draws the plots of docs/benchmarks.md from docs/benchmarks.json, which test/compare writes.
//
// In: the root of the checkout. Out: docs/plots/*. Never: a figure that isn't in the files.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// figures are what one program measured at one size, see test/compare.
type figures struct {
	Program string               `json:"program"`
	Size    string               `json:"size"`
	Values  map[string][]float64 `json:"values"`
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := benchmarks(root); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// benchmarks draws the plots of docs/benchmarks.md.
func benchmarks(root string) error {
	b, err := os.ReadFile(filepath.Join(root, "docs/benchmarks.json"))
	if err != nil {
		return err
	}
	var report struct {
		Figures []figures `json:"figures"`
	}
	if err := json.Unmarshal(b, &report); err != nil {
		return err
	}
	out := filepath.Join(root, "docs/plots")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for file, what := range map[string]string{
		"change.svg": "one endpoint replaced", "first-sync.svg": "first sync", "memory.svg": "memory at rest, PSS",
	} {
		if err := bySize(report.Figures, what, filepath.Join(out, file)); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// bySize draws a quantity of every program over the number of endpoints, both on logarithmic scales.
func bySize(all []figures, what, file string) error {
	p := plot.New()
	p.Title.Text = what + ", medians"
	p.X.Label.Text = "endpoints in the cluster"
	p.Y.Label.Text = unit(what)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	lines := map[string]plotter.XYs{}
	for _, f := range all {
		if list := f.Values[what]; len(list) > 0 {
			lines[f.Program] = append(lines[f.Program], plotter.XY{X: endpoints(f.Size), Y: median(list)})
		}
	}
	for i, name := range []string{"kube-proxy iptables", "kube-proxy nftables", "kube-nftproxy"} {
		points := lines[name]
		if len(points) == 0 {
			continue
		}
		slices.SortFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) })
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dots.Color, dots.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
		p.Add(line, dots)
		p.Legend.Add(name, line, dots)
	}
	return p.Save(16*vg.Centimeter, 9*vg.Centimeter, file)
}

// endpoints is the number of endpoints of a size like 1000x10.
func endpoints(size string) float64 {
	a, b, _ := strings.Cut(size, "x")
	services, _ := strconv.ParseFloat(a, 64)
	each, _ := strconv.ParseFloat(b, 64)
	return services * each
}

func unit(what string) string {
	if strings.Contains(what, "memory") {
		return "MiB"
	}
	return "seconds"
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
