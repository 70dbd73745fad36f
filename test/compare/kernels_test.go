package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// measuredOn returns the report of a kernel: kube-proxy takes slower times as long as kube-nftproxy, whose times grow with the
// size.
func measuredOn(kernel string, slower, growth float64) *Report {
	values := func(v float64) map[quantity][]float64 { return map[quantity][]float64{replaceEndpoint: {v, v, v}} }
	small, large := emulatedPlan[0].String(), emulatedPlan[1].String()
	return &Report{Kernel: kernel, Figures: []*Figures{
		{Program: kubeProxyNftables, Size: small, Values: values(0.002 * slower)},
		{Program: kubeNftproxy, Size: small, Values: values(0.002)},
		{Program: kubeNftproxy, Size: large, Values: values(0.002 * growth)},
	}}
}

// TestPublishKernels: a kernel that is measured again replaces its own column, and the others stay.
func TestPublishKernels(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	lab.Must(t, os.Mkdir(filepath.Join(root, "docs"), 0o755))
	doc := filepath.Join(root, "docs/benchmarks-details.md")
	lab.Must(t, os.WriteFile(doc, []byte("<!-- kernels -->\n<!-- /kernels -->\n"), 0o600))
	publish := func(reports ...*Report) {
		var files []string
		for _, r := range reports {
			file := filepath.Join(dir, r.Kernel+".json")
			lab.Must(t, r.save(file))
			files = append(files, file)
		}
		lab.Must(t, publishKernels(root, files))
	}
	publish(measuredOn("6.1.5", 300, 1), measuredOn("6.12.9", 40, 1.5))
	publish(measuredOn("6.1.6", 500, 1.25))

	text, err := os.ReadFile(doc)
	lab.Must(t, err)
	part, err := page.Part(string(text), "kernels")
	lab.Must(t, err)
	var got []string
	for line := range strings.Lines(part) {
		if strings.HasPrefix(line, "| ") {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	head := "| | Linux 6.1 | Linux 6.12 |"
	want := []string{head, "| one endpoint replaced | 500× | 40× |", head, "| one endpoint replaced | 1.25× | 1.50× |"}
	lab.Same(t, want, got, "rows")
}
