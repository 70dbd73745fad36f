package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// event is a line of "go test -json", as far as we need it; see "go doc test2json".
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// read calls f for each event. Lines that aren't events come from programs that write past the tests; they are output.
func read(r io.Reader, f func(event)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			e = event{Action: "output", Output: lines.Text() + "\n"}
		}
		f(e)
	}
	return lines.Err()
}

// id names a test; without a test, it is the package itself.
type id struct{ pkg, test string }

// outcomes tells how each test ended, as the last word of its events: pass, fail or skip. A package is among them only if
// it failed and none of its tests did: it couldn't be built, or stopped outside of a test.
type outcomes map[id]string

func readOutcomes(file string) (outcomes, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return outcomes{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open output of a lane: %w", err)
	}
	defer f.Close()
	out := outcomes{}
	if err := read(f, out.add); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return out.leaves(), nil
}

func (o outcomes) add(e event) {
	switch {
	case e.Action == "build-fail":
		o[id{pkg: strings.Fields(e.ImportPath + " ?")[0]}] = "fail"
	case e.Action == "run":
		o[id{e.Package, e.Test}] = "fail" // unless it says something else in the end
	case e.Action == "fail", e.Test != "" && (e.Action == "pass" || e.Action == "skip"):
		o[id{e.Package, e.Test}] = e.Action
	}
}

// leaves leaves out what others already stand for: a test or a package by its subtests, unless it alone failed.
func (o outcomes) leaves() outcomes {
	hasChildren, childFailed := map[id]bool{}, map[id]bool{}
	for test, outcome := range o {
		for parent := test; parent.test != ""; {
			parent = parent.up()
			hasChildren[parent] = true
			childFailed[parent] = childFailed[parent] || outcome == "fail"
		}
	}
	out := outcomes{}
	for test, outcome := range o {
		if !hasChildren[test] || outcome == "fail" && !childFailed[test] {
			out[test] = outcome
		}
	}
	return out
}

func (t id) up() id {
	if i := strings.LastIndexByte(t.test, '/'); i >= 0 {
		return id{t.pkg, t.test[:i]}
	}
	return id{pkg: t.pkg}
}

func (t id) String() string {
	if t.test == "" {
		return t.pkg
	}
	return t.pkg + " " + t.test
}

// merge adds the outcomes of a further lane: what failed once has failed, what passed once didn't skip.
func (o outcomes) merge(more outcomes) {
	rank := map[string]int{"": 0, "skip": 1, "pass": 2, "fail": 3}
	for test, outcome := range more {
		if rank[outcome] > rank[o[test]] {
			o[test] = outcome
		}
	}
}

// count is how many of them passed, failed and skipped.
type count struct{ passed, failed, skipped int }

func (o outcomes) count() (c count) {
	for _, outcome := range o {
		switch outcome {
		case "pass":
			c.passed++
		case "fail":
			c.failed++
		case "skip":
			c.skipped++
		}
	}
	return c
}

func (c count) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}
