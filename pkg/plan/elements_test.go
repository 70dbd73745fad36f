package plan

import (
	"slices"
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestVotes(t *testing.T) {
	table := votes[string]{}
	for i, step := range []struct {
		pro, contra int32
		was, is     bool
	}{
		{1, 0, false, true},
		{1, 0, true, true},
		{0, 1, true, false},
		{-1, 0, false, false},
		{0, -1, false, true},
		{-1, 0, true, false},
		{0, 1, false, false},
		{1, -1, false, true},
		{-1, 0, true, false},
	} {
		was, is := table.cast("e", step.pro, step.contra)
		listed := false
		table.each(func(found string) { listed = found == "e" })
		lab.Same(t, step.was, was, "was wanted", i)
		lab.Same(t, step.is, is, "is wanted", i)
		lab.Same(t, step.is, listed, "is listed", i)
	}
	lab.Same(t, 0, len(table), "elements with votes at the end")
}

func TestReplaced(t *testing.T) {
	far := slices.Repeat([]int{0}, 2*nearby)
	for _, c := range []struct{ old, now, removed, added []int }{
		{},
		{old: []int{1, 2}, now: []int{1, 2}},
		{now: []int{1, 2}, added: []int{1, 2}},
		{old: []int{1, 2}, removed: []int{1, 2}},
		{old: []int{1, 2, 3}, now: []int{1, 4, 3}, removed: []int{2}, added: []int{4}},
		{old: []int{1, 3}, now: []int{1, 2, 3, 4}, added: []int{2, 4}},
		{old: []int{1, 2, 3, 4}, now: []int{2, 4}, removed: []int{1, 3}},
		{old: append(slices.Clone(far), 1), now: []int{1}, removed: append(slices.Clone(far), 1), added: []int{1}},
	} {
		removed, added := replaced(c.old, c.now)
		lab.Same(t, true, slices.Equal(c.removed, removed), "removed", c.old, c.now, removed)
		lab.Same(t, true, slices.Equal(c.added, added), "added", c.old, c.now, added)
	}
}
