package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// rulesets are nodes whose rules are compared: the first two without a program, the others with one of the programs. A program may also be a file for
// nft, which ends with .nft: an edited listing of the table.
type rulesets struct {
	names   []string
	running []*program.Program
}

// emptyChains has the base chains of the program without rules: the minimum for address translation of any kind.
const emptyChains = `table %s empty {
 chain prerouting { type nat hook prerouting priority -101; }
 chain output { type nat hook output priority -101; }
 chain prerouting-expired { type nat hook prerouting priority -99; }
 chain output-expired { type nat hook output priority -99; }
 chain prerouting-unclaimed { type nat hook prerouting priority 1000; }
 chain output-unclaimed { type nat hook output priority 1000; }
 chain input { type nat hook input priority -199; }
 chain postrouting { type nat hook postrouting priority -199; }
 chain tracked { ct state new; }
}
`

// direct and toVIP are the quantities of a node.
func (r *rulesets) direct(i int) quantity { return quantity(fmt.Sprint("direct ", i)) }
func (r *rulesets) toVIP(i int) quantity  { return quantity(fmt.Sprint("VIP ", i)) }

// measureRulesets compares the first packets of connections to random endpoints and random VIPs, with the rules of several programs. All bursts of a
// turn follow each other on a processor that runs nothing else, so that other programs do not use its caches.
func measureRulesets(ctx context.Context, s settings) error {
	for _, family := range inet.Families {
		w := vipWorld(family)
		w.endpoints = 10
		if !wanted(s.only, w.size.String()) {
			continue
		}
		if err := measureRulesetsOf(ctx, s, w); err != nil {
			return fmt.Errorf("%s: %w", w.size, err)
		}
	}
	return nil
}

func measureRulesetsOf(ctx context.Context, s settings, w *world) (err error) {
	dir, err := os.MkdirTemp("", "compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t, r := &timer{world: w}, &rulesets{names: append([]string{"connection tracking", "empty NAT chains"}, strings.Split(s.rulesets, ",")...)}
	defer t.close()
	defer r.stop()
	for i := range r.names {
		if err := r.open(ctx, t, dir, i); err != nil {
			return fmt.Errorf("%s: %w", r.names[i], err)
		}
		t.streams = append(t.streams, stream{r.direct(i), place(i), (*timer).toEndpoint})
		if i > 1 {
			t.streams = append(t.streams, stream{r.toVIP(i), place(i), (*timer).toService})
		}
	}
	bursts := &Figures{Values: map[quantity][]float64{}}
	if err := undisturbed(func() error { return t.time(ctx, s.turns, bursts) }); err != nil {
		return err
	}
	for i, at := range t.sites {
		if err := at.allArrived(ctx); err != nil {
			return fmt.Errorf("%s: %w", r.names[i], err)
		}
	}
	r.print(w.size, bursts)
	return nil
}

// undisturbed calls f on a thread that other programs do not interrupt.
func undisturbed(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const resetOnFork = 1
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return err
	}
	first := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: resetOnFork}
	if err := unix.SchedSetAttr(0, first, 0); err != nil {
		return err
	}
	return errors.Join(f(), unix.SchedSetAttr(0, before, 0))
}

// open makes a node and its rules.
func (r *rulesets) open(ctx context.Context, t *timer, dir string, i int) error {
	at, err := t.addSite(ctx)
	if err != nil {
		return err
	}
	name, node := r.names[i], at.lab.Node
	switch {
	case i == 0:
		return load(ctx, node, atTracked.rules(t.world))
	case i == 1:
		return load(ctx, node, fmt.Sprintf(emptyChains, t.family.Keyword()))
	case strings.HasSuffix(name, ".nft"):
		return node.Command(ctx, "nft", "-f", name).Run()
	}
	return r.start(ctx, t, dir, name)
}

// start starts a program, and waits for its rules.
func (r *rulesets) start(ctx context.Context, t *timer, dir, path string) error {
	if err := writeList(filepath.Join(manifestsOf(dir, 0), "list.json"), vipNodes[0].objects(t.world)); err != nil {
		return err
	}
	p, err := t.start(ctx, t.lab.Node, path, manifestsOf(dir, 0))
	if p != nil {
		r.running = append(r.running, p)
	}
	return err
}

func (r *rulesets) stop() {
	for _, p := range r.running {
		p.Kill()
	}
}

// print prints medians of the differences of bursts of the same turn.
func (r *rulesets) print(z size, bursts *Figures) {
	above := func(more, less quantity) string {
		v, ok := extra{more: more, less: less}.median(bursts)
		if !ok {
			return ""
		}
		return fmt.Sprintf("%.0f", 1e9*v)
	}
	const row = "%-28s%16s%16s%16s%16s%16s\n"
	fmt.Printf("%s, Linux %s; ns for the first packet of a connection\n", z, kernel())
	fmt.Printf(row, "", "direct, above", "direct, above", "to a VIP, above", "to a VIP, above", "to a VIP, above")
	fmt.Printf(row, "", "connection tr.", "empty chains", "connection tr.", "empty chains", "direct")
	for i, name := range r.names {
		fmt.Printf(row, filepath.Base(name), above(r.direct(i), r.direct(0)), above(r.direct(i), r.direct(1)),
			above(r.toVIP(i), r.direct(0)), above(r.toVIP(i), r.direct(1)), above(r.toVIP(i), r.direct(i)))
	}
}
