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

// block holds Services that one goroutine builds.
type block struct {
	names []types.NamespacedName
	// services holds the results. readings holds the previous readings, which the new ones replace.
	services []*model.Service
	readings []*model.Reading
	// n is the number of Services built in time. built is closed when the block is complete or out of time.
	n     int
	built chan struct{}
}

// blockSize is the number of Services in a block: large enough for a low overhead of passing blocks between goroutines, and small
// enough for a short wait for a block.
const blockSize = 32

// build builds Services and calls take with each of them, in the order of names and in the caller's goroutine. It stops when take
// returns false or late returns true; late may be nil. Services are independent of each other, so build uses all processors for
// many Services.
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

// mostAhead is the largest number of blocks that are built but not taken. If take returns false, their work is lost.
const mostAhead = 32

// works holds the blocks of one build. Each goroutine builds the next block that no goroutine has started.
type works struct {
	proxy  *Proxy
	late   func() bool
	blocks []*block
	begun  atomic.Int64
	// room holds one value for each block that was started and is not taken yet. stop is closed when no further block is needed.
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

// await waits until a block is built, and builds other blocks meanwhile. Without this work, a processor would be idle half of the
// time.
func (w *works) await(b *block) {
	for {
		select {
		case <-b.built:
			return
		default:
		}
		select {
		case w.room <- struct{}{}:
		default: // room is full, and all earlier blocks are taken, so this block was started
			<-b.built
			return
		}
		if !w.buildNext(&w.proxy.room) {
			<-b.built
			return
		}
	}
}

// recall looks up the numbers of new Services in the kernel's tables and reserves them in the plan. With other numbers, the tables
// would need a full sync.
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

// buildService builds a Service from its objects. If the Service has many slices, it uses the previous reading and returns the new
// one. Otherwise the returned reading is nil.
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
