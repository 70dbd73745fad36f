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

// block is a group of Services that one goroutine builds.
type block struct {
	names []types.NamespacedName
	// services are the results. readings holds the previous readings, then the new ones.
	services []*model.Service
	readings []*model.Reading
	// n is the number of Services built in time. built is closed when the block is complete or out of time.
	n     int
	built chan struct{}
}

// blockSize is large enough to make the hand-over cheap, and small enough to keep waiting short.
const blockSize = 32

// build builds Services and calls take with each, in the order of names. It stops when take returns false or late returns true;
// late may be nil. Services are independent of each other, so all processors build if there are many. The caller's goroutine
// calls take.
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

// mostAhead is the largest number of blocks built but not taken. They are wasted if take returns false.
const mostAhead = 32

// works are the blocks of one build. Each goroutine builds the next block that is not started.
type works struct {
	proxy  *Proxy
	late   func() bool
	blocks []*block
	begun  atomic.Int64
	// room has a value for each block that was started and is not taken. stop is closed when no further block is needed.
	room chan struct{}
	stop chan struct{}
}

// enter waits for room for another block. It returns false if no further block is needed.
func (w *works) enter() bool {
	select {
	case w.room <- struct{}{}:
		return true
	case <-w.stop:
		return false
	}
}

// buildNext builds the next block. It returns false if none is left.
func (w *works) buildNext(room *model.Room) bool {
	next := int(w.begun.Add(1)) - 1
	if next >= len(w.blocks) {
		return false
	}
	w.proxy.buildBlock(room, w.blocks[next], w.late)
	return true
}

// await waits for a block and builds others meanwhile. Mere waiting would leave a processor idle half of the time.
func (w *works) await(b *block) {
	for {
		select {
		case <-b.built:
			return
		default:
		}
		select {
		case w.room <- struct{}{}:
		default: // all earlier blocks are taken, so this one was started
			<-b.built
			return
		}
		if !w.buildNext(&w.proxy.room) {
			<-b.built
			return
		}
	}
}

// recall reserves for new Services the numbers that they have in the kernel's tables. With other numbers, the tables would need a
// full sync.
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

// buildService builds a Service from its objects. If the Service has many slices, it reuses the previous reading and returns the
// new one, else nil.
func (p *Proxy) buildService(room *model.Room, name types.NamespacedName, before *model.Reading) (*model.Service, *model.Reading) {
	if !p.Source.ReadService(name, &room.Service) {
		return nil, nil
	}
	return model.Rebuild(room, before, p.Source.Stored(name), p.node, p.Model)
}

// remember keeps the reading of a Service.
func (p *Proxy) remember(name types.NamespacedName, r *model.Reading) {
	if r != nil {
		p.readings[name] = r
	} else {
		delete(p.readings, name)
	}
}
