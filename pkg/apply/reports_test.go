package apply

import (
	"fmt"
	"regexp"
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
func (r *readings) End(gone []nft.Found, _ bool) {
	r.reported += len(gone)
	r.begun = 0
}
func (r *readings) Adopted() {}

// TestManyDeletionsAreNotReported: the kernel reports the counters of deleted elements. Each report takes kernel memory until the end of the commit. So a
// batch that deletes many elements requests no reports, and the program reads the counters before the batch.
func TestManyDeletionsAreNotReported(t *testing.T) {
	for name, c := range map[string]struct {
		services, awaited, reported int
	}{
		"few":  {20, 0, 1},
		"many": {900, 1, 0}, // each Service has at least 2 x 4 elements with counters
	} {
		t.Run(name, func(t *testing.T) {
			lab.EnterNamespace(t)
			k, p, r := open(t), plan.New(options()), &readings{}
			k.Count(r)
			for i := range c.services {
				s := everything(i, 1, 0, false)
				p.Set(s.Name, s)
			}
			mustSync(t, k, p, Full)
			countPackets(t)
			run(t, "nft", "flush chain ip kube-nftproxy services")
			k.Doubt()
			k.others.suspect("a chain is empty", k.generation)
			*r = readings{}
			mustSync(t, k, p, Full)
			if r.awaited != c.awaited {
				t.Errorf("counters were read %d times before a rewrite of %d Services, want %d", r.awaited, c.services, c.awaited)
			}
			if r.reported != c.reported {
				t.Errorf("a rewrite of %d Services reported %d elements, want %d", c.services, r.reported, c.reported)
			}
			checkKernel(t, k, p)
		})
	}
}

// countPackets gives a counter above 0 to one element of the map services. The kernel reports only such counters.
func countPackets(t *testing.T) {
	t.Helper()
	e := regexp.MustCompile(`(10\.[0-9.]+ \. tcp \. \d+) counter packets 0 bytes 0( comment "[^"]*")? : (\S+?),?\s`).FindStringSubmatch(run(t, "nft", "list map ip kube-nftproxy services"))
	if e == nil {
		t.Fatal("no element with a counter")
	}
	run(t, "nft", fmt.Sprintf("delete element ip kube-nftproxy services { %s }; add element ip kube-nftproxy services { %s counter packets 5 bytes 300%s : %s }", e[1], e[1], e[2], e[3]))
}
