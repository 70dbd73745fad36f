package main

import (
	"strings"
	"testing"
)

// TestStagesAreNamed proves that a stage outside of a bound fails with its name, and that a stage without a result fails.
func TestStagesAreNamed(t *testing.T) {
	const within = `
goos: linux
BenchmarkSetAll/1000x10-2     	     100	   1000000 ns/op	  500 B/op	    9000 allocs/op
BenchmarkSetAll/1000x10-2     	     100	   9000000 ns/op	  500 B/op	    9000 allocs/op
BenchmarkSetAll/10000x10-2    	      10	  10000000 ns/op	  500 B/op	   90000 allocs/op
`
	for _, c := range []struct {
		name, output, fails string
	}{
		{"all within the bounds", within, ""},
		{"slow", strings.ReplaceAll(within, "00 ns/op", "00000 ns/op"), "time in units"},
		{"slow only at the larger size", strings.Replace(within, "  10000000 ns/op", " 900000000 ns/op", 1), "growth"},
		{"allocates", strings.ReplaceAll(within, "000 allocs/op", "00000 allocs/op"), "allocations"},
		{"not measured at one size", strings.Replace(within, "SetAll/10000x10", "SetAll/5000x50", 1), "was not measured"},
	} {
		var failed []string
		for _, o := range judgeStages(parse(strings.NewReader(c.output)), 1000) {
			if o.Action == "fail" && strings.Contains(o.text, "a Service of many is planned") {
				failed = append(failed, o.text)
			}
		}
		if c.fails == "" && len(failed) > 0 || c.fails != "" && (len(failed) != 1 || !strings.Contains(failed[0], c.fails)) {
			t.Errorf("%s: failures %q, want one with %q", c.name, failed, c.fails)
		}
	}
}
