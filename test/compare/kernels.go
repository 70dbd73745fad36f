package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// emulatedPlan is the plan for a virtual machine with an emulated processor (hack/bench-kernels.sh): one small size for both
// programs, and a larger one for kube-nftproxy, to see whether a change's cost grows.
var emulatedPlan = []round{
	{size{1000, 10, inet.IPv4}, []string{kubeProxyNftables, kubeNftproxy}, effort{
		changes: 3, ours: 20, spread: 40, idle: 20 * time.Second, calm: emulatedCalm, noBurst: true, packets: 4000, placements: 1,
	}},
	{size{5000, 10, inet.IPv4}, []string{kubeNftproxy}, effort{ours: 20, idle: 20 * time.Second, calm: emulatedCalm, noBurst: true}},
}

// emulatedCalm is the time for the API server to finish its work: with a single processor, a program that starts would wait for
// that. The clock skips the unused rest.
const emulatedCalm = time.Minute

// emulatedRest keeps the only processor of such a machine for the proxy: a scrape takes some 10 ms there.
const emulatedRest = 100 * time.Millisecond

// save writes the raw figures to a file.
func (r *Report) save(file string) error {
	if file == "" {
		return nil
	}
	return page.WriteJSON(file, r)
}

// ofKernels are the raw figures of other kernels in a checkout, one report for each.
var ofKernels = page.Results[*Report]{
	File: "docs/benchmarks-kernels.json", Page: "docs/benchmarks-details.md", Part: "kernels", Tables: kernelsPage,
}

// publishKernels prints a comparison of reports from other kernels and, if a checkout is given, writes them there. It keeps
// reports of kernels that were not measured again.
func publishKernels(root string, files []string) error {
	news := make([]*Report, len(files))
	for i, file := range files {
		if err := page.ReadJSON(file, &news[i]); err != nil {
			return err
		}
	}
	if root == "" {
		fmt.Print(kernelsPage(news))
		return nil
	}
	return ofKernels.Publish(root, func(reports []*Report) []*Report {
		for _, r := range news {
			same := func(old *Report) bool { return old.series() == r.series() }
			if i := slices.IndexFunc(reports, same); i >= 0 {
				reports[i] = r
			} else {
				reports = append(reports, r)
			}
		}
		fmt.Print(kernelsPage(reports))
		return reports
	})
}

// series returns the kernel's version without its third number, which is 0 in some of Debian's names.
func (r *Report) series() string {
	numbers := strings.SplitN(r.Kernel, ".", 3)
	return strings.Join(numbers[:min(2, len(numbers))], ".")
}

// kernelsPage has no times, only ratios: kube-proxy to kube-nftproxy, and large to small cluster.
func kernelsPage(reports []*Report) string {
	small, large := emulatedPlan[0].String(), emulatedPlan[1].String()
	beside := func(r *Report) (a, b *Figures) { return r.find(kubeProxyNftables, small), r.find(kubeNftproxy, small) }
	growth := func(r *Report) (a, b *Figures) { return r.find(kubeNftproxy, large), r.find(kubeNftproxy, small) }
	return kernelsTable("kube-proxy's nftables mode as a multiple of kube-nftproxy, "+titleOf(small), reports, beside) + "\n" +
		kernelsTable("kube-nftproxy with "+titleOf(large)+" as a multiple of that", reports, growth)
}

// kernelsTable has a column for each kernel: the first program's figures divided by the second's.
func kernelsTable(title string, reports []*Report, pair func(*Report) (a, b *Figures)) string {
	var b strings.Builder
	b.WriteString(title + ":\n\n| |")
	for _, r := range reports {
		b.WriteString(" Linux " + r.series() + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(reports)) + "\n")
	row := func(name string, value func(*Figures) (float64, bool)) {
		line := ""
		for _, r := range reports {
			over, under := pair(r)
			line += ratio(over, under, value) + " |"
		}
		if strings.Trim(line, " |") != "" {
			b.WriteString("| " + name + " |" + line + "\n")
		}
	}
	for _, q := range lifecycle {
		row(string(q), func(f *Figures) (float64, bool) { return f.median(q) })
	}
	for _, q := range following {
		// Some of many changes share the only processor with the API server's work for the previous one.
		row(string(q), func(f *Figures) (float64, bool) { return f.quantile(q, 0.25) })
	}
	for _, q := range slices.Concat(cost, clients) {
		row(string(q), func(f *Figures) (float64, bool) { return f.worth(q) })
	}
	for _, e := range extras {
		row(e.name, func(f *Figures) (float64, bool) { return f.certain(e) })
	}
	return b.String()
}

// worth returns a quantity's median, or its inverse if more is better.
func (f *Figures) worth(q quantity) (float64, bool) {
	v, ok := f.median(q)
	if q == requestsDirect || q == requestsService {
		return 1 / v, ok
	}
	return v, ok
}

// titleOf returns a size in words.
func titleOf(z string) string {
	counts, family, other := strings.Cut(z, " ")
	services, endpoints, _ := strings.Cut(counts, "x")
	title := services + " Services with " + endpoints + " endpoints each"
	switch endpoints {
	case "1":
		title = services + " Services with 1 endpoint each"
	case "mixed":
		title = services + " Services with 1 to 40 endpoints, half of them with one"
	}
	if other {
		title += ", " + family
	}
	return title
}
