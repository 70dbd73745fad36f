package main

import (
	"context"
	"slices"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestCostIsPaired: a slower machine, or load in bursts of one kind, does not change the measured cost.
func TestCostIsPaired(t *testing.T) {
	const cost, rounds, disturbed = 3e-7, 101, 30
	bursts, f := &Figures{Values: map[quantity][]float64{}}, &Figures{Values: map[quantity][]float64{}}
	for i := range rounds {
		slower, elsewhere := 1e-6*float64(i), 0.0
		if i < disturbed {
			elsewhere = 1e-3
		}
		bursts.add(newDirect, slower+elsewhere)
		bursts.add(newService, slower+cost)
	}
	f.addCosts(bursts)
	i := slices.IndexFunc(extras, func(e extra) bool { return e.more == newService && e.less == newDirect })
	e := extras[i]
	if v, ok := f.extra(e); !ok || v < 0.99*cost || v > 1.01*cost {
		t.Errorf("extra is %v, %v; want %v", v, ok, cost)
	}
	if v := f.uncertainty(e); v > 0.01*cost {
		t.Errorf("uncertainty is %v; the cost is always the same", v)
	}
	for _, other := range extras {
		if v, ok := f.extra(other); ok && other != e {
			t.Errorf("%s is %v, and wasn't measured", other.name, v)
		}
	}
}

// TestDroppedPacketsAreAnError: a packet that is not forwarded is cheap.
func TestDroppedPacketsAreAnError(t *testing.T) {
	w := &world{size: size{services: 10, endpoints: 10}, lab: lab.ForTest(t, lab.Config{Pods: 1})}
	tm := &timer{world: w}
	t.Cleanup(tm.close)
	ctx := context.Background()
	if err := tm.open(ctx, atSingle); err != nil {
		t.Fatal(err)
	}
	s := tm.sites[atSingle]
	send := func() {
		t.Helper()
		for _, q := range []quantity{establishedSingle, establishedServiceSingle, newSingle, newServiceSingle} {
			for i := range streams {
				if streams[i].quantity != q {
					continue
				}
				if _, err := tm.burst(&streams[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	send()
	if err := s.allArrived(ctx); err != nil {
		t.Errorf("all packets should go through: %v", err)
	}
	if err := load(ctx, s.lab.Node, "table ip dropping {\n chain c {\n  type filter hook forward priority 0; policy drop;\n }\n}\n"); err != nil {
		t.Fatal(err)
	}
	send()
	if err := s.allArrived(ctx); err == nil {
		t.Error("half of the packets were dropped without an error")
	}
}
