package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/cluster"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// evil is a tenant with one namespace at its limits: a number of elements in Services, each with the largest number of pairs of a
// port and an endpoint, and source ranges.
type evil struct {
	*world
	elements, pairs, ranges int
	store                   *cluster.Store
	round                   int
}

const (
	evilNamespace = "evil"
	// evilEndpoints is the number of endpoints of a slice, the API server's limit.
	evilEndpoints = 1000
	// evilRanges is the limit of a Service's source ranges.
	evilRanges = 1000
)

// ports returns the number of ports of each large Service. One slice with all of them has a hundred kilobytes.
func (e *evil) ports() int { return max(1, min(100, e.pairs/evilEndpoints)) }

// slices returns the number of slices of each large Service.
func (e *evil) slices() int { return max(1, e.pairs/evilEndpoints/e.ports()) }

// large returns the number of large Services for which the namespace has room.
func (e *evil) large() int { return e.elements / (e.ports() + e.ports()*e.slices()*evilEndpoints) }

func (e *evil) service(i, ports int) *corev1.Service {
	s := serviceOf(types.NamespacedName{Namespace: evilNamespace, Name: fmt.Sprintf("big-%d", i)}, e.addr(96, 240, byte(1+i)))
	s.Spec.Ports = nil
	for p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Protocol: corev1.ProtocolTCP, Port: int32(1 + p)})
	}
	return s
}

// slice returns a slice of a large Service. Each round has other ports, so that all elements change.
func (e *evil) slice(i, number, round int) *discoveryv1.EndpointSlice {
	var addrs []netip.Addr
	for n := range evilEndpoints {
		addrs = append(addrs, e.addr(byte(140+number), byte(n/250), byte(1+n%250)))
	}
	s := sliceOf(e.service(i, 1), number+1, endpointPort, addrs)
	s.Ports = nil
	protocol := corev1.ProtocolTCP
	for p := range e.ports() {
		name, port := fmt.Sprint("p", p), int32(10_000+p+round%1000)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	return s
}

// restricted returns a Service with source ranges, which differ in each round.
func (e *evil) restricted(i, ranges, round int) *corev1.Service {
	s := e.service(100+i, 1)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", 1+i)}}
	for n := range ranges {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("%d.%d.%d.0/24", 11+i+10*(round%2), n/100, n%100*2))
	}
	return s
}

// fill writes all objects of the tenant.
func (e *evil) fill() error {
	for i := range e.large() {
		e.store.Put(e.service(i, e.ports()))
		for n := range e.slices() {
			e.store.Put(e.slice(i, n, 0))
		}
	}
	for i := 0; i*evilRanges < e.ranges; i++ {
		e.store.Put(e.restricted(i, min(evilRanges, e.ranges-i*evilRanges), 0))
	}
	return e.store.Flush()
}

// churn changes a large Service or source ranges, a few times a second, until the context ends.
func (e *evil) churn(ctx context.Context) error {
	const pause = 200 * time.Millisecond
	for wait(ctx, pause) == nil {
		e.round++
		if e.round%8 == 0 {
			e.store.Put(e.restricted(0, min(evilRanges, e.ranges), e.round/8))
		} else {
			for n := range e.slices() {
				e.store.Put(e.slice(e.round%max(1, e.large()), n, e.round))
			}
		}
		if err := e.store.Flush(); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// watcher polls elements in the kernel, which answers even while it processes a batch.
type watcher struct {
	*world
	conn *nft.Conn
	// ports counts the past ports of the unrelated Service.
	ports int
}

var servicesSet = &nft.Set{
	Family: inet.IPv4, Table: plan.TableName, Name: plan.ServicesSet, Counter: true,
	Key: []nft.Field{nft.DstAddr(inet.IPv4), nft.L4Proto(), nft.DstPort()}, Data: []nft.Field{nft.Priority()},
}

// await waits until the kernel has a frontend.
func (w *watcher) await(ctx context.Context, addr netip.Addr, port int) error {
	const longest, between = time.Minute, time.Millisecond
	key := nft.Value{}.Addr(addr).Proto(inet.TCP).Port(uint16(port))
	for start := time.Now(); time.Since(start) < longest; {
		found, err := w.conn.Get(servicesSet, []nft.Value{key})
		if err == nil && found[0] != nil {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if err := wait(ctx, between); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s:%d is not in the kernel after %v", addr, port, longest)
}

// change sets a new port of an unrelated Service, and returns the time from the write to the kernel.
func (w *watcher) change(ctx context.Context) (time.Duration, error) {
	w.ports++
	s := w.service(0)
	s.Spec.Ports[0].Port = int32(1000 + w.ports)
	start := time.Now()
	w.store.Put(s)
	if err := w.store.Flush(); err != nil {
		return 0, err
	}
	err := w.await(ctx, w.vip(0), 1000+w.ports)
	return time.Since(start), err
}

// flush flushes the ruleset, and returns the time until an unrelated Service is served again.
func (w *watcher) flush(ctx context.Context) (time.Duration, error) {
	if out, err := w.lab.Node.Command(ctx, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("nft flush ruleset: %w: %s", err, out)
	}
	start := time.Now()
	err := w.await(ctx, w.vip(1), servicePort)
	return time.Since(start), err
}

// measureLimits prints the times of unrelated changes and repairs with a tenant at its limits, idle and changing objects.
func measureLimits(ctx context.Context, s settings) error {
	fill := func(w *world) error { return w.fill(ctx, w.putPacketServices) }
	return inWorld(ctx, size{1000, 10, inet.IPv4}, lab.Config{Pods: 1}, fill, func(w *world, kubeconfig, dir string) error {
		return (&watcher{world: w}).measureAll(ctx, s, kubeconfig, dir)
	})
}

func (w *watcher) measureAll(ctx context.Context, s settings, kubeconfig, dir string) (err error) {
	e := &evil{world: w.world, elements: s.limitElements, pairs: s.limitPairs, ranges: s.limitRanges, store: w.Store(ctx).Singly()}
	if err := w.lab.Node.Do(func() (err error) { w.conn, err = nft.Open(); return err }); err != nil {
		return err
	}
	defer w.conn.Close() //nolint:errcheck // read only
	p := newProxy(kubeNftproxy, s, w.family, kubeconfig, w.lab.Node, s.raw)
	if s.raw == "" {
		p.log = filepath.Join(dir, "log")
	}
	if _, err := p.start(ctx); err != nil {
		return err
	}
	defer func() { p.running.Kill() }()
	fmt.Printf("| tenant | unrelated change: half, 99 of 100, longest | flush repaired: half, longest of %d |\n|---|---|---|\n", limitFlushes)
	if err := w.measure(ctx, "none"); err != nil {
		return err
	}
	log.Printf("%d Services with %d ports and %d slices each", e.large(), e.ports(), e.slices())
	title := fmt.Sprintf("%d elements, %d pairs a Service, %d source ranges", e.elements, e.pairs, e.ranges)
	done := make(chan error, 1)
	go func() {
		done <- errors.Join(e.fill(), p.awaitElements(ctx, e.large()*e.ports()*e.slices()*evilEndpoints))
	}()
	if err := w.measureUntil(ctx, title+", appearing", done); err != nil {
		return err
	}
	if err := w.measure(ctx, title); err != nil {
		return err
	}
	churning, stop := context.WithCancel(ctx)
	go func() { done <- e.churn(churning) }()
	err = w.measure(ctx, title+", changing")
	stop()
	return errors.Join(err, <-done)
}

// awaitElements waits until the program reports n elements in the kernel.
func (p *proxy) awaitElements(ctx context.Context, n int) error {
	return p.running.Await(ctx, 100*time.Millisecond, "elements", func(ctx context.Context) error {
		m, err := p.metrics(ctx)
		if got, _ := m.Sum("kubenftproxy_elements"); err == nil && got < float64(n) {
			err = fmt.Errorf("%.0f of %d", got, n)
		}
		return err
	})
}

const limitChanges, limitFlushes = 100, 5

// measure prints a row.
func (w *watcher) measure(ctx context.Context, tenant string) error {
	const quiet = 5 * time.Second // until the last repair of large Services is finished, too
	log.Printf("%s", tenant)
	_ = wait(ctx, quiet)
	changes, err := repeat(limitChanges, func() (time.Duration, error) { return w.rested(ctx) })
	if err != nil {
		return err
	}
	flushes, err := repeat(limitFlushes, func() (time.Duration, error) {
		_ = wait(ctx, quiet)
		return w.flush(ctx)
	})
	if err != nil {
		return err
	}
	printRow(tenant, changes, fmt.Sprintf("%v, %v", flushes[len(flushes)/2], flushes[len(flushes)-1]))
	return nil
}

// measureUntil prints a row of the changes until done receives.
func (w *watcher) measureUntil(ctx context.Context, tenant string, done <-chan error) error {
	log.Printf("%s", tenant)
	var changes []time.Duration
	for {
		select {
		case err := <-done:
			slices.Sort(changes)
			printRow(tenant, changes, "")
			return err
		default:
		}
		d, err := w.rested(ctx)
		if err != nil {
			return err
		}
		changes = append(changes, d.Round(time.Millisecond/10))
	}
}

// rested makes a change after a pause that is no divisor of the tenant's, and longer than the sync interval.
func (w *watcher) rested(ctx context.Context) (time.Duration, error) {
	_ = wait(ctx, 157*time.Millisecond)
	return w.change(ctx)
}

func printRow(tenant string, changes []time.Duration, flushes string) {
	n := len(changes)
	fmt.Printf("| %s | %v, %v, %v of %d | %s |\n", tenant, changes[n/2], changes[(n-1)*99/100], changes[n-1], n, flushes)
}

// repeat returns n times, sorted.
func repeat(n int, f func() (time.Duration, error)) (list []time.Duration, err error) {
	for range n {
		d, err := f()
		if err != nil {
			return nil, err
		}
		list = append(list, d.Round(time.Millisecond/10))
	}
	slices.Sort(list)
	return list, nil
}
