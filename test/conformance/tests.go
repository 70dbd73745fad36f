package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
)

// areas matches the tests that belong here: those in which a packet meets a Service, or that other proxies have failed.
var areas = regexp.MustCompile(`^\[sig-network\] (API Server|Connectivity Pod Lifecycle|Conntrack|DNS|Endpoint|HostPort|KubeProxy|LoadBalancers|` +
	`LocalhostNodePorts|Networking|NoSNAT|Proxy|Service|Topology Hints|Traffic Distribution|\[Feature:IPv6DualStack\])`)

// unusable are tests of these areas that say nothing about a proxy on this cluster, with the reason. The first match counts.
var unusable = []struct {
	name   *regexp.Regexp
	reason string
}{
	{regexp.MustCompile(`\[Feature:SCTPConnectivity\]`), "It needs SCTP sockets, which many kernels lack."},
	{regexp.MustCompile(`DNS configMap|(?i:\[Provider:gce\])`), "It tests the name server of another installation."},
	{regexp.MustCompile(`provider? Internet connection`), "It needs the Internet."},
	{regexp.MustCompile(`\[Feature:Networking-Performance\]`), "It measures iperf."},
	{regexp.MustCompile(`\[Feature:KubeProxyNFAcct\]|recreate its iptables rules`), "It tests kube-proxy's iptables mode."},
	{regexp.MustCompile(`should work after restarting apiserver`), "It restarts the API server as a pod, or over SSH."},
	{regexp.MustCompile(`ExternalTrafficPolicy: Local .*should only target nodes with endpoints`), "It calls the health check node port of an IPv4 Service at IPv6 addresses of nodes. On dual-stack nodes, kube-proxy fails it."},
	{regexp.MustCompile(`kube-proxy migration`), "It needs Google's cloud."},
}

// moreNodes matches tests that need more than two nodes, or zones.
var moreNodes = regexp.MustCompile(`Traffic Distribution|Topology Hints|HealthCheckNodePort correctly when`)

// alone matches tests that disturb others.
var alone = regexp.MustCompile(`\[(Disruptive|Serial)\]`)

// listed matches a line of e2e.test --list-tests: the place of a test in the source, and its name.
var listed = regexp.MustCompile(`^ +\S+\.go:[0-9]+: (\[.+)$`)

// choose returns the names of the tests to run out of a listing, and what is unusable with its reason. It returns an error if no
// test is left.
func choose(listing string, nodes int, focus *regexp.Regexp) (names []string, left []Excluded, err error) {
	if nodes > 2 && focus.String() == "" {
		focus = moreNodes
	}
	for line := range strings.Lines(listing) {
		match := listed.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if match == nil || !areas.MatchString(match[1]) || !focus.MatchString(match[1]) {
			continue
		}
		reason := ""
		for _, u := range unusable {
			if reason == "" && u.name.MatchString(match[1]) {
				reason = u.reason
			}
		}
		if reason != "" {
			left = append(left, Excluded{Name: match[1], Reason: reason})
		} else {
			names = append(names, match[1])
		}
	}
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("no test matches %q", focus)
	}
	slices.Sort(names)
	return slices.Compact(names), left, nil
}

// pattern matches exactly these names, behind the suite's name.
func pattern(names []string) string {
	var quoted []string
	for _, name := range names {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	return " (" + strings.Join(quoted, "|") + ")$"
}

// test runs the tests: side by side, then alone where they disturb others, and finally those once more, alone, that have failed. It keeps
// the logs of a failure.
func (w *world) test(ctx context.Context, result *Run, focus *regexp.Regexp) error {
	listing, err := exec.CommandContext(ctx, w.program("e2e.test"), "--list-tests").Output()
	if err != nil {
		return fmt.Errorf("list tests: %w", err)
	}
	names, left, err := choose(string(listing), w.settings.nodes, focus)
	if err != nil {
		return err
	}
	result.Excluded = left
	var together, apart []string
	for _, name := range names {
		if alone.MatchString(name) {
			apart = append(apart, name)
		} else {
			together = append(together, name)
		}
	}
	log.Printf("%s: %d tests, and %d that run alone", result.Proxy, len(together), len(apart))
	for _, part := range []struct {
		folder string
		names  []string
		procs  int
	}{{"together", together, w.procs}, {"alone", apart, 1}} {
		tests, err := w.ginkgo(ctx, part.folder, part.names, part.procs)
		if err != nil {
			return err
		}
		result.Tests = append(result.Tests, tests...)
	}
	failed := result.names(failed)
	if len(failed) == 0 {
		return nil
	}
	log.Printf("%s: %d tests have failed, and run once more, alone: %s", result.Proxy, len(failed), strings.Join(failed, "; "))
	folder := result.folder(w.results)
	if err := w.keepLogs(ctx, folder); err != nil {
		return err
	}
	again, err := w.ginkgo(ctx, "again", failed, 1)
	if err != nil {
		return err
	}
	result.retry(again)
	var errs []error
	for _, name := range []string{"together", "alone", "again"} {
		errs = append(errs, copyLogs(w.path(name), filepath.Join(folder, name)))
	}
	return errors.Join(errs...)
}

// ginkgo runs tests, and returns their results.
func (w *world) ginkgo(ctx context.Context, folder string, names []string, procs int) ([]Test, error) {
	if len(names) == 0 {
		return nil, nil
	}
	dir := w.path(folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	cmd := exec.Command("ip", "netns", "exec", w.control, w.program("ginkgo"), fmt.Sprintf("--procs=%d", procs), "--timeout=3h", "--no-color",
		"--poll-progress-after=0", "--json-report=report.json", "--output-dir="+dir, "--focus="+pattern(names), w.program("e2e.test"), "--",
		"--kubeconfig="+w.path("admin.conf"), "--provider=skeleton", "--kubectl-path="+w.program("kubectl"), fmt.Sprintf("--num-nodes=%d", len(w.nodes)),
		"--report-dir="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID} // its children end with it
	log := filepath.Join(dir, "e2e.log")
	p, err := cluster.StartProcess("ginkgo", log, cmd)
	if err != nil {
		return nil, err
	}
	failure := p.Wait(ctx) // also an error if a test has failed: the report says which
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		return nil, errors.Join(failure, err, errors.New(tail(log)))
	}
	tests, err := readReport(text)
	if err != nil {
		return nil, errors.Join(failure, err)
	}
	if missing := missing(names, tests); len(missing) > 0 {
		return nil, fmt.Errorf("%d tests did not run: %s\n%s", len(missing), strings.Join(missing, "; "), tail(log))
	}
	return tests, nil
}

// missing returns the names without a result.
func missing(names []string, tests []Test) (out []string) {
	for _, name := range names {
		if !slices.ContainsFunc(tests, func(t Test) bool { return t.Name == name }) {
			out = append(out, name)
		}
	}
	return out
}

func tail(file string) string {
	text, _ := os.ReadFile(file) // an error leaves it empty
	return string(text[max(0, len(text)-2000):])
}

// readReport reads ginkgo's report in JSON. Tests that were not chosen are left out.
func readReport(text []byte) (tests []Test, err error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText            string
			LeafNodeType            string
			State                   string
			RunTime                 float64 // nanoseconds
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &suites); err != nil {
		return nil, fmt.Errorf("read ginkgo's report: %w", err)
	}
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			message := strings.Join(strings.Fields(spec.Failure.Message), " ")
			if spec.LeafNodeType != "It" {
				if spec.State == "failed" || spec.State == "panicked" {
					return nil, fmt.Errorf("%s failed: %s", spec.LeafNodeType, message)
				}
				continue
			}
			state := spec.State
			switch {
			case state == "skipped" && message == "", state == "pending": // not chosen, or disabled upstream
				continue
			case state != passed && state != skipped:
				state = failed // also timed out, panicked, interrupted
			}
			tests = append(tests, Test{
				Name:   strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " "),
				Status: state, Seconds: int(spec.RunTime/1e9 + 0.5), Message: message[:min(len(message), 300)],
			})
		}
	}
	slices.SortFunc(tests, func(a, b Test) int { return strings.Compare(a.Name, b.Name) })
	return tests, nil
}
