package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// change is one kind of single change. It is made a number of times, of another Service each time.
type change struct {
	quantity
	make func(w *world, k int)
}

// changes are the kinds, in their order: the last deletes the Services that the one before it has added.
var changes = []change{
	{replaceEndpoint, func(w *world, k int) { w.store.Put(w.slice(w.spread(k), w.next(), w.endpoints)) }},
	{addEndpoint, func(w *world, k int) { w.store.Put(w.slice(w.spread(k), 0, w.endpoints+1)) }},
	{flipPolicy, func(w *world, k int) { w.store.Put(w.flipped(k)) }},
	{addService, func(w *world, k int) { w.store.Put(w.service(w.services + k)) }},
	{deleteService, func(w *world, k int) { w.store.Delete(w.service(w.services + k)) }},
}

// measureChanges times the sync that each of a number of single changes makes, when the proxy has been quiet for a while.
func (p *proxy) measureChanges(ctx context.Context, w *world, e effort, f *Figures) error {
	w.store = w.Store(ctx)
	for i := range e.changes {
		w.store.Put(w.slice(w.services+i, 0, w.endpoints)) // endpoints of the Services to come
	}
	if err := w.store.Flush(); err != nil {
		return err
	}
	for _, c := range changes {
		say("%s, %s: %s", w.size, p.name, c.quantity)
		for i := range e.changes {
			spent, follow, err := p.sync(ctx, func() error { c.make(w, i); return w.store.Flush() })
			if err != nil {
				return fmt.Errorf("%s: %w", c.quantity, err)
			}
			f.add(c.quantity, spent.Seconds())
			if c.quantity == replaceEndpoint {
				f.add(followEndpoint, follow.Seconds())
			}
		}
	}
	for i := range e.changes {
		w.store.Delete(w.slice(w.services+i, 0, 0))
	}
	return w.store.Flush()
}

// sync makes a change and waits until it is programmed: the time spent in syncs, and from the change to the kernel.
func (p *proxy) sync(ctx context.Context, change func() error) (spent, follow time.Duration, err error) {
	if err := wait(ctx, p.quiet); err != nil {
		return 0, 0, err
	}
	m, err := p.running.Metrics(ctx)
	if err != nil {
		return 0, 0, err
	}
	before, err := p.spent(ctx)
	if err != nil {
		return 0, 0, err
	}
	asked := time.Now()
	if err := change(); err != nil {
		return 0, 0, err
	}
	synced, err := p.running.AwaitSync(ctx, m.LastSync(model.IPv4), model.IPv4)
	if err != nil {
		return 0, 0, err
	}
	// kube-proxy counts the time a moment after it has noted that the sync is done.
	err = p.running.Await(ctx, time.Millisecond, "the sync's duration", func(ctx context.Context) error {
		after, err := p.spent(ctx)
		if spent = after - before; err == nil && spent == 0 {
			err = errors.New("not counted yet")
		}
		return err
	})
	return spent, synced.Sub(asked), err
}

// measureBurst replaces an endpoint of 1,000 Services at once, or of all if there are fewer.
func (p *proxy) measureBurst(ctx context.Context, w *world, _ effort, f *Figures) error {
	const services = 1000
	n := min(services, w.services)
	say("%s, %s: a change of %d Services", w.size, p.name, n)
	if err := wait(ctx, p.quiet); err != nil {
		return err
	}
	before, err := p.spent(ctx)
	if err != nil {
		return err
	}
	counted, err := p.changesSeen(ctx)
	if err != nil {
		return err
	}
	for i := range n {
		w.store.Put(w.slice(w.spread(i), w.next(), w.endpoints))
	}
	if err := w.store.Flush(); err != nil {
		return err
	}
	err = p.running.Await(ctx, 20*time.Millisecond, "all changes", func(ctx context.Context) error {
		seen, err := p.changesSeen(ctx)
		if err == nil && seen < counted+float64(n) {
			err = fmt.Errorf("%.0f of %d changes", seen-counted, n)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	after, err := p.spent(ctx)
	f.add(burst, (after - before).Seconds())
	return err
}

// rolling are Services of several sizes, whose endpoints come in slices of a hundred.
var rolling = []struct {
	quantity
	endpoints int
}{{rolling100, 100}, {rolling1000, 1000}, {rolling5000, 5000}}

// perSlice is the number of endpoints in a slice of a large Service, as the EndpointSlice controller has it.
const perSlice = 100

// putRolling makes those Services.
func (w *world) putRolling() {
	for n, r := range rolling {
		w.store.Put(w.serviceAt(rollingName(r.endpoints), netip.AddrFrom4([4]byte{10, 96, 254, byte(1 + n)})))
		for i := range r.endpoints / perSlice {
			w.store.Put(rollingSlice(r.endpoints, i, 0))
		}
	}
}

func rollingName(endpoints int) string { return fmt.Sprintf("rolling-%d", endpoints) }

// rollingSlice is a slice of a large Service, a number of whose endpoints are new.
func rollingSlice(endpoints, number, replaced int) *discoveryv1.EndpointSlice {
	var addrs []netip.Addr
	for e := range perSlice {
		second := byte(0)
		if e < replaced {
			second = 1
		}
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 110 + second, byte(endpoints/1000*20 + number), byte(1 + e)}))
	}
	return endpointSlice(rollingName(endpoints), number+1, corev1.ProtocolTCP, endpointPort, addrs)
}

// measureRolling replaces ten endpoints of a slice at a time, and notes the time for each.
func (p *proxy) measureRolling(ctx context.Context, w *world, e effort, f *Figures) error {
	if !e.rolling {
		return nil
	}
	const steps, replaced = 5, 10
	for _, r := range rolling {
		say("%s, %s: %s", w.size, p.name, r.quantity)
		slices := r.endpoints / perSlice
		for i := range steps {
			spent, _, err := p.sync(ctx, func() error {
				w.store.Put(rollingSlice(r.endpoints, i%slices, replaced*(1+i/slices)))
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

// changesSeen counts the changes of EndpointSlices that have come.
func (p *proxy) changesSeen(ctx context.Context) (float64, error) {
	m, err := p.running.Metrics(ctx)
	return m["kubeproxy_sync_proxy_rules_endpoint_changes_total"], err
}

// settle waits until nothing has been synced for a while.
func (p *proxy) settle(ctx context.Context) error {
	last, since := time.Duration(-1), time.Now()
	return p.running.Await(ctx, 20*time.Millisecond, "a quiet moment", func(ctx context.Context) error {
		spent, err := p.spent(ctx)
		m, err2 := p.running.Metrics(ctx)
		if err != nil || err2 != nil {
			return fmt.Errorf("%w %w", err, err2)
		}
		if pending := m["kubeproxy_sync_proxy_rules_endpoint_changes_pending"]; spent != last || pending > 0 {
			last, since = spent, time.Now()
		}
		if quiet := time.Since(since); quiet < p.quiet {
			return fmt.Errorf("quiet for %v", quiet)
		}
		return nil
	})
}

// measureSpread notes the processor time for single changes that come twenty a second, each of another Service.
func (p *proxy) measureSpread(ctx context.Context, w *world, e effort, f *Figures) error {
	if e.spread == 0 {
		return nil
	}
	const pause = 50 * time.Millisecond
	say("%s, %s: %d changes, one after the other", w.size, p.name, e.spread)
	spent, err := p.cpuOf(func() error {
		for i := range e.spread {
			w.store.Put(w.slice(w.spread(i), w.next(), w.endpoints))
			if err := w.store.Flush(); err != nil {
				return err
			}
			if err := wait(ctx, pause); err != nil {
				return err
			}
		}
		return p.settle(ctx)
	})
	f.add(spreadCPU, spent.Seconds()*1000/float64(e.spread))
	return err
}
