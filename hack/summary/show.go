package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// show writes a line for each package when it ends, and before that what its tests said that failed or never ended.
func show(w io.Writer, r io.Reader) error {
	output := map[id]*strings.Builder{}
	return read(r, func(e event) {
		test := id{e.Package, e.Test}
		switch {
		case e.Action == "build-output", e.Action == "output" && e.Package == "":
			fmt.Fprint(w, e.Output)
		case e.Action == "output" && !isNoise(e):
			if output[test] == nil {
				output[test] = &strings.Builder{}
			}
			output[test].WriteString(e.Output)
		case e.Action == "fail":
			write(w, output, test)
		case e.Action == "pass", e.Action == "skip" && e.Test != "":
			delete(output, test)
		}
		if e.Test == "" && (e.Action == "pass" || e.Action == "fail") {
			fmt.Fprintf(w, "%-4s %s %.1fs\n", e.Action, e.Package, e.Elapsed)
		}
	})
}

// write writes the output of a test, or of a package: that includes its tests which a panic ended.
func write(w io.Writer, output map[id]*strings.Builder, of id) {
	for _, test := range sorted(output) {
		if test == of || of.test == "" && test.pkg == of.pkg {
			fmt.Fprint(w, output[test])
			delete(output, test)
		}
	}
}

func sorted[V any](m map[id]V) []id {
	return slices.SortedFunc(maps.Keys(m), func(a, b id) int { return cmp.Compare(a.String(), b.String()) })
}

// isNoise tells the lines by which test2json marks what it says by events too.
func isNoise(e event) bool {
	text := strings.TrimSpace(e.Output)
	return strings.HasPrefix(text, "=== ") || text == "PASS" || text == "FAIL" || strings.HasPrefix(text, "FAIL\t") ||
		strings.HasPrefix(text, "ok  \t") || strings.HasPrefix(text, "exit status ")
}

// sumUp writes a line for each lane, the tests that failed or that no lane ran, and the sum. It tells whether all is well.
func sumUp(w io.Writer, args []string) (ok bool, err error) {
	total := outcomes{}
	fmt.Fprintf(w, "\n%-8s %-8s %8s\n", "lane", "result", "seconds")
	for _, arg := range args {
		l, err := parseLane(arg)
		if err != nil {
			return false, err
		}
		tests, err := readOutcomes(l.file)
		if err != nil {
			return false, err
		}
		if l.result == "FAILED" && tests.count().failed == 0 {
			tests.merge(outcomes{{l.name, "(the lane itself)"}: "fail"})
		}
		fmt.Fprintf(w, "%-8s %-8s %8s  %s\n", l.name, l.result, l.seconds, tests.count())
		total.merge(tests)
	}
	total = total.leaves() // what a lane skipped as a whole, another may have run in parts
	tell(w, total)
	sum := total.count()
	fmt.Fprintf(w, "\neach test once:\n%s\n", sum)
	return sum.failed == 0, nil
}

// tell names the tests that failed and, by package, how many skipped.
func tell(w io.Writer, tests outcomes) {
	skipped := map[string][]string{}
	for _, test := range sorted(tests) {
		switch tests[test] {
		case "fail":
			fmt.Fprintf(w, "failed: %s\n", test)
		case "skip":
			skipped[test.pkg] = append(skipped[test.pkg], test.test)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(skipped)) {
		names := skipped[pkg]
		if len(names) > 5 {
			names = append(names[:5:5], "...")
		}
		fmt.Fprintf(w, "skipped: %d of %s: %s\n", len(skipped[pkg]), pkg, strings.Join(names, " "))
	}
}
