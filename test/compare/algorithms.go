package main

import (
	"context"
	"fmt"
	"log"
	"path/filepath"
	"strings"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/balance"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
)

// algorithms are the values of the annotation. Their figures have these names in place of a program's.
var algorithms = []string{balance.Random, balance.SourceHash, balance.Maglev}

// algorithmRows are the rows of their table, before that of a new connection.
var algorithmRows = []quantity{elements, kernelMemory, pssMemory, anonymousMemory, bareBatch, firstSync, replaceEndpoint, followEndpoint, written}

// algorithmsFile is the file of a checkout with the raw figures.
const algorithmsFile = "docs/benchmarks-algorithms.json"

// measureAlgorithms measures the costs of 1,000 Services of each algorithm. The algorithms take turns on one cluster.
func measureAlgorithms(ctx context.Context, s settings) error {
	z, turns, e := size{1000, 10, inet.IPv4}, 5, effort{changes: 30, packets: 20000, placements: 1}
	if s.quick {
		turns = 1
	}
	r := newReport("")
	for _, name := range algorithms {
		r.of(name, z)
	}
	fill := func(w *world) error { return w.fill(ctx, w.putPacketServices) }
	err := inWorld(ctx, z, packetLab, fill, func(w *world, kubeconfig, dir string) error {
		p := newProxy(kubeNftproxy, s, z.family, kubeconfig, w.lab.Node, filepath.Join(dir, "log"))
		if err := p.open(); err != nil {
			return err
		}
		defer p.ruleset.Close() //nolint:errcheck // read only
		for range turns {
			for _, f := range r.Figures {
				if err := p.measureAlgorithm(ctx, w, e, f); err != nil {
					return fmt.Errorf("measure %s: %w", f.Program, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	text := r.algorithms(z, turns)
	fmt.Print(text)
	if s.output == "" {
		return nil
	}
	if err := r.save(filepath.Join(s.output, algorithmsFile)); err != nil {
		return err
	}
	return page.Write(filepath.Join(s.output, "docs/benchmarks-details.md"), "algorithms", text)
}

// measureAlgorithm measures one turn of an algorithm.
func (p *proxy) measureAlgorithm(ctx context.Context, w *world, e effort, f *Figures) error {
	log.Printf("%s of the algorithm %s", w.size, f.Program)
	w.annotations = map[string]string{"kube-nftproxy.io/lb-algorithm": f.Program}
	for i := range w.services {
		w.store.Put(w.service(i))
	}
	if err := w.store.Flush(); err != nil {
		return err
	}
	if err := measureBatch(ctx, w.plan(), f); err != nil {
		return fmt.Errorf("measure a bare batch: %w", err)
	}
	defer p.kill()
	if err := p.measureStart(ctx, f); err != nil {
		return err
	}
	if err := p.measureMemory(ctx, w, e, f); err != nil {
		return err
	}
	const sum = "kubenftproxy_batch_elements_sum"
	before, err := p.metrics(ctx)
	if err != nil {
		return err
	}
	if err := p.measureChange(ctx, w, changes[0], e.changes, f); err != nil {
		return err
	}
	after, err := p.metrics(ctx)
	if err != nil {
		return err
	}
	f.add(written, (after[sum]-before[sum])/float64(e.changes))
	if err := measurePackets(ctx, w, e.packets, f); err != nil {
		return err
	}
	return p.cleanUp(ctx)
}

// algorithms returns the table in Markdown.
func (r *Report) algorithms(z size, turns int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s, %d processors, %s; %s, IPv4; medians of %d turns. In brackets the least and the greatest\nvalue, or with 20 values and more the 99th percentile.\n\n",
		r.Kernel, r.CPUs, r.Go, titleOf(z.String()), turns)
	b.WriteString("| | " + strings.Join(algorithms, " | ") + " |\n|---|" + strings.Repeat("---|", len(algorithms)) + "\n")
	row := func(name string, cell func(f *Figures) string) {
		b.WriteString("| " + name + " |")
		for _, f := range r.Figures {
			b.WriteString(" " + cell(f) + " |")
		}
		b.WriteString("\n")
	}
	for _, q := range algorithmRows {
		row(string(q), func(f *Figures) string { return f.cell(q) })
	}
	for _, e := range extras {
		if e.more == newService && e.less == newServiceSingle {
			row(e.name, func(f *Figures) string { return f.extraCell(e) })
		}
	}
	return b.String()
}
