package apply

import (
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// readings is a Counts that counts calls of Await, and the elements that were reported after a batch.
type readings struct{ awaited, begun, reported int }

func (r *readings) Await(time.Duration) error {
	if r.begun > 0 {
		panic("read after the batch has begun")
	}
	r.awaited++
	return nil
}
func (r *readings) Begin() { r.begun++ }
func (r *readings) End(gone []nft.Counted, _ bool) {
	r.reported += len(gone)
	r.begun = 0
}
func (r *readings) Adopted() {}

// TestManyDeletionsAreNotReported: each report takes kernel memory until the end of the commit. So before a batch that deletes many elements, the
// counters are read.
func TestManyDeletionsAreNotReported(t *testing.T) {
	for name, c := range map[string]struct {
		services, awaited int
	}{
		"few":  {20, 0},
		"many": {900, 1}, // each Service has at least 2 x 4 elements with counters
	} {
		t.Run(name, func(t *testing.T) {
			lab.EnterNamespace(t)
			k, p, r := open(t), plan.New(options()), &readings{}
			k.Count(r)
			for i := range c.services {
				s := everything(i, 1, 0, false)
				p.Set(s.Name, s)
			}
			sync(t, k, p, Full)
			run(t, "nft", "flush chain ip kube-nftproxy services")
			k.Doubt()
			k.others.suspect("a chain is empty", k.generation)
			*r = readings{}
			sync(t, k, p, Full)
			if r.awaited != c.awaited {
				t.Errorf("counters were read %d times before a rewrite of %d Services, want %d", r.awaited, c.services, c.awaited)
			}
			checkKernel(t, k, p)
		})
	}
}
