package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// size is how many Services there are, and how many endpoints each of them has.
type size struct{ services, endpoints int }

func (z size) String() string { return fmt.Sprintf("%dx%d", z.services, z.endpoints) }

// round is what is measured at one size, and of whom.
type round struct {
	size
	programs []string
	effort   effort
}

// effort is how often things are repeated: kube-proxy takes seconds for what takes us a fraction of a millisecond.
type effort struct {
	// changes is the number of single changes of each kind; spread of those that follow one another in short order.
	changes, spread int
	// rolling says that Services with many endpoints are there, and updated.
	rolling bool
	// packets is the number in each of the rounds in which they are timed.
	packets int
}

// plan lists what is measured. kube-proxy takes minutes to hours for the large sizes, hence they are ours alone.
func plan(quick bool) []round {
	both := []string{kubeProxyNftables, kubeNftproxy}
	if quick {
		return []round{{size{1000, 10}, both, effort{6, 100, false, 5000}}}
	}
	ours := []string{kubeNftproxy}
	return []round{
		{size{1000, 10}, []string{kubeProxyIptables, kubeProxyNftables, kubeNftproxy}, effort{10, 1000, true, 20000}},
		{size{10000, 10}, both, effort{6, 1000, false, 20000}},
		{size{5000, 50}, ours, effort{6, 0, false, 0}},
		{size{45000, 1}, ours, effort{6, 0, false, 0}},
		{size{50000, 10}, ours, effort{6, 0, false, 20000}},
	}
}

func measureAll(ctx context.Context, s settings) (*Report, error) {
	report := newReport(s.output)
	for _, r := range plan(s.quick) {
		if !wanted(s.only, r.size.String()) {
			continue
		}
		if err := measureRound(ctx, s, r, report); err != nil {
			return nil, fmt.Errorf("%s: %w", r.size, err)
		}
	}
	return report, nil
}

// measureRound runs one program after the other on a cluster of that size.
func measureRound(ctx context.Context, s settings, r round, report *Report) error {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := lab.New(lab.Config{Pods: 1})
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer l.Close()
	say("%s: starting etcd and kube-apiserver", r.size)
	c, err := cluster.Start(ctx, cluster.Config{Dir: filepath.Join(dir, "cluster"), Netns: l.Node.Netns})
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	defer c.Stop()
	w := &world{Cluster: c, lab: l, size: r.size}
	say("%s: making Services and EndpointSlices", r.size)
	if err := w.fill(ctx, r.effort.rolling); err != nil {
		return fmt.Errorf("fill the cluster: %w", err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := c.Kubeconfig(kubeconfig, false); err != nil {
		return err
	}
	for _, name := range r.programs {
		if !wanted(s.programs, name) {
			continue
		}
		p := newProxy(name, s, kubeconfig, l.Node, filepath.Join(dir, name+".log"))
		if err := p.measure(ctx, w, effortOf(name, r.effort), report.of(name, r.size)); err != nil {
			return fmt.Errorf("measure %s: %w", name, err)
		}
	}
	return nil
}

// effortOf repeats more where it costs little.
func effortOf(name string, e effort) effort {
	const ours = 100
	if name == kubeNftproxy {
		e.changes = ours
	}
	return e
}
