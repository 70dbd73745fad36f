// Command summary makes the output of "go test -json" readable.
//
// In: with -show, one such output on standard input; otherwise the lanes that ran, as arguments of the form
// NAME:SECONDS:RESULT:FILE, where FILE is the output of one lane or doesn't exist.
// Out: with -show, a line for each package, and what the tests that failed said; otherwise a line for each lane and one
// for all of them, in which a test that several lanes ran counts once. The exit status is 1 if anything failed.
// Never: a change to a file.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	live := flag.Bool("show", false, "show one output while it comes in")
	flag.Parse()
	ok, err := true, error(nil)
	if *live {
		err = show(os.Stdout, os.Stdin)
	} else {
		ok, err = sumUp(os.Stdout, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// lane is one argument.
type lane struct{ name, seconds, result, file string }

func parseLane(s string) (lane, error) {
	f := strings.SplitN(s, ":", 4)
	if len(f) != 4 {
		return lane{}, fmt.Errorf("read lane %q: want NAME:SECONDS:RESULT:FILE", s)
	}
	return lane{f[0], f[1], f[2], f[3]}, nil
}
