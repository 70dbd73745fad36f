package main

import (
	"context"
	"fmt"
	"log"
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
	"github.com/kube-nftproxy/kube-nftproxy/test/program"
)

// measureBatch measures a lower limit for any proxy with these maps: the kernel's time for one batch with the elements of a plan,
// prepared in advance, in an otherwise idle network namespace. The sets have their final size, as in kube-nftproxy.
// There are no rules, and the time includes no reading, planning or encoding.
func measureBatch(ctx context.Context, p *plan.Planner, f *Figures) error {
	const runs = 5
	log.Printf("a bare batch")
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
			b, n := bare(p)
			runtime.GC()
			before, err := program.KernelMemory()
			if err != nil {
				return err
			}
			start := time.Now()
			if err := conn.Commit(b); err != nil {
				return err
			}
			f.add(bareBatch, time.Since(start).Seconds())
			if err := wait(ctx, freed); err != nil {
				return err
			}
			after, err := program.KernelMemory()
			if err != nil {
				return err
			}
			f.add(kernelMemory, after-before)
			f.add(elements, float64(n))
			if err := forget(ctx, conn, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// bare returns a batch with the elements of a plan, and their sets and chains, and the number of elements.
func bare(p *plan.Planner) (b *nft.Batch, n int) {
	const tables, perElement = 64 << 10, 72
	apply.Fit(p)
	p.Elements(func(*nft.Element) { n++ })
	b = nft.NewBatch(tables + perElement*n)
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
	return b, n
}

// freed is the time in which the kernel frees the memory of a commit, or of deleted tables.
const freed = 500 * time.Millisecond

// forget deletes the tables, and waits until they are freed.
func forget(ctx context.Context, conn *nft.Conn, p *plan.Planner) error {
	b := nft.NewBatch(0)
	for _, t := range p.Tables() {
		b.DeleteTable(t.Family, t.Name)
	}
	if err := conn.Commit(b); err != nil {
		return err
	}
	return wait(ctx, freed)
}

func newPlanner() *plan.Planner {
	return plan.New(plan.Options{Families: inet.Families[:], MasqueradeMark: 0x4000})
}

// plan plans the Services of the size, and nothing else.
func (w *world) plan() *plan.Planner {
	p := newPlanner()
	for i := range w.services {
		s := w.service(i)
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		p.Set(name, built(s, w.slice(i, 0, w.endpoints)))
	}
	return p
}

// built returns a Service as the program on the node builds it.
func built(s *corev1.Service, slices ...*discoveryv1.EndpointSlice) *model.Service {
	o := model.Objects{Service: s}
	for _, slice := range slices {
		o.Slices = append(o.Slices, model.NewSlice(slice, model.Limits{}, model.Stored{}))
	}
	return model.Build(o, model.Node{Name: nodeName}, model.Options{})
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
		p.Set(name, built(s, slices[name]...))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	return p, nil
}
