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
	quick, check bool
	outcomes     string
	emulated     bool
	only         string
	programs     string
	output       string
	raw          string
	kernels      string
	ours, theirs string
}

func main() {
	var s settings
	flag.BoolVar(&s.quick, "quick", false, "a small size and few repetitions")
	flag.BoolVar(&s.check, "check", false, "a small size and fewer repetitions still; fail where a ratio is off by a factor")
	flag.StringVar(&s.outcomes, "outcomes", "", "file into which -check writes its outcomes, in the format of go test -json")
	flag.StringVar(&s.only, "only", "", "sizes to measure, as in 10000x10,5000x50; empty: all of the plan")
	flag.StringVar(&s.programs, "programs", "", "programs to measure, as in \"kube-proxy nftables,kube-nftproxy\"; empty: all of the plan")
	flag.StringVar(&s.output, "output", "", "root of the checkout in which docs/benchmarks.json and the tables are written; empty: print only")
	flag.BoolVar(&s.emulated, "emulated", false, "what an emulated processor can bear, instead of the plan")
	flag.StringVar(&s.raw, "raw", "", "file into which the raw figures are written, too")
	flag.StringVar(&s.kernels, "kernels", "", "measure nothing: write into output what -raw of runs on other kernels has left in these files, as in a.json,b.json")
	flag.StringVar(&s.ours, "kube-nftproxy", "bin/kube-nftproxy", "our program")
	flag.StringVar(&s.theirs, "kube-proxy", "bin/kubernetes/kube-proxy", "kube-proxy")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	if s.kernels != "" {
		return publishKernels(s.output, strings.Split(s.kernels, ","))
	}
	report, err := measureAll(ctx, s)
	if err != nil {
		return err
	}
	if err := report.save(s.raw); err != nil {
		return err
	}
	if err := report.publish(s.output); err != nil || !s.check {
		return err
	}
	return report.check(os.Stdout, s.outcomes)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// wanted tells whether the command line asks for a name: its list is empty, or has it.
func wanted(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}
