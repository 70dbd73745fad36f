package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// stage is a stage of a sync, measured by a benchmark. Its bounds do not depend on the speed of the machine: times are compared with a unit
// of work, and with the same stage at a smaller size. The number of allocations is the same on each machine.
type stage struct {
	name, pkg, benchmark string
	// sizes are one or two sizes of the benchmark, the smaller one first. per is the number of Services, or of endpoints, that one
	// operation handles at each size.
	sizes []string
	per   []float64
	// units is the greatest time for each of them at the first size, in units. allocations is the greatest number of allocations.
	units, allocations float64
}

// mostGrowth is the greatest ratio of the time for each Service at the larger and at the smaller size. A stage whose cost is a product
// or a square exceeds it.
const mostGrowth = 5

// The bounds of time are about four times the measured values, those of allocations one and a half times.
var stages = []stage{
	{"watch: a slice of 10 endpoints is received", "./pkg/watch", "Decode", []string{"10"}, []float64{1}, 12, 300},
	{"model: an endpoint is selected", "./pkg/model", "Build", []string{"endpoints=10", "endpoints=5000"}, []float64{10, 5000}, 0.5, 3.5},
	{"plan: a Service of many is planned", "./pkg/plan", "SetAll", []string{"1000x10", "10000x10"}, []float64{1_000, 10_000}, 6, 14},
	{"plan: an endpoint is replaced", "./pkg/plan", "SetOne", []string{"1000x10", "10000x10"}, []float64{1, 1}, 4, 14},
	{"plan: a Service with a range at an address of many", "./pkg/plan", "RangesAtOneAddress", []string{"400", "3600"}, []float64{400, 3600}, 14, 80},
	{"apply: differences of a replaced endpoint", "./pkg/apply", "ChangeOne", []string{"1000x10", "10000x10"}, []float64{1, 1}, 7, 27},
	{"apply: a Service in a full batch", "./pkg/apply", "FullSync", []string{"1000x10", "10000x10"}, []float64{1_000, 10_000}, 15, 117},
	{"apply: a replaced endpoint is committed", "./pkg/apply", "ReplaceOneEndpoint", []string{"1000x10", "10000x10"}, []float64{1, 1}, 35, 95},
	{"apply: unchanged tables are adopted", "./pkg/apply", "Adopt", []string{"1000x10", "10000x10"}, []float64{1, 1}, 1200, 9200},
	{"proxy: a Service of many, without the kernel", "./pkg/proxy", "Planned", []string{"1000x10", "10000x10"}, []float64{1_000, 10_000}, 7, 45},
	// The Service is read and planned from scratch, so the cost grows with the number of its endpoints.
	{"proxy: an endpoint of a Service is replaced, for each endpoint", "./pkg/proxy", "Rolling", []string{"1-of-100", "1-of-1000"},
		[]float64{100, 1_000}, 0.9, 1.7},
	{"proxy: the turn of a namespace of many", "./pkg/proxy", "Namespaces", []string{"4000", "64000"}, []float64{4_000, 64_000}, 0.8, 4.5},
	{"loopback: a Service of many with the same node port", "./pkg/beside/loopback", "OneNodePort", []string{"1000", "8000"},
		[]float64{1_000, 8_000}, 0.7, 4.5},
	{"health: failures of a Service of many", "./pkg/beside/health", "Broken", []string{"500", "4000"}, []float64{500, 4_000}, 1.5, 13.5},
	{"services: a note about an endpoint of many", "./pkg/inspect/console", "Notes", []string{"1000", "8000"}, []float64{1_000, 8_000}, 0.05, 0.1},
	{"conntrack: a changed frontend is recorded", "./pkg/beside/conntrack", "Desired", nil, []float64{1_000}, 0.6, 0.1},
}

// measureStages runs the benchmarks of all stages, each three times.
func measureStages() (results, error) {
	all := results{}
	patterns := map[string][]string{}
	var packages []string
	for _, s := range stages {
		if patterns[s.pkg] == nil {
			packages = append(packages, s.pkg)
		}
		patterns[s.pkg] = append(patterns[s.pkg], s.benchmark)
	}
	for _, pkg := range packages {
		sizes := map[string]bool{}
		for _, s := range stages {
			for _, size := range s.sizes {
				if s.pkg == pkg {
					sizes[size] = true
				}
			}
		}
		pattern := "^Benchmark(" + strings.Join(patterns[pkg], "|") + ")$"
		if len(sizes) > 0 {
			pattern += "/^(" + strings.Join(slices.Sorted(maps.Keys(sizes)), "|") + ")$"
		}
		found, err := bench(pattern, pkg, "-benchtime", "100ms", "-count", "3")
		if err != nil {
			return nil, err
		}
		for name, values := range found {
			all[name] = values
		}
	}
	return all, nil
}

// judgeStages compares the results with the bounds of the stages. unit is the time of a unit of work in nanoseconds.
func judgeStages(r results, unit float64) (list []outcome) {
	for _, s := range stages {
		names := []string{s.benchmark}
		for i, size := range s.sizes {
			names = append(names[:i], s.benchmark+"/"+size)
		}
		var times []float64
		var allocations float64
		for i, name := range names {
			ns, ok := r.least(name, "ns/op")
			count, ok2 := r.least(name, "allocs/op")
			if !ok || !ok2 {
				break
			}
			times, allocations = append(times, ns/s.per[i]/unit), max(allocations, count/s.per[i])
		}
		if len(times) < len(names) {
			list = append(list, outcome{Action: "fail", Test: s.name, text: s.name + ": was not measured"})
			continue
		}
		add := func(quantity string, v, most float64) {
			o := outcome{Action: "pass", Test: s.name + ", " + quantity, text: fmt.Sprintf("%s, %s: %.3g, at most %.3g", s.name, quantity, v, most)}
			if v > most {
				o.Action = "fail"
			}
			list = append(list, o)
		}
		add("time in units", times[0], s.units)
		add("allocations", allocations, s.allocations)
		if len(times) > 1 {
			add("growth of time with size", times[1]/times[0], mostGrowth)
		}
	}
	for i := range list {
		list[i].Package, list[i].Test = "test/compare", strings.ReplaceAll(list[i].Test, " ", "_")
	}
	return list
}

// unitOfWork returns the least time, in nanoseconds, in which code that Kubernetes generates decodes an EndpointSlice of 10 endpoints.
func unitOfWork() float64 {
	ready, port := true, int32(8080)
	slice := discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}}}
	slice.Namespace, slice.Name = "default", "web-1"
	for i := range 10 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	data, err := slice.Marshal()
	if err != nil {
		panic(err) // a constant object
	}
	least := 0.0
	for range 5 {
		r := testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				var into discoveryv1.EndpointSlice
				lab.Must(b, into.Unmarshal(data))
			}
		})
		if v := float64(r.T.Nanoseconds()) / float64(r.N); least == 0 || v < least {
			least = v
		}
	}
	return least
}
