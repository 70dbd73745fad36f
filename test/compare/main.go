package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// settings are the command line.
type settings struct {
	services, endpoints, changes int
	output                       string
	ours, theirs                 string
}

func main() {
	var s settings
	flag.IntVar(&s.services, "services", 10000, "number of Services")
	flag.IntVar(&s.endpoints, "endpoints", 10, "endpoints of each")
	flag.IntVar(&s.changes, "changes", 5, "single changes of an endpoint to measure")
	flag.StringVar(&s.output, "output", "", "root of the checkout in which docs/benchmarks.json and the tables are written; empty: print only")
	flag.StringVar(&s.ours, "kube-nftproxy", "bin/kube-nftproxy", "our program")
	flag.StringVar(&s.theirs, "kube-proxy", "bin/kubernetes/kube-proxy", "kube-proxy")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// Report is the outcome of a run.
type Report struct {
	Kernel    string    `json:"kernel"`
	CPUs      int       `json:"cpus"`
	Services  int       `json:"services"`
	Endpoints int       `json:"endpointsPerService"`
	Proxies   []Figures `json:"proxies"`
}

func compare(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := lab.New(lab.Config{})
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer l.Close()
	say("starting etcd and kube-apiserver")
	c, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster"), Netns: l.Node.Netns})
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	defer c.Stop()
	w := &world{Cluster: c, settings: s}
	say("creating %d Services with %d endpoints each", s.services, s.endpoints)
	if err := w.fill(ctx); err != nil {
		return fmt.Errorf("fill the cluster: %w", err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := c.Kubeconfig(kubeconfig, false); err != nil {
		return err
	}
	report := Report{Kernel: kernel(), CPUs: cpus(), Services: s.services, Endpoints: s.endpoints}
	for _, p := range []*proxy{kubeProxy(s, kubeconfig), kubeNftproxy(s, kubeconfig)} {
		p.host, p.log = l.Node, filepath.Join(dir, p.Name+".log")
		if err := p.measure(ctx, w); err != nil {
			return fmt.Errorf("measure %s: %w", p.Name, err)
		}
		report.Proxies = append(report.Proxies, p.Figures)
	}
	fmt.Print(report.table())
	if s.output == "" {
		return nil
	}
	return report.write(s.output)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

func (r *Report) write(root string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "docs/benchmarks.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	for _, page := range []string{"README.md", "docs/benchmarks.md"} {
		if err := r.publish(filepath.Join(root, page)); err != nil {
			return err
		}
	}
	return nil
}

// publish puts the table between the two markers of a page.
func (r *Report) publish(page string) error {
	const begin, end = "<!-- comparison -->\n", "<!-- /comparison -->\n"
	b, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(b), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return fmt.Errorf("publish in %s: no lines %q and %q", page, begin, end)
	}
	return os.WriteFile(page, []byte(before+begin+r.table()+end+after), 0o644)
}

// table is the report in Markdown.
func (r *Report) table() string {
	them, us := r.Proxies[0], r.Proxies[1]
	s := fmt.Sprintf("Linux %s, %d processors; %d Services with %d endpoints each, IPv4, a real API server; medians, one run.\n\n",
		r.Kernel, r.CPUs, r.Services, r.Endpoints)
	s += "| | kube-proxy " + them.Version + ", nftables | kube-nftproxy | ratio |\n|---|---|---|---|\n"
	row := func(what string, a, b time.Duration) {
		s += fmt.Sprintf("| %s | %s | %s | %.0f× |\n", what, round(a), round(b), float64(a)/float64(max(b, 1)))
	}
	row("start of the program → everything programmed", them.Start, us.Start)
	row("the first sync alone", them.FirstSync, us.FirstSync)
	row("one endpoint replaced: the sync", them.Change, us.Change)
	row("one endpoint replaced: call of the API → in the kernel", them.Follow, us.Follow)
	row("restart with nothing changed → in sync", them.Restart, us.Restart)
	s += fmt.Sprintf("| memory (peak; steady), without `nft` | %d; %d MB | %d; %d MB | %.1f×; %.1f× |\n", them.PeakMB, them.SteadyMB,
		us.PeakMB, us.SteadyMB, float64(them.PeakMB)/float64(us.PeakMB), float64(them.SteadyMB)/float64(us.SteadyMB))
	return s
}

// round keeps three digits or so.
func round(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}
