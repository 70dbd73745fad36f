package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
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
		bursts.add(newTracked, slower+elsewhere)
		bursts.add(newService, slower+cost)
	}
	f.addCosts(bursts)
	i := slices.IndexFunc(extras, func(e extra) bool { return e.more == newService && e.less == newTracked })
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

// TestDroppedPacketsAreAnError: a packet that is not forwarded is cheap. Nor is a packet translated whose checksums are wrong, so
// this is also a test of the frames.
func TestDroppedPacketsAreAnError(t *testing.T) {
	for _, family := range inet.Families {
		t.Run(family.String(), func(t *testing.T) { droppedPacketsAreAnError(t, family) })
	}
}

func droppedPacketsAreAnError(t *testing.T, family inet.Family) {
	t.Helper()
	w := &world{size: size{10, 10, family}, lab: lab.ForTest(t, packetLab)}
	tm := newTimer(w)
	t.Cleanup(tm.close)
	ctx := context.Background()
	lab.Must(t, tm.open(ctx, atSingle))
	s := tm.sites[atSingle]
	send := func() {
		t.Helper()
		for _, q := range []quantity{establishedSingle, establishedServiceSingle, newSingle, newServiceSingle} {
			for i := range streams {
				if streams[i].quantity != q {
					continue
				}
				lab.Must(t, lab.Err(tm.burst(&streams[i])))
			}
		}
	}
	send()
	lab.Check(t, s.allArrived(ctx), "all packets should go through")
	lab.Must(t, load(ctx, s.lab.Node, "table inet dropping {\n chain c {\n  type filter hook forward priority 0; policy drop;\n }\n}\n"))
	send()
	if err := s.allArrived(ctx); err == nil {
		t.Error("half of the packets were dropped without an error")
	}
}

// TestIPv6HasItsOwnTable: a size with packets only has a table with their rows, after that of IPv4, and the README's table stays.
func TestIPv6HasItsOwnTable(t *testing.T) {
	z := size{10, 10, inet.IPv4}
	r := &Report{}
	both := func(z size, q quantity) {
		for _, program := range []string{kubeProxyNftables, kubeNftproxy} {
			r.of(program, z).add(q, 1)
		}
	}
	both(z, startToProgrammed)
	_, before, _ := strings.Cut(r.page(), "###")
	summary := r.short(replaceEndpoint)
	r.Figures = nil
	cost := extras[0]
	both(size{10, 10, inet.IPv6}, quantity(cost.name))
	both(z, startToProgrammed)
	_, got, _ := strings.Cut(r.page(), "###")
	want := before + "\n### 10 Services with 10 endpoints each, IPv6\n\n| | kube-proxy nftables | kube-nftproxy | ratio |\n|---|---|---|---|\n" +
		"| " + cost.name + " | 1s ± 0s | 1s ± 0s | |\n" // no packet without rules was measured
	lab.Same(t, want, got, "tables")
	if diff := cmp.Diff(summary, r.short(replaceEndpoint)); diff != "" || !strings.Contains(summary, string(replaceEndpoint)) {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}
