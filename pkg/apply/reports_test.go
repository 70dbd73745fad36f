package apply

import (
	"testing"
	"time"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/nft"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// readings notes how often counters are to be read before a batch, and how many elements were reported after it.
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

// Each report takes kernel memory until the end of the commit: of many elements, the counters are read before, and none is reported.
func TestManyDeletionsAreNotReported(t *testing.T) {
	for name, c := range map[string]struct {
		services, awaited int
	}{
		"few":  {20, 0},
		"many": {900, 1}, // of 2 x 4 counted elements at least
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
