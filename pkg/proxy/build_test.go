package proxy

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
	"github.com/kube-nftproxy/kube-nftproxy/test/lab"
)

// pairedSource blocks the read of the first Service of an even block until the first Service of the next block is read. alone counts
// reads that waited in vain.
type pairedSource struct {
	*fakeSource
	begun map[types.NamespacedName]chan struct{}
	waits map[types.NamespacedName]chan struct{}
	alone atomic.Int32
}

func (s *pairedSource) Get(n types.NamespacedName) model.Objects {
	if begun := s.begun[n]; begun != nil {
		close(begun)
	}
	if other := s.waits[n]; other != nil {
		select {
		case <-other:
		case <-time.After(5 * time.Second):
			s.alone.Add(1)
		}
	}
	return s.fakeSource.Get(n)
}

// TestAwaitBuildsOtherBlocks: the loop builds other blocks while another goroutine builds the next block.
func TestAwaitBuildsOtherBlocks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const blocks = 6
	s := &pairedSource{
		fakeSource: &fakeSource{}, begun: map[types.NamespacedName]chan struct{}{}, waits: map[types.NamespacedName]chan struct{}{},
	}
	var names []types.NamespacedName
	for i := range blocks * blockSize {
		names = append(names, types.NamespacedName{Name: fmt.Sprint(i)})
	}
	for first := 0; first < len(names); first += 2 * blockSize {
		met := make(chan struct{})
		s.waits[names[first]], s.begun[names[first+blockSize]] = met, met
	}
	var taken []types.NamespacedName
	c := &Config{Source: s, Kernel: &fakeKernel{}, Planner: plan.New(plan.Options{})}
	take := func(name types.NamespacedName, _ *model.Service) bool { taken = append(taken, name); return true }
	newRebuilder(c, &model.Node{}, time.Now).build(names, nil, take)
	lab.Same(t, names, taken, "Services that were taken")
	if n := s.alone.Load(); n > 0 {
		t.Errorf("%d of %d pairs of blocks were not built at the same time", n, blocks/2)
	}
}
