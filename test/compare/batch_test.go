package main

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inet"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// planFor plans the Services of a cluster of one size.
func planFor(z size) *plan.Planner {
	return (&world{size: z}).plan()
}

// TestBareBatch: the kernel has every planned element, and none after the deletion.
func TestBareBatch(t *testing.T) {
	lab.EnterNamespace(t)
	conn, err := nft.Open()
	lab.Must(t, err)
	defer conn.Close()
	z := size{50, 3, inet.IPv4}
	p := planFor(z)
	b, n := bare(p)
	lab.Must(t, conn.Commit(b))
	planned := map[*nft.Set]int{}
	p.Elements(func(e *nft.Element) { planned[e.Set]++ })
	all := 0
	for _, table := range p.Tables() {
		for _, s := range table.Sets {
			list, err := conn.Elements(s)
			if n := planned[s]; err != nil || len(list) != n && s.Name != plan.StateSet {
				t.Errorf("%s %s: the kernel holds %d elements, %v, want %d", s.Family.Keyword(), s.Name, len(list), err, n)
			}
			all += len(list)
		}
	}
	if least := z.services * (1 + z.endpoints); all < least || all < n-len(p.Tables()) || all > n {
		t.Errorf("the kernel holds %d elements, want %d, at least %d", all, n, least)
	}
	lab.Must(t, forget(t.Context(), conn, p))
	for _, table := range p.Tables() {
		if found, err := conn.HasTable(table.Family, table.Name); err != nil || found {
			t.Errorf("afterwards table %s %s is there: %v, %v", table.Family.Keyword(), table.Name, found, err)
		}
	}
}
