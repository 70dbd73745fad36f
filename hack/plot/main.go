// Command plot draws the plots of docs/benchmarks.md from docs/benchmarks.json, which test/compare writes.
//
// In: the root of the checkout. Out: docs/plots/*. Never: a figure that is not in the files.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// figures are the measurements of one program at one size, see test/compare.
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

// chart is a plot of one quantity.
type chart struct {
	file, quantity, title string
	unit                  func(float64) string
}

var charts = []chart{
	{"change.svg", "one endpoint replaced", "Time to replace one endpoint", seconds},
	{"first-sync.svg", "first sync", "Time of the first sync", seconds},
	{"memory.svg", "memory at rest, PSS", "Memory at rest", func(v float64) string { return short(v) + " MiB" }},
}

// programs are the classes of lines in style, in the order of the legend.
var programs = []string{"kube-proxy iptables", "kube-proxy nftables", "kube-nftproxy"}

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
	for _, c := range charts {
		if err := os.WriteFile(filepath.Join(root, "docs/plots", c.file), c.draw(report.Figures), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// point is a median at a number of Services.
type point struct{ services, value float64 }

// points returns the medians of a program. All sizes have the same number of endpoints for each Service, because a line
// through clusters of other shapes has no meaning.
func points(all []figures, program, quantity string) (list []point) {
	for _, f := range all {
		services, sameShape := strings.CutSuffix(f.Size, "x10")
		n, err := strconv.ParseFloat(services, 64)
		values := slices.Sorted(slices.Values(f.Values[quantity]))
		if sameShape && err == nil && f.Program == program && len(values) > 0 {
			list = append(list, point{n, values[len(values)/2]})
		}
	}
	slices.SortFunc(list, func(a, b point) int { return int(a.services - b.services) })
	return list
}

// The size of a plot, and the area of its axes.
const (
	width, height            = 640, 400
	left, right, top, bottom = 104, 616, 96, 330
	margin                   = 48 // between the end of the axis and a point, for its value
)

// style has the colours for light and dark pages, by the index in programs.
const style = `text{font:18px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600;font-size:20px}.n{font-size:16px}
.g{stroke:#d1d9e0}.bg{fill:#fff}.l{fill:none;stroke-width:3}.c0{stroke:#6e7781;fill:#6e7781}
.c1{stroke:#bc4c00;fill:#bc4c00}.c2{stroke:#0969da;fill:#0969da}.l.c0,.l.c1{stroke-dasharray:8 5}
.l.c0,.l.c1,.l.c2{fill:none}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.bg{fill:#0d1117}.g{stroke:#3d444d}.c0{stroke:#9198a1;fill:#9198a1}
.c1{stroke:#f0883e;fill:#f0883e}.c2{stroke:#58a6ff;fill:#58a6ff}}`

// draw returns the plot as SVG. Both axes are logarithmic. The legend is above them.
func (c *chart) draw(all []figures) []byte {
	lines := make([][]point, len(programs))
	x, y := scale{from: left + margin, to: right - margin}, scale{from: bottom, to: top}
	for i, program := range programs {
		lines[i] = points(all, program, c.quantity)
		for _, p := range lines[i] {
			x.include(p.services)
			y.include(p.value)
		}
	}
	y.least, y.most = math.Pow(10, math.Floor(math.Log10(y.least))), math.Pow(10, math.Ceil(math.Log10(y.most)))
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img"><title>%s</title>
<style>%s</style>
<rect class="bg" width="100%%" height="100%%"/><text class="t" x="16" y="30">%s, medians</text>
`, width, height, c.title, style, c.title)
	for v := y.least; v <= y.most*1.01; v *= 10 {
		fmt.Fprintf(&b, `<path class="g" d="M%d %.0fH%d"/>`, left, y.at(v), right)
		fmt.Fprintf(&b, `<text x="%d" y="%.0f" text-anchor="end">%s</text>
`, left-10, y.at(v)+5, c.unit(v))
	}
	for _, services := range services(lines) {
		fmt.Fprintf(&b, `<text x="%.0f" y="%d" text-anchor="middle">%s</text>
`, x.at(services), bottom+26, thousands(services))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">Services, each with 10 endpoints</text>
`, (left+right)/2, bottom+52)
	legend := 16
	for i, list := range lines {
		if len(list) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<path class="l c%d" d="M%d 60h24"/><text x="%d" y="66">%s</text>
`, i, legend, legend+30, programs[i])
		legend += 212
		var path []string
		for _, p := range list {
			at, height := x.at(p.services), y.at(p.value)
			path = append(path, fmt.Sprintf("%.1f %.1f", at, height))
			fmt.Fprintf(&b, `<circle class="c%d" cx="%.1f" cy="%.1f" r="5"/>`, i, at, height)
			fmt.Fprintf(&b, `<text class="n" x="%.1f" y="%.1f" text-anchor="middle">%s</text>
`, at, height-12, c.unit(p.value))
		}
		fmt.Fprintf(&b, `<path class="l c%d" d="M%s"/>
`, i, strings.Join(path, "L"))
	}
	return append(b.Bytes(), "</svg>\n"...)
}

// services returns the numbers of Services of all points, each once.
func services(lines [][]point) (list []float64) {
	for _, p := range slices.Concat(lines...) {
		list = append(list, p.services)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func thousands(v float64) string { return fmt.Sprintf("%.0f,000", v/1000) }

// scale maps values to a logarithmic axis.
type scale struct{ from, to, least, most float64 }

func (s *scale) include(v float64) {
	if s.least == 0 {
		s.least, s.most = v, v
	}
	s.least, s.most = min(s.least, v), max(s.most, v)
}

func (s *scale) at(v float64) float64 {
	return s.from + (s.to-s.from)*math.Log(v/s.least)/math.Log(s.most/s.least)
}

// seconds returns a duration with its unit.
func seconds(v float64) string {
	if v < 1 {
		return short(v*1000) + " ms"
	}
	return short(v) + " s"
}

// short returns a number with two significant digits, or as an integer.
func short(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
