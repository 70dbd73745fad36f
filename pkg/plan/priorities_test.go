package plan

import (
	"slices"
	"testing"
)

// TestPrioritiesOfInstances: the default instance is before dstnat while its lease lasts, and directly behind it afterwards. An instance with a name is
// behind both, and handles unclaimed packets before the default instance.
func TestPrioritiesOfInstances(t *testing.T) {
	d, n := prioritiesOf(&Options{}), prioritiesOf(&Options{ServiceProxyName: "try"})
	order := []int32{d.leased, dstnat, d.expired, n.leased, n.expired, n.unclaimed, d.unclaimed}
	if !slices.IsSorted(order) || len(slices.Compact(order)) < 7 {
		t.Errorf("the order is %v", order)
	}
	if d.leased != dstnat-1 || d.expired != dstnat+1 {
		t.Errorf("the default instance has %+v: a chain of another program may be between it and dstnat", d)
	}
}
