package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/room"
)

// settings are the flags.
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
	// limits selects the measurement of limits instead, for a tenant with numbers of elements, pairs of a Service, and source
	// ranges.
	limits                                 bool
	limitElements, limitPairs, limitRanges int
	// algorithms selects the measurement of algorithms instead.
	algorithms bool
	// vips selects the measurement of VIPs and port ranges instead, direct that of direct server return.
	vips, direct bool
	// starts selects the measurement of the API server instead, with this number of nodes.
	starts int
	// watchers selects the measurement of clients of the API server instead, with these numbers of nodes.
	watchers string
	// controllers selects the measurement of flags of kube-controller-manager instead, with this number of nodes.
	controllers int
	// growth selects the measurement of the growth of costs instead.
	growth bool
	// packets selects the measurement of first packets instead, in a number of turns, and also with the rules of these
	// programs.
	packets bool
	also    string
	turns   int
}

func main() {
	log.SetFlags(log.Ltime)
	var s settings
	flag.BoolVar(&s.quick, "quick", false, "a small size and few repetitions")
	flag.BoolVar(&s.check, "check", false, "a small size and fewer repetitions still; fail where a ratio is off by a factor")
	flag.StringVar(&s.outcomes, "outcomes", "", "file into which -check writes its outcomes, in the format of go test -json")
	flag.StringVar(&s.only, "only", "", "sizes to measure, as in \"10000x10,10000x10 IPv6\"; empty: all of the plan")
	flag.StringVar(&s.programs, "programs", "", "programs to measure, as in \"kube-proxy nftables,kube-nftproxy\"; empty: all of the plan")
	flag.StringVar(&s.output, "output", "", "root of the checkout in which docs/benchmarks.json and the tables are written; empty: print only")
	flag.BoolVar(&s.emulated, "emulated", false, "what an emulated processor can bear, instead of the plan")
	flag.StringVar(&s.raw, "raw", "", "file into which the raw figures are written, too")
	flag.StringVar(&s.kernels, "kernels", "", "measure nothing: write into output what -raw of runs on other kernels has left in these files, as in a.json,b.json")
	flag.StringVar(&s.ours, "kube-nftproxy", "bin/kube-nftproxy", "our program")
	flag.StringVar(&s.theirs, "kube-proxy", "bin/kubernetes/kube-proxy", "kube-proxy")
	flag.BoolVar(&s.limits, "limits", false, "measure unrelated changes and repairs beside a tenant at its limits, instead of the plan; -raw keeps the log")
	flag.IntVar(&s.limitElements, "limit-elements", room.New(plan.DefaultRoom().Elements).Most(), "elements of the tenant, with -limits")
	flag.IntVar(&s.limitPairs, "limit-pairs", model.DefaultLimits().Pairs, "endpoints times ports of each of its Services, with -limits")
	flag.IntVar(&s.limitRanges, "limit-ranges", room.New(plan.DefaultRoom().SourceRanges).Most(), "its source ranges, with -limits")
	flag.BoolVar(&s.algorithms, "algorithms", false, "measure Services of each algorithm instead of the plan; -quick measures each only once")
	flag.BoolVar(&s.vips, "vips", false, "measure new connections beside many load-balancer IPs and port ranges instead of the plan; -quick measures each only once")
	flag.BoolVar(&s.direct, "direct", false, "measure packets with direct server return instead of the plan; -quick measures each only once")
	flag.IntVar(&s.starts, "starts", 0, "measure the load of the API server by this number of nodes that start at once, at most 200, instead of the plan; -only has one size")
	flag.StringVar(&s.watchers, "watchers", "",
		"measure the load of the API server by clients of these numbers of nodes instead, as in 20,200")
	flag.IntVar(&s.controllers, "controllers", 0,
		"measure flags of kube-controller-manager instead, with clients of this number of nodes")
	flag.BoolVar(&s.growth, "growth", false, "measure how costs grow with the size of a cluster, instead of the plan")
	flag.BoolVar(&s.packets, "packets", false,
		"measure first packets with several rulesets instead; -only has sizes as in \"50000xmixed IPv6 UDP\"")
	flag.StringVar(&s.also, "also", "",
		"with -packets: further programs, or files for nft, as in old/kube-nftproxy,edited.nft")
	flag.IntVar(&s.turns, "turns", 5, "with -packets: the number of times that all rules are loaded")
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
	if s.limits {
		return measureLimits(ctx, s)
	}
	if s.growth {
		return measureGrowth(s)
	}
	if s.algorithms {
		return measureAlgorithms(ctx, s)
	}
	if s.vips {
		return measureVIPs(ctx, s)
	}
	if s.direct {
		return measureDirect(ctx, s)
	}
	if s.packets {
		return measureRulesets(ctx, s)
	}
	if s.watchers != "" {
		return measureWatchers(ctx, s)
	}
	if s.controllers > 0 {
		return measureControllers(ctx, s)
	}
	if s.starts > 0 {
		return measureStarts(ctx, s)
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
	stages, err := measureStages()
	if err != nil {
		return err
	}
	packets, err := checkPackets(ctx, s)
	if err != nil {
		return err
	}
	return report.check(os.Stdout, s.outcomes, append(judgeStages(stages, unitOfWork()), packets...)...)
}

// wanted reports whether a name is selected: its list is empty, or contains it.
func wanted(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}
