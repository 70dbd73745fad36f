package main

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/host"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// quantity names a measured quantity. The names are stable between runs.
type quantity string

// The quantities, in the order of the tables. Times are in seconds, memory in MiB, shares of one processor.
const (
	startToProgrammed quantity = "start of the program to everything programmed"
	firstSync         quantity = "first sync"
	bareBatch         quantity = "one bare batch with the same elements"
	restart           quantity = "restart with nothing changed"

	replaceEndpoint quantity = "one endpoint replaced"
	addEndpoint     quantity = "one endpoint added"
	flipPolicy      quantity = "a traffic policy flipped"
	addService      quantity = "a Service added"
	deleteService   quantity = "a Service deleted"
	followEndpoint  quantity = "one endpoint replaced, from the store to the kernel"
	burst           quantity = "1,000 Services changed at once"
	rolling100      quantity = "rolling update, one of 100 endpoints"
	rolling1000     quantity = "rolling update, one of 1,000 endpoints"
	rolling5000     quantity = "rolling update, one of 5,000 endpoints"

	peakMemory quantity = "peak resident memory"
	// The proportional set size counts a page of a file once for all programs that use it. Anonymous memory is the program's own data.
	pssMemory       quantity = "memory at rest, PSS"
	anonymousMemory quantity = "memory at rest, anonymous"
	idleCPU         quantity = "processor when idle"
	spreadCPU       quantity = "processor time for 1,000 single changes"
	// The memory of the kernel, of a bare batch.
	kernelMemory quantity = "memory of the kernel for the tables"
	elements     quantity = "elements"
	written      quantity = "elements written for one endpoint replaced"
	// Allocations are counted in objects, and in bytes.
	allocations    quantity = "allocations for a single change"
	allocatedBytes quantity = "bytes allocated for a single change"

	waitFirst    quantity = "another program's batch waits, while all is programmed: longest"
	waitFirst99  quantity = "another program's batch waits, while all is programmed: 99 of 100"
	waitSingle   quantity = "another program's batch waits, one endpoint replaced: longest"
	waitSingle99 quantity = "another program's batch waits, one endpoint replaced: 99 of 100"
	waitBurst    quantity = "another program's batch waits, 1,000 Services changed: longest"
	waitBurst99  quantity = "another program's batch waits, 1,000 Services changed: 99 of 100"

	establishedBare          quantity = "established flow, without any rules"
	establishedTracked       quantity = "established flow, connection tracking only"
	establishedSingle        quantity = "established flow, no Service, a single rule"
	establishedDirect        quantity = "established flow, no Service"
	establishedServiceSingle quantity = "established flow to a Service, a single rule"
	establishedService       quantity = "established flow to a Service"
	newBare                  quantity = "new connection, without any rules"
	newTracked               quantity = "new connection, connection tracking only"
	newSingle                quantity = "new connection, no Service, a single rule"
	newDirect                quantity = "new connection, no Service"
	newServiceSingle         quantity = "new connection to a random Service, a single rule"
	newService               quantity = "new connection to a random Service"
	newAffinity10            quantity = "new connection, affinity, 10 endpoints"
	newAffinity1000          quantity = "new connection, affinity, 1,000 endpoints"

	handshakeDirect50  quantity = "TCP handshake, no Service: half of them"
	handshakeDirect90  quantity = "TCP handshake, no Service: 90 of 100"
	handshakeDirect99  quantity = "TCP handshake, no Service: 99 of 100"
	handshakeService50 quantity = "TCP handshake, by a Service: half of them"
	handshakeService90 quantity = "TCP handshake, by a Service: 90 of 100"
	handshakeService99 quantity = "TCP handshake, by a Service: 99 of 100"
	requestsDirect     quantity = "HTTP requests a second, a connection each, no Service"
	requestsService    quantity = "HTTP requests a second, a connection each, by a Service"
)

// Report is the result of a run.
type Report struct {
	Kernel   string     `json:"kernel"`
	CPUs     int        `json:"cpus"`
	Go       string     `json:"go"`
	Versions string     `json:"kubeProxy"`
	Figures  []*Figures `json:"figures"`
}

// Figures are all values of one program at one size.
type Figures struct {
	Program string                 `json:"program"`
	Size    string                 `json:"size"`
	Values  map[quantity][]float64 `json:"values"`
}

// newReport returns a report with the figures of an earlier run from the checkout, if it had the same kernel,
// processors and kube-proxy: sizes that are not measured again are kept.
func newReport(root string) *Report { return reportOf(root, reportFile) }

// reportOf does the same with another file.
func reportOf(root, file string) *Report {
	r := &Report{
		Kernel: kernel(), CPUs: runtime.NumCPU(), Go: runtime.Version(), Versions: "v1.37.2",
	}
	var old Report
	err := page.ReadJSON(filepath.Join(root, file), &old)
	if root != "" && err == nil && old.Kernel == r.Kernel && old.CPUs == r.CPUs && old.Versions == r.Versions {
		r.Figures = old.Figures
	}
	return r
}

// reportFile is the file of a checkout with the raw figures.
const reportFile = "docs/benchmarks.json"

// kernel returns the kernel's version without the distribution's suffix.
func kernel() string {
	version, _, _ := strings.Cut(host.Release(), "-")
	return version
}

// of returns new, empty figures of a program at a size.
func (r *Report) of(program string, z fmt.Stringer) *Figures {
	size := z.String()
	r.Figures = slices.DeleteFunc(r.Figures, func(f *Figures) bool { return f.Program == program && f.Size == size })
	f := &Figures{Program: program, Size: size, Values: map[quantity][]float64{}}
	r.Figures = append(r.Figures, f)
	return f
}

// find returns the figures of a program at a size, or nil.
func (r *Report) find(program, z string) *Figures {
	for _, f := range r.Figures {
		if f.Program == program && f.Size == z {
			return f
		}
	}
	return nil
}

// sizes returns the measured sizes, by number of endpoints, IPv4 first.
func (r *Report) sizes() (list []string) {
	for _, f := range r.Figures {
		if !slices.Contains(list, f.Size) {
			list = append(list, f.Size)
		}
	}
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(cmp.Compare(endpointsOf(a), endpointsOf(b)), cmp.Compare(a, b))
	})
	return list
}

// endpointsOf returns the number of endpoints of a size such as 1000x10 or "1000x10 IPv6", 0 for anything else.
func endpointsOf(size string) int {
	var services, endpoints int
	_, _ = fmt.Sscanf(size, "%dx%d", &services, &endpoints)
	return services * endpoints
}

func (f *Figures) add(q quantity, v float64) { f.Values[q] = append(f.Values[q], v) }

// quantile returns the least value that a given share of the values does not exceed, and whether there are any values.
func (f *Figures) quantile(q quantity, share float64) (float64, bool) {
	if f == nil || len(f.Values[q]) == 0 {
		return 0, false
	}
	return quantileOf(f.Values[q], share), true
}

// quantileOf returns the value that a share of a list does not exceed. The list is not empty.
func quantileOf(list []float64, share float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[max(int(math.Ceil(share*float64(len(list)))), 1)-1]
}

func (f *Figures) median(q quantity) (float64, bool) { return f.quantile(q, 0.5) }

// publish prints the report and, if a checkout is given, writes it there.
func (r *Report) publish(root string) error {
	fmt.Print(r.page())
	if root == "" {
		return nil
	}
	if err := r.save(filepath.Join(root, reportFile)); err != nil {
		return err
	}
	for _, s := range r.parts() {
		if err := page.Write(filepath.Join(root, s.page), s.name, s.text); err != nil {
			return err
		}
	}
	return nil
}
