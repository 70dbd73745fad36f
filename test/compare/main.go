package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// settings are the command line.
type settings struct {
	quick        bool
	only         string
	programs     string
	output       string
	ours, theirs string
}

func main() {
	var s settings
	flag.BoolVar(&s.quick, "quick", false, "a small size and few repetitions")
	flag.StringVar(&s.only, "only", "", "sizes to measure, as in 10000x10,5000x50; empty: all of the plan")
	flag.StringVar(&s.programs, "programs", "", "programs to measure, as in \"kube-proxy nftables,kube-nftproxy\"; empty: all of the plan")
	flag.StringVar(&s.output, "output", "", "root of the checkout in which docs/benchmarks.json and the tables are written; empty: print only")
	flag.StringVar(&s.ours, "kube-nftproxy", "bin/kube-nftproxy", "our program")
	flag.StringVar(&s.theirs, "kube-proxy", "bin/kubernetes/kube-proxy", "kube-proxy")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := measureAll(ctx, s)
	if err == nil {
		err = report.publish(s.output)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// wanted tells whether the command line asks for a name: its list is empty, or has it.
func wanted(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}
