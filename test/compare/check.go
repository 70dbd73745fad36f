package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
)

// bound is the least allowed ratio: kube-proxy's figure to kube-nftproxy's, or a bare batch to kube-nftproxy's first
// sync. Bounds of times are at most about 60 % of the least ratio seen with a small cluster on two processors, idle or
// busy: a violation means a slowdown by a factor. Absolute times are not checked.
type bound struct {
	name  string
	ratio func(theirs, ours *Figures) (float64, bool)
	least float64
	// why is the meaning of a violation.
	why string
}

// checkSize is the size for which the bounds apply; most ratios are far greater at others.
var checkSize = size{1000, 10, inet.IPv4}

const bareShareName = "a bare batch's share of the first sync"

var bounds = []bound{
	against(startToProgrammed, 2.5, "the start waits for something"),
	against(firstSync, 3, "a stage of the first sync has become slower: make bench-stages tells which"),
	{bareShareName, bareShare, 1.0 / 25, "the time goes into planning or encoding, or the kernel is asked for more than the elements"},
	against(restart, 1.5, "the tables weren't adopted, or the start waits for something"),
	againstLeast(replaceEndpoint, 50, "a single change costs more than its elements"),
	againstLeast(addEndpoint, 50, "a single change costs more than its elements"),
	againstLeast(flipPolicy, 50, "a single change costs more than its elements"),
	againstLeast(addService, 50, "a single change costs more than its elements"),
	againstLeast(deleteService, 50, "a single change costs more than its elements"),
	againstLeast(followEndpoint, 10, "a change waits before it is taken up"),
	against(burst, 2.5, "many changes cost more than their elements, or more than one batch"),
	against(peakMemory, 1, "more memory than kube-proxy"),
	against(pssMemory, 1, "more memory than kube-proxy"),
	against(anonymousMemory, 1, "more memory than kube-proxy"),
	against(spreadCPU, 0.75, "single changes take more processor time than those of kube-proxy"),
	against(allocations, 10, "a change allocates for more than itself"),
	against(waitFirst, 2, "the first sync's batch has the kernel work longer"),
	against(waitSingle, 5, "a single change's batch has the kernel work longer"),
}

// against returns a bound for kube-proxy's median divided by kube-nftproxy's.
func against(q quantity, least float64, why string) bound { return againstQuantile(q, 0.5, least, why) }

// againstLeast returns a bound for kube-proxy's least value divided by kube-nftproxy's. It is for a change whose sync
// takes less than a millisecond after a quiet time: a processor that wakes up, or other work on the machine, doubles
// the median.
func againstLeast(q quantity, least float64, why string) bound {
	return againstQuantile(q, 0, least, why)
}

// againstQuantile returns a bound for a quantile of kube-proxy's values divided by the same quantile of
// kube-nftproxy's.
func againstQuantile(q quantity, share, least float64, why string) bound {
	return bound{string(q), func(theirs, ours *Figures) (float64, bool) {
		a, ok := theirs.quantile(q, share)
		b, ok2 := ours.quantile(q, share)
		return a / b, ok && ok2 && b > 0
	}, least, why}
}

// bareShare returns the share of kube-nftproxy's first sync that the kernel needs for the elements.
func bareShare(_, ours *Figures) (float64, bool) {
	bare, ok := ours.median(bareBatch)
	sync, ok2 := ours.median(firstSync)
	return bare / sync, ok && ok2 && sync > 0
}

// outcome is the result of a bound, in the words of go test -json: pass or fail.
type outcome struct{ Action, Package, Test, text string }

// judge compares two programs' figures with the bounds.
func judge(theirs, ours *Figures) (list []outcome) {
	for _, b := range bounds {
		o := outcome{Action: "pass", Package: "test/compare", Test: strings.ReplaceAll(b.name, " ", "_")}
		v, ok := b.ratio(theirs, ours)
		o.text = fmt.Sprintf("%s: %.3g×, at least %.3g×", b.name, v, b.least)
		switch {
		case !ok:
			o.Action, o.text = "fail", b.name+": was not measured"
		case v < b.least:
			o.Action, o.text = "fail", o.text+": "+b.why
		}
		list = append(list, o)
	}
	return list
}

// check writes a line for each bound and each outcome of a stage, and all outcomes to a file, if one is named. It fails if a bound is
// violated.
func (r *Report) check(w io.Writer, file string, stages ...outcome) error {
	outcomes := judge(r.find(kubeProxyNftables, checkSize.String()), r.find(kubeNftproxy, checkSize.String()))
	outcomes = append(outcomes, stages...)
	failed := 0
	var events strings.Builder
	for _, o := range outcomes {
		if o.Action == "fail" {
			failed++
		}
		fmt.Fprintf(w, "%-4s %s\n", o.Action, o.text)
		if err := json.NewEncoder(&events).Encode(o); err != nil {
			return err
		}
	}
	var err error
	if file != "" {
		err = os.WriteFile(file, []byte(events.String()), 0o644)
	}
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d ratios exceed their bounds", failed, len(outcomes)))
	}
	return err
}
