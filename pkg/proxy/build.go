package proxy

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
	"github.com/kube-nftproxy/kube-nftproxy/pkg/plan"
)

// block holds Services that one goroutine builds.
type block struct {
	names []types.NamespacedName
	// services holds the results. starts holds the starting endpoints so far; nil if no Service has any.
	services []*model.Service
	starts   []*model.Starts
	// n is the number of Services built in time. built is closed when the block is complete or out of time.
	n     int
	built chan struct{}
}

// blockSize is the number of Services in a block. Larger blocks reduce the overhead of passing blocks between goroutines. Smaller
// blocks reduce the wait for a block.
const blockSize = 32

// rebuilder builds changed Services from their objects.
type rebuilder struct {
	source  Source
	kernel  Kernel
	planner *plan.Planner
	options model.Options
	// node is the node for which Services are built. It does not change during a build.
	node *model.Node
	// clock returns the current time, or the zero time before the first sync. now is its value at the start of a build.
	clock func() time.Time
	now   time.Time
	// starts holds the starting endpoints of Services with slow start, and steps the times of their next steps.
	starts map[types.NamespacedName]*model.Starts
	steps  steps
}

func newRebuilder(c *Config, node *model.Node, clock func() time.Time) *rebuilder {
	return &rebuilder{
		source: c.Source, kernel: c.Kernel, planner: c.Planner, options: c.Model, node: node, clock: clock,
		starts: map[types.NamespacedName]*model.Starts{},
	}
}

// build builds Services and calls take with each of them, in the order of names and in the caller's goroutine. It stops when take
// returns false or late returns true; late may be nil. Services are independent of each other, so build uses all processors for
// many Services.
func (b *rebuilder) build(names []types.NamespacedName, late func() bool, take func(types.NamespacedName, *model.Service) (more bool)) {
	b.now = b.clock()
	if len(names) <= blockSize {
		for _, name := range names {
			s := b.buildService(name, b.starts[name])
			b.remember(name, s)
			b.recall([]*model.Service{s})
			if !take(name, s) || late != nil && late() {
				return
			}
		}
		return
	}
	w := &pool{rebuilder: b, late: late, blocks: make([]*block, 0, len(names)/blockSize+1), ahead: make(chan struct{}, mostAhead), stop: make(chan struct{})}
	for chunk := range slices.Chunk(names, blockSize) {
		w.blocks = append(w.blocks, b.newBlock(chunk))
	}
	var others sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(w.blocks)) - 1 {
		others.Go(func() {
			for w.enter() && w.buildNext() {
			}
		})
	}
	defer others.Wait()
	defer close(w.stop)
	for _, k := range w.blocks {
		w.await(k)
		<-w.ahead
		b.recall(k.services[:k.n])
		for i, name := range k.names[:k.n] {
			b.remember(name, k.services[i])
			if !take(name, k.services[i]) {
				return
			}
		}
		if late != nil && late() {
			return
		}
		k.services = nil
	}
}

// mostAhead is the largest number of blocks that are started but not taken. If take returns false, this work is lost.
const mostAhead = 32

// pool holds the blocks of one build. Each goroutine builds the next block that no goroutine has started.
type pool struct {
	rebuilder *rebuilder
	late      func() bool
	blocks    []*block
	begun     atomic.Int64
	// ahead holds one value for each block that was started and is not taken yet. stop is closed when no further block is needed.
	ahead chan struct{}
	stop  chan struct{}
}

// enter waits until another block may start. It returns false if no further block is needed.
func (w *pool) enter() bool {
	select {
	case w.ahead <- struct{}{}:
		return true
	case <-w.stop:
		return false
	}
}

// buildNext builds the next block. It returns false if none is left.
func (w *pool) buildNext() bool {
	next := int(w.begun.Add(1)) - 1
	if next >= len(w.blocks) {
		return false
	}
	w.rebuilder.buildBlock(w.blocks[next], w.late)
	return true
}

// await waits until a block is built, and builds other blocks during this time. Otherwise, the processor of the loop would be idle
// during the wait.
func (w *pool) await(b *block) {
	for {
		select {
		case <-b.built:
			return
		default:
		}
		select {
		case w.ahead <- struct{}{}:
		default: // ahead is full, and all earlier blocks are taken, so this block was started
			<-b.built
			return
		}
		if !w.buildNext() {
			<-b.built
			return
		}
	}
}

// recall looks up the numbers of new Services in the kernel's tables and reserves them in the plan. If the plan had different numbers, the tables
// would need a full sync.
func (b *rebuilder) recall(services []*model.Service) {
	if err := b.kernel.Recall(b.planner, services); err != nil {
		klog.Background().Error(err, "Cannot read the numbers of Services in the kernel's tables; session affinity of some clients may be lost")
	}
}

func (b *rebuilder) newBlock(names []types.NamespacedName) *block {
	k := &block{names: names, built: make(chan struct{})}
	if len(b.starts) > 0 {
		k.starts = make([]*model.Starts, len(names))
		for i, name := range names {
			k.starts[i] = b.starts[name]
		}
	}
	return k
}

func (b *rebuilder) buildBlock(k *block, late func() bool) {
	k.services = make([]*model.Service, len(k.names))
	for i, name := range k.names {
		var starts *model.Starts
		if k.starts != nil {
			starts = k.starts[i]
		}
		k.services[i] = b.buildService(name, starts)
		if k.n = i + 1; late != nil && late() {
			break
		}
	}
	close(k.built)
}

// buildService builds a Service from its objects and its starting endpoints so far.
func (b *rebuilder) buildService(name types.NamespacedName, starts *model.Starts) *model.Service {
	options := b.options
	options.Starts, options.Now = starts, &b.now
	return model.Build(b.source.Get(name), *b.node, options)
}

// remember keeps the starting endpoints of a Service, which may be nil.
func (b *rebuilder) remember(name types.NamespacedName, s *model.Service) {
	if s == nil || s.Starts == nil {
		delete(b.starts, name)
		b.steps.note(name, time.Time{})
		return
	}
	b.starts[name] = s.Starts
	b.steps.note(name, s.Starts.Next())
}
