package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/apply"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// measureBatch measures a lower limit for any proxy with these maps: the kernel's time for one batch with the elements of all
// Services, prepared in advance, in an otherwise idle network namespace. The sets have their final size, as in kube-nftproxy.
// There are no rules, and the time includes no reading, planning or encoding.
func measureBatch(ctx context.Context, w *world, f *Figures) error {
	const runs = 5
	say("%s, a bare batch", w.size)
	p, err := w.planner(ctx)
	if err != nil {
		return err
	}
	l, err := lab.New(lab.Config{})
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer l.Close() //nolint:errcheck // unused from here on
	return l.Node.Do(func() error {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // every batch has been answered
		for range runs {
			b := bare(p)
			runtime.GC()
			start := time.Now()
			if err := conn.Commit(b); err != nil {
				return err
			}
			f.add(bareBatch, time.Since(start).Seconds())
			if err := forget(ctx, conn, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// bare returns a batch with the elements of a plan, and their sets and chains.
func bare(p *plan.Planner) *nft.Batch {
	const tables, perElement = 64 << 10, 72
	apply.Fit(p)
	n := 0
	p.Elements(func(*nft.Element) { n++ })
	b := nft.NewBatch(tables + perElement*n)
	for _, t := range p.Tables() {
		b.AddTable(t)
		for _, s := range t.Sets {
			b.AddSet(s)
		}
		for _, c := range t.Chains {
			b.AddChain(t, c)
		}
	}
	p.Elements(b.AddElement)
	return b
}

// forget deletes the tables. The kernel frees their elements asynchronously, so forget waits.
func forget(ctx context.Context, conn *nft.Conn, p *plan.Planner) error {
	b := nft.NewBatch(0)
	for _, t := range p.Tables() {
		b.DeleteTable(t.Family, t.Name)
	}
	if err := conn.Commit(b); err != nil {
		return err
	}
	return wait(ctx, 500*time.Millisecond)
}

func newPlanner() *plan.Planner {
	return plan.New(plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000})
}

// planner plans all existing Services, as the program does on the node.
func (w *world) planner(ctx context.Context) (*plan.Planner, error) {
	slices := map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	err := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (kruntime.Object, error) {
		return w.Client().DiscoveryV1().EndpointSlices("").List(ctx, o)
	})).EachListItem(ctx, metav1.ListOptions{}, func(obj kruntime.Object) error {
		s := obj.(*discoveryv1.EndpointSlice)
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
		slices[name] = append(slices[name], s)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list EndpointSlices: %w", err)
	}
	p := newPlanner()
	err = pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (kruntime.Object, error) {
		return w.Client().CoreV1().Services("").List(ctx, o)
	})).EachListItem(ctx, metav1.ListOptions{}, func(obj kruntime.Object) error {
		s := obj.(*corev1.Service)
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		p.Set(name, model.Build(s, slices[name], model.Node{Name: nodeName}, model.Options{}))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	return p, nil
}
