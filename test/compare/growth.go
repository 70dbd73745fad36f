package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// point is the median of each quantity of BenchmarkGrowth at one size of the cluster, or of BenchmarkRate at one rate of changes.
type point struct {
	// Services have Endpoints and Frontends each. If Large is not 0, a further Service has this number of endpoints, and the changes are its
	// changes.
	Services, Endpoints, Frontends, Large int
	// Rate is the number of changes a second of BenchmarkRate, 0 for BenchmarkGrowth.
	Rate   int
	Values map[string]float64
}

// curve is a series of points in which one number grows.
type curve struct {
	// title names the curve, and counted the things whose number grows.
	title, counted string
	columns        []column
	of             func(point) bool
	x              func(point) float64
}

var curves = []curve{
	{"Services with one endpoint", "Services", growthColumns, func(p point) bool { return p.Endpoints == 1 && p.Frontends == 1 && p.Large == 0 }, services},
	{"Services with five endpoints", "Services", growthColumns, func(p point) bool { return p.Endpoints == 5 && p.Large == 0 }, services},
	{"1,000 Services with more endpoints each", "endpoints", growthColumns,
		func(p point) bool { return p.Services == 1_000 && p.Endpoints >= 10 }, func(p point) float64 { return float64(p.Services * p.Endpoints) }},
	{"1,000 Services with more frontends each", "frontends", growthColumns,
		func(p point) bool { return p.Services == 1_000 && p.Endpoints == 1 && p.Large == 0 }, func(p point) float64 { return float64(p.Services * p.Frontends) }},
	{"one large Service beside 1,000 small ones", "endpoints", growthColumns, func(p point) bool { return p.Large > 0 }, func(p point) float64 { return float64(p.Large) }},
	{"changes a second of 10,000 Services with 10 endpoints", "changes a second", rateColumns,
		func(p point) bool { return p.Rate > 0 }, func(p point) float64 { return float64(p.Rate) }},
}

func services(p point) float64 { return float64(p.Services) }

// column is a quantity of a benchmark with its title, and whether it grows with the size.
type column struct {
	quantity, title string
	format          string
	grows           bool
}

// growthColumns are the quantities of BenchmarkGrowth, rateColumns those of BenchmarkRate.
var growthColumns = []column{
	{"elements", "elements", "%.0f", true},
	{"first-ms", "first sync, ms", "%.0f", true},
	{"commit-ms", "of this the kernel, ms", "%.0f", true},
	{"heap-MB", "memory in use, MB", "%.1f", true},
	{"adopt-ms", "adoption, ms", "%.1f", true},
	{"change-us", "a change, µs", "%.0f", true},
	{"slow-us", "99 of 100 changes, µs", "%.0f", false},
}

var rateColumns = []column{
	{"cpu-ms", "processor time in a second, ms", "%.1f", true},
	{"syncs", "syncs in a second", "%.1f", true},
	{"lag-ms", "from a change to its commit, ms", "%.1f", true},
	{"slow-ms", "99 of 100 changes, ms", "%.1f", false},
}

// growth is the content of [growthFile].
type growth struct {
	Machine string
	Points  []point
}

// text returns the generated part of docs/scale.md.
func (g growth) text() string { return g.Machine + "\n" + growthTables(g.Points) }

// growthFile is the file of a checkout with the raw figures.
const growthFile = "docs/growth.json"

// measureGrowth measures how the cost grows with the size of the cluster, and prints the tables. With an output, it also writes the raw
// figures and the tables of docs/scale.md.
func measureGrowth(s settings) error {
	r, err := bench("^Benchmark(Growth|Rate)$", "./pkg/proxy", "-benchtime", "1x", "-count", "3")
	if err != nil {
		return err
	}
	points, err := pointsOf(r)
	if err != nil {
		return err
	}
	g := growth{fmt.Sprintf("Linux %s, %d processors, %s; medians of three.", kernel(), runtime.NumCPU(), runtime.Version()), points}
	fmt.Print(g.text())
	if s.output == "" {
		return nil
	}
	b, err := json.MarshalIndent(g, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.output, growthFile), append(b, '\n'), 0o644); err != nil {
		return err
	}
	return page.Write(filepath.Join(s.output, "docs/scale.md"), "growth", g.text())
}

// pointsOf returns the points of the results, in the order of their sizes.
func pointsOf(r results) (list []point, err error) {
	for name, values := range r {
		p := point{Values: map[string]float64{}}
		columns := growthColumns
		benchmark, size, _ := strings.Cut(name, "/")
		switch benchmark {
		case "Growth":
			_, err = fmt.Sscanf(size, "%dx%d+%d*%d", &p.Services, &p.Endpoints, &p.Large, &p.Frontends)
		case "Rate":
			_, err = fmt.Sscan(size, &p.Rate)
			columns = rateColumns
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("size %q: %w", name, err)
		}
		for _, c := range columns {
			if len(values[c.quantity]) == 0 {
				return nil, fmt.Errorf("size %q: no %s", name, c.quantity)
			}
			p.Values[c.quantity] = quantileOf(values[c.quantity], 0.5)
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b point) int {
		return slices.Compare([]int{a.Rate, a.Large, a.Endpoints, a.Frontends, a.Services}, []int{b.Rate, b.Large, b.Endpoints, b.Frontends, b.Services})
	})
	return list, nil
}

// growthTables returns a table for each curve: its points, and the lines that fit them.
func growthTables(all []point) string {
	var b strings.Builder
	for _, c := range curves {
		var points []point
		for _, p := range all {
			if c.of(p) {
				points = append(points, p)
			}
		}
		if len(points) < 3 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n| %s |", strings.ToUpper(c.title[:1])+c.title[1:], c.counted)
		for _, column := range c.columns {
			fmt.Fprintf(&b, " %s |", column.title)
		}
		b.WriteString("\n|---|" + strings.Repeat("---|", len(c.columns)) + "\n")
		for _, p := range points {
			fmt.Fprintf(&b, "| %.0f |", c.x(p))
			for _, column := range c.columns {
				fmt.Fprintf(&b, " "+column.format+" |", p.Values[column.quantity])
			}
			b.WriteString("\n")
		}
		slope, exponent := "| each 1,000 "+c.counted+" more |", "| exponent |"
		for _, column := range c.columns {
			x, y := c.series(points, column.quantity)
			if !column.grows {
				slope, exponent = slope+" |", exponent+" |"
				continue
			}
			slope += fmt.Sprintf(" %+.*f |", decimals(1000*slopeOf(x, y)), 1000*slopeOf(x, y))
			exponent += fmt.Sprintf(" %.2f |", exponentOf(x, y))
		}
		b.WriteString(slope + "\n" + exponent + "\n")
	}
	return b.String()
}

// decimals returns the number of digits after the point with which a number has three significant digits, at most three.
func decimals(v float64) int {
	n := 0
	for v = math.Abs(v); v < 100 && n < 3; v *= 10 {
		n++
	}
	return n
}

func (c curve) series(points []point, quantity string) (x, y []float64) {
	for _, p := range points {
		x, y = append(x, c.x(p)), append(y, p.Values[quantity])
	}
	return x, y
}

// slopeOf returns the slope of the straight line with the least sum of squared distances from the points.
func slopeOf(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	n := float64(len(x))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// exponentOf returns the exponent with which y grows with x, from the larger half of the points: 1 is proportional, 0 is constant.
func exponentOf(x, y []float64) float64 {
	var lx, ly []float64
	for i := len(x) / 2; i < len(x); i++ {
		lx, ly = append(lx, math.Log(x[i])), append(ly, math.Log(max(y[i], 1e-9)))
	}
	return slopeOf(lx, ly)
}
