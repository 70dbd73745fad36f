package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// page returns the whole report in Markdown, one table for each size.
func (r *Report) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s, %d processors, %s; kube-proxy %s; a real API server; IPv4, unless a title says IPv6. Medians; in brackets the least\nand the greatest value, or with 20 values and more the 99th percentile.\n",
		r.Kernel, r.CPUs, r.Go, r.Versions)
	for _, z := range r.sizes() {
		r.table(&b, z)
	}
	return b.String()
}

// lifecycle, following, cost, clients and lock are the rows of a size's table.
var (
	lifecycle = []quantity{startToProgrammed, firstSync, bareBatch, restart}
	following = []quantity{
		replaceEndpoint, addEndpoint, flipPolicy, addService, deleteService, followEndpoint, burst, rolling100, rolling1000, rolling5000,
	}
	cost    = []quantity{elements, kernelMemory, peakMemory, pssMemory, anonymousMemory, idleCPU, spreadCPU, allocations, allocatedBytes}
	clients = []quantity{
		handshakeDirect50, handshakeDirect90, handshakeDirect99, handshakeService50, handshakeService90, handshakeService99,
		requestsDirect, requestsService,
	}
	lock = []quantity{waitFirst, waitFirst99, waitSingle, waitSingle99, waitBurst, waitBurst99}
)

func (r *Report) table(b *strings.Builder, z string) {
	fmt.Fprintf(b, "\n### %s\n\n", titleOf(z))
	var programs []*Figures
	for _, name := range []string{kubeProxyIptables, kubeProxyNftables, kubeNftproxy} {
		if f := r.find(name, z); f != nil {
			programs = append(programs, f)
		}
	}
	b.WriteString("| |")
	for _, f := range programs {
		b.WriteString(" " + f.Program + " |")
	}
	theirs, ours := r.find(kubeProxyNftables, z), r.find(kubeNftproxy, z)
	b.WriteString(" ratio |\n|---|" + strings.Repeat("---|", len(programs)) + "---|\n")
	row := func(name string, value func(f *Figures) (float64, bool), cell func(f *Figures) string) {
		fmt.Fprintf(b, "| %s |", name)
		for _, f := range programs {
			fmt.Fprintf(b, " %s |", cell(f))
		}
		b.WriteString(ratio(theirs, ours, value) + " |\n")
	}
	for _, q := range slices.Concat(lifecycle, following, cost, lock, clients) {
		if _, measured := ours.median(q); !measured {
			continue
		}
		value := func(f *Figures) (float64, bool) { return f.median(q) }
		if slices.Contains(clients, q) {
			value = noRatio // the speed of the machine changes by more than the difference between the proxies; see pairs
		}
		row(string(q), value, func(f *Figures) string { return f.cell(q) })
		if q == bareBatch {
			r.multiples(b, programs, ours)
		}
	}
	for _, p := range pairs {
		if ours.share(p) != "" {
			row(p.name, noRatio, func(f *Figures) string { return f.share(p) })
		}
	}
	for _, e := range extras {
		if _, measured := ours.extra(e); !measured {
			continue
		}
		row(e.name, func(f *Figures) (float64, bool) { return f.relative(e) }, func(f *Figures) string { return f.extraCell(e) })
	}
}

// pair compares connections by a Service with direct ones of the same round. A round is short, so the speed of the machine hardly changes within it.
type pair struct {
	name            string
	service, direct quantity
}

var pairs = []pair{
	{"TCP handshake, by a Service, as a share of a direct one: half of them", handshakeService50, handshakeDirect50},
	{"TCP handshake, by a Service, as a share of a direct one: 90 of 100", handshakeService90, handshakeDirect90},
	{"TCP handshake, by a Service, as a share of a direct one: 99 of 100", handshakeService99, handshakeDirect99},
	{"HTTP requests by a Service, as a share of direct ones", requestsService, requestsDirect},
}

// share returns the median of the quotients of all rounds, as text; empty if they were not measured.
func (f *Figures) share(p pair) string {
	if f == nil || len(f.Values[p.service]) == 0 || len(f.Values[p.service]) != len(f.Values[p.direct]) {
		return ""
	}
	var list []float64
	for i, service := range f.Values[p.service] {
		list = append(list, service/f.Values[p.direct][i])
	}
	return fmt.Sprintf("%.1f %%", 100*quantileOf(list, 0.5))
}

// noRatio is the value of a row without a ratio.
func noRatio(*Figures) (float64, bool) { return 0, false }

// extraCell returns an extra as text, empty if it was not measured.
func (f *Figures) extraCell(e extra) string {
	v, ok := f.extra(e)
	if !ok {
		return ""
	}
	return seconds(v) + " ± " + seconds(f.uncertainty(e))
}

// multiples writes the ratio of each program's first sync to a bare batch.
func (r *Report) multiples(b *strings.Builder, programs []*Figures, ours *Figures) {
	bare, _ := ours.median(bareBatch)
	b.WriteString("| first sync, in bare batches |")
	for _, f := range programs {
		v, _ := f.median(firstSync)
		fmt.Fprintf(b, " %.1f× |", v/bare)
	}
	b.WriteString(" |\n")
}

// extra is the additional cost of one kind of packet over a simpler one.
type extra struct {
	name       string
	more, less quantity
}

var extras = []extra{
	{"established flow, no Service: above no rules", establishedDirect, establishedBare},
	{"established flow, no Service: above connection tracking", establishedDirect, establishedTracked},
	{"established flow, no Service: above a single rule", establishedDirect, establishedSingle},
	{"established flow to a Service: above no rules", establishedService, establishedBare},
	{"established flow to a Service: above connection tracking", establishedService, establishedTracked},
	{"established flow to a Service: above a single rule", establishedService, establishedServiceSingle},
	{"new connection, no Service: above no rules", newDirect, newBare},
	{"new connection, no Service: above connection tracking", newDirect, newTracked},
	{"new connection, no Service: above a single rule", newDirect, newSingle},
	{"new connection to a random Service: above no rules", newService, newBare},
	{"new connection to a random Service: above connection tracking", newService, newTracked},
	{"new connection to a random Service: above a single rule", newService, newServiceSingle},
	{"the same with affinity, 10 endpoints: above connection tracking", newAffinity10, newTracked},
	{"the same with affinity, 1,000 endpoints: above connection tracking", newAffinity1000, newTracked},
}

// extra returns that cost.
func (f *Figures) extra(e extra) (float64, bool) { return f.median(quantity(e.name)) }

// certain returns it only if it exceeds its uncertainty.
func (f *Figures) certain(e extra) (float64, bool) {
	v, ok := f.extra(e)
	return v, ok && v > f.uncertainty(e)
}

// relative returns a certain cost as a share of a packet without any rules in the same run, because runs differ by the speed of the machine.
func (f *Figures) relative(e extra) (float64, bool) {
	bare := newBare
	if e.more == establishedDirect || e.more == establishedService {
		bare = establishedBare
	}
	v, certain := f.certain(e)
	unit, measured := f.median(bare)
	return v / unit, certain && measured
}

// uncertainty returns half of the confidence range of the cost.
func (f *Figures) uncertainty(e extra) float64 {
	low, _ := f.quantile(quantity(e.name), 0)
	high, _ := f.quantile(quantity(e.name), 1)
	return (high - low) / 2
}

func ratio(theirs, ours *Figures, value func(*Figures) (float64, bool)) string {
	a, ok := value(theirs)
	b, ok2 := value(ours)
	if !ok || !ok2 || b <= 0 {
		return ""
	}
	if a/b < 10 {
		return fmt.Sprintf(" %.2f×", a/b)
	}
	return fmt.Sprintf(" %.0f×", a/b)
}

// cell returns a quantity as text: the median and the spread.
func (f *Figures) cell(q quantity) string {
	m, ok := f.median(q)
	if !ok {
		return ""
	}
	show := seconds
	switch q {
	case kernelMemory:
		show = func(v float64) string { return fmt.Sprintf("%.1f MiB", v) }
	case peakMemory, pssMemory, anonymousMemory:
		show = func(v float64) string { return fmt.Sprintf("%.0f MiB", v) }
	case allocations, elements, written, requestsDirect, requestsService:
		show = func(v float64) string { return fmt.Sprintf("%.0f", v) }
	case allocatedBytes:
		show = func(v float64) string { return fmt.Sprintf("%.1f KiB", v/1024) }
	case idleCPU:
		show = func(v float64) string { return fmt.Sprintf("%.2f %%", 100*v) }
	}
	s := show(m)
	const many = 20
	switch n := len(f.Values[q]); {
	case n >= many:
		high, _ := f.quantile(q, 0.99)
		if high == m {
			break
		}
		s += " (" + show(high) + ")"
	case n > 1:
		low, _ := f.quantile(q, 0)
		high, _ := f.quantile(q, 1)
		if low < high {
			s += " (" + show(low) + " – " + show(high) + ")"
		}
	}
	return s
}

// seconds formats a time with about three digits.
func seconds(v float64) string {
	d := time.Duration(v * float64(time.Second))
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit || -d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// short returns a table of some quantities, for the largest size at which both programs were started and timed.
func (r *Report) short(quantities ...quantity) string {
	theirs, ours, z := r.largest()
	if theirs == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s, %d processors; %s, IPv4, a real API server; medians. "+
		"In brackets: the 99th percentile, or the least and the greatest value.\n\n",
		r.Kernel, r.CPUs, titleOf(z))
	b.WriteString("| | kube-proxy " + r.Versions + ", nftables | kube-nftproxy | ratio |\n|---|---|---|---|\n")
	for _, q := range quantities {
		value := func(f *Figures) (float64, bool) { return f.median(q) }
		fmt.Fprintf(&b, "| %s | %s | %s |%s |\n", q, theirs.cell(q), ours.cell(q), ratio(theirs, ours, value))
	}
	return b.String()
}

// largest returns the figures of kube-proxy and of kube-nftproxy at the largest size at which both programs were started
// and timed.
func (r *Report) largest() (theirs, ours *Figures, size string) {
	for _, z := range r.sizes() {
		t, o := r.find(kubeProxyNftables, z), r.find(kubeNftproxy, z)
		if _, timed := o.median(startToProgrammed); t != nil && timed {
			theirs, ours, size = t, o, z
		}
	}
	return theirs, ours, size
}

// rounded returns the table of README.md: three medians with two digits.
func (r *Report) rounded() string {
	theirs, ours, z := r.largest()
	if theirs == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | kube-proxy %s, nftables | kube-nftproxy |\n|---|---|---|\n", titleOf(z), r.Versions)
	for _, row := range []struct {
		name string
		quantity
		unit  string
		scale float64
	}{
		{"an endpoint is replaced, until the kernel has the change", followEndpoint, "ms", 1000},
		{"restart", restart, "s", 1},
		{"memory (PSS)", pssMemory, "MiB", 1},
	} {
		cell := func(f *Figures) string {
			m, _ := f.median(row.quantity)
			return twoDigits(m*row.scale) + " " + row.unit
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row.name, cell(theirs), cell(ours))
	}
	return b.String()
}

// twoDigits rounds a positive number to two significant digits.
func twoDigits(v float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'e', 1, 64), 64) // it is a number
	return strconv.FormatFloat(rounded, 'f', max(0, 1-int(math.Floor(math.Log10(rounded)))), 64)
}

// memory returns the table of docs/sizing.md: the memory of both programs at each size, IPv4.
func (r *Report) memory() string {
	var b strings.Builder
	b.WriteString("| Services | endpoints of each | kube-nftproxy, peak | PSS | anonymous | kube-proxy nftables, PSS | anonymous |\n|---|---|---|---|---|---|---|\n")
	for _, z := range r.sizes() {
		ours, theirs := r.find(kubeNftproxy, z), r.find(kubeProxyNftables, z)
		if _, measured := ours.median(pssMemory); !measured {
			continue
		}
		services, endpoints, _ := strings.Cut(z, "x")
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |", services, endpoints, ours.cell(peakMemory), ours.cell(pssMemory), ours.cell(anonymousMemory))
		for _, q := range []quantity{pssMemory, anonymousMemory} {
			fmt.Fprintf(&b, " %s |", cmp.Or(theirs.cell(q), "not measured"))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// part is a part of a page with figures of docs/benchmarks.json.
type part struct {
	page, name, text string
}

// parts returns the parts of pages with figures.
func (r *Report) parts() []part {
	return []part{
		{"docs/benchmarks-details.md", "comparison", r.page()},
		{"README.md", "comparison", r.rounded()},
		{"docs/benchmarks.md", "short", r.short(startToProgrammed, firstSync, replaceEndpoint, followEndpoint, burst, restart, pssMemory, anonymousMemory, spreadCPU)},
		{"docs/sizing.md", "memory", r.memory()},
	}
}
