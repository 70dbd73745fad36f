package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// results maps the name of a benchmark, without its number of processors, and a unit to the values of all repetitions.
type results map[string]map[string][]float64

// bench runs benchmarks of a package. pattern is the argument of -bench, and arguments follow it.
func bench(pattern, pkg string, arguments ...string) (results, error) {
	cmd := exec.Command("go", append([]string{
		"test", "-run", "^$", "-vet=off", "-bench", pattern, "-benchmem", "-timeout", "60m", pkg,
	}, arguments...)...)
	cmd.Env = append(os.Environ(), "REQUIRE_NETNS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var failure strings.Builder
	r := parse(io.TeeReader(out, &failure))
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", pkg, err, failure.String())
	}
	return r, nil
}

// parse reads the output of go test -bench.
func parse(in io.Reader) results {
	r := results{}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(f[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i]
		}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				break
			}
			if r[name] == nil {
				r[name] = map[string][]float64{}
			}
			r[name][f[i+1]] = append(r[name][f[i+1]], v)
		}
	}
	return r
}

// least returns the least value of a benchmark. Other work on the machine only adds to it.
func (r results) least(name, unit string) (float64, bool) {
	values := r[name][unit]
	if len(values) == 0 {
		return 0, false
	}
	return slices.Min(values), true
}
