package apply

import (
	"testing"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// TestTheProbeSkipsTablesOfTheSameForm: if tables of an earlier process have the planned form, the probe skips them.
func TestTheProbeSkipsTablesOfTheSameForm(t *testing.T) {
	lab.EnterNamespace(t)
	k, err := Open()
	lab.Must(t, err)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	other := options()
	other.MasqueradeMark <<= 1
	check := func(o plan.Options, want bool) {
		t.Helper()
		for _, table := range plan.New(o).Rules().Samples() {
			left, _, err := k.leftState(table)
			if got := left != nil && left.layout == nft.Fingerprint(table); err != nil || got != want {
				t.Errorf("table %s has the form: %v, %v, want %v", table.Family.Keyword(), got, err, want)
			}
		}
		if lacks, err := k.Lacks(o); err != nil || len(lacks) > 0 {
			t.Errorf("Lacks() = %v, %v", lacks, err)
		}
	}
	check(options(), false)
	p := plan.New(options())
	p.Set(everything(1, 3, 0, true).Name, everything(1, 3, 0, true))
	lab.Must(t, lab.Err(k.Sync(p)))
	check(options(), true)
	check(other, false)
}
