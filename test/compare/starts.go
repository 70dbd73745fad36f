package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
	"github.com/kube-nftproxy/kube-nftproxy/test/page"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// fleet is a cluster with many nodes. Each node is a pod's namespace of the lab, with a real program.
type fleet struct {
	*world
	proxies []*proxy
	// columns are the programs, and rows the quantities with the text of each program.
	columns []string
	rows    []startRow
}

// startRow is a row of the table: a quantity with the text of each program.
type startRow struct {
	name  string
	cells []string
}

// note adds the present program's cell to the row of a quantity.
func (f *fleet) note(name, format string, value float64) {
	i := slices.IndexFunc(f.rows, func(r startRow) bool { return r.name == name })
	if i < 0 {
		i, f.rows = len(f.rows), append(f.rows, startRow{name: name})
	}
	f.rows[i].cells = append(f.rows[i].cells, fmt.Sprintf(format, value))
}

// table returns all rows in Markdown.
func (f *fleet) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | %s |\n|---|%s\n", titleOf(f.size.String()), strings.Join(f.columns, " | "), strings.Repeat("---|", len(f.columns)))
	for _, r := range f.rows {
		fmt.Fprintf(&b, "| %s | %s |\n", r.name, strings.Join(r.cells, " | "))
	}
	return b.String()
}

// apiLoad is what programs have made the API server do.
type apiLoad struct {
	requests, bytes float64
	cpu             time.Duration // of kube-apiserver and etcd
}

func (l apiLoad) minus(o apiLoad) apiLoad {
	return apiLoad{l.requests - o.requests, l.bytes - o.bytes, l.cpu - o.cpu}
}

// measureStarts measures the load of the API server by nodes that start their program at the same moment, as after the edit of a
// configuration that all nodes apply at once, by a change of one EndpointSlice, and by a restart of the API server.
func measureStarts(ctx context.Context, s settings) error {
	var z size
	if _, err := fmt.Sscanf(cmp.Or(s.only, "1000x10"), "%dx%d", &z.services, &z.endpoints); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	fill := func(w *world) error { return w.fill(ctx, w.putPacketServices, w.putConflict) }
	return inWorld(ctx, z, lab.Config{Pods: s.starts}, fill, func(w *world, kubeconfig, dir string) error {
		f := &fleet{world: w}
		for _, name := range []string{kubeProxyNftables, kubeNftproxy} {
			if !wanted(s.programs, name) {
				continue
			}
			if err := f.measure(ctx, s, name, kubeconfig, dir); err != nil {
				return fmt.Errorf("measure %s: %w", name, err)
			}
		}
		fmt.Print(f.table())
		if s.output == "" {
			return nil
		}
		return page.Write(filepath.Join(s.output, "docs/benchmarks-details.md"), fmt.Sprintf("starts-%d", s.starts), f.table())
	})
}

// putConflict stores two Services that claim one address.
func (w *world) putConflict() {
	for i := range 2 {
		s := serviceOf(special(fmt.Sprintf("claims-%d", i)), w.vip(w.services+300+i))
		s.Spec.ExternalIPs = []string{"203.0.113.9"}
		w.store.Put(s)
	}
}

func (f *fleet) measure(ctx context.Context, s settings, name, kubeconfig, dir string) (err error) {
	f.proxies, f.columns = nil, append(f.columns, fmt.Sprintf("%d × %s", s.starts, name))
	for i, host := range f.lab.Pods {
		node := fmt.Sprintf("node-%d", 100+i)
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: host.IPv4.String()}}}}
		if err := f.Apply(ctx, object); err != nil {
			return err
		}
		p := newProxy(name, s, f.family, kubeconfig, host, filepath.Join(dir, fmt.Sprintf("%s-%d.log", strings.Fields(name)[0], i)))
		p.rest = time.Second
		p.args = append(p.args, "--hostname-override="+node)
		if name == kubeNftproxy {
			p.args = append(p.args, "--control-socket=")
		}
		f.proxies = append(f.proxies, p)
	}
	defer func() {
		err = errors.Join(err, f.each(func(p *proxy) error {
			if p.running != nil {
				p.running.Kill()
			}
			return p.host.Command(context.WithoutCancel(ctx), "nft", "flush", "ruleset").Run()
		}))
	}()
	// phase measures what the programs cause: by a number of changes, or by lists of all objects if it is 0.
	phase := func(what string, changed int, do func(before *apiLoad) error) error {
		before, err := f.load(ctx)
		if err != nil {
			return err
		}
		if err := f.resetPeak(); err != nil {
			return err
		}
		start := time.Now()
		if err := do(&before); err != nil {
			return err
		}
		took := time.Since(start)
		peak, err := f.peak()
		if err != nil {
			return err
		}
		const rest = 10 * time.Second // later requests, such as Events
		if err := wait(ctx, rest); err != nil {
			return err
		}
		after, err := f.load(ctx)
		if err != nil {
			return err
		}
		d := after.minus(before)
		n := float64(len(f.proxies))
		if changed > 0 {
			f.note(what+": bytes of a change to a node", "%.1f kB", d.bytes/1e3/n/float64(changed))
		} else {
			f.note(what+": requests of a node", "%.1f", d.requests/n)
			f.note(what+": bytes to a node", "%.0f kB", d.bytes/1e3/n)
			f.note(what+": peak memory of kube-apiserver and etcd", "%.0f MiB", peak)
		}
		f.note(what+": processor time of kube-apiserver and etcd, for a node", "%.3f s", d.cpu.Seconds()/n)
		f.note(what+": time until all nodes are programmed", "%.1f s", took.Seconds())
		return nil
	}
	log.Printf("%s, %s: start of %d nodes", f.size, name, len(f.proxies))
	err = phase("start", 0, func(*apiLoad) error {
		return f.each(func(p *proxy) error { _, err := p.start(ctx); return err })
	})
	if err != nil {
		return err
	}
	changes := func(n int) error {
		var changed time.Time
		for range n {
			changed = time.Now()
			f.store.Put(f.slice(f.spread(f.rounds), f.next(), f.endpoints))
			if err := f.store.Flush(); err != nil {
				return err
			}
			const between = 20 * time.Millisecond // so that each change is an event of its own
			if err := wait(ctx, between); err != nil {
				return err
			}
		}
		return f.each(func(p *proxy) error {
			_, err := p.running.AwaitSync(ctx, changed, inet.IPv4)
			return err
		})
	}
	if err := phase("one EndpointSlice changes", 1, func(*apiLoad) error { return changes(1) }); err != nil {
		return err
	}
	const many = 500
	if err := phase("500 EndpointSlices change", many, func(*apiLoad) error { return changes(many) }); err != nil {
		return err
	}
	err = phase("the API server restarts, and an EndpointSlice changes", 0, func(before *apiLoad) (err error) {
		f.KillServer()
		if before.cpu, err = f.spent(); err != nil { // that of etcd: the new server begins at 0
			return err
		}
		return errors.Join(f.RestartServer(ctx), changes(1))
	})
	if err != nil {
		return err
	}
	events, err := f.conflictEvents(ctx)
	f.note("Events about the conflict, of all nodes", "%.0f", float64(events))
	return err
}

// each calls a function for all nodes at once.
func (f *fleet) each(do func(p *proxy) error) error {
	errs := make([]error, len(f.proxies))
	var all sync.WaitGroup
	for i, p := range f.proxies {
		all.Go(func() { errs[i] = do(p) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// load returns the present totals.
func (f *fleet) load(ctx context.Context) (l apiLoad, err error) {
	if l.cpu, err = f.spent(); err != nil {
		return l, err
	}
	err = f.lab.Node.Do(func() error {
		links, err := netlink.LinkList()
		for _, link := range links {
			if a := link.Attrs(); strings.HasPrefix(a.Name, "veth-pod") {
				l.bytes += float64(a.Statistics.TxBytes)
			}
		}
		return err
	})
	if err != nil {
		return l, err
	}
	var mu sync.Mutex
	return l, f.each(func(p *proxy) error {
		if p.running == nil {
			return nil
		}
		var samples program.Samples
		// A program on an overloaded machine may not answer at once.
		err := p.running.Await(ctx, time.Second, "metrics", func(ctx context.Context) (err error) {
			samples, err = p.metrics(ctx)
			return err
		})
		n, _ := samples.Sum("rest_client_requests_total")
		mu.Lock()
		defer mu.Unlock()
		l.requests += n
		return err
	})
}

// spent returns the processor time of the API server and etcd.
func (w *world) spent() (sum time.Duration, err error) {
	for _, pid := range w.Pids() {
		spent, err := cpuOf(pid)
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

// resetPeak makes [fleet.peak] start at the present memory.
func (f *fleet) resetPeak() (err error) {
	for _, pid := range f.Pids() {
		const peakOnly = "5" // proc_pid_clear_refs(5)
		err = errors.Join(err, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(peakOnly), 0))
	}
	return err
}

// peak returns the sum of the peak resident memory of the API server and of etcd since resetPeak, in MiB.
func (f *fleet) peak() (sum float64, err error) {
	for _, pid := range f.Pids() {
		mib, err := program.MemoryOf(pid, "VmHWM")
		if err != nil {
			return 0, err
		}
		sum += mib
	}
	return sum, nil
}

// conflictEvents counts the Events about the address that two Services claim.
func (f *fleet) conflictEvents(ctx context.Context) (n int, err error) {
	list, err := f.Client().EventsV1().Events("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for _, e := range list.Items {
		if strings.HasPrefix(e.Regarding.Name, "claims-") && e.ReportingController == kubeNftproxy {
			n++
		}
	}
	return n, nil
}
