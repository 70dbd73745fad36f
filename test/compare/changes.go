package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// change is a kind of single change. It is repeated, with another Service each time.
type change struct {
	quantity
	make func(w *world, k int)
}

// changes are the kinds, in order: the last one deletes the Services that the one before it has added.
var changes = []change{
	{replaceEndpoint, func(w *world, k int) { w.store.Put(w.slice(w.spread(k), w.next(), w.endpoints)) }},
	{addEndpoint, func(w *world, k int) { w.store.Put(w.slice(w.spread(k), 0, w.endpoints+1)) }},
	{flipPolicy, func(w *world, k int) { w.store.Put(w.flipped(k)) }},
	{addService, func(w *world, k int) { w.store.Put(w.service(w.services + k)) }},
	{deleteService, func(w *world, k int) { w.store.Delete(w.service(w.services + k)) }},
}

// measureChanges measures the sync of each of a number of single changes, after a quiet time.
func (p *proxy) measureChanges(ctx context.Context, w *world, e effort, f *Figures) error {
	w.store = w.Store(ctx)
	for i := range e.changes {
		w.store.Put(w.slice(w.services+i, 0, w.endpoints)) // endpoints for the added Services
	}
	if err := w.store.Flush(); err != nil {
		return err
	}
	for _, c := range changes {
		if err := p.measureChange(ctx, w, c, e.changes, f); err != nil {
			return err
		}
	}
	for i := range e.changes {
		w.store.Delete(w.slice(w.services+i, 0, 0))
	}
	return w.store.Flush()
}

// measureChange measures the sync of each of n changes of a kind, after a quiet time.
func (p *proxy) measureChange(ctx context.Context, w *world, c change, n int, f *Figures) error {
	log.Printf("%s, %s: %s", w.size, p.name, c.quantity)
	for i := range n {
		spent, follow, err := p.sync(ctx, func() error { c.make(w, i); return w.store.Flush() })
		if err != nil {
			return fmt.Errorf("%s: %w", c.quantity, err)
		}
		f.add(c.quantity, spent.Seconds())
		if c.quantity == replaceEndpoint {
			f.add(followEndpoint, follow.Seconds())
		}
	}
	return nil
}

// sync makes a change and waits until it is programmed. It returns the time spent in syncs, and the time from the change to the
// kernel. It reads the metrics some time before and after, because a scrape uses the processor and leaves garbage, and both would
// be measured. It does not read them before the quiet time, in which kube-proxy may still sync the previous change.
func (p *proxy) sync(ctx context.Context, change func() error) (spent, follow time.Duration, err error) {
	const recovery = 100 * time.Millisecond
	if err := wait(ctx, p.quiet); err != nil {
		return 0, 0, err
	}
	before, err := p.metrics(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := wait(ctx, recovery); err != nil {
		return 0, 0, err
	}
	asked := time.Now()
	if err := p.awaitCommit(ctx, change); err != nil {
		return 0, 0, err
	}
	var synced time.Time
	// kube-proxy updates the duration shortly after the end of the sync.
	err = p.running.Await(ctx, time.Millisecond, "a sync and its duration", func(ctx context.Context) error {
		after, err := p.metrics(ctx)
		synced, spent = after.LastSync(inet.IPv4), spentOf(after)-spentOf(before)
		if err == nil && (spent == 0 || !synced.After(asked)) {
			err = errors.New("not counted yet")
		}
		return err
	})
	return spent, synced.Sub(asked), err
}

// awaitCommit makes a change and waits until any program has committed to nftables, as iptables-nft does too, or for a limited
// time: there may be nothing to commit, or the proxy may not use nftables.
func (p *proxy) awaitCommit(ctx context.Context, change func() error) error {
	const longest, between = 20 * time.Second, time.Millisecond
	before, err := p.ruleset.Generation()
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	for start := time.Now(); time.Since(start) < longest; {
		now, err := p.ruleset.Generation()
		if err != nil || now != before {
			return err
		}
		if err := wait(ctx, between); err != nil {
			return err
		}
	}
	return nil
}

// measureBurst replaces an endpoint of 1,000 Services at once, or of all if there are fewer.
func (p *proxy) measureBurst(ctx context.Context, w *world, e effort, f *Figures) error {
	if e.noBurst {
		return nil
	}
	log.Printf("%s, %s: a change of %d Services", w.size, p.name, w.burst())
	for range 1 + e.again {
		if err := wait(ctx, p.quiet); err != nil {
			return err
		}
		spent, err := p.syncBurst(ctx, w)
		if err != nil {
			return err
		}
		f.add(burst, spent.Seconds())
	}
	return nil
}

// burst returns the number of Services that change at once.
func (w *world) burst() int { return min(1000, w.services) }

// syncBurst replaces an endpoint of many Services, waits until all are programmed, and returns the time spent in syncs. It writes each object by itself,
// as the API server does: if the API server closes a slow watch, the next watch continues behind the last object that the client has seen.
func (p *proxy) syncBurst(ctx context.Context, w *world) (spent time.Duration, err error) {
	before, err := p.metrics(ctx)
	if err != nil {
		return 0, err
	}
	store := w.Store(ctx).Singly()
	for i := range w.burst() {
		store.Put(w.slice(w.spread(i), w.next(), w.endpoints))
	}
	if err := store.Flush(); err != nil {
		return 0, err
	}
	if err := p.awaitChanges(ctx, changesSeen(before)+float64(w.burst())); err != nil {
		return 0, err
	}
	after, err := p.settle(ctx)
	return spentOf(after) - spentOf(before), err
}

// awaitChanges waits until the proxy has received a number of changes since its start.
func (p *proxy) awaitChanges(ctx context.Context, n float64) error {
	return p.running.Await(ctx, 20*time.Millisecond, "changes", func(ctx context.Context) error {
		m, err := p.metrics(ctx)
		if seen := changesSeen(m); err == nil && seen < n {
			err = fmt.Errorf("%.0f of %.0f", seen, n)
		}
		return err
	})
}

// rolling are Services of several sizes, with endpoints in slices of a hundred.
var rolling = []struct {
	quantity
	endpoints int
}{{rolling100, 100}, {rolling1000, 1000}, {rolling5000, 5000}}

// perSlice is the EndpointSlice controller's number of endpoints in a slice.
const perSlice = 100

// putRolling stores those Services.
func (w *world) putRolling() {
	for n, r := range rolling {
		w.store.Put(w.rollingService(n))
		for i := range r.endpoints / perSlice {
			w.store.Put(w.rollingSlice(n, i, 0, 0))
		}
	}
}

// rollingService returns the Service of a row of rolling.
func (w *world) rollingService(n int) *corev1.Service {
	return serviceOf(special(fmt.Sprintf("rolling-%d", rolling[n].endpoints)), w.addr(96, 254, byte(1+n)))
}

// rollingSlice returns a slice of a large Service with a number of endpoints replaced in a round, which is at least 1.
func (w *world) rollingSlice(n, number, replaced, round int) *discoveryv1.EndpointSlice {
	var addrs []netip.Addr
	for e := range perSlice {
		generation := 0
		if e < replaced {
			generation = round
		}
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, byte(110 + generation), byte(rolling[n].endpoints/1000*20 + number), byte(1 + e)}))
	}
	return sliceOf(w.rollingService(n), number+1, endpointPort, addrs)
}

// measureRolling replaces ten endpoints of a slice at a time, and records the time for each.
func (p *proxy) measureRolling(ctx context.Context, w *world, e effort, f *Figures) error {
	if !e.rolling {
		return nil
	}
	w.rolled++ // the present state would be no change
	const steps, replaced = 5, 10
	for n, r := range rolling {
		log.Printf("%s, %s: %s", w.size, p.name, r.quantity)
		slices := r.endpoints / perSlice
		for i := range steps {
			spent, _, err := p.sync(ctx, func() error {
				w.store.Put(w.rollingSlice(n, i%slices, replaced*(1+i/slices), w.rolled))
				return w.store.Flush()
			})
			if err != nil {
				return err
			}
			f.add(r.quantity, spent.Seconds()/replaced)
		}
	}
	return nil
}

// changesSeen returns the number of received EndpointSlice changes.
func changesSeen(m program.Samples) float64 {
	return m["kubeproxy_sync_proxy_rules_endpoint_changes_total"]
}

// settle waits until all requests are programmed and there was no sync for a while, and returns the metrics then. If a sync was
// running at the last change, another sync follows, which takes as long and is counted at its end.
func (p *proxy) settle(ctx context.Context) (m program.Samples, err error) {
	var longest time.Duration
	last, since := time.Duration(-1), time.Now()
	err = p.running.Await(ctx, 20*time.Millisecond, "a quiet moment", func(ctx context.Context) (err error) {
		if m, err = p.metrics(ctx); err != nil {
			return err
		}
		spent := spentOf(m)
		if last >= 0 {
			longest = max(longest, spent-last)
		}
		if spent != last || isPending(m) {
			last, since = spent, time.Now()
		}
		if quiet := time.Since(since); quiet < p.quiet+longest {
			return fmt.Errorf("quiet for %v", quiet)
		}
		return nil
	})
	return m, err
}

// isPending reports whether a sync was requested since the last one ended. kube-proxy resets its number of pending changes when a
// sync begins, and both families share it.
func isPending(m program.Samples) bool {
	const queued, pending = `kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"}`,
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending"
	return m[pending] > 0 || time.Unix(0, int64(m[queued]*1e9)).After(m.LastSync(inet.IPv4))
}

// measureSpread measures the processor time and the allocations for single changes at twenty a second, each of another Service.
func (p *proxy) measureSpread(ctx context.Context, w *world, e effort, f *Figures) error {
	if e.spread == 0 {
		return nil
	}
	log.Printf("%s, %s: %d changes, one after the other", w.size, p.name, e.spread)
	took, err := p.costOf(ctx, func() (program.Samples, error) { return p.spread(ctx, w, e.spread) })
	n := float64(e.spread)
	f.add(spreadCPU, took.processor.Seconds()*1000/n)
	f.add(allocations, took.objects/n)
	f.add(allocatedBytes, took.bytes/n)
	return err
}

// spread makes the changes and returns the metrics after them.
func (p *proxy) spread(ctx context.Context, w *world, n int) (program.Samples, error) {
	const pause = 50 * time.Millisecond
	for i := range n {
		w.store.Put(w.slice(w.spread(i), w.next(), w.endpoints))
		if err := w.store.Flush(); err != nil {
			return nil, err
		}
		if err := wait(ctx, pause); err != nil {
			return nil, err
		}
	}
	return p.settle(ctx)
}

// spending is the use of resources: processor time, and heap allocations in objects and bytes.
type spending struct {
	processor      time.Duration
	objects, bytes float64
}

// costOf returns the program's use of resources while f runs, without the cost of the scrape with which f ends.
func (p *proxy) costOf(ctx context.Context, f func() (program.Samples, error)) (c spending, err error) {
	const scrapes = 10
	first, err := p.metrics(ctx)
	if err != nil {
		return c, err
	}
	before := first
	telling, err := p.cpuOf(func() error {
		for range scrapes {
			if before, err = p.metrics(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	counted := p.scrapes
	var after program.Samples
	spent, err := p.cpuOf(func() error {
		after, err = f()
		return err
	})
	if err != nil {
		return c, err
	}
	n := float64(p.scrapes-counted) / scrapes
	own := func(metric string) float64 {
		return after[metric] - before[metric] - n*(before[metric]-first[metric])
	}
	return spending{
		processor: spent - time.Duration(n*float64(telling)),
		objects:   own("go_memstats_mallocs_total"), bytes: own("go_memstats_alloc_bytes_total"),
	}, nil
}
