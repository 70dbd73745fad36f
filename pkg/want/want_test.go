package want

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

func TestVotes(t *testing.T) {
	table := New()
	e := nft.Element{Set: &nft.Set{Name: "s", Verdict: true}, Key: nft.Value{}.Uint32(1), Chain: "c", Jump: true}
	for i, step := range []struct {
		pro, contra int32
		want        Change
		wanted      bool
	}{
		{1, 0, Wanted, true},
		{1, 0, Same, true},
		{0, 1, Unwanted, false},
		{-1, 0, Same, false},
		{0, -1, Wanted, true},
		{-1, 0, Unwanted, false},
		{0, 1, Same, false},
		{1, -1, Wanted, true},
		{-1, 0, Unwanted, false},
	} {
		got := table.Vote(&e, step.pro, step.contra)
		listed := false
		table.Each(func(found *nft.Element) { listed = *found == e })
		lab.Same(t, step.want, got, "change", i)
		lab.Same(t, step.wanted, listed, "is listed", i)
		lab.Same(t, step.wanted, table.Has(e.ID()), "is wanted", i)
	}
	lab.Same(t, 0, table.Len(), "elements with votes at the end")
}
