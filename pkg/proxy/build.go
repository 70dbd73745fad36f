package proxy

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/model"
)

// block is a number of Services that one goroutine makes of their objects.
type block struct {
	names []types.NamespacedName
	// built are what they have become; what had been read of them is replaced by what has been now.
	services []*model.Service
	readings []*model.Reading
	// n is how many of them there was time for; built is closed when no more are made.
	n     int
	built chan struct{}
}

// blockSize is large enough for handing over to cost nothing, and small enough for nobody to wait long.
const blockSize = 32

// build makes Services of their objects, and calls take with each, in the order of the names, until it returns false, or late, unless nil,
// reports true. What becomes of one doesn't depend on the others, so all processors do it where there are many; take is only called by
// the caller's goroutine.
func (p *Proxy) build(names []types.NamespacedName, late func() bool, take func(types.NamespacedName, *model.Service) (more bool)) {
	if len(names) <= blockSize {
		for _, name := range names {
			s, reading := p.buildService(&p.room, name, p.readings[name])
			p.remember(name, reading)
			p.recall([]*model.Service{s})
			if !take(name, s) || late != nil && late() {
				return
			}
		}
		return
	}
	w := &works{proxy: p, late: late, blocks: make([]*block, 0, len(names)/blockSize+1), room: make(chan struct{}, mostAhead), stop: make(chan struct{})}
	for chunk := range slices.Chunk(names, blockSize) {
		w.blocks = append(w.blocks, p.newBlock(chunk))
	}
	var others sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(w.blocks)) - 1 {
		others.Go(func() {
			var room model.Room
			for w.enter() {
				if !w.buildNext(&room) {
					return
				}
			}
		})
	}
	defer others.Wait()
	defer close(w.stop)
	for _, b := range w.blocks {
		w.await(b)
		<-w.room
		p.recall(b.services[:b.n])
		for i, name := range b.names[:b.n] {
			p.remember(name, b.readings[i])
			if !take(name, b.services[i]) {
				return
			}
		}
		if late != nil && late() {
			return
		}
		b.services, b.readings = nil, nil
	}
}

// mostAhead is how many blocks are built before they are taken, in vain where nobody takes them any more.
const mostAhead = 32

// works are the blocks that several goroutines build, each the next one that nobody has begun.
type works struct {
	proxy  *Proxy
	late   func() bool
	blocks []*block
	begun  atomic.Int64
	// room has a value for each block that has begun and isn't taken; stop is closed when no further one is wanted.
	room chan struct{}
	stop chan struct{}
}

// enter waits for room for another block. It reports false if none is wanted.
func (w *works) enter() bool {
	select {
	case w.room <- struct{}{}:
		return true
	case <-w.stop:
		return false
	}
}

// buildNext reports false if there is nothing left to begin.
func (w *works) buildNext(room *model.Room) bool {
	next := int(w.begun.Add(1)) - 1
	if next >= len(w.blocks) {
		return false
	}
	w.proxy.buildBlock(room, w.blocks[next], w.late)
	return true
}

// await returns when a block has been built. Meanwhile it builds others: who only waited would leave a processor idle half of the time.
func (w *works) await(b *block) {
	for {
		select {
		case <-b.built:
			return
		default:
		}
		select {
		case w.room <- struct{}{}:
		default: // it has begun: all before it were taken
			<-b.built
			return
		}
		if !w.buildNext(&w.proxy.room) {
			<-b.built
			return
		}
	}
}

// recall makes Services that are planned for the first time have the numbers that the kernel's tables have. Without them they get others,
// and all is written again.
func (p *Proxy) recall(services []*model.Service) {
	if !p.Planner.Recalling() {
		return
	}
	if err := p.Kernel.Recall(p.Planner, services); err != nil {
		klog.Background().Error(err, "Cannot read the numbers of Services in the kernel's tables; session affinity of some clients may be lost")
		p.Planner.Resumed()
	}
}

func (p *Proxy) newBlock(names []types.NamespacedName) *block {
	b := &block{
		names: names, services: make([]*model.Service, len(names)), readings: make([]*model.Reading, len(names)), built: make(chan struct{}),
	}
	for i, name := range names {
		b.readings[i] = p.readings[name]
	}
	return b
}

func (p *Proxy) buildBlock(room *model.Room, b *block, late func() bool) {
	for i, name := range b.names {
		b.services[i], b.readings[i] = p.buildService(room, name, b.readings[i])
		if b.n = i + 1; late != nil && late() {
			break
		}
	}
	close(b.built)
}

// buildService makes a Service of its objects. Of one with many slices it takes what has been read before and returns what has been
// now, nil of others: that of one changes at a time.
func (p *Proxy) buildService(room *model.Room, name types.NamespacedName, before *model.Reading) (*model.Service, *model.Reading) {
	if !p.Source.ReadService(name, &room.Service) {
		return nil, nil
	}
	return model.Rebuild(room, before, p.Source.Stored(name), p.node, p.Model)
}

// remember keeps what has been read of a Service.
func (p *Proxy) remember(name types.NamespacedName, r *model.Reading) {
	if r != nil {
		p.readings[name] = r
	} else {
		delete(p.readings, name)
	}
}
